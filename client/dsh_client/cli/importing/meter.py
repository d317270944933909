"""One line on a terminal that says how far a long import has come; nothing anywhere else."""

from __future__ import annotations

import sys
import time

from dsh_client.cli.text import clip, escape

_EVERY_S = 0.1
_WIDTH = 60


class Meter:
    """Shows the share of bytes read of one file after the other."""

    def __init__(self) -> None:
        """Look whether somebody looks."""
        try:
            self._stream = sys.stderr if sys.stderr.isatty() else None
        except (AttributeError, ValueError):  # closed, or never there
            self._stream = None
        self._next = 0.0
        self._name = ""

    def begin(self, name: str) -> None:
        """Go on to a file."""
        self._name = clip(escape(name), _WIDTH - 20, "...")

    def show(self, done: int, total: int) -> None:
        """Show how many bytes of how many are read."""
        now = time.monotonic()
        if self._stream is None or now < self._next:
            return
        self._next = now + _EVERY_S
        share = f"{min(100 * done // total, 100)} %" if total else "begun"
        self._write(f"importing {self._name}: {share}".ljust(_WIDTH))

    def clear(self) -> None:
        """Leave the line empty."""
        if self._next:
            self._write(" " * _WIDTH)
            self._write("")

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(f"\r{text}")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None
