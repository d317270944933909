"""How a stored log becomes a handle.

The rule that holds here: what is told of a log is what the disk has of it, also after a failed sync. Whoever reads
mends nothing; whoever writes has the lock first, refuses what must not be continued, then mends the tail alone.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from dshd.storage.files import APPEND
from dshd.storage.jsonl.beginning import READ_WHOLE, begun, find_loss
from dshd.storage.jsonl.derived import lineage_of, read_derived
from dshd.storage.jsonl.faults import read_error, write_error
from dshd.storage.jsonl.generations import refuse_newer
from dshd.storage.jsonl.holder import read_holder, told
from dshd.storage.jsonl.layout import LEFTOVER
from dshd.storage.jsonl.listing import not_found, require_identity
from dshd.storage.jsonl.lock import lock_session
from dshd.storage.jsonl.log import LogFile, OpenFile
from dshd.storage.jsonl.read_handle import ReadHandle
from dshd.storage.jsonl.repair import cut, set_aside, settle, sweep
from dshd.storage.jsonl.rescue import events_behind_header
from dshd.storage.jsonl.source import read_header
from dshd.storage.jsonl.vocabulary import find_problem
from dshd.storage.jsonl.write_handle import WriteHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsh_protocol.vocabulary import Event
    from dshd.storage.jsonl.layout import Place
    from dshd.storage.jsonl.site import Site

_LEFTOVER_AGE = 24 * 3600.0


def open_to_read(site: Site, session_id: str, *, fresh: Callable[[Place], bool]) -> ReadHandle:
    """Open a log for reading.

    Args:
        site: Where it lies.
        session_id: As it was asked for.
        fresh: Asked once the log is open: whether what the system shows of it may be more than the disk has.

    Raises:
        SessionNotFoundError: It is not there.
        DshdError: It cannot be read, or does not begin as a log does.
    """
    disk, place = site.disk, site.place
    try:
        with site.directory() as directory:
            kept = read_derived(disk, directory, whole=True)
            fd = site.root.open_log(directory, place)
    except FileNotFoundError as error:
        raise not_found(session_id) from error
    except OSError as error:
        raise read_error(error, site.path) from error
    file = OpenFile(disk, fd)
    try:
        if fresh(place):
            _settle_names(site)
            settle(disk, fd)
        found = disk.fstat(fd)
        header, first = read_header(site.source(fd), found.st_size)
        derived = lineage_of(kept, site.source(fd), first, found.st_size)
        if found.st_size <= READ_WHOLE and not (kept is not None and kept.is_level(found)):
            derived = derived.distrusted()
    except OSError as error:
        file.close()
        raise read_error(error, site.path) from error
    except BaseException:
        file.close()
        raise
    return ReadHandle(site, file, header, first, derived)


def _settle_names(site: Site) -> None:
    """Make the names of what is about to be shown durable, where this disk and this user can."""
    with suppress(OSError), site.directory() as directory:
        site.root.settle(directory, site.place.project, site.place.segment)


def events_of(site: Site, session_id: str) -> Iterator[Event]:
    """Yield what can be read of a log whose header is no good.

    Raises:
        SessionNotFoundError: It is not there.
        DshdError: It cannot be read.
    """
    try:
        with site.directory() as directory:
            fd = site.root.open_log(directory, site.place)
        try:
            yield from events_behind_header(site.source(fd), site.disk.fstat(fd).st_size)
        finally:
            site.disk.close(fd)
    except FileNotFoundError as error:
        raise not_found(session_id) from error
    except OSError as error:
        raise read_error(error, site.path) from error


def open_to_write(site: Site, session_id: str, *, released: Callable[[], None]) -> WriteHandle:
    """Take a log's lock and open it for writing; `released` is called when the handle ends, not when this raises.

    Raises:
        SessionNotFoundError: It is not there.
        SessionBusyError: Another program writes.
        DshdError: It cannot be continued, or not be read.
    """
    try:
        directory = site.open_directory()
    except FileNotFoundError as error:
        raise not_found(session_id) from error
    lock = fd = None
    try:
        holder = told(read_holder(site.disk, directory))
        lock = lock_session(site.disk, directory, session_id, holder)
        fd = site.root.open_log(directory, site.place, APPEND)
        handle = _opened(site, session_id, directory, (lock, fd), released)
    except BaseException as error:
        for held in (fd, lock):
            if held is not None:
                site.disk.close(held)
        if isinstance(error, FileNotFoundError):
            raise not_found(session_id) from error
        if isinstance(error, OSError):
            raise write_error(error, site.path, of_batch=False) from error
        raise
    finally:
        site.disk.close(directory)
    return handle


def _opened(
    site: Site,
    session_id: str,
    directory: int,
    held: tuple[int, int],
    released: Callable[[], None],
) -> WriteHandle:
    """Read the log as the disk has it, refuse what must not be continued, then mend its tail."""
    disk, (lock, fd) = site.disk, held
    names = disk.listdir(directory)
    refuse_newer(site, directory, names)
    site.root.settle(directory, site.place.project, site.place.segment)
    settle(disk, fd)
    source, found = site.source(fd), disk.fstat(fd)
    header, first = read_header(source, found.st_size)
    require_identity(header, session_id, site)
    derived = read_derived(disk, directory, whole=True)
    lineage = lineage_of(derived, source, first, found.st_size)
    if lineage.loss is not None and derived is not None:
        find_loss(source, first, found.st_size, derived)
        raise lineage.loss
    level = derived is not None and derived.is_level(found)
    index, walk = begun(source, first, found.st_size, lineage, trusted=level)
    problem = find_problem(walk.batches(), index, site.path)
    if problem is not None:
        raise problem
    if walk.torn is not None:
        set_aside(directory, source, walk.torn)
        cut(source, walk.torn)
    leftovers = [name for name in names if LEFTOVER.fullmatch(name)]
    sweep(disk, directory, older_than=time.time() - _LEFTOVER_AGE, names=leftovers)
    return WriteHandle(
        site,
        header,
        lock=lock,
        log=LogFile(OpenFile(disk, fd), site.path, walk.offset, walk.crc or 0),
        first=first,
        index=index,
        next_seq=walk.seq,
        derived=lineage.head,
        level=level,
        released=released,
    )
