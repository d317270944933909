"""`dshctl rpc`: call any method of the daemon with parameters as JSON.

The rule: what is sent means what was written. What Python would read otherwise is refused, here or by the daemon.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from dsh_client.cli.context import UsageError
from dsh_client.cli.values import as_object
from dsh_protocol.errors import EXIT_CHECKPOINT_REFUSED, EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `rpc` takes."""
    parser.add_argument(
        "method", metavar="METHOD", help="such as daemon.status; rpc.discover lists them all"
    )
    parser.add_argument(
        "params", metavar="JSON", nargs="?", help="an object; - reads it from standard input"
    )
    parser.epilog = 'example:\n  dshctl rpc session.read \'{"id": "0198", "offset": 40}\''


def run(arguments: Namespace, context: Context) -> int:
    """Print the result. A tool checkpoint that does not say DISPATCH is a refusal."""
    result = context.call(arguments.method, _params(arguments.params))
    if context.out.is_table:
        context.out.pretty(result)
    else:
        context.out.json(result)
    decision = as_object(result).get("decision", "DISPATCH")
    return EXIT_OK if decision == "DISPATCH" else EXIT_CHECKPOINT_REFUSED


def _params(text: str | None) -> dict[str, Any]:
    """Return the parameters that the command line gives."""
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    if text is None:
        return {}
    try:
        params = json.loads(text, object_pairs_hook=_object, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f'the parameters are not JSON: {error}\ntry: dshctl rpc METHOD \'{{"id": "a1"}}\''
        ) from None
    if not isinstance(params, dict):
        raise UsageError(
            'the parameters must be a JSON object\ntry: dshctl rpc METHOD \'{"id": "a1"}\''
        )
    return as_object(params)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, none of whose keys stands twice: the first of them would be lost without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def _whole(text: str) -> int | float:
    """Return a whole number, also the negative zero, of which an `int` knows nothing: the daemon refuses it."""
    return float(text) if text == "-0" else int(text)
