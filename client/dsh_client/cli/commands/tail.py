"""`dshctl tail`: the last events of a session and whatever comes, for as long as one likes; `log -f` from the start.

The rule: an event is printed once and in order, and the command that goes on after the last one is told at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_client.cli.cleaning import EventCleaner
from dsh_client.cli.context import UsageError
from dsh_client.cli.figures import counted
from dsh_client.cli.following import Follower, SessionEndedError
from dsh_client.cli.reading import at_seq
from dsh_client.cli.text import escape, shell_word
from dsh_client.cli.transcript import event_line
from dsh_client.cli.values import count
from dsh_protocol.errors import EXIT_NO_SUCH_SESSION, EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_LAST = 10


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `tail` takes."""
    parser.add_argument(
        "id",
        metavar="ID[:SEQ]",
        help="an id, a unique beginning of one, or @last; with :SEQ, begin with that event",
    )
    parser.add_argument(
        "-n", "--count", metavar="N", type=count, help=f"the last N events first (default {_LAST})"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="what it does anyway")
    parser.epilog = "examples:\n  dshctl tail -f @last\n  dshctl -o jsonl tail 0198:120     go on with event 120"


def run(arguments: Namespace, context: Context) -> int:
    """Follow until the session or the reader ends."""
    last = _LAST if arguments.count is None else arguments.count
    return follow(arguments, context, last)


def follow(arguments: Namespace, context: Context, last: int | None) -> int:
    """Follow a session from `ID:SEQ`, else from its last events; None begins at the first."""
    out = context.out
    if out.form == "json":
        raise UsageError("what is followed has no end, so it is no one document; take -o jsonl")
    source, start = at_seq(arguments.id, ":", context)
    if start is None:
        start = getattr(arguments, "start", None)
    if start is None:
        durable = source.session.get("durableSeq") or 0
        start = 0 if last is None else max(0, durable - last)
    cleaner = EventCleaner(context.redactor)
    follower = Follower(arguments.socket, source.id, start, arguments.timeout)
    try:
        for events in follower.batches():
            for event in cleaner.events(events):
                if out.is_table:
                    out.line(event_line(event, out.terminal.columns))
                else:
                    out.json(event)
            out.flush()
    except SessionEndedError as error:
        out.note(f"dshctl: the session is gone: {escape(str(error))}")
        return EXIT_NO_SUCH_SESSION
    finally:
        if follower.lags:
            out.note(
                f"this reader fell behind {counted(follower.lags, 'time')}; nothing is missing"
            )
        out.note(f"to go on: dshctl tail {shell_word(f'{source.id}:{follower.next_seq}')}")
    return EXIT_OK
