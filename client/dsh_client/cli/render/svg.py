"""The time line as a drawing: inline SVG that takes its colours from the page and works without script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_client.cli.figures import span as span_text
from dsh_client.cli.render.markup import markup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_client.cli.render.timeline import Point, Span, TimeLine

_LEFT, _RIGHT, _WIDTH = 76, 10, 1000
_ROOM = _WIDTH - _LEFT - _RIGHT
_TURNS, _MODEL, _TOOLS = 36, 66, 92
_ROW, _BAR = 15, 11
_MOST_ROWS = 6
_NAMED_TURN = 26
_CLOSEST = 1.6
_LABELLED = 3
_EDGE = 110
_APART = 64


def draw(line: TimeLine) -> str:
    """Return the drawing."""
    rows = min(line.rows, _MOST_ROWS)
    base = _TOOLS + rows * _ROW + 6
    cut = any(point.kind in {"crash", "recovery"} for point in line.points)
    top = 0 if cut else _TURNS - 6  # the room above is for the names of cuts
    height = base + 40
    opening = (
        f'<svg class="timeline" viewBox="0 {top} {_WIDTH} {height - top}" role="img" '
        'aria-label="time line of the session: turns, model, tools, checkpoints">'
    )
    parts = [
        opening,
        *_lanes(base),
        *_turns(line, base),
        *(_bar(span) for span in line.spans),
        *_ticks(line, base),
        *_gaps(line, base),
        *_breaks(line, base),
        *_scale(line, base),
        "</svg>",
    ]
    return "".join(parts)


def _x(share: float) -> float:
    return round(_LEFT + share * _ROOM, 2)


def _lanes(base: int) -> Iterator[str]:
    names = (("turns", _TURNS), ("model", _MODEL), ("tools", _TOOLS), ("durable", base))
    for name, y in names:
        yield f'<text class="lane" x="{_LEFT - 10}" y="{y + 12}" text-anchor="end">{name}</text>'
    yield f'<line class="base" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base + 16}" y2="{base + 16}"/>'


def _turns(line: TimeLine, base: int) -> Iterator[str]:
    for band in line.turns:
        start, end = _x(band.start), _x(band.end)
        width = max(end - start, 2)
        tone = {"completed": "ok", "open": "open"}.get(band.ended, "bad")
        yield (
            f'<a href="#t{band.number}"><title>{markup(band.label)}</title>'
            f'<rect class="shade" x="{start}" y="{_TURNS}" width="{width}" height="{base - _TURNS + 16}"/>'
            f'<rect class="turn {tone}" x="{start}" y="{_TURNS}" width="{width}" height="16" rx="4"/>'
        )
        if width > _NAMED_TURN:
            name = f"turn {band.number}" if width > 2 * _NAMED_TURN else str(band.number)
            yield f'<text class="name" x="{start + 7}" y="{_TURNS + 12.5}">{name}</text>'
        yield "</a>"


def _bar(span: Span) -> str:
    start, width = _x(span.start), max(_x(span.end) - _x(span.start), 2.5)
    y, height = (
        (_MODEL, 14)
        if span.lane == "model"
        else (
            _TOOLS + min(span.row, _MOST_ROWS - 1) * _ROW,
            _BAR,
        )
    )
    return (
        f'<a href="#{span.target}"><title>{markup(span.label)}</title><rect class="{span.lane} {span.tone}" '
        f'x="{start}" y="{y}" width="{round(width, 2)}" height="{height}" rx="3"/></a>'
    )


def _ticks(line: TimeLine, base: int) -> Iterator[str]:
    last = -_CLOSEST
    for point in line.points:
        x = _x(point.at)
        if point.kind == "checkpoint" and x - last >= _CLOSEST:
            last = x
            yield (
                f"<g><title>{markup('checkpoint: ' + point.label)}</title>"
                f'<line class="tick" x1="{x}" x2="{x}" y1="{base + 4}" y2="{base + 16}"/></g>'
            )
        elif point.kind in {"retry", "approval", "compaction"}:
            yield (
                f"<g><title>{markup(f'{point.kind}: {point.label}')}</title>"
                f'<circle class="mark" cx="{x}" cy="{_MODEL - 6}" r="3.5"/></g>'
            )


def _gaps(line: TimeLine, base: int) -> Iterator[str]:
    last = _x(0)
    for point in line.points:
        if point.kind == "gap":
            x, long = _x(point.at), span_text(int(point.label))
            yield (
                f"<g><title>a pause of {long}, drawn shorter</title>"
                f'<path class="gap" d="M{x - 5} {base + 21}l4 -10M{x + 1} {base + 21}l4 -10"/>'
            )
            if last + _APART < x < _WIDTH - _RIGHT - 2 * _APART:
                last = x
                yield f'<text class="unit" x="{x}" y="{base + 34}" text-anchor="middle">{long}</text>'
            yield "</g>"


def _breaks(line: TimeLine, base: int) -> Iterator[str]:
    """Yield where the run was cut off, and where somebody went on."""
    cuts = [point for point in line.points if point.kind in {"crash", "recovery"}]
    named = sum(point.kind == "crash" for point in cuts) <= _LABELLED
    for point in cuts:
        yield _break(point, base, named=named)


def _break(point: Point, base: int, *, named: bool) -> str:
    x = _x(point.at)
    sign = "✗" if point.kind == "crash" else "↻"
    word = "cut off" if point.kind == "crash" else "recovered"
    # The two often stand close together: one is named to the left, the other to the right.
    leftwards = point.kind == "crash"
    if x < _LEFT + _EDGE and leftwards:
        leftwards = False
    if x > _WIDTH - _EDGE:
        leftwards = True
    y = 12 if point.kind == "crash" else 26
    anchor, shift = ("end", 4) if leftwards else ("start", -4)
    label = f"{word} {sign}" if leftwards else f"{sign} {word}"
    return (
        f'<g class="{point.kind}"><title>{markup(point.label)}</title>'
        f'<line x1="{x}" x2="{x}" y1="{y + 4}" y2="{base + 16}"/>'
        f'<text x="{round(x + shift, 2)}" y="{y}" text-anchor="{anchor}">{label if named else sign}</text></g>'
    )


def _scale(line: TimeLine, base: int) -> Iterator[str]:
    y = base + 34
    yield f'<text class="unit" x="{_LEFT}" y="{y}">0</text>'
    paused = any(point.kind == "gap" for point in line.points)
    length = span_text(line.length) + (" without the pauses" if paused else "")
    yield f'<text class="unit" x="{_WIDTH - _RIGHT}" y="{y}" text-anchor="end">{length}</text>'
