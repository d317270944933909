"""A file where a person wants one: what is at the end of its links is replaced in one step, or written into.

The rule: a regular file appears whole or not at all; a device, a FIFO or an open descriptor is written into and stays
what it is; nothing of another kind is touched.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from dsh_client.cli.context import UsageError
from dsh_protocol.errors import EXIT_FAILURE

if TYPE_CHECKING:
    from collections.abc import Iterable

STANDARD_OUTPUT = "-"
_MOST_LINKS = 40
_DESCRIPTORS = "/proc/self/fd"


class FileLostError(UsageError):
    """What was being written took not all of it."""

    exit_code = EXIT_FAILURE


def write_file(path: str, pieces: Iterable[bytes], mode: int) -> int:
    """Write to a path that a person gave; return how many bytes.

    Args:
        path: Not `-`: who calls prints then.
        pieces: What is written. Whatever they raise leaves a regular file as it was.
        mode: Of a regular file, also where it replaces one.

    Raises:
        UsageError: The path is none that can be written to; nothing was written.
        FileLostError: Not all was taken. A regular file is as it was.
    """
    try:
        place, into = _opened(path)
    except OSError as error:
        raise UsageError(f"cannot write {path!r}: {error.strerror}") from error
    return _replace(path, place, pieces, mode) if into is None else _pour(path, into, pieces)


def _opened(path: str) -> tuple[str, int | None]:
    """Return where a path leads, and an open descriptor of what is there where that is to be written into."""
    place, number = _followed(path)
    if number is not None:
        return place, os.dup(number)
    try:
        kind = os.stat(place).st_mode  # noqa: PTH116  # pathlib costs 5 ms at start
    except FileNotFoundError:
        if not os.path.basename(place):  # noqa: PTH119  # likewise
            raise
        return place, None
    if stat.S_ISREG(kind):
        return place, None
    if stat.S_ISSOCK(kind):
        raise UsageError(f"cannot write {path!r}: it is a socket; name a file")
    return place, os.open(place, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)


def _followed(path: str) -> tuple[str, int | None]:
    """Return the path at the end of the links, and the number where that is one of this process's descriptors."""
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(path)
        if name.isdecimal() and os.path.realpath(folder) == os.path.realpath(_DESCRIPTORS):
            return path, int(name)
        try:
            path = os.path.join(folder, os.readlink(path))  # noqa: PTH115, PTH118  # pathlib costs 5 ms at start
        except OSError:  # no link, or nothing at all
            break
    return path, None


def _replace(path: str, place: str, pieces: Iterable[bytes], mode: int) -> int:
    """Write a file beside its place and put it there when it is whole."""
    import tempfile  # only where a file is written

    folder = os.path.dirname(place) or "."  # noqa: PTH120  # pathlib costs 5 ms at start
    try:
        fd, draft = tempfile.mkstemp(prefix=".dshctl-", suffix=".tmp", dir=folder)
    except OSError as error:
        raise UsageError(f"cannot write {path!r}: {error.strerror}") from error
    try:
        os.fchmod(fd, mode)
        size = _pour(path, fd, pieces)
        os.replace(draft, place)  # noqa: PTH105  # pathlib costs 5 ms at start
    except OSError as error:
        raise FileLostError(f"cannot write {path!r}: {error.strerror}") from error
    finally:
        if os.path.exists(draft):  # noqa: PTH110  # pathlib costs 5 ms at start
            os.unlink(draft)  # noqa: PTH108  # pathlib costs 5 ms at start
    return size


def _pour(path: str, fd: int, pieces: Iterable[bytes]) -> int:
    """Write all to a descriptor, and close it."""
    size = 0
    try:
        with open(fd, "wb") as file:  # a descriptor
            for piece in pieces:
                size += file.write(piece)
    except OSError as error:
        raise FileLostError(f"cannot write {path!r}: {error.strerror}") from error
    return size
