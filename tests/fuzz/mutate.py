"""Hostile changes to real bytes: of a log, of its frames, of its rows, of what lies beside it.

The one rule: everything comes from one `Random`, so that a seed replays a case to the byte.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import zstandard

from dshd.storage.jsonl.rows import is_array, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

MAGIC = b"\x28\xb5\x2f\xfd"
MOST_GROWN = 4 * 1024 * 1024
_LENGTHS = (0, 1, 3, 127, 128, 255, 1024, 65_535, 65_536, 2**17, 2**21 - 1, 2**24 - 1)
_WIDE = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_ODD_NUMBERS = (0, -1, 1, 1.5, 2**31, 2**53 - 1, 2**53, -(2**53), 2**63, 2**64, 10**30, 1e300, 0.5)
_ODD_TEXTS = ("", "\x00", "\u2028", "\ud800", "é" * 50, "turn/end", "text-chunks", "session", "/w")
_ODD_VALUES: tuple[Any, ...] = (None, True, False, (), {}, ((),), (1, "a"))
_TOKENS = (
    *(b"NaN", b"-Infinity", b"1e400", b"-0", b"-0.0", b"0" * 50, b"1" * 5000, b"00", b"+1", b"1."),
    *(
        b'"\\ud800"',
        b'"\\u0000"',
        b'"\xff"',
        b'"\xc0\x80"',
        b'"\xed\xa0\x80"',
        b'"',
        b"\\",
        b"\x00",
    ),
    *(b"[" * 200 + b"]" * 200, b"[" * 20_000, b'{"a":' * 2000, b"\xef\xbb\xbf", b"\r", b"\n", b" "),
    *(b'{"type":"turn/end"}', b'"a":1,"a":2', b"[" + b"0," * 3000 + b"0]", b"\xe2\x80\xa8"),
)


def spoilt(chosen: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return bytes with one change, or a few."""
    for _ in range(chosen.choice((1, 1, 1, 2, 5))):
        data = chosen.choice(_CHANGES)(chosen, data, others)
    return data[:MOST_GROWN]


def _span(chosen: Random, data: bytes) -> tuple[int, int]:
    start = chosen.randrange(len(data) + 1)
    return start, min(len(data), start + chosen.choice((0, 1, 2, 4, 30, 500, 5000)))


def _flip(chosen: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = chosen.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chosen.randrange(8)]) + data[at + 1 :]


def _set(chosen: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, end = _span(chosen, data)
    filler = chosen.choice((b"\0", b"\xff", b"\n", chosen.randbytes(1)))
    return data[:start] + filler * (end - start) + data[end:]


def _remove(chosen: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, end = _span(chosen, data)
    return data[:start] + data[end:]


def _truncate(chosen: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    return data[: chosen.randrange(len(data) + 1)]


def _repeat(chosen: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, end = _span(chosen, data)
    return data[:end] + data[start:end] * chosen.choice((1, 1, 2, 50)) + data[end:]


def _insert(chosen: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    at = chosen.randrange(len(data) + 1)
    return data[:at] + chosen.choice((*_TOKENS, chosen.randbytes(20), MAGIC)) + data[at:]


def _splice(chosen: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = chosen.choice(others)
    start, end = _span(chosen, data)
    there, thence = _span(chosen, other)
    return data[:start] + other[there:thence] + data[end:]


def _glue(chosen: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data + chosen.choice((*others, bytes(4096), chosen.randbytes(300)))


def _length(chosen: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    """Write an odd number where a length may stand."""
    at = chosen.randrange(len(data) + 1)
    width = chosen.choice((1, 2, 3, 4, 8))
    value = chosen.choice((*_LENGTHS, *_WIDE)) & ((1 << 8 * width) - 1)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def _frame_field(chosen: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    """Change a frame's descriptor, its window, or its first block's header."""
    starts = [at for at in range(len(data) - 3) if data[at : at + 4] == MAGIC] if data else []
    if not starts:
        return _flip(chosen, data, ())
    at = chosen.choice(starts) + 4 + chosen.randrange(12)
    return data[:at] + chosen.randbytes(1) + data[at + 1 :]


def _frame(chosen: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Put a frame of another sort somewhere, with what it holds unharmed or not."""
    at = chosen.choice((0, len(data), *(data.find(MAGIC, chosen.randrange(len(data) + 1)),)))
    return data[: max(at, 0)] + odd_frame(chosen, chosen.choice(others)[:3000]) + data[max(at, 0) :]


_CHANGES: tuple[Callable[[Random, bytes, Sequence[bytes]], bytes], ...] = (
    *(_flip, _flip, _set, _remove, _truncate, _repeat, _insert, _splice, _glue, _length),
    *(_frame_field, _frame_field, _frame),
)


# ---------------------------------------------------------------------- frames


def odd_frame(chosen: Random, plain: bytes) -> bytes:
    """Return a frame of a sort that other programs write, or nobody."""
    made: tuple[Callable[[], bytes], ...] = (
        lambda: zstandard.ZstdCompressor(write_checksum=False).compress(plain),
        lambda: zstandard.ZstdCompressor(level=chosen.randrange(1, 10)).compress(plain),
        lambda: _skippable(chosen, plain),
        lambda: _blocks(chosen, 4, [(1, 128 * 1024, b"a")] * chosen.choice((1, 2, 9, 600))),
        lambda: _blocks(
            chosen, chosen.randrange(256), [(0, 0, b"")] * chosen.choice((1, 900, 1100))
        ),
        lambda: _blocks(chosen, 4, [(0, len(plain), plain)]),
        lambda: _blocks(chosen, chosen.randrange(256), [(chosen.randrange(4), len(plain), plain)]),
        lambda: MAGIC + chosen.randbytes(chosen.randrange(30)),
    )
    return chosen.choice(made)()


def _skippable(chosen: Random, plain: bytes) -> bytes:
    return (
        chosen.choice((b"\x50", b"\x5f"))
        + b"\x2a\x4d\x18"
        + len(plain).to_bytes(4, "little")
        + plain
    )


def _blocks(chosen: Random, descriptor: int, blocks: list[tuple[int, int, bytes]]) -> bytes:
    """Return a frame of these blocks: (kind, size, bytes). Its checksum is seldom right."""
    head = bytes([descriptor]) + bytes([chosen.choice((0x40, 0x58, 0x68, 0xFF))])
    head += chosen.randbytes(chosen.choice((0, 0, 0, 1, 2, 4, 8)))
    body = b"".join(
        (size << 3 | kind << 1 | (place == len(blocks) - 1)).to_bytes(3, "little") + content
        for place, (kind, size, content) in enumerate(blocks)
    )
    return MAGIC + head + body + chosen.randbytes(4)


# ---------------------------------------------------------------------- rows


def odd_row(chosen: Random, row: bytes) -> bytes:
    """Return a row with something in it changed as a JSON value, or as text."""
    if chosen.random() < 0.3:
        at = chosen.randrange(len(row) + 1)
        return row[:at] + chosen.choice(_TOKENS) + row[at + chosen.choice((0, 0, 1, 4)) :]
    value = json.loads(row)
    for _ in range(chosen.choice((1, 1, 2))):
        value = _changed(chosen, value)
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=chosen.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def _changed(chosen: Random, value: Any) -> Any:
    """Change one value somewhere inside."""
    if is_object(value) and value and chosen.random() > 0.1:
        _change_object(chosen, value)
        return value
    if is_array(value) and value and chosen.random() > 0.1:
        _change_array(chosen, value)
        return value
    return _odd(chosen, value)


def _change_object(chosen: Random, value: dict[str, Any]) -> None:
    key, kind = chosen.choice(list(value)), chosen.random()
    if kind < 0.15:
        del value[key]
    elif kind < 0.25:
        value[chosen.choice((*_ODD_TEXTS, "seq0", "time0", "dt", "name", "extra"))] = value[key]
    else:
        value[key] = _changed(chosen, value[key])


def _change_array(chosen: Random, value: list[Any]) -> None:
    place, kind = chosen.randrange(len(value)), chosen.random()
    if kind < 0.15:
        del value[place]
    elif kind < 0.25:
        value += [value[place]] * chosen.choice((1, 2, 3000))
    else:
        value[place] = _changed(chosen, value[place])


def _odd(chosen: Random, value: Any) -> Any:
    made: tuple[Any, ...] = (
        chosen.choice(_ODD_NUMBERS),
        chosen.choice(_ODD_TEXTS),
        chosen.choice(_ODD_VALUES),
        value + chosen.choice((-1, 1, 1000)) if isinstance(value, int) else None,
        str(value),
        [value],
    )
    return chosen.choice(made)
