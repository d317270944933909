"""What a session consists of: its immutable header and its events, and what makes one invalid.

The rules that need one event and nothing else are in `defects`, and are used from here; what depends on the log so far
is the fold's. A header or an event that is looked at is decoded JSON, as the gate gives it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dsh_protocol.defects import (
    defect_text,
    envelope_defect,
    message_defect,
    retired_shape,
    surface_metadata_defect,
)
from dsh_protocol.errors import FormatUnsupportedError
from dsh_protocol.jsontypes import is_count, is_number, is_object
from dsh_protocol.version import FORMAT_VERSION
from dsh_protocol.vocabulary import KNOWN_TYPES, SURFACE_TYPES, Event

__all__ = [
    "KNOWN_TYPES",
    "SURFACE_TYPES",
    "Event",
    "EventIn",
    "Header",
    "HeaderDefectError",
    "check_header",
    "defect_text",
    "envelope_defect",
    "header_to_wire",
    "is_count",
    "message_defect",
    "retired_shape",
    "surface_metadata_defect",
]

_OPTIONAL_TEXTS = {"cwd": "header-cwd", "parentSession": "header-parent-session"}
_RETIRED_FIELDS = ("sandboxMode", "approvalPolicy")


class Header(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The immutable header of a session, as the wire has it.

    Attributes:
        id: Names the session, and its directory.
        created_at: Epoch milliseconds.
        version: Of the format.
        cwd: Absolute; selects the project directory.
        parent_session: Id of the session that this one was forked or delegated from.
        seed_length: How many leading events are the parent's.
        origin: `"subagent"` or absent.
        delegation_depth: 0 for a session that a person began.
        agent_preset: Id of a composition.
    """

    version: int = msgspec.field(default_factory=int)
    id: str
    created_at: int
    cwd: str | None = None
    parent_session: str | None = None
    seed_length: int | None = None
    origin: str | None = None
    delegation_depth: int = msgspec.field(default_factory=int)
    agent_preset: str | None = None


def header_to_wire(header: Header) -> dict[str, Any]:
    """Return the header's wire object, keys in stored order, what is absent left out."""
    members: dict[str, Any] = {
        "version": header.version,
        "id": header.id,
        "createdAt": header.created_at,
        "cwd": header.cwd,
        "parentSession": header.parent_session,
        "seedLength": header.seed_length,
        "origin": header.origin,
        "delegationDepth": header.delegation_depth,
        "agentPreset": header.agent_preset,
    }
    return {key: value for key, value in members.items() if value is not None}


class EventIn(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """An event as a client sends it. What is left out, the daemon gives.

    A key is left out or of its type, as in a log: null is a value of `data` alone.
    This class is the schema; events that arrive stay dictionaries and are checked by rule.

    Attributes:
        type: One of the known types, or any other with `ignorable: true`.
        data: Any JSON value.
        seq: Where given, it must be the right one.
        time: Epoch milliseconds; the daemon's clock where absent.
        surface_op: `"append"`, also where absent on a surface type, or `{"op": "replace", "start", "end"}`.
        source_event_seqs: Seqs of the events that this one stands for.
        ignorable: True, or absent.
    """

    type: str
    data: Any
    seq: int | msgspec.UnsetType = msgspec.UNSET
    time: int | msgspec.UnsetType = msgspec.UNSET
    surface_op: str | dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    source_event_seqs: list[int] | msgspec.UnsetType = msgspec.UNSET
    ignorable: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class HeaderDefectError(ValueError):
    """A first line that is no header; `rule` names what is wrong, the text says it."""

    def __init__(self, rule: str) -> None:
        """Name the rule that is broken."""
        super().__init__(defect_text(rule))
        self.rule = rule


def check_header(stored: Any) -> Header:
    """Return the header that the first line of a log holds. Keys that no header has are dropped.

    Raises:
        FormatUnsupportedError: Another format version, whatever else the line holds. Fact: `version`.
        HeaderDefectError: It is no header of this version.
    """
    if not is_object(stored):
        raise HeaderDefectError("not-a-session-header")
    version = stored.get("version")
    if is_number(version) and version != FORMAT_VERSION:
        raise FormatUnsupportedError(_version_text(version), version=version)
    if not is_number(version) or not _has_shape(stored):
        raise HeaderDefectError("not-a-session-header")
    if any(key in stored for key in _RETIRED_FIELDS):
        raise HeaderDefectError("header-retired-fields")
    for key, rule in _OPTIONAL_TEXTS.items():
        if key in stored and not isinstance(stored[key], str):
            raise HeaderDefectError(rule)
    if not stored.get("cwd", "/").startswith("/"):
        raise HeaderDefectError("header-cwd")
    if "seedLength" in stored and not is_count(stored["seedLength"]):
        raise HeaderDefectError("header-seed-length")
    return Header(
        id=stored["id"],
        created_at=int(stored["createdAt"]),
        cwd=stored.get("cwd"),
        parent_session=stored.get("parentSession"),
        seed_length=int(stored["seedLength"]) if "seedLength" in stored else None,
        origin=stored.get("origin"),
        delegation_depth=int(stored["delegationDepth"]),
        agent_preset=stored.get("agentPreset"),
    )


def _has_shape(stored: dict[str, Any]) -> bool:
    return (
        stored.get("type") == "session"
        and isinstance(stored.get("id"), str)
        and is_count(stored.get("createdAt"))
        and is_count(stored.get("delegationDepth"))
        and stored.get("origin", "subagent") == "subagent"
        and isinstance(stored.get("agentPreset", ""), str)
    )


def _version_text(version: float) -> str:
    if version > FORMAT_VERSION:
        return (
            f"the log has format version {version} and this program reads {FORMAT_VERSION}: "
            "it was written by a newer program; upgrade to open it"
        )
    return f"the log has format version {version}, which no program reads; this one reads {FORMAT_VERSION}"
