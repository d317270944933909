"""A program that dies at every call of the disk, each time in a child of its own.

Usage: `python dying.py ROOT zstd|none`. For every call N and each moment (before it, after it, half-way in a write)
a child works under `ROOT/<N>-<moment>` and ends there without a word. Writes one line for each: the folder, the call,
and how many events the child had acknowledged.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from storage.failing import FailingDisk
from storage.samples import HEADER, HOLDER, batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from dshd.storage.jsonl.layout import Compression

MOMENTS = ("before", "half", "after")


class DyingDisk(FailingDisk):
    """Ends the process at call number `at`."""

    moment = "before"

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            last = len(self.calls) == self.at
            if last and self.moment == "half" and name == "write":
                call(args[0], bytes(args[1])[: len(args[1]) // 2])
            if last and self.moment != "after":
                os._exit(9)
            try:
                return None if name in {"fsync", "fdatasync"} else call(*args, **options)
            finally:
                if last:
                    os._exit(9)

        return watched


def work(
    root: Path, disk: DyingDisk, compression: Compression, said: Callable[[int], None]
) -> None:
    """Create, append, close; open over a torn tail, append; `said` is told what is acknowledged."""
    store = open_store(root, compression=compression, disk=disk)
    handle = store.create(HEADER)
    handle.append(batch(0, 2), HOLDER)
    said(2)
    handle.append(batch(2, 3))
    said(5)
    handle.keep(Snapshot(5, b"state", b"{}"))
    handle.close()
    with next(path for path in root.rglob("session.jsonl*")).open("ab") as log:
        log.write(b"\x28\xb5\x2f\xfdhalf")
    handle = store.open("s1", "write")
    handle.append(batch(5, 1), HOLDER)
    said(6)
    handle.keep(Snapshot(6, b"state", b"{}"))
    handle.clear_holder()
    handle.close()


def dead(root: Path, at: int, moment: str, compression: Compression) -> int:
    """Let a child die and return how many events it had acknowledged."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        disk = DyingDisk(at)
        disk.moment = moment
        with suppress(BaseException):
            work(
                root,
                disk,
                compression,
                lambda count: cast("None", os.write(writes, bytes([count]))),
            )
        os._exit(1)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 9:
        sys.exit(f"the child of {root} did not die where it should")
    return said[-1] if said else 0


def main(folder: Path, compression: Compression) -> None:
    whole = DyingDisk()
    work(folder / "whole", whole, compression, lambda _: None)
    for at, name in enumerate(whole.calls, 1):
        for moment in MOMENTS:
            if moment != "half" or name == "write":
                root = folder / f"{at}-{moment}"
                said = dead(root, at, moment, compression)
                sys.stdout.write(f"{root} {name}/{moment} {said}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), cast("Compression", sys.argv[2]))
