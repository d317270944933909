"""`dshctl diff`: where two sessions part, such as a fork and its parent; or what came between two points of one."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from dsh_client.cli.figures import counted
from dsh_client.cli.reading import Source, at_seq, read_events
from dsh_client.cli.transcript import event_line
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from dsh_client.cli.context import Context

    Event = dict[str, Any]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `diff` takes."""
    about = "a session; with @SEQ, only up to that event and with it"
    parser.add_argument("a", metavar="A[@SEQ]", help=about)
    parser.add_argument("b", metavar="B[@SEQ]", help=about)
    parser.add_argument(
        "--chunks", action="store_true", help="every streamed piece, not only how many"
    )
    parser.epilog = "examples:\n  dshctl diff PARENT FORK\n  dshctl diff @last@40 @last"


def run(arguments: Namespace, context: Context) -> int:
    """Print what only one of the two has, after what both have; the exit code is 0 also where they differ."""
    a, stop_a = at_seq(arguments.a, "@", context)
    b, stop_b = at_seq(arguments.b, "@", context)
    common, only_a, only_b = _compare(_events(a, stop_a, context), _events(b, stop_b, context))
    if context.out.form == "json":
        context.out.json(
            {
                "a": {"id": a.id, "seq": stop_a},
                "b": {"id": b.id, "seq": stop_b},
                "common": common,
                "onlyA": only_a,
                "onlyB": only_b,
            }
        )
        return EXIT_OK
    if context.out.form == "jsonl":
        for side, events in (("a", only_a), ("b", only_b)):
            for event in events:
                context.out.json({"only": side, "event": event})
        return EXIT_OK
    if not only_a and not only_b:
        context.out.line(f"the same {counted(common, 'event')}")
        return EXIT_OK
    context.out.line(
        f"{counted(common, 'event')} in common" + (f", up to {common - 1}" if common else "")
    )
    for sign, source, events in (("-", a, only_a), ("+", b, only_b)):
        _print(sign, source, events, context, chunks=arguments.chunks)
    return EXIT_OK


def _events(source: Source, last: int | None, context: Context) -> Iterator[Event]:
    return read_events(source.id, context, 0, None if last is None else last + 1)


def _compare(a: Iterator[Event], b: Iterator[Event]) -> tuple[int, list[Event], list[Event]]:
    """Return how many events are the same from the beginning on, and the rest of each side."""
    common = 0
    for mine, theirs in zip_longest(a, b):
        if mine is None or theirs is None or mine != theirs:
            only_a = [] if mine is None else [mine, *a]
            return common, only_a, [] if theirs is None else [theirs, *b]
        common += 1
    return common, [], []


def _print(
    sign: str, source: Source, events: list[Event], context: Context, *, chunks: bool
) -> None:
    out = context.out
    if not events:
        return
    out.line()
    out.line(f"{sign * 3} only in {source.id}: {counted(len(events), 'event')}")
    columns = None if out.terminal.columns is None else max(out.terminal.columns - 2, 1)
    run = 0
    for event in events:
        if event.get("type") == "assistant/chunk" and not chunks:
            run += 1
            continue
        _print_run(sign, run, context)
        run = 0
        out.line(f"{sign} {event_line(event, columns)}")
    _print_run(sign, run, context)


def _print_run(sign: str, run: int, context: Context) -> None:
    if run:
        context.out.line(f"{sign}         … {counted(run, 'streamed piece')}")
