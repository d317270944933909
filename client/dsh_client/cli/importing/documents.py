"""Files that are one JSON document of many messages, also where the document is torn.

The rule: as in `lines`, every byte is in exactly one piece.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from dsh_client.cli.importing.lines import BOM, NULS, TORN, Decoder, Piece, decoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGEST = 256 << 20
"""A file of more bytes is read by lines only."""
_LIST = re.compile(r'\A\s*(?:\{.{0,4000}?"(?:messages|input|items|output)"\s*:\s*)?\[', re.DOTALL)
_NEXT = re.compile(r'\{\s*"')
_BETWEEN = re.compile(r"[\s,]*")
_TRIES = 1000


def document_pieces(raw: bytes, plausible: Callable[[Any], bool]) -> list[Piece] | None:
    """Return what one document holds; None where the file is not one document, but lines."""
    found: list[Piece] = []
    if raw.startswith(b"\xef\xbb\xbf"):
        found.append(Piece(1, None, None, (BOM,)))
        raw = raw[3:]
    if b"\0" in raw:
        found.append(Piece(1 + raw[: raw.index(b"\0")].count(b"\n"), None, None, (NULS,)))
        raw = raw.replace(b"\0", b"")
    text, faults = decoded(raw)
    reader = Decoder()
    try:
        start = len(text) - len(text.lstrip())
        value, end = reader.decode(text, start)
    except (ValueError, RecursionError):
        begun = _LIST.match(text)
        return None if begun is None else [*found, *_torn(text, begun.end(), plausible)]
    if text[end:].strip():
        return None
    odd = faults + reader.faults
    return [*found, Piece(1, value, text if odd else None, odd)]


def _torn(text: str, place: int, plausible: Callable[[Any], bool]) -> Iterator[Piece]:
    """Yield the messages that are whole, and what stands between them."""
    breaks = [found.start() for found in re.finditer("\n", text)]

    def line(at: int) -> int:
        return bisect_right(breaks, at - 1) + 1

    yield Piece(1, None, text[:place], (TORN,))
    while place < len(text):
        place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]  # it matches nothing, too
        if place == len(text):
            return
        reader = Decoder()
        try:
            value, end = reader.decode(text, place)
        except (ValueError, RecursionError):
            end = _next(text, place + 1, plausible)
            yield Piece(line(place), None, text[place:end], (TORN,))
        else:
            odd = reader.faults
            yield Piece(line(place), value, text[place:end] if odd else None, odd)
        place = end


def _next(text: str, place: int, plausible: Callable[[Any], bool]) -> int:
    for tries, found in enumerate(_NEXT.finditer(text, place)):
        if tries >= _TRIES:
            break
        try:
            value, _ = Decoder().decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        if plausible(value):
            return found.start()
    return len(text)
