"""Long output on a terminal goes through a pager: `$DSHD_PAGER`, `$PAGER`, or `less`.

The rule: what fits on the screen is printed as without a pager, and no pager is started where none is wanted: no
terminal, `--no-pager`, a verb that goes on by itself, or one named `cat` or nothing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from contextlib import suppress
from typing import IO, TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Mapping

_NONE = {"", "cat"}


def pager_of(environ: Mapping[str, str]) -> list[str] | None:
    """Return the pager's words; None where there is none."""
    named = environ.get("DSHD_PAGER", environ.get("PAGER"))
    if named is None:
        return ["less"] if shutil.which("less") else None
    try:
        words = shlex.split(named)
    except ValueError:
        return None
    if not words or words[0] in _NONE or shutil.which(words[0]) is None:
        return None
    return words


class Paged:
    """Standard output that waits until it is known whether it fits on the screen.

    Args:
        stdout: Where it goes; owned by the caller.
        rows: So many lines fit.
        pager: What shows more.
    """

    def __init__(self, stdout: BinaryIO, rows: int, pager: list[str]) -> None:
        """Nothing is started yet."""
        self._stdout = stdout
        self._rows = rows
        self._words = pager
        self._waiting: list[bytes] = []
        self._lines = 0
        self._pager: subprocess.Popen[bytes] | None = None
        self._pipe: IO[bytes] = stdout

    @property
    def started(self) -> bool:
        """Whether a pager shows the output."""
        return self._pager is not None

    def write(self, data: bytes) -> int:
        """Take a piece of the output."""
        if self._pager is not None:
            return self._pipe.write(data)
        self._waiting.append(data)
        self._lines += data.count(b"\n")
        if self._lines >= self._rows:
            self._start()
        return len(data)

    def flush(self) -> None:
        """Hand on what there is; where it fits on the screen, without a pager."""
        if self._pager is None:
            self._hand_on()
        self._pipe.flush()

    def close(self) -> None:
        """Say that nothing more comes, and wait until the reader has read."""
        if self._pager is not None:
            with suppress(OSError):
                self._pipe.close()
            self._pager.wait()

    def _start(self) -> None:
        env = {"LESS": "FRX", "LESSCHARSET": "utf-8", **os.environ}
        with suppress(OSError):
            self._pager = subprocess.Popen(self._words, stdin=subprocess.PIPE, env=env)  # noqa: S603  # the user's own
            if self._pager.stdin is not None:
                self._pipe = self._pager.stdin
        self._hand_on()

    def _hand_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._lines = 0
        for data in waiting:
            self._pipe.write(data)
