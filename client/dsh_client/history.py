"""What a session's log already holds, read page by page over its write handle.

It owns nothing. The one rule: whoever asks gets all of it, however many pages that takes. Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsh_client.handle import Handle

_PAGE = 1000


async def messages(handle: Handle) -> list[dict[str, Any]]:
    """Return the history as a provider takes it."""
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {"id": handle.id}
    while True:
        page = await handle.ask("session.messages", params)
        found += page["messages"]
        if page.get("nextOffset") is None or not page["messages"]:
            return found
        params["offset"] = page["nextOffset"]


async def last_turn_number(handle: Handle) -> int:
    """Read a session's log backwards for the number of its last turn; 0 where it has none."""
    end = handle.ledger.next_seq
    while end > 0:
        start = max(0, end - _PAGE)
        last = await _last_turn_between(handle, start, end)
        if last is not None:
            return last
        end = start
    return 0


async def _last_turn_between(handle: Handle, start: int, end: int) -> int | None:
    last: int | None = None
    while start < end:
        params = {"id": handle.id, "offset": start, "length": end - start}
        page = await handle.ask("session.read", params)
        for event in page["events"]:
            if event["type"] == "turn/start":
                last = event["data"]["turn"]
        if page["nextOffset"] <= start:
            break
        start = page["nextOffset"]
    return last
