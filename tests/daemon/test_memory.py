"""A daemon whose process may map no more memory: a call that needs it is refused, and its connection goes on."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import events
from support.daemon import open_daemon

if TYPE_CHECKING:
    from support.rpc import Connection

MIB = 1 << 20


def handle_of(one: Connection) -> dict[str, str]:
    """Create a session that is on disk, so that the daemon has its threads before it is short of memory."""
    made = one.call("session.create")
    handle = {"id": made["session"]["id"], "writer": made["writer"]}
    one.call("session.flush", **handle)
    return handle


@pytest.mark.parametrize("room", [10 * MIB, 18 * MIB], ids=["the line", "its values"])
def test_a_call_for_which_there_is_no_memory_is_refused_and_may_be_tried_again(
    tmp_path: Path, room: int
) -> None:
    with open_daemon(tmp_path) as daemon, daemon.connect() as one:
        handle = handle_of(one)
        large = [events.title("x" * (7 * MIB))]
        pages = int(Path(f"/proc/{daemon.pid}/statm").read_text("utf-8").split()[0])
        soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_AS)
        mapped = pages * resource.getpagesize()
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (mapped + room, hard))
        refused = one.refusal("session.append", **handle, events=large)
        assert (refused.kind, refused.facts["retryable"]) == ("OVERLOADED", True)
        assert refused.facts["limit"] == "memory"
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (soft, hard))
        one.call("session.append", **handle, events=large, expectedSeq=0)
        assert one.call("session.flush", **handle)["durableSeq"] == 1
