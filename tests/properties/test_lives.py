"""Lives of random sessions; `python -m crash.run --size full repairs` lives ten thousand."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from dshd.sessions import closers
from dshd.storage.jsonl import forking, opening, read_handle, repair, site, write_handle
from properties.lives import live_many
from properties.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from dshd.storage.jsonl.scan import Torn, Walk
    from dshd.storage.jsonl.source import Source

SOME = range(20_000, 20_060)


def test_what_is_read_is_the_list_whatever_happens() -> None:
    did, wrong = live_many(SOME)
    assert not wrong, wrong[:5]
    for deed in ("append", "killed", "cut", "fork", "reopen", "reopen_otherwise", "repaired"):
        assert did[deed] > 10, did


def test_most_of_what_is_offered_keeps_the_rules_and_all_of_it_has_been_judged() -> None:
    stream = Stream(random.Random(7))  # noqa: S311  # the same every time
    while len(stream.log) < 3000:
        stream.batch()
    kinds = {event["type"] for event in stream.log}
    assert stream.refused < len(stream.log) / 3
    assert {"tool/code-dispatch", "tool/result", "assistant/chunk", "acme/1"} <= kinds
    assert any(isinstance(event.get("surfaceOp"), dict) for event in stream.log)


# Stores that are broken on purpose: each of them must be found out.


def found_out(monkeypatch: pytest.MonkeyPatch, module: Any, **broken: Callable[..., Any]) -> str:
    """Return what the first life says that goes wrong with a broken store."""
    for name, function in broken.items():
        monkeypatch.setattr(module, name, function)
    wrong = (live_many(range(seed, seed + 1))[1] for seed in SOME)
    return next(filter(None, wrong), [""])[0]


def test_a_store_that_forgets_an_event_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def within(walk: Walk, offset: int, end: int | None) -> Iterator[Any]:
        for event in site.within(walk, offset, end):
            if event["seq"] != 5:
                yield event

    assert "a reader reads something else" in found_out(monkeypatch, read_handle, within=within)


def test_a_store_that_sets_nothing_aside_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_aside(directory: int, source: Source, torn: Torn) -> str:
        return "torn"

    assert "torn bytes are lost" in found_out(monkeypatch, opening, set_aside=set_aside)


def test_a_store_that_cuts_too_little_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(source: Source, torn: Torn) -> None:
        repair.cut(source, torn._replace(offset=torn.offset + 1))

    assert found_out(monkeypatch, opening, cut=cut) != ""


def test_a_fork_at_the_wrong_event_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_cut(lent: forking.Lent, end: int) -> forking.Cut:
        return forking.find_cut(lent, max(0, end - 1))

    assert found_out(monkeypatch, write_handle, find_cut=find_cut) != ""


def test_closers_that_tell_the_time_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    before = closers.closers

    def timed(fold: Any) -> list[Any]:
        return [{**event, "time": next(ticks)} for event in before(fold)]

    assert "two machines repair differently" in found_out(monkeypatch, closers, closers=timed)
