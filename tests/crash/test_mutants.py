"""The mutants themselves: each is one that can be made, and every excuse in the table is for one that there is."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from crash.mutants import MODULES, equivalent, is_equivalent
from crash.mutating import mutants

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TOY = """
from __future__ import annotations

LIMIT = 3
GREETING = "not a number"


def few(count: int, *, more: int = 1) -> bool:
    "Words are left alone."
    return count + more < LIMIT


class Counter:
    def __init__(self) -> None:
        self.seen = 0

    @property
    def some(self) -> bool:
        return self.seen != 0

    def count(self) -> None:
        self.seen += 2
"""


def behaviour(toy: Any) -> list[Any]:
    counter = toy.Counter()
    seen: list[Any] = [toy.few(n) for n in range(5)]
    seen += [toy.few(1, more=0), getattr(counter, "seen", None)]
    for count in (-1, 0, 1, 5):
        counter.seen = count
        seen.append(counter.some)
    counter.count()
    return [*seen, counter.seen, toy.LIMIT]


def test_every_mutant_of_a_module_makes_another_one_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_to_mutate.py").write_text(TOY, "utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    toy = importlib.import_module("toy_to_mutate")
    usual = behaviour(toy)
    made = [one.name for one in mutants("toy_to_mutate")]
    try:
        for number in range(len(made)):
            importlib.reload(toy)
            assert behaviour(toy) == usual
            [*mutants("toy_to_mutate")][number].enter()
            assert behaviour(toy) != usual, made[number]
    finally:
        del sys.modules["toy_to_mutate"]
    assert "toy_to_mutate.LIMIT: `LIMIT = 3` becomes `LIMIT = 4`" in made
    defaults = "`count: int, *, more: int=1` becomes `count: int, *, more: int=2`"
    assert f"toy_to_mutate.few: {defaults}" in made
    assert "toy_to_mutate.Counter.count: `self.seen += 2` becomes nothing" in made
    assert len(made) > 12


def test_every_row_of_the_table_is_of_a_mutant_that_there_is() -> None:
    names = [one.name for module in MODULES for one in mutants(module)]
    assert len(set(names)) == len(names)
    for row, why in equivalent().items():
        assert any(is_equivalent(name, [row]) for name in names), row
        assert why.endswith("."), f"{row}: a reason is a sentence"
