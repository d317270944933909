"""Real file systems on loop devices, whose power can be cut, in a mount namespace of this process's own.

The one rule: everything ends with this process. The mounts are in its namespace alone and the loop devices go with
their last user, so that a proof leaves nothing behind, however it ends.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import filecmp
import os
import shutil
import struct
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS = 0x00020000
_RECURSIVE, _PRIVATE = 0x4000, 0x40000
_LOOP_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_LOOP_AUTOCLEAR = 4
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
_FORGET_BUFFERS = 0x1261
_WAIT_S = 10.0
MIB = 1024 * 1024


class CannotTryError(Exception):
    """This machine lacks what a proof needs."""


@dataclass(frozen=True)
class Kind:
    """A file system as it is made and mounted.

    Args:
        name: For the report.
        fs: Its type.
        make: Words for its mkfs.
        options: Of the mount.
        mib: How large.
        check: A command that mends it before it is mounted after a cut, as the boot of a machine does.
    """

    name: str
    fs: str
    make: tuple[str, ...] = ()
    options: str = ""
    mib: int = 48
    check: tuple[str, ...] = ()


EXT4 = Kind("ext4 ordered", "ext4", options="data=ordered")
EXT4_WRITEBACK = Kind("ext4 writeback", "ext4", options="data=writeback")
EXT4_NO_JOURNAL = Kind(
    "ext4 without journal", "ext4", make=("-O", "^has_journal"), check=("e2fsck", "-fy")
)
EXT4_1K = Kind("ext4, blocks of 1 KiB", "ext4", make=("-b", "1024"))
EXT4_4K = Kind("ext4, blocks of 4 KiB", "ext4", make=("-b", "4096"))
XFS = Kind("XFS", "xfs", mib=320)


def require_private_mounts(*programs: str) -> None:
    """Give this process mounts of its own; nothing where it has them.

    Raises:
        CannotTryError: It may not have them, or a program is missing.
    """
    missing = [one for one in programs if shutil.which(one) is None]
    if missing:
        raise CannotTryError(f"{', '.join(missing)}: not installed")
    if os.geteuid() != 0:
        raise CannotTryError("needs root")
    try:
        _check(_LIBC.unshare(_NEW_MOUNTS))
        _mount("none", Path("/"), None, _RECURSIVE | _PRIVATE, "")
    except OSError as error:
        raise CannotTryError(f"no mounts of its own: {error.strerror}") from error
    if not Path("/dev/loop-control").exists():
        raise CannotTryError("no loop devices")


def mount_tmpfs(where: Path, kib: int) -> None:
    """Mount a file system in memory of so many KiB."""
    where.mkdir(mode=0o700, exist_ok=True)
    _mount("tmpfs", where, "tmpfs", 0, f"size={kib}k,mode=700")


def mount_fuse(where: Path, fd: int) -> None:
    """Mount what the process behind a descriptor of /dev/fuse serves over a file."""
    options = f"fd={fd},rootmode=100600,user_id={os.geteuid()},group_id={os.getegid()}"
    _mount("dshd-block", where, "fuse", 0, options)


def unmount(where: Path) -> None:
    """Unmount, waiting for those who are just leaving."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            _check(_LIBC.umount2(os.fsencode(where), 0))
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)  # the kernel reaps the dead by the real clock
        else:
            return


class Volume:
    """A file system of a kind on a loop device over a file; see `open_volume`."""

    def __init__(self, kind: Kind, image: Path, device: Path, where: Path) -> None:
        self.kind = kind
        self.path = where
        self._image = image
        self._device = device
        self._kept = image.with_suffix(".kept")
        self.mounted = False

    def mount(self) -> None:
        """Mount it; a journal is replayed by that."""
        _mount(str(self._device), self.path, self.kind.fs, 0, self.kind.options)
        self.mounted = True

    def unmount(self) -> None:
        """Unmount it, and be sure that nobody else keeps it alive."""
        unmount(self.path)
        self.mounted = False
        fd = _open_alone(self._device)
        if self._kept.exists():
            shutil.copyfile(self._kept, self._image)  # into the file that the loop device has open
            self._kept.unlink()
        fcntl.ioctl(fd, _FORGET_BUFFERS)
        os.close(fd)

    def remount(self) -> None:
        """Unmount and mount: what is read then comes from the device."""
        self.unmount()
        if self.kind.check:
            run([*self.kind.check, str(self._device)], most=3)
        self.mount()

    def sync(self) -> None:
        """Have all of it written."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            _check(_LIBC.syncfs(fd))
        finally:
            os.close(fd)

    def shut_down(self) -> None:
        """Cut it off from its device at once: what was not written by now never is. Stop its users before.

        Without a journal, unmounting would write what the directories were to become; there the device is put back
        to what it holds now. The kernel writes on while its image is read: it is read until it is the same twice, or
        it would be one that the device never was.
        """
        if self.kind.check:
            shutil.copyfile(self._image, self._kept)
            while not filecmp.cmp(self._image, self._kept, shallow=False):
                shutil.copyfile(self._image, self._kept)
            return
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)


@contextmanager
def open_volume(kind: Kind, scratch: Path, backing: Path | None = None) -> Generator[Volume]:
    """Make and mount a file system on a loop device over `backing`, or over a new sparse file.

    Raises:
        CannotTryError: It cannot be made or mounted here.
    """
    image = backing or scratch / "image"
    where = scratch / "mount"
    where.mkdir(exist_ok=True)
    if backing is None:
        image.write_bytes(b"")
        os.truncate(image, kind.mib * MIB)
    with _loop_device(image) as device:
        force = ("-q", "-F", "-E", "nodiscard") if kind.fs == "ext4" else ("-q", "-f", "-K")
        try:
            run([f"mkfs.{kind.fs}", *force, *kind.make, str(device)])
            volume = Volume(kind, image, device, where)
            volume.mount()
        except OSError as error:
            raise CannotTryError(f"{kind.name} cannot be made or mounted here: {error}") from error
        try:
            yield volume
        finally:
            if volume.mounted:
                unmount(where)
    if backing is None:
        image.unlink()


@contextmanager
def open_image(kind: Kind, image: Path, where: Path) -> Generator[None]:
    """Mount what a disk holds, as the boot of a machine does.

    Raises:
        OSError: It cannot be mounted.
    """
    with _loop_device(image) as device:
        if kind.check:
            run([*kind.check, str(device)], most=3)
        _mount(str(device), where, kind.fs, 0, kind.options)
        try:
            yield
        finally:
            unmount(where)
            os.close(_open_alone(device))


@contextmanager
def _loop_device(image: Path) -> Generator[Path]:
    """A loop device over a file that ends with its last user: this one, and what is mounted from it."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    held = -1
    try:
        for _ in range(20):  # another may have taken the free one meanwhile
            control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
            try:
                number = fcntl.ioctl(control, _LOOP_GET_FREE)
            finally:
                os.close(control)
            device = Path(f"/dev/loop{number}")
            held = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            flags = struct.pack("=40s4I160s16s", b"", 0, 0, 0, _LOOP_AUTOCLEAR, b"", b"")
            try:
                fcntl.ioctl(
                    held, _LOOP_CONFIGURE, struct.pack("=II232s64s", backing, 0, flags, b"")
                )
                break
            except OSError as error:
                os.close(held)
                held = -1
                if error.errno != errno.EBUSY:
                    raise
        else:
            raise CannotTryError("no loop device is free")
        yield device
    finally:
        os.close(backing)
        if held >= 0:
            os.close(held)


def _open_alone(device: Path) -> int:
    """Open a device as soon as nobody has it mounted."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            return os.open(device, os.O_RDWR | os.O_EXCL)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)  # the kernel ends a file system by the real clock


def run(words: Sequence[str], *, most: int = 0) -> None:
    """Run a command that must end with no more than `most`.

    Raises:
        CannotTryError: It did not.
    """
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode > most:
        raise CannotTryError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def _mount(source: str, where: Path, fs: str | None, flags: int, options: str) -> None:
    kind = fs.encode() if fs is not None else None
    words = (os.fsencode(source), os.fsencode(where), kind, ctypes.c_ulong(flags))
    _check(_LIBC.mount(*words, options.encode()))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
