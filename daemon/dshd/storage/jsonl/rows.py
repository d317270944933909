"""Events to rows and back: one compact JSON value a line, runs of chunk deltas packed into one row.

The rule that holds here: packing loses nothing. A row expands to the events it was made of, token boundaries and times
included (a delta's keys come back in the usual order, as all programs of the format have it), and a row that does not
have the one permitted shape is a defect, never a guess.
Packing knows one batch and no other, so a run cut by a batch's end packs separately on either side.
"""

from __future__ import annotations

from itertools import accumulate, count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from dsh_protocol.jsontext import JsonTextError, decode_stored, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsh_protocol.events import Event

MIN_RUN = 3
_MAX_SAFE = 2**53 - 1
_MAX_VALUES = 2_000_000
"""Of a row; counted before it is read, so that none takes more than some hundred megabytes."""
_PIECE = 256 * 1024
_BEYOND = {"too-deep", "number-range"}
_EVENT_KEYS = {"type", "seq", "time", "data"}
_ROW_KEYS = {"type", "seq0", "time0", "data"}
_TEXT_ROW = {"turn", "step", "index", "dt", "texts"}
_TOOL_ROW = {"turn", "step", "index", "dt", "id", "args"}
_DATA_KEYS = {"turn", "step", "chunk"}
_TEXT_KEYS = {"type", "index", "text"}
_TOOL_KEYS = {"type", "index", "id", "argumentsDelta"}
_ROW_OF = {
    "text-delta": "text-chunks",
    "reasoning-delta": "reasoning-chunks",
    "tool-call-delta": "tool-call-chunks",
}
_DELTA_OF = {row: delta for delta, row in _ROW_OF.items()}


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Whether a JSON value is an array."""
    return isinstance(value, list)


class RowDefectError(ValueError):
    """A line that is neither JSON that the format allows nor a well-formed packed row.

    Attributes:
        whole: It may well be a whole row of another program's, beyond what is taken in here: no unfinished write.
    """

    def __init__(self, what: str, *, whole: bool = False) -> None:
        super().__init__(what)
        self.whole = whole


class _Delta(NamedTuple):
    """What a chunk event has in common with the run it may belong to, and what it adds."""

    kind: str
    turn: float
    step: float
    part: float
    call_id: str | None
    name: str | None
    text: str

    def continues(self, other: _Delta) -> bool:
        return self[:6] == other[:6]


def _safe(value: Any) -> int | None:
    """Return the integer that JSON means by a value; None for anything else."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and -_MAX_SAFE <= value <= _MAX_SAFE else None


def _number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _delta(event: Event) -> _Delta | None:
    """Return what makes an event part of a run; None where it has to stand alone."""
    if event.get("type") != "assistant/chunk" or event.keys() != _EVENT_KEYS:
        return None
    data = event["data"]
    seq = _safe(event["seq"])
    if seq is None or seq < 0 or _safe(event["time"]) is None:
        return None
    if not is_object(data) or data.keys() != _DATA_KEYS:
        return None
    chunk = data["chunk"]
    if not is_object(chunk) or not _number(data["turn"]) or not _number(data["step"]):
        return None
    return _delta_of(data, chunk)


def _delta_of(data: dict[str, Any], chunk: dict[str, Any]) -> _Delta | None:
    kind = chunk.get("type")
    if not _number(chunk.get("index")):
        return None
    common = (data["turn"], data["step"], chunk["index"])
    if kind in {"text-delta", "reasoning-delta"}:
        if chunk.keys() != _TEXT_KEYS or not isinstance(chunk["text"], str):
            return None
        return _Delta(kind, *common, None, None, chunk["text"])
    if kind != "tool-call-delta" or chunk.keys() - {"name"} != _TOOL_KEYS:
        return None
    texts = [chunk["id"], chunk["argumentsDelta"], chunk.get("name", "")]
    if not all(isinstance(text, str) for text in texts):
        return None
    return _Delta(kind, *common, chunk["id"], chunk.get("name"), chunk["argumentsDelta"])


def _follows(before: Event, after: Event) -> bool:
    return after["seq"] == before["seq"] + 1 and _safe(after["time"] - before["time"]) is not None


def _packed(run: Sequence[Event], deltas: Sequence[_Delta]) -> Event:
    first = deltas[0]
    data: dict[str, Any] = {"turn": first.turn, "step": first.step, "index": first.part}
    data["dt"] = [after["time"] - before["time"] for before, after in pairwise(run)]
    texts = [delta.text for delta in deltas]
    if first.call_id is None:
        data["texts"] = texts
    else:
        data["id"] = first.call_id
        if first.name is not None:
            data["name"] = first.name
        data["args"] = texts
    return {
        "type": _ROW_OF[first.kind],
        "seq0": run[0]["seq"],
        "time0": run[0]["time"],
        "data": data,
    }


def _runs(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the rows of a batch as values, in order."""
    at = 0
    while at < len(events):
        first = _delta(events[at])
        if first is None:
            yield events[at]
            at += 1
            continue
        deltas = [first]
        for end in range(at + 1, len(events)):
            delta = _delta(events[end])
            if (
                delta is None
                or not delta.continues(first)
                or not _follows(events[end - 1], events[end])
            ):
                break
            deltas.append(delta)
        run = events[at : at + len(deltas)]
        if len(run) >= MIN_RUN:
            yield _packed(run, deltas)
        else:
            yield from run
        at += len(run)


def pack(events: Sequence[Event], *, pack_chunks: bool = True) -> list[bytes]:
    """Return the rows of one batch, without their newlines."""
    return [encode(row) for row in (_runs(events) if pack_chunks else events)]


def expand(line: bytes) -> list[Any]:
    """Return the events of one row; see `unpack`."""
    return list(unpack(line))


def unpack(line: bytes) -> Iterator[Any]:
    """Check one row and return its events, made one by one: a packed row may hold millions.

    A line that is JSON but no object is returned as the one value it is: whether it is an event is asked later.

    Raises:
        RowDefectError: Not JSON, or a packed row of the wrong shape. Raised here, not while iterating.
    """
    if len(line) > _MAX_VALUES and _has_too_many_values(line):
        raise RowDefectError("more than two million values", whole=True)
    try:
        value = decode_stored(line)
    except JsonTextError as error:
        raise RowDefectError(f"not JSON: {error.rule}", whole=error.rule in _BEYOND) from error
    if not is_object(value):
        return iter((value,))
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _DELTA_OF:
        return iter((value,))
    return _unpacked(kind, value)


def _has_too_many_values(line: bytes) -> bool:
    """Count a row's values a piece at a time, so that counting takes no memory either."""
    found, at, inside = 0, 0, False
    if line.count(b",") + line.count(b"[") + line.count(b"{") < _MAX_VALUES:
        return False
    while at < len(line) and found <= _MAX_VALUES:
        end = at + _PIECE
        while line[end - 1 : end] == b"\\":  # an escape is not cut in two
            end += 1
        piece = line[at:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        bare = b"".join(parts[inside::2])
        found += bare.count(b",") + bare.count(b"[") + bare.count(b"{")
        inside ^= len(parts) % 2 == 0
        at = end
    return found > _MAX_VALUES


def _require(holds: object, what: str) -> None:
    if not holds:
        raise RowDefectError(f"packed row: {what}")


def _unpacked(kind: str, row: dict[str, Any]) -> Iterator[Event]:
    _require(row.keys() == _ROW_KEYS, "keys other than type, seq0, time0, data")
    seq, time, data = _safe(row["seq0"]), _safe(row["time0"]), row["data"]
    if seq is None or seq < 0 or time is None or not is_object(data):
        raise RowDefectError("packed row: seq0, time0 or data of the wrong type")
    tool = kind == "tool-call-chunks"
    keys = data.keys() - {"name"} if tool else data.keys()
    _require(keys == (_TOOL_ROW if tool else _TEXT_ROW), "data keys")
    _require(all(_number(data[key]) for key in ("turn", "step", "index")), "turn, step or index")
    texts, gaps = data["args" if tool else "texts"], data["dt"]
    if not is_array(texts) or not is_array(gaps):
        raise RowDefectError("packed row: members or gaps are not arrays")
    _require(texts and len(gaps) == len(texts) - 1, "number of members and of gaps")
    _require(all(isinstance(text, str) for text in texts), "a member is not a string")
    _require(seq + len(texts) - 1 <= _MAX_SAFE, "seqs leave the safe range")
    _check_times(time, gaps)
    common = _common(_DELTA_OF[kind], data)
    return _members(seq, time, data, common)


def _check_times(time: int, gaps: list[Any]) -> None:
    lowest = highest = time
    for gap in gaps:
        step = _safe(gap)
        if step is None:
            raise RowDefectError("packed row: a gap is not an integer")
        time += step
        lowest, highest = min(lowest, time), max(highest, time)
    _require(lowest >= -_MAX_SAFE and highest <= _MAX_SAFE, "times leave the safe range")


def _common(delta: str, data: dict[str, Any]) -> Event:
    """Return what the chunks of a row have in common."""
    common: Event = {"type": delta, "index": data["index"]}
    if "id" in data:
        common["id"] = data["id"]
        if "name" in data:
            common["name"] = data["name"]
        names = (data["id"], data.get("name", ""))
        _require(all(isinstance(name, str) for name in names), "id or name is not a string")
    return common


def _members(seq: int, time: int, data: dict[str, Any], common: Event) -> Iterator[Event]:
    turn, step = data["turn"], data["step"]
    key, texts = ("argumentsDelta", data["args"]) if "id" in common else ("text", data["texts"])
    times = accumulate(map(int, data["dt"]), initial=time)
    for at, when, text in zip(count(seq), times, texts, strict=False):
        yield {
            "type": "assistant/chunk",
            "seq": at,
            "time": when,
            "data": {"turn": turn, "step": step, "chunk": {**common, key: text}},
        }
