"""Judges what a run left behind: every log opens, holds what was acknowledged, nothing that was not sent, and goes on.

The one rule: what the product says of a log is compared with what stands in it, as `reader` reads it, and with the
workload; none of the three is believed alone.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import closing
from typing import TYPE_CHECKING

from crash.daemonless import stored
from crash.playing import Account
from crash.workload import further
from dsh_protocol.errors import DshdError
from dshd.sessions.folding import fold_log
from dshd.storage.jsonl.layout import LEFTOVER
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from storage.failing import HastyDisk
from support.logs import events_in, whole_part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dshd.storage.jsonl.store import JsonlStore
    from support.logs import Event

_MADE = frozenset({"session/end-seed", "turn/end", "step/end", "tool/result"})
_OLD_S = 3 * 24 * 3600

Reference = dict[str, list[str]]
"""The events of every session after the undisturbed workload, each as `canonical` has it."""


def canonical(event: Event) -> str:
    """Return an event as text, without the one time that the daemon takes from a clock."""
    shown = dict(event)
    if event["type"] == "session/end-seed":
        shown.pop("time")
    return json.dumps(shown, sort_keys=True)


def reference_of(root: Path) -> Reference:
    """Read what the undisturbed workload left."""
    return {name: [canonical(event) for event in events] for name, events in _logs(root)}


def _logs(root: Path) -> Iterator[tuple[str, list[Event]]]:
    for log in sorted(root.glob("*/*/session.jsonl*")):
        if log.suffix != ".tmp":
            yield log.parent.name, events_in(log.read_bytes())


def complaints(folder: Path, reference: Reference) -> list[str]:
    """Return what is wrong with the root under `folder`, in the light of the account beside it.

    The root is opened, mended and gone on with; it is not what it was afterwards.
    """
    root, promised = folder / "root", Account(folder).promised()
    found = list(wrong_modes(root))
    store = open_store(root, disk=HastyDisk())
    names = set(stored(root))
    found += [
        f"{name}: gone, and {seq} events were promised"
        for name, seq in promised.items()
        if seq and name not in names
    ]
    for name in sorted(names):
        try:
            found += [
                f"{name}: {what}" for what in _session(store, root, name, promised, reference)
            ]
        except (DshdError, OSError) as error:
            found.append(f"{name}: does not open: {error}")
    try:
        found += [
            f"{one.session_id}: listed with {one.problem.kind}"
            for one in store.list()
            if one.problem
        ]
    except (DshdError, OSError) as error:
        found.append(f"no list: {error}")
    return found


def _session(
    store: JsonlStore, root: Path, name: str, promised: dict[str, int], reference: Reference
) -> Iterator[str]:
    with closing(store.open(name, "read")) as reading:
        shown = list(reading.read())
    with closing(store.open(name, "write")) as writing:
        events = list(writing.read())
        if len(events) < promised.get(name, 0):
            yield f"{len(events)} events, and {promised[name]} were promised"
        if events[: len(shown)] != shown:
            yield "what was read before it was mended is not there any more"
        found = [canonical(event) for event in events]
        yield from invented(name, events, found, reference.get(name, []))
        if fold_log(writing).next_seq != len(events):
            yield "its fold has another length"
        for count in (1, 2):
            more = [further(name, len(events) + k) for k in range(count)]
            more = [{**event, "seq": len(events) + k} for k, event in enumerate(more)]
            writing.append(more)
            events += more
            found += [canonical(event) for event in more]
        writing.keep(Snapshot(len(events), b"state", b"{}"))
    log = next(path for path in root.glob(f"*/{name}/session.jsonl*") if path.suffix != ".tmp")
    content = log.read_bytes()
    _, left = whole_part(content)
    if left:
        yield f"{left} bytes behind the last batch are no batch"
    if [canonical(event) for event in events_in(content)] != found:
        yield "the product reads something else than what stands there"
    yield from leftovers(store, log.parent, name)


def invented(
    name: str, events: list[Event], found: list[str], expected: list[str]
) -> Iterator[str]:
    """Yield what nobody sent, and every gap: a prefix of the workload, then what whoever went on with it appended.

    Args:
        name: The session's.
        events: What the log has.
        found: The same, as `canonical` has it.
        expected: What the workload sent.
    """
    strayed = False
    for seq, event in enumerate(events):
        if event["seq"] != seq:
            yield f"seq {event['seq']} where {seq} is due"
            return
        strayed = strayed or seq >= len(expected) or found[seq] != expected[seq]
        if strayed and not _goes_on(name, seq, event):
            yield f"event {seq} ({event['type']}) was never sent"
            return


def _goes_on(name: str, seq: int, event: Event) -> bool:
    if event["type"] in _MADE:
        return "canary" not in json.dumps(event)
    return canonical(event) == canonical({**further(name, seq), "seq": seq})


def leftovers(store: JsonlStore, directory: Path, name: str) -> Iterator[str]:
    """Yield what a session's directory has that it should not, once what dead programs left is old."""
    old = time.time() - _OLD_S
    strays = [path for path in directory.iterdir() if LEFTOVER.fullmatch(path.name)]
    if strays:
        for path in strays:
            os.utime(path, (old, old))
        store.open(name, "write").close()
    known = ("session.lock", "holder.json", "derived.bin", "torn-", "session.jsonl")
    for path in directory.iterdir():
        if LEFTOVER.fullmatch(path.name) or not path.name.startswith(known):
            yield f"{path.name} is left over"


def wrong_modes(root: Path) -> Iterator[str]:
    """Yield what others than this user could read, or this one could not."""
    for path in (root, *root.rglob("*")) if root.exists() else ():
        found = path.lstat()
        due = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
        if stat.S_IMODE(found.st_mode) != due:
            yield f"{path.name} has mode {stat.S_IMODE(found.st_mode):o}"
