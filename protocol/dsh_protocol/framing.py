"""Bytes into lines.

A line ends at byte 0x0A and at nothing else: text may hold U+2028, U+0085 and what else a text editor calls a line
break. Memory is bounded by the limit, whatever a peer sends, and every byte is looked at once.
Standard library only; no I/O.
"""

from __future__ import annotations

from dsh_protocol.errors import FrameTooLargeError

_BEGINNING_BYTES = 4096


class CutLine(bytes):
    """The beginning of a line for which there was no memory. What comes behind the line is not hurt by it."""


class LineSplitter:
    """Cuts one connection's bytes into lines.

    After `FrameTooLargeError` the position in the stream is lost: answer the error and close the connection.
    """

    def __init__(self, max_line_bytes: int) -> None:
        """Make a splitter at the start of a stream.

        Args:
            max_line_bytes: The longest line that is taken, its newline not counted.
        """
        self._max_line_bytes = max_line_bytes
        self._parts: list[bytes] = []
        self._cut: bytes | None = None
        self._held = 0

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished line is held."""
        return self._held

    def cut_line(self) -> None:
        """Let go of the unfinished line but for its beginning; the rest of it will not be kept. See `CutLine`."""
        if self._cut is None:
            self._cut = self._beginning()
            self._parts.clear()

    def feed(self, chunk: bytes) -> list[bytes]:
        r"""Take the next bytes of the stream; return the lines that they complete, without their newline.

        Of a line for which there is no memory a `CutLine` is returned.

        Raises:
            FrameTooLargeError: A line, finished or not, is over the limit. Lines completed by the same chunk before
                it are lost with it; hand over chunks of a few KiB where that matters.
        """
        if b"\n" not in chunk:  # a piece of a long line: not a byte of it is copied
            self._hold(chunk)
            return []
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes] = []
        for piece in ended:
            self._hold(piece)
            lines.append(self._take())
        self._hold(rest)
        return lines

    def _hold(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > self._max_line_bytes:
            self._parts.clear()
            raise FrameTooLargeError(
                f"a line is longer than {self._max_line_bytes} bytes; send fewer or smaller events in one call",
                limit="maxLineBytes",
                maximum=self._max_line_bytes,
            )
        if piece and self._cut is None:
            self._parts.append(piece)

    def _take(self) -> bytes:
        try:
            line = b"".join(self._parts) if self._cut is None else CutLine(self._cut)
        except MemoryError:
            line = CutLine(self._beginning())
        self._parts.clear()
        self._cut = None
        self._held = 0
        return line

    def _beginning(self) -> bytes:
        found = b""
        for part in self._parts:
            found += part[: _BEGINNING_BYTES - len(found)]
        return found
