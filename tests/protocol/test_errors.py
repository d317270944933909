from __future__ import annotations

import json

import pytest

from dsh_protocol import errors
from dsh_protocol.errors import DshdError, from_wire

KINDS = [each for each in DshdError.__subclasses__() if each.__module__ == errors.__name__]
RETRYABLE = {"SESSION_BUSY", "NO_SPACE", "SHUTTING_DOWN", "OVERLOADED"}
EXIT_CODES = {0, 1, 2, 3, 4, 5, 6, 78}


def test_codes_and_kinds_are_unique() -> None:
    assert len({each.code for each in KINDS}) == len(KINDS) == 27
    assert len({each.kind for each in KINDS}) == len(KINDS)


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.kind)
def test_an_error_passes_the_wire_and_is_of_the_same_class_again(cls: type[DshdError]) -> None:
    sent = cls("text", path="/x", offset=3)
    got = from_wire(json.loads(json.dumps(sent.to_wire())))
    assert type(got) is cls
    assert (got.message, got.facts) == ("text", {"path": "/x", "offset": 3})
    assert got.to_wire() == sent.to_wire()
    assert str(got) == "text"


def test_an_error_of_a_newer_daemon_keeps_what_it_says() -> None:
    wire = {"code": 9, "message": "m", "data": {"kind": "NEW", "retryable": True, "fact": 1}}
    got = from_wire(wire)
    assert type(got) is DshdError
    assert got.to_wire() == wire


@pytest.mark.parametrize("data", [None, [], "x", {}, {"kind": 7}])
def test_an_error_of_another_server_is_no_crash(data: object) -> None:
    assert from_wire({"code": -32603, "message": "m", "data": data}).code == -32603


def test_what_may_be_tried_again_is_what_the_protocol_says() -> None:
    assert {each.kind for each in KINDS if each.retryable} == RETRYABLE


def test_every_kind_has_one_of_the_exit_codes() -> None:
    assert {each.exit_code for each in KINDS} <= EXIT_CODES
    by_kind = {each.kind: each.exit_code for each in KINDS}
    assert by_kind["SESSION_NOT_FOUND"] == 4
    assert by_kind["SESSION_BUSY"] == by_kind["WRITER_LOST"] == by_kind["SEQ_CONFLICT"] == 5
    assert by_kind["ROOT_LOCKED"] == 78
