"""`dshctl search`: the sessions in which something was said, with what stands around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.figures import counted
from dsh_client.cli.output import Column
from dsh_client.cli.values import count
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_LIMIT = 20
_PAGE = 100
_PER_SESSION = 3
_COLUMNS = (
    Column("ID", floor=8),
    Column("SEQ", right=True),
    Column("UPDATED"),
    Column("TITLE", floor=5),
    Column("TEXT", floor=20),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `search` takes."""
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="+",
        help="words that must all occur in one message or result, each as it is or as the beginning of a longer one",
    )
    parser.add_argument(
        "-n",
        "--limit",
        metavar="N",
        type=count,
        default=_LIMIT,
        help="at most N places (default 20)",
    )
    parser.add_argument(
        "--per-session",
        metavar="N",
        type=count,
        default=_PER_SESSION,
        help="at most N places of one session, its newest (default 3); 0: all",
    )
    parser.epilog = (
        "example:\n  dshctl search connection refused\n  dshctl search '\"exit code 1\"'"
    )


def run(arguments: Namespace, context: Context) -> int:
    """Print the places, newest activity first; several pages become one."""
    params: dict[str, Any] = {"text": " ".join(arguments.text)}
    if arguments.per_session:
        params["perSession"] = arguments.per_session
    hits: list[dict[str, Any]] = []
    following: str | None = None
    while len(hits) < arguments.limit:
        params["limit"] = min(arguments.limit - len(hits), _PAGE)
        page = context.call("session.search", params)
        hits += page["hits"]
        following = page.get("nextCursor")
        if following is None:
            break
        params["cursor"] = following
    for hit in hits:
        hit["excerpt"] = context.clean(hit["excerpt"])
        hit["session"]["title"] = context.clean(hit["session"].get("title"))
    if context.out.form == "json":
        context.out.json({"hits": hits, "nextCursor": following})
    elif context.out.form == "jsonl":
        for hit in hits:
            context.out.json(hit)
    else:
        context.out.table(_COLUMNS, [_row(hit, context) for hit in hits])
        _footer(hits, following, context)
    return EXIT_OK


def _row(hit: dict[str, Any], context: Context) -> list[str]:
    session = hit["session"]
    when = context.out.when(session.get("updatedAt"))
    return [session["id"], str(hit["seq"]), when, session.get("title") or "", hit["excerpt"]]


def _footer(hits: list[dict[str, Any]], following: str | None, context: Context) -> None:
    if not hits:
        context.out.note("nothing was found; fewer or shorter words find more")
    elif following is not None:
        context.out.note(
            f"{counted(len(hits), 'place')} shown, there are more; try: -n {10 * len(hits)}"
        )
