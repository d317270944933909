"""Folds as text, to be kept beside a log, and back: what a fold said after some event, it says again.

The rule that holds here: the text is of one version of the fold. A change of what a fold holds or of what it makes of
events raises `VERSION`; text of another version is no fold, and the log is folded anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_protocol.jsontext import JsonTextError, decode_stored, encode
from dshd.sessions.fold import Call, Committed, Dispatch, Fold

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = 1
_PLAIN = (
    *("next_seq", "last_time", "last_type", "turns", "last_turn", "open_turn", "open_step"),
    *("last_step", "title", "request_header", "request_context"),
)
_CALL_FIELDS = tuple(Call.__slots__)
_DISPATCH_FIELDS = tuple(Dispatch.__slots__)

State = dict[str, Any]


def take_state(fold: Fold) -> State:
    """Return what a fold says now, detached from it: what is applied later is not in it.

    Quick: nothing deep is copied, since events and calls are never changed. `encode_state` may run in a thread.
    """
    closer_results, step_end = fold.unsettled
    committed = fold.committed
    nodes, results, generation = fold.surface.contents()
    return {
        **{name: getattr(fold, name) for name in _PLAIN},
        "version": VERSION,
        "pending": list(fold.pending.values()),
        "calls": list(fold.calls.values()),
        "nested": list(fold.nested.values()),
        "nested_ids": sorted(fold.nested_ids),
        "committed": None if committed is None else [list(committed.closers), committed.calls],
        "closer_results": list(closer_results),
        "step_end": step_end,
        "surface": [nodes, results, generation],
    }


def encode_state(state: State) -> bytes:
    """Return the text of a state that was taken."""
    committed, step_end = state["committed"], state["step_end"]
    nodes, results, generation = state["surface"]
    return encode(
        {
            **state,
            "pending": _all_plain(state["pending"], _CALL_FIELDS),
            "calls": _all_plain(state["calls"], _CALL_FIELDS),
            "nested": _all_plain(state["nested"], _DISPATCH_FIELDS),
            "committed": committed and [committed[0], _all_plain(committed[1], _CALL_FIELDS)],
            "closer_results": [
                [event, _plain(call, _CALL_FIELDS)] for event, call in state["closer_results"]
            ],
            "step_end": step_end and list(step_end),
            "surface": [nodes, [[seq, rest.hex()] for seq, rest in results.items()], generation],
        }
    )


def decode_state(text: bytes) -> Fold | None:
    """Return the fold of a text; None where it is of another version, or none at all."""
    try:
        state = decode_stored(text)
        return _fold_of(state) if state["version"] == VERSION else None
    except (JsonTextError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _fold_of(state: State) -> Fold:
    fold = Fold()
    for name in _PLAIN:
        setattr(fold, name, state[name])
    fold.pending = {call.call_id: call for call in map(_call, state["pending"])}
    fold.calls = {call.call_id: call for call in map(_call, state["calls"])}
    dispatches = (Dispatch(*values) for values in state["nested"])
    fold.nested = {dispatch.call_id: dispatch for dispatch in dispatches}
    fold.nested_ids = frozenset(state["nested_ids"])
    if state["committed"] is not None:
        closers, calls = state["committed"]
        fold.committed = Committed(closers, list(map(_call, calls)))
    closer_results = [(event, _call(values)) for event, values in state["closer_results"]]
    step_end = state["step_end"]
    fold.unsettled = closer_results, None if step_end is None else (step_end[0], step_end[1])
    nodes, results, generation = state["surface"]
    digests = {seq: bytes.fromhex(rest) for seq, rest in results}
    fold.surface.restore(nodes, digests, generation)
    return fold


def _plain(value: Call | Dispatch, fields: Iterable[str]) -> list[Any]:
    return [getattr(value, name) for name in fields]


def _all_plain(values: Iterable[Call | Dispatch], fields: tuple[str, ...]) -> list[list[Any]]:
    return [_plain(value, fields) for value in values]


def _call(values: list[Any]) -> Call:
    return Call(*values)
