"""The suite over every store here, and over stores with one thing wrong, so that it is known to bite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from conformance.memory import MemoryHandle, MemoryStorage, MemoryStore
from conformance.storages import KINDS, storage
from conformance.suite import STORES, check_all
from dsh_protocol import jsontext
from dsh_protocol.errors import SeqConflictError
from dshd.storage.store import StoredSession

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.cases import Case, Storage
    from dsh_protocol.events import Header


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", STORES.cases, ids=[case.name for case in STORES.cases])
def test_a_store_does_what_the_contract_says(
    case: Case[Storage], kind: str, tmp_path: Path
) -> None:
    case.check(storage(kind, tmp_path))


def _append(handle: MemoryHandle, events: list[Any], holder: None = None) -> None:
    """Append without looking at any seq."""
    handle.require_writable()
    handle.stored().rows.extend(map(_encoded, events))
    handle.stored().changes += 1


def _encoded(event: Any) -> bytes:
    return jsontext.encode(event)


def _check_first_only(handle: MemoryHandle, events: list[Any], holder: None = None) -> None:
    if events and events[0]["seq"] != handle.next_seq:
        raise SeqConflictError("no", expected=handle.next_seq, got=events[0]["seq"])
    _append(handle, events)


def _open_anyway(store: MemoryStore, session_id: str, access: str) -> MemoryHandle:
    """Open without a claim and without a look at what is stored."""
    record = store.record(session_id)
    return MemoryHandle(store, record.header, record, reads=access == "read")


def _open_for_anybody(store: MemoryStore, session_id: str, access: str) -> MemoryHandle:
    """Open for writing where reading was asked for."""
    record = store.record(session_id)
    return MemoryHandle(store, record.header, record)


def _create_anyway(store: MemoryStore, header: Header) -> MemoryHandle:
    """Create without a look at what is there."""
    return MemoryHandle(store, header, None)


def _create_at_once(store: MemoryStore, header: Header) -> MemoryHandle:
    """Store a session before its first batch."""
    handle = CREATE(store, header)
    handle.stored()
    return handle


def _close_and_keep(handle: MemoryHandle) -> None:
    """Close and hold on to the session."""
    handle.closed = True


def _read_all(handle: MemoryHandle, offset: int = 0, length: int | None = None) -> Any:
    """Read without a look at what was asked for."""
    handle.require_open()
    return iter([jsontext.decode_stored(row) for row in handle.stored().rows])


def _read_once_closed(handle: MemoryHandle) -> None:
    """Let a closed handle do everything."""


def _list_one(store: MemoryStore) -> Any:
    """List the first session only."""
    return iter([store.stat(name) for name in list(store.storage.records)[:1]])


def _stat_alike(store: MemoryStore, session_id: str) -> StoredSession:
    """Say the same revision for ever."""
    header = store.record(session_id).header
    return StoredSession(session_id, header, "memory", 0, "1", 0)


CREATE = MemoryStore.create
FAULTS: list[tuple[type, str, Any, str]] = [
    (MemoryHandle, "append", _append, "K10"),
    (MemoryHandle, "append", _check_first_only, "K11"),
    (MemoryHandle, "close", _close_and_keep, "NH7"),
    (MemoryHandle, "read", _read_all, "K8"),
    (MemoryHandle, "require_open", _read_once_closed, "NH9"),
    (MemoryStore, "open", _open_anyway, "NH7"),
    (MemoryStore, "open", _open_anyway, "NH18"),
    (MemoryStore, "open", _open_for_anybody, "NH8"),
    (MemoryStore, "create", _create_anyway, "NH5"),
    (MemoryStore, "create", _create_anyway, "NH4"),
    (MemoryStore, "create", _create_at_once, "K6"),
    (MemoryStore, "list", _list_one, "J65"),
    (MemoryStore, "stat", _stat_alike, "K9"),
]


def test_the_reference_fails_nothing() -> None:
    assert check_all(MemoryStorage) == {}


@pytest.mark.parametrize(
    ("owner", "name", "fault", "must_fail"),
    FAULTS,
    ids=[f"{fault.__name__.strip('_')}-{must_fail}" for _, _, fault, must_fail in FAULTS],
)
def test_a_store_with_one_thing_wrong_fails_the_case_for_it(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Any, must_fail: str
) -> None:
    monkeypatch.setattr(owner, name, fault)
    failing = {part for case in check_all(MemoryStorage) for part in case.split("-")}
    assert must_fail in failing
