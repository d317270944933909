"""Odd and malformed files, and what a daemon makes of each: the recorded answer, or ours with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.differences import our_answers, same_on_purpose
from conformance.laid_out import OPERATIONS, Case, answer, recorded_cases, wanted
from support.vectors import vectors

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

CASES = recorded_cases()
OURS = our_answers()
READING = ("list", "inspect", "readFrom")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_odd_file_gets_the_recorded_answer_or_ours(
    daemon: DaemonProcess, case: Case, deep_json: None
) -> None:
    case.put(daemon.root)
    try:
        with daemon.connect() as connection:
            found = {name: answer(connection, case, name) for name in READING}
            assert case.untouched(daemon.root), "reading has changed a file"
            found["load"] = answer(connection, case, "load")
            if found["load"].startswith("refused"):
                assert case.untouched(daemon.root), "a refusal has changed a file"
    finally:
        case.remove(daemon.root)
    due = {name: OURS.get((case.name, name), wanted(case, name)) for name in OPERATIONS}
    assert found == due
    if due["load"].startswith("refused"):
        assert found["inspect"].startswith("refused"), "what cannot be continued is no history"


def test_every_row_of_the_table_is_a_difference() -> None:
    vectors()
    cases = {case.name: case for case in CASES}
    for (name, operation), ours in OURS.items():
        assert ours != wanted(cases[name], operation), f"{name}.{operation} is as recorded"


def test_every_known_weakness_has_our_answer_or_a_reason() -> None:
    vectors()
    differing = {name for name, _ in OURS}
    same = {c.weakness for c in CASES if c.weakness is not None and c.name not in differing}
    assert same == set(same_on_purpose())
