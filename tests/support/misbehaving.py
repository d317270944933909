"""`dshd` with a disk that misbehaves for some sessions, by their ids: `python -m support.misbehaving serve …`.

`slow…`: each sync takes two seconds, or `SLOW_S` of the environment. `sealed…`: once armed (a file of that name in the
root), an append fails and cannot be undone. `stuck…`: while armed, a sync does not end. The one rule: all other
sessions have an ordinary disk, whose syncs take five milliseconds.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

from dshd import lifecycle, main
from dshd.sessions.measured import MeasuredDisk

SLOW_S, ORDINARY_S = float(os.environ.get("SLOW_S", "2")), 0.005
ARMED = "armed"
_EIO = OSError(errno.EIO, os.strerror(errno.EIO))


class _Misbehaving(MeasuredDisk):
    def fdatasync(self, fd: int) -> None:
        if _is_sealed(fd):
            raise _EIO
        # a disk is slow by the real clock
        time.sleep(SLOW_S if _session(fd).startswith("slow") else ORDINARY_S)
        while _session(fd).startswith("stuck") and _is_armed(fd):
            time.sleep(0.05)  # a stuck disk is stuck by the real clock
        super().fdatasync(fd)

    def truncate(self, fd: int, length: int) -> None:
        if _is_sealed(fd):
            raise _EIO
        super().truncate(fd, length)


def _session(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").readlink().parent.name


def _is_sealed(fd: int) -> bool:
    name = Path(f"/proc/self/fd/{fd}").readlink().name
    return _session(fd).startswith("sealed") and name.startswith("session.jsonl") and _is_armed(fd)


def _is_armed(fd: int) -> bool:
    """Whether the file stands in the root, above project and session."""
    return (Path(f"/proc/self/fd/{fd}").readlink().parents[2] / ARMED).exists()


if __name__ == "__main__":
    setattr(lifecycle, "MeasuredDisk", _Misbehaving)  # noqa: B010  # the test's own build of the daemon
    sys.exit(main.main())
