"""A `dshctl` that is too new or too old for the daemon: said with both versions, and what must work still does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.errors import InvalidParamsError, ProtocolVersionError
from dsh_protocol.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

    Dshctl = Callable[..., Ended]

SERVER = {"name": "dshd", "version": "9.9.9", "pid": 4312, "instanceId": "i1"}
STATUS: dict[str, Any] = {
    "server": SERVER,
    "startedAt": 0,
    "sessions": {"idle": 1},
    "limits": {},
    "socket": "/s",
    "root": "/",
    "problems": [],
}


def newer(_: dict[str, Any]) -> Any:
    raise ProtocolVersionError(
        "the client speaks protocol 1 and daemon 9.9.9 speaks 3; upgrade the client",
        client=1,
        daemon=3,
    )


def older(_: dict[str, Any]) -> Any:
    return {"protocolVersion": 0, "server": SERVER, "limits": {}, "capabilities": {}}


def silent(_: dict[str, Any]) -> Any:
    return {"hello": "who are you"}


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        (newer, ["protocol 1", "9.9.9 speaks 3", "upgrade the client"]),
        (older, ["daemon 9.9.9 speaks protocol 0", f"client {VERSION} speaks 1", "restart"]),
        (silent, ["daemon None speaks protocol None", VERSION]),
    ],
)
def test_a_daemon_of_another_age_is_told_with_both_versions(
    daemon: ScriptedDaemon,
    dshctl: Dshctl,
    hello: Callable[[dict[str, Any]], Any],
    said: list[str],
) -> None:
    daemon.answers["initialize"] = hello
    ended = dshctl("list")
    assert ended.code == 1
    assert ended.out == ""
    assert all(text in ended.err for text in said)
    assert ended.err.endswith("[PROTOCOL_VERSION]\ntry: dshctl doctor\n")
    assert daemon.asked("session.list") == []


@pytest.mark.parametrize("hello", [newer, older, silent])
def test_status_stop_and_version_work_whatever_the_age(
    daemon: ScriptedDaemon, dshctl: Dshctl, hello: Callable[[dict[str, Any]], Any]
) -> None:
    daemon.answers |= {
        "initialize": hello,
        "daemon.status": lambda _: STATUS,
        "daemon.shutdown": lambda _: {},
    }
    assert "dshd 9.9.9, pid 4312" in dshctl("status").out
    assert "dshd 9.9.9, pid 4312" in dshctl("version").out
    stopped = dshctl("stop")
    assert (stopped.code, stopped.out) == (
        0,
        "the daemon stops; what it had admitted is durable\n",
    )
    assert daemon.asked("daemon.shutdown") == [{}]


def test_a_method_that_the_daemon_does_not_know_tells_both_versions(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    ended = dshctl("search", "lighthouse")
    assert ended.code == 2
    assert f"the daemon is 9.9.9, this dshctl is {VERSION}\n" in ended.err

    def refuse(_: dict[str, Any]) -> Any:
        raise InvalidParamsError("no parameter 'count'")

    daemon.answers["session.list"] = refuse
    assert "the daemon is 9.9.9" in dshctl("list").err
