"""Every case of the contract has exactly one answer: a suite holds it, another test does, or it has no meaning here."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.files import FILES
from conformance.live import LIVE
from conformance.suite import STORES
from conformance.window import WINDOW

if TYPE_CHECKING:
    from conformance.cases import Case

HERE = Path(__file__).parent
TREE = HERE.parents[1]
SIZES = "K12 O40 W10 P20 S53 J93 Z27 X7 C11 E2 R11 U14 F14 V11 D12 H12 G47 L74 I17 T9 A27 NH20 NL11 NO20"
FROM_NOUGHT = {"Z"}


def table(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / name).read_text("utf-8"))


IDS: dict[str, str] = table("contract.toml")["ids"]
ELSEWHERE: dict[str, list[str]] = table("elsewhere.toml")["elsewhere"]
NOT_APPLICABLE: dict[str, str] = table("elsewhere.toml")["not_applicable"]
CASES: list[Case[Any]] = [*STORES.cases, *FILES.cases, *LIVE.cases, *WINDOW.cases]
HELD = [name for case in CASES for name in case.ids]


@cache
def functions_in(path: str) -> set[str]:
    """Return the names of the test functions in a file of the tree."""
    module = ast.parse((TREE / path).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(module) if isinstance(node, functions)}


def faults(held: set[str], elsewhere: set[str], not_applicable: set[str]) -> list[str]:
    """Return what is wrong: a case with no answer or with two, and an answer to no case."""
    found: list[str] = []
    answers = {"suites": held, "elsewhere": elsewhere, "not_applicable": not_applicable}
    for name, about in IDS.items():
        named = [where for where, names in answers.items() if name in names]
        if len(named) != 1:
            found.append(f"{name} ({about}) is in {named or 'none'} of {list(answers)}")
    found += [
        f"{where} names {name}, which is no case"
        for where, names in answers.items()
        for name in sorted(names - set(IDS))
    ]
    return found


def test_every_case_has_exactly_one_answer() -> None:
    assert faults(set(HELD), set(ELSEWHERE), set(NOT_APPLICABLE)) == []


def test_a_case_without_an_answer_or_with_two_is_seen() -> None:
    held = set(HELD)
    assert faults(held - {"K1"}, set(ELSEWHERE), set(NOT_APPLICABLE))
    assert faults(held, {*ELSEWHERE, "K1"}, set(NOT_APPLICABLE))
    assert faults(held, set(ELSEWHERE), {*NOT_APPLICABLE, "K1"})
    assert faults(held | {"K99"}, set(ELSEWHERE), set(NOT_APPLICABLE))


def test_the_cases_are_numbered_without_a_gap() -> None:
    due: set[str] = set()
    for last in SIZES.split():
        kind, number = last.rstrip("0123456789"), int(last.lstrip("ACDEFGHIJKLNOPRSTUVWXZ"))
        due |= {f"{kind}{n}" for n in range(kind not in FROM_NOUGHT, number + 1)}
    assert set(IDS) == due
    assert all(IDS.values())


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_test_that_holds_a_case_exists(name: str) -> None:
    assert ELSEWHERE[name]
    for node in ELSEWHERE[name]:
        path, _, function = node.partition("::")
        assert function in functions_in(path), node


def test_every_reason_is_a_sentence() -> None:
    for name, reason in NOT_APPLICABLE.items():
        assert re.fullmatch(r"[A-Z].{20,}\.", reason), name


def test_every_check_says_what_it_demands() -> None:
    for case in CASES:
        assert case.check.__doc__, case.name
        assert case.ids, case.name
