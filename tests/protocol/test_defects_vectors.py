"""The rules for one event, against what the DeepSeek Harness accepts and refuses."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest

from dsh_protocol.errors import FormatUnsupportedError
from dsh_protocol.events import (
    KNOWN_TYPES,
    HeaderDefectError,
    check_header,
    envelope_defect,
    message_defect,
    retired_shape,
    surface_metadata_defect,
)
from dsh_protocol.jsontext import JsonTextError, decode, decode_stored, encode
from dsh_protocol.jsontypes import is_object
from support.vectors import vectors

STATELESS = {
    "invalid-adapter-defaults",
    "invalid-envelope",
    "invalid-reasoning-effort",
    "malformed-turn-end",
    "message-call-id-mismatch",
    "message-content",
    "message-model-source",
    "message-source",
    "message-tool-block",
    "message-tool-source",
    "message-unidentified",
    "request-header-lacks-provider-model",
    "retired-header-delta",
    "retired-mode-set",
    "sources-duplicate",
    "sources-empty",
    "sources-not-array",
    "sources-not-counts",
    "sources-not-earlier",
    "sources-on-log-only",
    "surface-op-invalid",
    "surface-op-invalid-replace",
    "surface-op-on-log-only",
}

HEADER_RULES = {
    "not-a-session-header",
    "header-retired-fields",
    "header-seed-length",
    "version-newer",
}

# Where our answer to a refused text is another one, on purpose.
TOLERATED = {"header-depth-minus-zero"}  # -0 is 0 to our reader of stored texts
NOT_JSON_HERE = {"header-version-1e999"}  # an overflowing number is refused by the gate already


def defect(event: Any) -> str | None:
    if not is_object(event):
        return "invalid-envelope"
    return (
        retired_shape(event)
        or message_defect(event)
        or envelope_defect(event)
        or surface_metadata_defect(event)
    )


def rows_of(text: bytes) -> list[Any]:
    """The rows that can be read; what cannot is the store's to judge."""
    rows: list[Any] = []
    for line in text.split(b"\n")[1:]:
        with contextlib.suppress(JsonTextError):
            rows.append(decode_stored(line))
    return rows


def is_event(row: Any) -> bool:
    """Packed rows have other keys; expanding them is the store's."""
    return is_object(row) and "seq" in row


def test_no_event_of_a_loadable_log_has_a_defect_unless_its_shape_is_retired() -> None:
    manifest = json.loads((vectors() / "logs" / "manifest.json").read_bytes())
    for log in manifest["logs"]:
        if log["verdict"] != "loads":
            continue
        events = filter(is_event, rows_of((vectors() / "logs" / log["file"]).read_bytes()))
        found = {(event["seq"], name) for event in events if (name := defect(event))}
        names = {name for _, name in found}
        assert names == set(log["legacy_shapes"] or ()), (log["file"], found)


def test_every_stateless_refusal_of_the_surface_cases_has_its_name() -> None:
    cases = json.loads((vectors() / "surface.json").read_bytes())["cases"]
    seen: set[str] = set()
    for case in cases:
        reason = case["fold"].get("reason") or case["session"].get("reason")
        found = [name for event in case["events"] if (name := defect(event))]
        if reason in STATELESS:
            assert reason in found, case["name"]
            seen.add(reason)
        elif case["session"].get("accepted", True):
            assert found == [], case["name"]
    assert len(seen) > 10


def raw_cases() -> list[Any]:
    cases = json.loads((vectors() / "verdicts.json").read_bytes())["cases"]
    return [
        case
        for case in cases
        if len(case["files"]) == 1 and case["files"][0]["path"].endswith("session.jsonl")
    ]


def load_of(case: Any) -> Any:
    return next(each for each in case["operations"] if each["op"] == "load")


def test_every_stateless_refusal_of_a_stored_log_has_its_name() -> None:
    seen: set[str] = set()
    for case in raw_cases():
        reason = str(load_of(case).get("reason"))
        if reason not in STATELESS:
            continue
        rows = rows_of(base64.b64decode(case["files"][0]["base64"]))
        if case["name"] == "open-turn-with-empty-call-id":
            continue  # the refused event is a closer that is not in the file
        assert reason in [defect(row) for row in rows], case["name"]
        seen.add(reason)
    assert seen >= {"invalid-envelope", "message-tool-block", "invalid-adapter-defaults"}


def test_every_refusal_of_a_header_has_its_name() -> None:
    seen: set[str] = set()
    for case in raw_cases():
        reason = load_of(case).get("reason")
        if reason not in HEADER_RULES or case["name"] in TOLERATED | NOT_JSON_HERE:
            continue
        line = base64.b64decode(case["files"][0]["base64"]).split(b"\n")[0]
        expected = FormatUnsupportedError if reason == "version-newer" else HeaderDefectError
        with pytest.raises(expected) as caught:
            check_header(decode_stored(line))
        if isinstance(caught.value, HeaderDefectError):
            assert caught.value.rule == reason, case["name"]
        seen.add(str(reason))
    assert seen == HEADER_RULES


def test_a_header_of_an_overflowing_version_is_refused_by_the_gate() -> None:
    for case in raw_cases():
        if case["name"] in NOT_JSON_HERE:
            line = base64.b64decode(case["files"][0]["base64"]).split(b"\n")[0]
            with pytest.raises(JsonTextError):
                decode_stored(line)


def test_every_header_of_a_loadable_log_is_taken_and_says_the_same() -> None:
    manifest = json.loads((vectors() / "logs" / "manifest.json").read_bytes())
    for log in manifest["logs"]:
        line = (vectors() / "logs" / log["file"]).read_bytes().split(b"\n")[0]
        header = check_header(decode_stored(line))
        assert (header.id, header.cwd) == ("s", "/fixture")


def test_the_logs_use_known_types_only() -> None:
    manifest = json.loads((vectors() / "logs" / "manifest.json").read_bytes())
    retired = {"steering/message", "request/header-delta", "mode/set"}
    for log in manifest["logs"]:
        if log["verdict"] == "loads":
            rows = rows_of((vectors() / "logs" / log["file"]).read_bytes())
            types = {row["type"] for row in rows if is_event(row)}
            assert types - retired <= KNOWN_TYPES, log["file"]


def test_every_row_of_the_logs_is_printed_as_it_was_read_and_passes_the_strict_gate_too() -> None:
    rows = 0
    for path in sorted((vectors() / "logs").glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            assert encode(decode_stored(line)) == line, path.name
            assert decode(line) == decode_stored(line)
            rows += 1
    assert rows > 1000
