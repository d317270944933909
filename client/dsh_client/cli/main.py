"""The program `dshctl`: its verbs, its parser, and the one place where an error becomes an exit code.

The rule: what is imported at start is argparse, json, socket and os, and this package's own small modules; a verb's
module is imported when that verb runs. A test looks at `sys.modules`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from dsh_client.cli.context import Context, UsageError
from dsh_client.cli.hints import hint
from dsh_client.cli.output import FORMS, Output, OutputLostError, bytes_of, terminal_of
from dsh_client.cli.text import escape
from dsh_client.cli.verbs import BY_NAME, VERBS
from dsh_client.errors import ClientError
from dsh_protocol.errors import (
    EXIT_CANNOT_START,
    EXIT_CHECKPOINT_REFUSED,
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    DshdError,
)
from dsh_protocol.paths import PathUnusableError
from dsh_protocol.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_client.cli.output import Terminal
    from dsh_client.cli.paging import Paged
    from dsh_client.cli.verbs import Verb

_OF_ANOTHER_AGE = {"METHOD_NOT_FOUND", "INVALID_PARAMS"}
"""Errors that a daemon of another version may answer to what is right."""
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
_TIMEOUT = 60.0
_GARBAGE = 50_000
"""So many new objects before the collector looks: a list of sessions is none of its business."""
_HELP_COLUMNS = 80
_LONG = {
    "list",
    "ls",
    "search",
    "show",
    "log",
    "steps",
    "stats",
    "diff",
    "du",
    "messages",
    "doctor",
    "metrics",
    "rpc",
}
"""The verbs whose output may be long, and ends."""
_SHARED = {
    "--socket": True,
    "-o": True,
    "--output": True,
    "--timeout": True,
    "--fields": True,
    "--utc": False,
    "--no-pager": False,
    "--no-redact": False,
}
"""The options that may stand in front of a verb, and whether a value follows."""


_EXAMPLES = """\
examples:
  dshctl list                       newest activity first
  dshctl show @last                 the session used last
  dshctl log 0198 -n 20             its last 20 events; a unique beginning of the id will do
  dshctl tail @last                 its last events, and what comes
  dshctl export @last --to run.html one page to read
  dshctl search lighthouse          the sessions in which it was said
  dshctl recover 0198 --apply       close the turn that a crash left open
  dshctl rm 0198                    into the trash; dshctl undelete 0198 brings it back
  dshctl -o json list               the daemon's answer, for programs

exit codes:
  0 ok · 1 failure or damage found · 2 usage, or an ambiguous id · 3 daemon not running · 4 no such session
  5 conflict (busy, writer lost, seq) · 6 a checkpoint was refused · 78 cannot start
"""


class _HelpText(argparse.RawDescriptionHelpFormatter):
    """The layout of `--help`. Without a width argparse would import shutil, for each argument it declares."""

    def __init__(self, prog: str, **options: Any) -> None:
        """Take the width of the terminal, or 80."""
        columns = terminal_of(sys.stdout, os.environ).columns or _HELP_COLUMNS
        super().__init__(prog, **{"width": max(columns - 2, 20), **options})


class Parser(argparse.ArgumentParser):
    """A parser whose messages are safe on a terminal, and that loads its verb only when that is used."""

    verb: Verb | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # typeshed has overloads; they all come to this
        """Parse; a verb's own arguments are added now."""
        self.load()
        return super().parse_known_args(args, namespace)

    def load(self) -> None:
        """Import the verb, and add its own arguments."""
        if self.verb is not None:
            module = importlib.import_module(f"dsh_client.cli.commands.{self.verb.name}")
            module.add_arguments(self)
            self.set_defaults(run=module.run)
            self.verb = None

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, with an error where it is not taken; argparse would pass over that."""
        if file is None or file is not sys.stdout:
            super()._print_message(message, file)
            return
        try:
            file.write(message)
            file.flush()
        except OSError as error:
            raise OutputLostError(error) from error

    def error(self, message: str) -> NoReturn:
        """End with the usage and exit code 2."""
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {escape(message)}\ntry: {self.prog} --help\n")


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise ValueError
    return value


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError
    return names


def _add_shared(parser: Parser, *, default: bool) -> None:
    """Add the options that stand before or after the verb. Only the first parser gives them defaults."""
    absent: Any = argparse.SUPPRESS
    parser.add_argument(
        "--socket", metavar="PATH", default=None if default else absent, help="the daemon's socket"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMS,
        default="table" if default else absent,
        help="table for people (default); json: the daemon's result, one document; jsonl: one item a line",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=_TIMEOUT if default else absent,
        help=f"how long to wait for the daemon (default {_TIMEOUT:g})",
    )
    parser.add_argument(
        "--fields",
        metavar="NAMES",
        type=_names,
        default=None if default else absent,
        help="with -o json or jsonl: only these members, such as id,header.cwd",
    )
    parser.add_argument(
        "--utc",
        action="store_true",
        default=False if default else absent,
        help="times in UTC instead of how long ago",
    )
    parser.add_argument(
        "--no-pager",
        action="store_true",
        default=False if default else absent,
        help="print long output at once, also on a terminal",
    )
    parser.add_argument(
        "--no-redact",
        action="store_true",
        default=False if default else absent,
        help="show what looks like a secret (keys, tokens, passwords); without it, it is hidden",
    )


def build_parser() -> Parser:
    """Return the parser of all verbs."""
    parser = Parser(
        prog="dshctl",
        description="Look at and mend the sessions that dshd keeps.",
        epilog=_EXAMPLES,
        formatter_class=_HelpText,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"dshctl {VERSION}")
    _add_shared(parser, default=True)
    verbs = parser.add_subparsers(
        title="verbs", metavar="VERB", dest="verb", required=True, prog=parser.prog
    )
    for verb in VERBS:
        child = verbs.add_parser(verb.name, aliases=verb.aliases, help=verb.summary, **_style(verb))
        child.verb = verb
        _add_shared(child, default=False)
    return parser


def _style(verb: Verb) -> dict[str, Any]:
    return {
        "description": f"{verb.summary[:1].upper()}{verb.summary[1:]}.",
        "formatter_class": _HelpText,
        "allow_abbrev": False,
    }


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line.

    Where it names a verb, only that verb's parser is made: those of all verbs take longer than most commands do.
    """
    place = _verb_place(words)
    if place is None:
        return build_parser().parse_args(words)
    parser = verb_parser(BY_NAME[words[place]])
    return parser.parse_args([*words[:place], *words[place + 1 :]])


def verb_parser(verb: Verb, *, load: bool = False) -> Parser:
    """Return the parser of one verb; with `load` it knows the verb's own arguments at once."""
    parser = Parser(prog=f"dshctl {verb.name}", **_style(verb))
    parser.verb = verb
    _add_shared(parser, default=True)
    parser.set_defaults(verb=verb.name)
    if load:
        parser.load()
    return parser


def _verb_place(words: Sequence[str]) -> int | None:
    """Return where the verb stands, when only options that all verbs share stand in front of it."""
    place = 0
    while place < len(words):
        name, joined, _ = words[place].partition("=")
        if name in _SHARED:
            place += 2 if _SHARED[name] and not joined else 1
        elif name.startswith("-o") and not joined:
            place += 1
        else:
            return place if words[place] in BY_NAME else None
    return None


def _exit_code(error: DshdError | ClientError, arguments: argparse.Namespace) -> int:
    """Return the exit code of an error; a checkpoint that fails for a reason without its own code is 'refused'."""
    code = error.exit_code
    if code == EXIT_FAILURE and str(getattr(arguments, "method", "")).startswith("checkpoint."):
        return EXIT_CHECKPOINT_REFUSED
    return code


def _tell(context: Context, error: DshdError | ClientError, arguments: argparse.Namespace) -> None:
    """Print what went wrong and what to try next; of a raw call also the facts."""
    out, kind = context.out, getattr(error, "kind", None)
    out.note(f"dshctl: {error.message}" + (f" [{kind}]" if kind else ""))
    facts = getattr(error, "facts", None)
    if facts and hasattr(arguments, "method"):
        out.note("facts: " + json.dumps(facts))
    if kind in _OF_ANOTHER_AGE and context.daemon_version not in {None, VERSION}:
        out.note(f"the daemon is {context.daemon_version}, this dshctl is {VERSION}")
    out.note(f"try: {hint(error, getattr(arguments, 'id', None))}")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Run the parsed verb and return the exit code. Every error ends here, but those of the output itself."""
    context = Context(out, arguments)
    try:
        code: int = arguments.run(arguments, context)
    except (DshdError, ClientError) as error:
        _tell(context, error, arguments)
        code = _exit_code(error, arguments)
    except PathUnusableError as error:
        out.note(f"dshctl: {error}")
        code = EXIT_CANNOT_START
    except UsageError as error:
        first, *more = str(error).split("\n")
        out.note(f"dshctl: {first}")
        for line in more:
            out.note(line)
        code = error.exit_code
    finally:
        context.close()
    out.flush()
    context.tell_redacted()
    if out.chosen is not None and out.chosen.missing:
        out.note(f"nothing has the member {', '.join(sorted(out.chosen.missing))}")
    return code


def _choose(out: Output, arguments: argparse.Namespace) -> None:
    """Have only the members printed that were asked for."""
    if out.is_table:
        out.note("dshctl: --fields needs -o json or -o jsonl")
        raise SystemExit(EXIT_USAGE)
    from dsh_client.cli.fields import Fields

    out.chosen = Fields(arguments.fields)


def _paged(arguments: argparse.Namespace, out: BinaryIO, terminal: Terminal) -> Paged | None:
    """Return what puts long output through a pager; None where that is not wanted."""
    if terminal.columns is None or arguments.no_pager or arguments.verb not in _LONG:
        return None
    if arguments.output != "table" or getattr(arguments, "follow", False):
        return None
    from dsh_client.cli.paging import Paged, pager_of

    words = pager_of(os.environ)
    try:
        rows = os.get_terminal_size(1).lines
    except OSError:
        return None
    return None if words is None or rows < 1 else Paged(out, max(rows - 1, 1), words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dshctl` and return its exit code; as the program itself (without `argv`), end the process with it."""
    if argv is not None:
        return _main(argv)
    gc.set_threshold(_GARBAGE)
    code = _main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)  # to take the interpreter apart costs 5 ms, and there is nothing left to do


def _main(argv: Sequence[str]) -> int:
    try:
        arguments = parse(argv)
    except OutputLostError as error:
        return _lost(error, Output(bytes_of(sys.stdout), bytes_of(sys.stderr), "table"))
    terminal = terminal_of(sys.stdout, os.environ)
    stdout = bytes_of(sys.stdout)
    paged = _paged(arguments, stdout, terminal)
    out = Output(paged or stdout, bytes_of(sys.stderr), arguments.output, terminal)
    out.held = None if paged is None else []
    try:
        return _ended(arguments, out, paged)
    finally:
        if paged is not None:
            paged.close()
        held, out.held = out.held or (), None
        for text in held:
            out.note(text)


def _lost(error: OutputLostError, out: Output) -> int:
    """Say that output was lost, but not of a reader that went away; return the exit code."""
    # The interpreter flushes standard output once more at its end, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.broken:
        return EXIT_PIPE
    out.note(f"dshctl: {error}")
    return EXIT_FAILURE


def _ended(arguments: argparse.Namespace, out: Output, paged: Paged | None) -> int:
    """Run the verb, and return the exit code of what ends outside of it, too."""
    out.utc = arguments.utc
    try:
        if arguments.fields is not None:
            _choose(out, arguments)
        return run(arguments, out)
    except OutputLostError as error:
        if paged is not None and paged.started:
            return EXIT_OK  # the reader had enough
        return _lost(error, out)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
