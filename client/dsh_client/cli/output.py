"""What `dshctl` prints: results on standard output, everything else on standard error.

The rule: with `-o json` and `-o jsonl`, standard output holds the values that the daemon answered and nothing else, in
UTF-8 whatever the locale; with `-o table`, no character of a session reaches the terminal raw.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, cast

from dsh_client.cli import times
from dsh_client.cli.text import clip, escape, escape_json, pad, width

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsh_client.cli.fields import Fields

FORMS = ("table", "json", "jsonl")
_GAP = "  "


class Sink(Protocol):
    """What takes bytes: a stream of the process, or what stands in front of it."""

    def write(self, data: bytes, /) -> int:
        """Take them, all."""
        ...

    def flush(self) -> None:
        """Hand them on."""
        ...


class OutputLostError(Exception):
    """Standard output took no more. `broken` tells a reader that went away from a disk that is full."""

    def __init__(self, cause: OSError) -> None:
        """Keep what the system said."""
        super().__init__(f"cannot write to standard output: {cause.strerror or cause}")
        self.broken = isinstance(cause, BrokenPipeError)


class Column(NamedTuple):
    """One column of a table. `floor` is the width it may shrink to on a narrow terminal; 0 keeps it whole."""

    heading: str
    floor: int = 0
    right: bool = False


class Terminal(NamedTuple):
    """What the streams are: `columns` is None where standard output is no terminal; then nothing is cut."""

    columns: int | None = None
    encoding: str = "utf-8"

    @property
    def ellipsis(self) -> str:
        """The mark of cut text that this terminal can show."""
        try:
            "…".encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return "..."
        return "…"


def terminal_of(stdout: Any, environ: Mapping[str, str]) -> Terminal:
    """Return what is known of a text stream. `COLUMNS` overrides the terminal's own width."""
    encoding = getattr(stdout, "encoding", None) or "utf-8"
    try:
        if not stdout.isatty():
            return Terminal(None, encoding)
        columns = os.get_terminal_size(stdout.fileno()).columns
    except (AttributeError, OSError, ValueError):
        return Terminal(None, encoding)
    stated = environ.get("COLUMNS", "")
    if stated.isascii() and stated.isdigit():
        columns = int(stated)
    return Terminal(max(columns, 1), encoding)


def bytes_of(stream: object) -> BinaryIO:
    """Return the bytes beneath a text stream; of one that was closed before the start, what can take none."""
    beneath: BinaryIO | None = getattr(stream, "buffer", None)
    if beneath is not None:
        return beneath
    void = os.open(
        os.devnull, os.O_RDONLY
    )  # takes the number that was free: no connection may get it
    return cast("BinaryIO", open(void, "wb", buffering=0))  # noqa: PTH123  # lives as long as the process


class Output:
    """The two streams of one command.

    Args:
        stdout: Takes bytes; owned by the caller.
        stderr: Takes bytes; failures to write to it are ignored, for there is nowhere to tell them.
        form: One of `FORMS`.
        terminal: What `stdout` is.
    """

    def __init__(
        self, stdout: Sink, stderr: Sink, form: str, terminal: Terminal | None = None
    ) -> None:
        """Take the streams as they are."""
        self.form = form
        self.terminal = terminal or Terminal()
        self.utc = False
        self.held: list[str] | None = None
        self.chosen: Fields | None = None
        self._stdout = stdout
        self._stderr = stderr

    @property
    def is_table(self) -> bool:
        """Whether a person reads."""
        return self.form == "table"

    def json(self, value: Any) -> None:
        """Print a value as one JSON document on one line; of its members those that were asked for."""
        if self.chosen is not None:
            jsonl = self.form == "jsonl"
            value = self.chosen.of_item(value) if jsonl else self.chosen.of_document(value)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        self._write(escape_json(text).encode() + b"\n")

    def pretty(self, value: Any) -> None:
        """Print a value as JSON over several lines, for people."""
        narrow = self.terminal.encoding.lower() not in {"utf-8", "utf8"}
        for line in json.dumps(value, ensure_ascii=narrow, indent=2).split("\n"):
            self._write(escape_json(line).encode() + b"\n")

    def document(self, piece: str | bytes) -> None:
        """Print a piece of a document in UTF-8, whatever the locale. Whoever made it made it safe."""
        self._write(piece.encode("utf-8", "replace") if isinstance(piece, str) else piece)

    def clear(self) -> None:
        """Empty the screen, where there is one."""
        if self.terminal.columns is not None:
            self._write(b"\x1b[H\x1b[2J")

    def line(self, text: str = "") -> None:
        """Print one escaped line. It is not cut."""
        data = escape(text).encode(self.terminal.encoding, "backslashreplace")
        self._write(data + b"\n")

    def block(self, text: str, indent: str) -> None:
        """Print text of several lines, each escaped and indented."""
        for line in text.replace("\r\n", "\n").split("\n"):
            self.line((indent + line.expandtabs(4)).rstrip(" "))

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Print names and values, aligned."""
        rows = list(pairs)
        names = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(f"{pad(name, names)}{_GAP}{value}".rstrip(" "))

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """Print a table, fitted to the terminal; nothing where there are no rows."""
        cells = [[escape(cell) for cell in row] for row in rows]
        if not cells:
            return
        widths = [
            max(width(column.heading), *(width(row[index]) for row in cells))
            for index, column in enumerate(columns)
        ]
        self._fit(columns, widths)
        self._row(columns, widths, [column.heading for column in columns])
        for row in cells:
            self._row(columns, widths, row)

    def note(self, text: str) -> None:
        """Print one escaped line on standard error; while a pager has the screen, afterwards."""
        if self.held is not None:
            self.held.append(text)
            return
        try:
            self._stderr.write(
                escape(text).encode(self.terminal.encoding, "backslashreplace") + b"\n"
            )
            self._stderr.flush()
        except (OSError, ValueError):
            return

    def when(self, epoch_ms: object) -> str:
        """Return a time for a table: relative on a terminal, RFC 3339 with `--utc` or where a program may read it."""
        if self.utc or self.terminal.columns is None:
            return times.rfc3339(epoch_ms)
        return times.relative(epoch_ms, times.now_ms())

    def flush(self) -> None:
        """Hand everything printed so far to the system.

        Raises:
            OutputLostError: It took not all.
        """
        try:
            self._stdout.flush()
        except OSError as error:
            raise OutputLostError(error) from error

    def _fit(self, columns: Sequence[Column], widths: list[int]) -> None:
        """Shrink the columns that may shrink, the last one first, until the table fits."""
        if self.terminal.columns is None:
            return
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - self.terminal.columns
        for index in reversed(range(len(columns))):
            floor = columns[index].floor
            if excess > 0 and floor and widths[index] > floor:
                cut = min(excess, widths[index] - floor)
                widths[index] -= cut
                excess -= cut

    def _row(self, columns: Sequence[Column], widths: list[int], row: Sequence[str]) -> None:
        ellipsis = self.terminal.ellipsis
        parts = [
            pad(clip(cell, columns_, ellipsis), columns_, right=column.right)
            for column, columns_, cell in zip(columns, widths, row, strict=True)
        ]
        text = _GAP.join(parts).rstrip(" ")
        if self.terminal.columns is not None:
            text = clip(text, self.terminal.columns, ellipsis)
        self.line(text)

    def _write(self, data: bytes) -> None:
        try:
            self._stdout.write(data)
        except OSError as error:
            raise OutputLostError(error) from error
