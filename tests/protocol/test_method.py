from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dsh_protocol.errors import InvalidParamsError, MethodNotFoundError
from dsh_protocol.method import ALIASES, METHODS, convert_params, find_method
from dsh_protocol.methods.checkpoint import ToolParams
from dsh_protocol.methods.session import Continue, OpenParams

# As other programs are written against it.
WIRE = {
    "initialize": "protocolVersion client",
    "session.create": "id? cwd? parentSession? seedLength? origin? delegationDepth? agentPreset?",
    "session.open": "id access continue? takeover?",
    "session.append": "id writer events expectedSeq?",
    "session.flush": "id writer",
    "session.recover": "id writer",
    "session.read": "id offset? length? maxBytes?",
    "session.messages": "id offset? limit? partial?",
    "session.stat": "id",
    "session.list": "cwd? states? limit? cursor? archived? since? deleted? count?",
    "session.fork": "id boundary? newId?",
    "session.close": "id writer",
    "session.subscribe": "id fromSeq",
    "session.unsubscribe": "subscriptionId",
    "session.delete": "id",
    "session.undelete": "id",
    "session.purge": "id deletedAt",
    "session.setLabel": "id title? archived? pinned?",
    "session.search": "text limit? cursor? perSession?",
    "checkpoint.request": "id writer events? expectedSeq?",
    "checkpoint.tool": "id writer callId name arguments parentCallId? time? events? expectedSeq?",
    "checkpoint.postStep": "id writer events? expectedSeq?",
    "checkpoint.turnEnd": "id writer reason time? events? expectedSeq?",
    "daemon.status": "",
    "daemon.metrics": "",
    "daemon.shutdown": "",
    "rpc.discover": "",
    "$/cancelRequest": "id",
}


def refused_path(method: str, params: dict[str, Any]) -> str:
    with pytest.raises(InvalidParamsError) as caught:
        convert_params(method, params)
    assert caught.value.facts["path"] in caught.value.message
    path: str = caught.value.facts["path"]
    return path


def test_the_table_has_the_methods_of_the_wire_with_their_parameters() -> None:
    found = {
        name: " ".join(
            field.encode_name + ("" if field.required else "?")
            for field in msgspec.structs.fields(method.params)
        )
        for name, method in METHODS.items()
    }
    assert found == WIRE


def test_the_table_is_closed() -> None:
    with pytest.raises(TypeError):
        METHODS["x"] = METHODS["initialize"]  # type: ignore[index]  # that it cannot is what is tested


def test_only_two_methods_are_notifications() -> None:
    allowed = {name for name, method in METHODS.items() if method.notification_allowed}
    assert allowed == {"session.append", "$/cancelRequest"}


def test_it_is_known_which_methods_name_a_session_that_must_exist() -> None:
    without = {name for name, method in METHODS.items() if not method.session_param}
    assert without == {
        *("initialize", "session.create", "session.list", "session.search", "session.unsubscribe"),
        *("daemon.status", "daemon.metrics", "daemon.shutdown", "rpc.discover", "$/cancelRequest"),
    }


def test_a_method_is_found_by_its_alias_too() -> None:
    assert find_method("$/cancel_request") is METHODS["$/cancelRequest"]
    assert set(ALIASES.values()) <= METHODS.keys()


@pytest.mark.parametrize(
    "name", ["", "__class__", "rpc.x", "session", "Session.open", "session.open ", "x" * 1_000_000]
)
def test_another_name_is_not_found_and_cut_in_the_text(name: str) -> None:
    with pytest.raises(MethodNotFoundError) as caught:
        find_method(name)
    assert len(caught.value.message) < 150


def test_parameters_become_their_type() -> None:
    params = {"id": "s", "access": "write", "continue": {"nextSeq": 3, "writer": "w"}}
    expected = OpenParams(id="s", access="write", resume=Continue(next_seq=3, writer="w"))
    assert convert_params("session.open", params) == expected


def test_null_is_the_same_as_absent() -> None:
    assert convert_params(
        "session.open", {"id": "s", "access": "read", "takeover": None}
    ) == OpenParams(id="s", access="read")


def test_a_whole_number_may_be_spelled_as_a_fraction() -> None:
    got = convert_params(
        "session.open", {"id": "s", "access": "write", "continue": {"nextSeq": 3.0, "writer": "w"}}
    )
    assert isinstance(got, OpenParams)
    assert got.resume is not None
    assert type(got.resume.next_seq) is int


def test_events_are_left_as_they_are() -> None:
    events: list[Any] = [7, {"type": "x", "data": 1.0, "unknown": None}]
    params = {
        "id": "s",
        "writer": "w",
        "callId": "c",
        "name": "n",
        "arguments": "{}",
        "events": events,
        "time": -5,
    }
    got = convert_params(METHODS["checkpoint.tool"], params)
    assert isinstance(got, ToolParams)
    assert got.events is not None
    assert repr(got.events) == repr(events)


@pytest.mark.parametrize(
    ("method", "params", "path"),
    [
        ("session.stat", {}, "params.id"),
        ("session.stat", {"id": 7}, "params.id"),
        ("session.stat", {"id": "s", "Id": "t"}, "params.Id"),
        ("session.stat", {"id": "s", "x" * 1000: 1}, "params." + "x" * 64),
        ("session.open", {"id": "s", "access": "append"}, "params.access"),
        ("session.open", {"id": "s", "access": "read", "takeover": 1}, "params.takeover"),
        (
            "session.open",
            {"id": "s", "access": "write", "continue": {"nextSeq": 1}},
            "params.continue.writer",
        ),
        (
            "session.open",
            {"id": "s", "access": "write", "continue": {"nextSeq": True, "writer": "w"}},
            "params.continue.nextSeq",
        ),
        ("session.read", {"id": "s", "offset": -1}, "params.offset"),
        ("session.read", {"id": "s", "offset": 0.5}, "params.offset"),
        ("session.read", {"id": "s", "offset": True}, "params.offset"),
        ("session.read", {"id": "s", "offset": "1"}, "params.offset"),
        ("session.read", {"id": "s", "offset": 2**53}, "params.offset"),
        ("session.append", {"id": "s", "writer": "w", "events": {}}, "params.events"),
        ("session.append", {"id": "s", "writer": "w"}, "params.events"),
        ("session.list", {"states": ["idle", "x"]}, "params.states[1]"),
        ("session.create", {"origin": "user"}, "params.origin"),
        ("checkpoint.turnEnd", {"id": "s", "writer": "w", "reason": "completed"}, "params.reason"),
        (
            "checkpoint.tool",
            {"id": "s", "writer": "w", "callId": "c", "name": "n", "arguments": {}},
            "params.arguments",
        ),
        ("initialize", {"protocolVersion": 1, "client": {"name": "n"}}, "params.client.version"),
        ("daemon.status", {"x": 1}, "params.x"),
    ],
)
def test_what_does_not_fit_is_refused_and_its_path_named(
    method: str, params: dict[str, Any], path: str
) -> None:
    assert refused_path(method, params) == path


def test_a_long_value_is_not_given_back() -> None:
    with pytest.raises(InvalidParamsError) as caught:
        convert_params("session.open", {"id": "s", "access": "x" * 1_000_000})
    assert len(caught.value.message) < 400


def test_a_newer_client_may_say_more_about_itself() -> None:
    convert_params(
        "initialize", {"protocolVersion": 1, "client": {"name": "n", "version": "2", "os": "linux"}}
    )


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda each: each.name)
def test_every_method_says_in_one_sentence_what_it_does(method: Any) -> None:
    assert method.summary
    assert method.params.__doc__.partition("\n")[0].rstrip().endswith(".")
