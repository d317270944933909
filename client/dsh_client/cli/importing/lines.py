"""The records of a file that another program wrote, whatever happened to it.

The rule: every byte of the file is in exactly one piece, as a decoded record or as it stood; only what carries nothing
(blank space, a byte-order mark, NULs) is counted instead. Lines end at byte 0x0A and nowhere else.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from dsh_client.cli.values import as_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST = 64 << 20
"""A line of more bytes is not decoded; it is kept as it stands, in parts."""
PART = 1 << 20
MAX_SAFE = 2**53 - 1
_MAX_DIGITS = 17
_TRIES = 32
_BOM = b"\xef\xbb\xbf"
_BLANK = " \t\r\n"
_RECORD = re.compile(r'\{\s*"')

TORN = "a torn record"
NULS = "NUL bytes"
BOM = "a byte-order mark"
NOT_UTF8 = "bytes that are not UTF-8"
TWO_ON_A_LINE = "two records on one line"
TOO_LONG = "a line too long to be decoded"
TOO_DEEP = "nested too deep"
NUMBER = "a number that a log cannot hold"
KEY_TWICE = "a key twice in one object"


class Piece(NamedTuple):
    """A part of a line.

    Attributes:
        line: Counted from 1.
        value: The record; None where it could not be decoded.
        text: What stands there, where that must be kept: there is no value, or the value is not all of it.
        faults: What is wrong with it.
    """

    line: int
    value: Any
    text: str | None
    faults: tuple[str, ...]


def pieces(file: BinaryIO, plausible: Callable[[Any], bool]) -> Iterator[Piece]:
    """Yield what the lines of a file hold.

    Args:
        file: Read to its end.
        plausible: Whether a value found behind a torn one is a record, not an inner part of what was torn.
    """
    number = 0
    while raw := file.readline(LONGEST):
        number += 1
        if len(raw) == LONGEST and not raw.endswith(b"\n"):
            while raw and not raw.endswith(b"\n"):
                yield from _parts(raw, number)
                raw = file.readline(PART)
            yield from _parts(raw, number)
            continue
        if number == 1 and raw.startswith(_BOM):
            yield Piece(number, None, None, (BOM,))
            raw = raw.removeprefix(_BOM)
        yield from line_pieces(raw, number, plausible)


def line_pieces(raw: bytes, number: int, plausible: Callable[[Any], bool]) -> Iterator[Piece]:
    """Yield what one line holds."""
    if b"\0" in raw:
        yield Piece(number, None, None, (NULS,))
    for part in re.split(rb"\0+", raw):
        text, faults = decoded(part)
        text = text.strip(_BLANK)
        if text:
            yield from _records(text, number, faults, plausible)


def decoded(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """Return bytes as text; those that are none become halves of surrogate pairs."""
    try:
        return raw.decode(), ()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape"), (NOT_UTF8,)


def _parts(raw: bytes, number: int) -> Iterator[Piece]:
    for start in range(0, len(raw), PART):
        text, _ = decoded(raw[start : start + PART])
        yield Piece(number, None, text, (TOO_LONG,))


def _records(
    text: str, number: int, faults: tuple[str, ...], plausible: Callable[[Any], bool]
) -> Iterator[Piece]:
    place = 0
    while place < len(text):
        reader = Decoder()
        try:
            value, end = reader.decode(text, place)
        except (ValueError, RecursionError) as error:
            why = TOO_DEEP if isinstance(error, RecursionError) else TORN
            start = len(text) if why == TOO_DEEP else _next_record(text, place + 1, plausible)
            yield Piece(number, None, text[place:start], (*faults, why))
            place = start
            continue
        while end < len(text) and text[end] in _BLANK:
            end += 1
        found = (*faults, *reader.faults, *(() if place == 0 else (TWO_ON_A_LINE,)))
        whole = text[place:end]
        odd = bool(reader.faults or faults)
        yield Piece(number, value, whole if odd else None, found)
        place = end


def _next_record(text: str, start: int, plausible: Callable[[Any], bool]) -> int:
    """Return where a whole record begins that goes to the end of the text; the end where there is none."""
    for tries, found in enumerate(_RECORD.finditer(text, start)):
        if tries >= _TRIES:
            break
        try:
            value, end = Decoder().decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        if not text[end:].strip(_BLANK) and plausible(value):
            return found.start()
    return len(text)


class Decoder:
    """Decodes one JSON value and notes what of it no log could hold; that becomes text."""

    def __init__(self) -> None:
        """Begin without faults."""
        self.faults: tuple[str, ...] = ()
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_int=self._int,
            parse_float=self._float,
            parse_constant=self._odd_number,
        )

    def decode(self, text: str, place: int) -> tuple[Any, int]:
        """Return the value that begins at a place, and where it ends.

        Raises:
            ValueError: None does.
            RecursionError: It is nested too deep.
        """
        return self._json.raw_decode(text, place)

    def _note(self, fault: str) -> None:
        if fault not in self.faults:
            self.faults = (*self.faults, fault)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            self._note(KEY_TWICE)
        return made

    def _int(self, text: str) -> int | str:
        value = int(text) if len(text) <= _MAX_DIGITS else MAX_SAFE + 1
        return value if abs(value) <= MAX_SAFE else self._odd_number(text)

    def _float(self, text: str) -> float | str:
        value = float(text)
        if not math.isfinite(value):
            return self._odd_number(text)
        return value or 0.0

    def _odd_number(self, text: str) -> str:
        self._note(NUMBER)
        return text


def has_members(value: Any, *names: str) -> bool:
    """Whether a value is an object with one of these members."""
    return any(name in as_object(value) for name in names)
