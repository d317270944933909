"""A file that is a disk, served through /dev/fuse by a process of its own, so that single block writes can fail.

Where the kernel has no device mapper, a loop device over this file is the disk that says EIO, and the one that tells
what was written to it. The one rule: only the writes that were asked for fail; the others are carried out, in order.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import stat
import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from crash.processes import end_with_parent
from crash.volumes import MIB, CannotTryError, mount_fuse, unmount

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_LARGEST = 128 * 1024
_NO_ANSWER = frozenset({2, 36, 42})  # FORGET, INTERRUPT, BATCH_FORGET
_GETATTR, _SETATTR, _OPEN, _READ, _WRITE = 3, 4, 14, 15, 16
_SYNC = 20
_DONE = frozenset({18, _SYNC, 25, 38})  # RELEASE, FSYNC, FLUSH, DESTROY
_INIT = 26
_DIRECT_IO = 1
_RECORD = struct.Struct("<cQI")

WRITE, FLUSH, MARK = b"W", b"F", b"M"
"""What a record is of."""


class Record(NamedTuple):
    """What happened to the disk: bytes were written at an offset, all was flushed, or somebody left a mark."""

    kind: bytes
    offset: int
    data: bytes


def read_records(path: Path) -> list[Record]:
    """Read what was recorded, in order."""
    content = path.read_bytes()
    found: list[Record] = []
    at = 0
    while at < len(content):
        kind, offset, size = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        found.append(Record(kind, offset, content[at : at + size]))
        at += size
    return found


@dataclass
class _Fault:
    """Writes that hold `pattern` fail, `left` of them; `victim` is killed before it can hear of the first."""

    pattern: bytes
    left: int
    victim: int = 0


class BlockFile:
    """The control of a served file.

    Attributes:
        path: Where it is.
        image: What backs it.
    """

    def __init__(self, path: Path, image: Path, control: socket.socket) -> None:
        self.path = path
        self.image = image
        self._control = control
        self._answers = control.makefile("r")

    def fail(self, pattern: bytes, count: int = 1, *, victim: int = 0) -> None:
        """Fail the next `count` writes that hold `pattern`; SIGKILL the process `victim` at the first."""
        self._ask({"fault": [pattern.hex(), count, victim]})

    def heal(self) -> None:
        """Fail no more."""
        self._ask({"fault": None})

    def failed(self) -> int:
        """How many writes have failed so far."""
        return self._ask({})

    def mark(self, text: str) -> None:
        """Leave a mark among the records: what is recorded before it had happened by now."""
        self._ask({"mark": text})

    def _ask(self, what: dict[str, object]) -> int:
        self._control.sendall(json.dumps(what).encode() + b"\n")
        failed: int = json.loads(self._answers.readline())["failed"]
        return failed


@contextmanager
def open_block_file(scratch: Path, mib: int, records: Path | None = None) -> Generator[BlockFile]:
    """Serve a disk of zeros.

    Args:
        scratch: Where the file and what backs it are.
        mib: How large.
        records: A file that gets every write and flush, and the marks.

    Raises:
        CannotTryError: There is no /dev/fuse, or it cannot be used.
    """
    path, image = scratch / "block", scratch / "block.image"
    for one in (path, image):
        one.write_bytes(b"")
    os.truncate(image, mib * MIB)
    ours, theirs = socket.socketpair()
    try:
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise CannotTryError(f"/dev/fuse: {error.strerror}") from error
    try:
        mount_fuse(path, fuse)
    except OSError as error:
        os.close(fuse)
        raise CannotTryError(f"no FUSE file can be mounted: {error.strerror}") from error
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        ours.close()
        code = 1
        with suppress(OSError):
            _Server(fuse, image, theirs, records).run()
            code = 0
        os._exit(code)
    theirs.close()
    os.close(fuse)
    try:
        yield BlockFile(path, image, ours)
    finally:
        unmount(path)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ours.close()
        image.unlink()
        path.unlink()


class _Server:
    def __init__(
        self, fuse: int, image: Path, control: socket.socket, records: Path | None
    ) -> None:
        self._fuse = fuse
        self._records = None if records is None else records.open("wb", buffering=0)
        self._image = os.open(image, os.O_RDWR)
        self._control = control
        self._fault: _Fault | None = None
        self._failed = 0

    def run(self) -> None:
        """Serve until the file is unmounted (ENODEV)."""
        poll = select.poll()
        poll.register(self._fuse, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        asked = self._control.makefile("rb", buffering=0)
        while True:
            for fd, _ in poll.poll():
                if fd == self._fuse:
                    self._serve()
                else:
                    line = asked.readline()
                    if not line:
                        return
                    self._obey(json.loads(line))

    def _note(self, kind: bytes, offset: int = 0, data: bytes | memoryview = b"") -> None:
        if self._records is not None:
            self._records.write(b"".join([_RECORD.pack(kind, offset, len(data)), data]))

    def _obey(self, what: dict[str, Any]) -> None:
        if "mark" in what:
            self._note(MARK, 0, what["mark"].encode())
        if "fault" in what:
            told = what["fault"]
            self._fault = None
            if told is not None:
                self._fault = _Fault(bytes.fromhex(str(told[0])), int(told[1]), int(told[2]))
        self._control.sendall(json.dumps({"failed": self._failed}).encode() + b"\n")

    def _serve(self) -> None:
        try:
            message = os.read(self._fuse, _LARGEST + 4096)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EINTR, errno.EAGAIN}:
                return  # the request was taken back
            raise
        _, code, unique, *_ = _IN.unpack_from(message)
        if code in _NO_ANSWER:
            return
        answer: bytes | int
        try:
            answer = self._answer(code, message)
        except OSError as error:
            answer = error.errno or errno.EIO
        failed = isinstance(answer, int)
        body = b"" if isinstance(answer, int) else answer
        head = _OUT.pack(_OUT.size + len(body), -answer if isinstance(answer, int) else 0, unique)
        with suppress(FileNotFoundError):
            os.writev(self._fuse, [head, body] if not failed else [head])

    def _answer(self, code: int, message: bytes) -> bytes | int:
        """Carry out a request; return what to answer, or an error."""
        if code == _WRITE:
            return self._write(message)
        if code == _READ:
            _, offset, size = struct.unpack_from("<QQI", message, _IN.size)
            return os.pread(self._image, size, offset)
        if code in {_GETATTR, _SETATTR}:
            return self._attributes()
        if code == _OPEN:
            return struct.pack("<QII", 1, _DIRECT_IO, 0)
        if code == _INIT:
            _, minor, ahead = struct.unpack_from("<III", message, _IN.size)
            told = struct.pack("<IIIIHHII", 7, min(minor, 31), ahead, 0, 16, 12, _LARGEST, 1)
            return told.ljust(64, b"\0")
        if code == _SYNC:
            self._note(FLUSH)
        return b"" if code in _DONE else errno.ENOSYS

    def _write(self, message: bytes) -> bytes | int:
        _, offset, size = struct.unpack_from("<QQI", message, _IN.size)
        data = memoryview(message)[_IN.size + 40 :][:size]
        fault = self._fault
        if fault is not None and fault.left and fault.pattern in bytes(data):
            fault.left -= 1
            self._failed += 1
            if fault.victim:
                os.kill(fault.victim, signal.SIGKILL)
            return errno.EIO
        os.pwrite(self._image, data, offset)
        self._note(WRITE, offset, data)
        return struct.pack("<II", size, 0)

    def _attributes(self) -> bytes:
        size = os.fstat(self._image).st_size
        times = (0, 0, 0, 0, 0, 0)
        mode = stat.S_IFREG | 0o600
        owner = (os.geteuid(), os.getegid())
        attributes = struct.pack(
            "<6Q10I", 1, size, size // 512, *times[:3], *times[3:], mode, 1, *owner, 0, 4096, 0
        )
        return struct.pack("<QII", 60, 0, 0) + attributes
