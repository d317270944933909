"""What a stored header and stored events must be before the log is written to: version, vocabulary, shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import DshdError, FormatUnsupportedError
from dsh_protocol.events import KNOWN_TYPES, Header
from dsh_protocol.jsontext import JsonTextError, decode_stored
from dshd.storage.jsonl.faults import corrupt
from dshd.storage.jsonl.rows import is_object

if TYPE_CHECKING:
    from dsh_protocol.events import Event


def parse_header(line: bytes, path: str) -> Header:
    """Return the header that a log's first line holds."""
    try:
        value = decode_stored(line)
    except JsonTextError as error:
        raise corrupt(path, 0, f"the header line is not JSON: {error}") from error
    if not is_object(value) or value.get("type") != "session":
        raise corrupt(path, 0, "the first line is not a session header")
    if value.get("version") != 0:
        raise FormatUnsupportedError(f"log {path!r} has another format version", path=path)
    return _header(value)


def _header(value: dict[str, Any]) -> Header:
    return Header(
        id=value["id"],
        created_at=value["createdAt"],
        cwd=value.get("cwd"),
        parent_session=value.get("parentSession"),
        seed_length=value.get("seedLength"),
        origin=value.get("origin"),
        delegation_depth=value["delegationDepth"],
        agent_preset=value.get("agentPreset"),
    )


def stored_problem(event: Event, path: str) -> DshdError | None:
    """Return why a log with this event must not be written to; None where it may."""
    if event.get("type") not in KNOWN_TYPES and event.get("ignorable") is not True:
        return FormatUnsupportedError(
            f"log {path!r} holds an event of a type that this version does not know", path=path
        )
    return None
