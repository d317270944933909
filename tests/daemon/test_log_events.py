from __future__ import annotations

import ast
from pathlib import Path

from dshd.log_events import LOG_EVENTS

SOURCE = Path(__file__).resolve().parents[2] / "daemon/dshd"
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}


def logged() -> list[tuple[str, ast.expr]]:
    """Every first argument of a call that logs, with the place of the call."""
    found: list[tuple[str, ast.expr]] = []
    for path in sorted(SOURCE.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        found += [
            (f"{path.name}:{node.lineno}", node.args[0])
            for node in nodes
            if isinstance(node, ast.Call) and node.args and is_log(node.func)
        ]
    return found


def is_log(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.attr in LEVELS and function.value.id == "log"
    return isinstance(function, ast.Name) and function.id in {"new_incident", "log"}


def test_every_event_that_is_logged_is_in_the_table_and_every_one_there_is_logged() -> None:
    names: set[str] = set()
    for place, name in logged():
        if place.startswith("incidents.py"):
            continue  # passes on the name that its caller gave
        assert isinstance(name, ast.Constant), f"{place}: the name of an event is a constant"
        assert name.value in LOG_EVENTS, f"{place}: {name.value!r} is not in the table"
        names.add(str(name.value))
    assert names == set(LOG_EVENTS)
