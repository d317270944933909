"""`dshctl top`: live sessions and how the daemon fares, renewed until one has seen enough."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

from dsh_client.cli import figures, openmetrics
from dsh_client.cli.output import Column
from dsh_client.cli.values import as_list, as_object, count
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context
    from dsh_client.cli.openmetrics import Samples

_SHOWN = 40
_FIRST_S = 0.5
_COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("CLIENT", floor=6),
    Column("TURN", right=True),
    Column("EVENTS", right=True),
    Column("EV/S", right=True),
    Column("OPEN CALLS", floor=10),
    Column("UPDATED"),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `top` takes."""
    parser.add_argument(
        "-d",
        "--delay",
        metavar="SECONDS",
        type=float,
        default=2.0,
        help="between looks (default 2)",
    )
    parser.add_argument(
        "-n", "--count", metavar="N", type=count, help="stop after N looks (on no terminal: 1)"
    )
    parser.epilog = "examples:\n  dshctl top\n  dshctl -o json top -n 1"


def run(arguments: Namespace, context: Context) -> int:
    """Look again and again; the first look already has rates, from half a second."""
    looks = arguments.count
    if looks is None and (context.out.terminal.columns is None or context.out.form == "json"):
        looks = 1
    before = _look(context)
    delay = min(_FIRST_S, max(arguments.delay, 0.0))
    while looks is None or looks > 0:
        select.select([], [], [], delay)
        after = _look(context)
        report = _report(before, after)
        if context.out.is_table:
            if looks != 1:
                context.out.clear()
            _print(report, context)
        else:
            context.out.json(report)
        context.out.flush()
        before, delay = after, max(arguments.delay, 0.1)
        looks = None if looks is None else looks - 1
    return EXIT_OK


class _Look:
    """What was seen at one moment."""

    def __init__(
        self, at: float, status: dict[str, Any], samples: Samples, live: list[Any]
    ) -> None:
        self.at = at
        self.status = status
        self.samples = samples
        self.live: dict[str, dict[str, Any]] = {one["id"]: one for one in live}


def _look(context: Context) -> _Look:
    samples = openmetrics.parse(str(context.call("daemon.metrics").get("text")))
    found: list[dict[str, Any]] = []
    for page in context.sessions({}, 200):
        found += [
            one for one in page["sessions"] if one.get("writer") or one.get("state") == "active"
        ]
    status = context.call("daemon.status")
    return _Look(time.monotonic(), status, samples, found)


def _report(before: _Look, after: _Look) -> dict[str, Any]:
    seconds = after.at - before.at
    old, new = before.samples, after.samples

    def rate(name: str) -> float:
        return round(openmetrics.rate(old, new, name, seconds), 2)

    def fsync(share: float) -> float | None:
        """Return a quantile of the flushes in between; where there was none, of all since the start."""
        recent = openmetrics.quantile(old, new, "dshd_flush_seconds", share)
        found = (
            openmetrics.quantile({}, new, "dshd_flush_seconds", share) if recent is None else recent
        )
        return None if found is None else round(found * 1000, 3)

    return {
        "server": after.status.get("server"),
        "startedAt": after.status.get("startedAt"),
        "states": after.status.get("sessions"),
        "live": [_session(one, before, seconds) for one in after.live.values()],
        "checkpointsPerSecond": rate("dshd_checkpoint_seconds_count"),
        "eventsPerSecond": rate("dshd_events_total"),
        "bytesPerSecond": rate("dshd_written_bytes_total"),
        "flushesPerSecond": rate("dshd_flushes_total"),
        "fsyncMs": {"p50": fsync(0.5), "p99": fsync(0.99)},
        "flushFailures": int(openmetrics.total(new, "dshd_flush_failures_total")),
        "pendingEvents": int(openmetrics.total(new, "dshd_pending_events")),
        "connections": int(openmetrics.total(new, "dshd_connections")),
        "subscriptions": int(openmetrics.total(new, "dshd_subscriptions")),
        "openCalls": sum(len(as_list(one.get("pendingCalls"))) for one in after.live.values()),
    }


def _session(session: dict[str, Any], before: _Look, seconds: float) -> dict[str, Any]:
    seen = before.live.get(session["id"], {})
    grown = (session.get("nextSeq") or 0) - (seen.get("nextSeq") or session.get("nextSeq") or 0)
    names = (
        "id",
        "state",
        "writer",
        "openTurn",
        "openStep",
        "nextSeq",
        "pendingCalls",
        "updatedAt",
    )
    picked: dict[str, Any] = {name: session.get(name) for name in names}
    return {**picked, "eventsPerSecond": round(max(grown, 0) / seconds, 2) if seconds > 0 else 0.0}


def _print(report: dict[str, Any], context: Context) -> None:
    out = context.out
    server = as_object(report["server"])
    states = as_object(report["states"])
    kinds = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    fsync = report["fsyncMs"]
    out.line(
        f"dshd {server.get('version')}, pid {server.get('pid')}, up since {out.when(report['startedAt'])}"
    )
    out.line(f"sessions     {kinds or 'none'}")
    out.line(
        f"durability   {report['checkpointsPerSecond']:g} checkpoints/s, {report['flushesPerSecond']:g} flushes/s, "
        f"fsync p50 {_ms(fsync['p50'])}, p99 {_ms(fsync['p99'])}"
        + (f", {report['flushFailures']} FAILED" if report["flushFailures"] else "")
    )
    out.line(
        f"traffic      {report['eventsPerSecond']:g} events/s, {figures.size(int(report['bytesPerSecond']))}/s, "
        f"{figures.counted(report['connections'], 'connection')}, "
        f"{figures.counted(report['subscriptions'], 'viewer')}, {report['pendingEvents']} events pending"
    )
    out.line()
    live = report["live"][:_SHOWN]
    if live:
        out.table(_COLUMNS, [_row(one, context) for one in live])
    else:
        out.line("no session has a writer")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _row(session: dict[str, Any], context: Context) -> list[str]:
    writer = as_object(session.get("writer"))
    return [
        session["id"],
        str(session["state"]),
        f"{writer.get('client')} ({writer.get('pid')})" if writer else "-",
        "-"
        if session["openTurn"] is None
        else f"{session['openTurn']}.{session['openStep'] or '-'}",
        "-" if session["nextSeq"] is None else str(session["nextSeq"]),
        f"{session['eventsPerSecond']:g}",
        ", ".join(map(str, as_list(session["pendingCalls"]))) or "-",
        context.out.when(session["updatedAt"]),
    ]
