"""What every session store must do: checks over a `Storage`, to be run on any implementation of `SessionStore`.

Each check gets a storage of its own, empty. It raises AssertionError where the store does not do what it must, and
leaves every other exception as it comes. See README.md.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

from conformance.cases import Storage, Suite, refused
from dsh_protocol.errors import (
    DshdError,
    FormatUnsupportedError,
    SeqConflictError,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
)
from dsh_protocol.events import Header

if TYPE_CHECKING:
    from collections.abc import Callable

    from dshd.storage.store import SessionStore

Event = dict[str, Any]

STORES: Suite[Storage] = Suite()
holds = STORES.holds

NOT_JSON: dict[str, Any] = {
    "a function": print,
    "an object": object(),
    "deep inside": [{"a": [print]}],
}
REFUSALS = (DshdError, TypeError, ValueError, RecursionError)


def header(session_id: str = "s", **fields: Any) -> Header:
    """Return the header of a new session."""
    fields.setdefault("cwd", "/w")
    return Header(id=session_id, created_at=1000, **fields)


def event(seq: int, kind: str = "session/title", **data: Any) -> Event:
    """Return an event that depends on no other."""
    return {"type": kind, "seq": seq, "time": 1000 + seq, "data": {"title": f"t{seq}", **data}}


def batch(first: int, count: int) -> list[Event]:
    """Return `count` events from seq `first` on."""
    return [event(seq) for seq in range(first, first + count)]


def chunk(seq: int, text: str = "x", kind: str = "text-delta", time: int | None = None) -> Event:
    """Return a piece of a streamed answer."""
    data = {"turn": 1, "step": 1, "chunk": {"type": kind, "index": 0, "text": text}}
    return {"type": "assistant/chunk", "seq": seq, "time": time or 1000 + seq, "data": data}


def write(store: SessionStore, events: list[Event], session: Header | None = None) -> None:
    """Store a session of these events, in one batch."""
    with closing(store.create(session or header())) as handle:
        if events:
            handle.append(events)
        else:
            handle.flush()


def stored(store: SessionStore, session_id: str = "s") -> list[Event]:
    """Return all events of a session, read by a handle of its own."""
    with closing(store.open(session_id, "read")) as handle:
        return list(handle.read())


def listed(store: SessionStore) -> list[str]:
    """Return the ids of the sessions that a store lists, sorted."""
    return sorted(found.session_id for found in store.list())


# ---------------------------------------------------------------------- what is stored is read


@holds("K1", "J16")
def check_what_is_appended_is_read_back_whole(storage: Storage) -> None:
    """Header and events are the same for the writer, another handle, and a store opened afresh."""
    store = storage.open()
    events = [*batch(0, 3), *(chunk(seq, f"p{seq}") for seq in range(3, 9)), *batch(9, 2)]
    with closing(store.create(header())) as handle:
        handle.append(events[:5])
        handle.append(events[5:])
        assert list(handle.read()) == events
        assert stored(store) == events
        assert handle.next_seq == len(events)
    with closing(storage.open().open("s", "read")) as reader:
        assert list(reader.read()) == events
        assert reader.header == header()


@holds("O5", "O6", "O38", "J48", "L57")
def check_every_field_of_a_header_is_kept(storage: Storage) -> None:
    """Lineage, seed length, delegation depth, origin and preset come back as they were given, as does their absence."""
    headers = [
        header("plain"),
        Header(id="bare", created_at=0),
        header("seeded", seed_length=3, parent_session="plain"),
        header("deep", delegation_depth=2, origin="subagent", parent_session="plain"),
        header("preset", agent_preset="coder", cwd="/w/other"),
    ]
    for one in headers:
        write(storage.open(), batch(0, 1), one)
    store = storage.open()
    for one in headers:
        with closing(store.open(one.id, "read")) as handle:
            assert handle.header == one
    assert {found.session_id: found.header for found in store.list()} == {h.id: h for h in headers}


@holds("V1", "V2", "V5", "V7", "J92", "L19")
def check_every_json_value_is_kept(storage: Storage) -> None:
    """Values of all kinds, odd keys, order of keys, nesting of some hundred levels: nothing changes."""
    deep: Any = "bottom"
    for _ in range(400):
        deep = [deep]
    values: list[Any] = [
        *(None, True, False, 0, -1, 2**53 - 1, -(2**53) + 1, 0.1, 1e-7, 1.5e300, "", "text"),
        *("\u2028\u0085\x7f😀é\0\n", [], {}, [[]], {"": ""}, deep),
        {"__proto__": 1, "constructor": 2, "10": 3, "2": 4, "b": 5, "a": 6},
    ]
    events = [event(seq, value=value) for seq, value in enumerate(values)]
    write(storage.open(), events)
    found = stored(storage.open())
    assert found == events
    assert [list(one["data"]) for one in found] == [list(one["data"]) for one in events]
    assert list(found[-1]["data"]["value"]) == list(values[-1])


@holds("K8", "NH1")
def check_a_part_can_be_read(storage: Storage) -> None:
    """From an offset, of a length, past the end; an open turn is given as it is, with no closers."""
    events: list[Event] = [
        {"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1}},
        *batch(1, 6),
    ]
    store = storage.open()
    with closing(store.create(header())) as writer:
        writer.append(events[:2])
        writer.append(events[2:])
        with closing(store.open("s", "read")) as reader:
            for handle in (writer, reader):
                assert list(handle.read()) == events
                for offset in range(9):
                    assert list(handle.read(offset)) == events[offset:]
                    for length in range(9):
                        assert list(handle.read(offset, length)) == events[offset:][:length]


@holds("NH14")
def check_a_read_sees_every_append_before_it(storage: Storage) -> None:
    """A read that starts after an append has returned sees it, on a handle opened before it too."""
    store = storage.open()
    with closing(store.create(header())) as writer:
        writer.append(batch(0, 1))
        with closing(store.open("s", "read")) as reader:
            for count in range(1, 5):
                assert list(reader.read()) == batch(0, count)
                assert reader.next_seq == count
                writer.append(batch(count, 1))


@holds("O7", "O12", "L33")
def check_a_caller_may_change_what_it_has_appended(storage: Storage) -> None:
    """What is stored is what the events were when they were appended."""
    store = storage.open()
    with closing(store.create(header())) as handle:
        mine = batch(0, 3)
        handle.append(mine)
        mine[0]["data"]["title"] = "changed"
        del mine[1]
        assert list(handle.read()) == batch(0, 3)
    assert stored(storage.open()) == batch(0, 3)


@holds("O8", "D5")
def check_a_reader_may_change_what_it_has_read(storage: Storage) -> None:
    """What one reader does to its events no other sees."""
    store = storage.open()
    write(store, batch(0, 2))
    with closing(store.open("s", "read")) as handle:
        for one in handle.read():
            one["data"].clear()
            one["type"] = "changed"
        assert list(handle.read()) == batch(0, 2)
    assert stored(store) == batch(0, 2)


@holds("J36")
def check_sessions_written_side_by_side_keep_apart(storage: Storage) -> None:
    """Batches of two sessions in turns: each has its own."""
    store = storage.open()
    with closing(store.create(header("a"))) as one, closing(store.create(header("b"))) as other:
        for seq in range(4):
            one.append([event(seq, of="a")])
            other.append([event(seq, of="b")])
    for name in ("a", "b"):
        assert stored(storage.open(), name) == [event(seq, of=name) for seq in range(4)]


# ---------------------------------------------------------------------- what is refused


@holds("K2")
def check_a_header_that_cannot_be_read_back_is_not_written(storage: Storage) -> None:
    """A creation time that is no whole number is refused, and the id stays free."""
    store = storage.open()
    for created_at in (1.5, -1):
        with refused(*REFUSALS):
            store.create(Header(id="s", created_at=created_at))  # type: ignore[arg-type]  # that is the point
    write(store, batch(0, 1))
    assert stored(storage.open()) == batch(0, 1)


@holds("K10", "J34", "D8")
def check_a_batch_begins_at_the_next_seq(storage: Storage) -> None:
    """Neither before nor behind it; nothing is stored of a batch that does not follow."""
    store = storage.open()
    with closing(store.create(header())) as handle:
        with refused(SeqConflictError):
            handle.append(batch(1, 1))
        handle.append(batch(0, 2))
        for first in (0, 1, 3):
            with refused(SeqConflictError):
                handle.append(batch(first, 1))
        handle.append(batch(2, 1))
    assert stored(storage.open()) == batch(0, 3)


@holds("K11", "NH16")
def check_a_batch_has_no_gap(storage: Storage) -> None:
    """A batch whose seqs do not follow each other is refused whole, with the seq that was due."""
    store = storage.open()
    with closing(store.create(header())) as handle:
        handle.append(batch(0, 1))
        for wrong in ((1, 3), (1, 1), (1, 0), (1, 2, 4)):
            with refused(SeqConflictError) as caught:
                handle.append([event(seq) for seq in wrong])
            assert caught[0].facts["expected"] == len(wrong)
            assert handle.next_seq == 1
        handle.append(batch(1, 2))
    assert stored(storage.open()) == batch(0, 3)


@holds("K12", "NH17", "J63", "J91")
def check_what_is_no_json_is_refused(storage: Storage) -> None:
    """A batch with a value that JSON does not have is refused whole, and its seq stays free.

    Values come to a store decoded from JSON; what a text may not hold is refused where it is decoded.
    """
    store = storage.open()
    with closing(store.create(header())) as handle:
        for name, value in NOT_JSON.items():
            with refused(*REFUSALS):
                handle.append([event(0), event(1, value=value)])
            assert handle.next_seq == 0, name
        handle.append(batch(0, 1))
        with refused(*REFUSALS):
            handle.append([event(1, value=print)])
        handle.append(batch(1, 1))
    assert stored(storage.open()) == batch(0, 2)


@holds("NH18", "O37")
def check_an_unknown_type_is_kept_and_not_continued(storage: Storage) -> None:
    """An event of another program's vocabulary is stored and read; only one marked ignorable may be continued."""
    store = storage.open()
    unknown = event(0, "future/thing")
    write(store, [unknown], header("must"))
    write(store, [{**unknown, "ignorable": True}], header("may"))
    store = storage.open()
    for _ in range(2):  # a refusal gives the claim back
        with refused(FormatUnsupportedError):
            store.open("must", "write")
    assert stored(store, "must") == [unknown]
    with closing(store.open("may", "write")) as handle:
        handle.append([event(1)])
    assert stored(store, "may") == [{**unknown, "ignorable": True}, event(1)]


# ---------------------------------------------------------------------- ids


@holds("O33", "NH6", "NO3", "NO4", "J12")
def check_an_absent_session_is_not_found(storage: Storage) -> None:
    """For reading, writing, a look: not found, in an empty store and beside other sessions; and no trace is left."""
    store = storage.open()
    for _ in range(2):
        for access in ("read", "write"):
            with refused(SessionNotFoundError):
                store.open("absent", access)
        with refused(SessionNotFoundError):
            store.stat("absent")
        assert "absent" not in listed(store)
        write(store, batch(0, 1), header(f"present-{_}"))
    write(store, batch(0, 1), header("absent"))


@holds("O20", "O34", "NH5", "J89")
def check_an_id_is_one_session(storage: Storage) -> None:
    """An id that is stored cannot be created again, wherever its cwd lies, also by a store opened afresh."""
    store = storage.open()
    write(store, batch(0, 2))
    for judge in (store, storage.open()):
        for cwd in ("/w", "/elsewhere", None):
            with refused(SessionExistsError):
                judge.create(header(cwd=cwd))
    assert stored(store) == batch(0, 2)


@holds("NH3", "O21", "NH12", "NO5", "S35")
def check_an_id_is_free_when_nothing_was_stored(storage: Storage) -> None:
    """A pending id is taken; closed without an append the session never was, and the id is free."""
    store = storage.open()
    for _ in range(2):
        handle = store.create(header())
        with refused(SessionExistsError):
            store.create(header())
        handle.close()
        assert listed(store) == []
        with refused(SessionNotFoundError):
            store.open("s", "read")
    write(store, batch(0, 1))
    assert listed(storage.open()) == ["s"]


@holds("NH4", "O3")
def check_of_creates_at_once_one_wins(storage: Storage) -> None:
    """Of several threads that create one id exactly one gets it, and the others are told that it exists."""
    store = storage.open()
    start, won, lost = threading.Barrier(8), list[Any](), list[Any]()

    def create() -> None:
        start.wait()
        try:
            won.append(store.create(header()))
        except SessionExistsError as error:
            lost.append(error)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 7)
    won[0].append(batch(0, 1))
    won[0].close()
    assert stored(storage.open()) == batch(0, 1)


@holds("J35", "J1")
def check_any_id_names_its_own_session(storage: Storage) -> None:
    """Ids that look like paths, escapes of each other, or nothing a file could be called, are all told apart."""
    ids = [
        *("..", ".", "../s", "a/b", "a\\b", "/etc/x", "a~002Fb", "~", "é", "É", "\u2028"),
        *("😀", "a b", "a\nb", "\0", "%2e", "session.jsonl", "con", "-x", "_no-cwd"),
    ]
    store = storage.open()
    for place, name in enumerate(ids):
        write(store, [event(0, place=place)], header(name))
    store = storage.open()
    assert listed(store) == sorted(ids)
    for place, name in enumerate(ids):
        assert stored(store, name) == [event(0, place=place)]


@holds("J3")
def check_an_empty_id_is_refused(storage: Storage) -> None:
    """There is no session without a name."""
    store = storage.open()
    with refused(DshdError, ValueError):
        store.create(header(""))
    assert listed(store) == []


# ---------------------------------------------------------------------- handles


@holds("NH7", "NO1", "NO6", "O31", "NH15")
def check_one_handle_writes_at_a_time(storage: Storage) -> None:
    """A second handle for writing is refused, by any store, until the first is closed; then it goes on."""
    store, other = storage.open(), storage.open()
    first = store.create(header())
    first.append(batch(0, 2))
    for judge in (store, other, storage.open()):
        with refused(SessionBusyError):
            judge.open("s", "write")
        assert stored(judge) == batch(0, 2)
    first.append(batch(2, 1))
    first.close()
    for turn, judge in enumerate((other, store, storage.open())):
        with closing(judge.open("s", "write")) as handle:
            assert handle.next_seq == 3 + turn
            handle.append(batch(3 + turn, 1))
    assert stored(storage.open()) == batch(0, 6)


@holds("NO7")
def check_an_empty_session_is_held_too(storage: Storage) -> None:
    """A flushed session without events has its one writer, among stores too."""
    handle = storage.open().create(header())
    handle.flush()
    other = storage.open()
    with refused(SessionBusyError):
        other.open("s", "write")
    handle.close()
    other.open("s", "write").close()


@holds("NO19")
def check_each_session_is_held_by_itself(storage: Storage) -> None:
    """Who writes one session keeps nobody from another."""
    store, other = storage.open(), storage.open()
    write(store, batch(0, 1), header("a"))
    write(store, batch(0, 1), header("b"))
    with closing(store.open("a", "write")), closing(other.open("b", "write")) as handle:
        handle.append(batch(1, 1))
        with refused(SessionBusyError):
            other.open("a", "write")
        with refused(SessionBusyError):
            store.open("b", "write")


@holds("NH8")
def check_a_handle_for_reading_writes_nothing(storage: Storage) -> None:
    """An append through it is refused, and there is no writer that it would keep out."""
    store = storage.open()
    write(store, batch(0, 1))
    with closing(store.open("s", "read")) as reader:
        with refused(*REFUSALS):
            reader.append(batch(1, 1))
        with closing(store.open("s", "write")) as writer:
            writer.append(batch(1, 1))
    assert stored(storage.open()) == batch(0, 2)


@holds("NH9", "NO18")
def check_a_closed_handle_is_closed(storage: Storage) -> None:
    """It may be closed again; it appends and flushes nothing any more, and reads nothing."""
    store = storage.open()
    handle = store.create(header())
    handle.append(batch(0, 1))
    reader = store.open("s", "read")
    for closed in (handle, reader):
        closed.close()
        closed.close()
        with refused(*REFUSALS):
            closed.append(batch(1, 1))
        with refused(*REFUSALS):
            list(closed.read())
    with closing(store.open("s", "write")) as successor:
        handle.close()  # not its business any more
        successor.append(batch(1, 1))
        with refused(SessionBusyError):
            store.open("s", "write")
    assert stored(storage.open()) == batch(0, 2)


@holds("O32")
def check_an_empty_append_does_nothing(storage: Storage) -> None:
    """It stores no session, and adds nothing to one that is stored."""
    store = storage.open()
    with closing(store.create(header())) as handle:
        handle.append([])
        assert not handle.materialised
        assert listed(storage.open()) == []
        handle.append(batch(0, 1))
        before = storage.open().stat("s").revision
        handle.append([])
        assert storage.open().stat("s").revision == before
    assert stored(storage.open()) == batch(0, 1)


@holds("K6", "NH11", "J10", "O4")
def check_nothing_is_stored_before_the_first_batch(storage: Storage) -> None:
    """A session that was only created is in no other store's list, and cannot be opened there."""
    store = storage.open()
    with closing(store.create(header())) as handle:
        assert list(handle.read()) == []
        assert (handle.next_seq, handle.materialised) == (0, False)
        fresh = storage.open()
        assert listed(fresh) == []
        with refused(SessionNotFoundError):
            fresh.open("s", "read")
    assert listed(storage.open()) == []


@holds("NH13", "J53", "F1")
def check_a_flush_stores_an_empty_session(storage: Storage) -> None:
    """It is listed, opened and continued like any other, and a second flush changes nothing."""
    store = storage.open()
    with closing(store.create(header())) as handle:
        handle.flush()
        before = storage.open().stat("s").revision
        handle.flush()
        assert storage.open().stat("s").revision == before
    store = storage.open()
    assert listed(store) == ["s"]
    assert stored(store) == []
    with closing(store.open("s", "write")) as handle:
        assert handle.header == header()
        handle.append(batch(0, 1))
    assert stored(storage.open()) == batch(0, 1)


# ---------------------------------------------------------------------- looks and lists


@holds("K9", "NH20", "J17")
def check_a_revision_changes_when_the_log_does(storage: Storage) -> None:
    """Looking and reopening change no revision, an append does; `stat` and `list` say the same."""
    store = storage.open()
    write(store, batch(0, 1))

    def revision() -> str:
        (found,) = storage.open().list()
        assert found == store.stat("s") == storage.open().stat("s")
        return found.revision

    before = revision()
    stored(store)
    store.open("s", "write").close()
    assert revision() == before
    seen = {before}
    for seq in range(1, 4):
        with closing(store.open("s", "write")) as handle:
            handle.append(batch(seq, 1))
        seen.add(revision())
    assert len(seen) == 4


@holds("J65", "J66", "J67", "J82")
def check_all_sessions_are_listed(storage: Storage) -> None:
    """None where there is none; of several projects all; sessions whose cwds are much alike keep apart."""
    assert listed(storage.open()) == []
    cwds = ["/a/b-c", "/a-b/c", "/a//b-c", "/", None, "/a/b-c"]
    for place, cwd in enumerate(cwds):
        write(storage.open(), [event(0, place=place)], header(f"s{place}", cwd=cwd))
    store = storage.open()
    assert listed(store) == [f"s{place}" for place in range(len(cwds))]
    for place, cwd in enumerate(cwds):
        assert stored(store, f"s{place}") == [event(0, place=place)]
        found = store.stat(f"s{place}").header
        assert found is not None
        assert found.cwd == cwd


def check_all(new_storage: Callable[[], Storage]) -> dict[str, BaseException]:
    """Run every case on a fresh storage each. Returns what each failing case raised; empty where all hold."""
    failures: dict[str, BaseException] = {}
    for case in STORES.cases:
        try:
            case.check(new_storage())
        except Exception as error:  # noqa: BLE001  # a report of all, whatever one raises
            failures[case.name] = error
    return failures
