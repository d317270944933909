"""No regular expression means one thing to Python 3.11.2, which Debian has, and another to later ones.

Before 3.11.5 a possessive repeat of a group counted the front of what then failed as matched. So such a group may fail
at its first character only, or where the text ends.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARTS = ("dsh_protocol", "dshd", "dsh_client")
_ELSEWHERE = "dsh_client.adapters"
"""Its modules import frameworks that are not here."""
_LEAST = 20
_SINGLE = frozenset({"LITERAL", "NOT_LITERAL", "IN", "ANY"})
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Yield the patterns that stand in modules of the project, and what they are called."""
    for part in _PARTS:
        package = importlib.import_module(part)
        for found in pkgutil.walk_packages(package.__path__, f"{part}."):
            if found.name.startswith(_ELSEWHERE) or found.name.endswith("__main__"):
                continue
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                for one in _several(value):
                    if isinstance(one, re.Pattern):
                        yield f"{found.name}.{name}", one


def fails_inside(pattern: re.Pattern[Any]) -> bool:
    """Whether a group of it is repeated possessively that may fail behind its first character."""
    parser: Any = vars(re)["_parser"]
    return any(
        str(kind) == "POSSESSIVE_REPEAT" and not _fails_at_once(list(inner[2]), pattern.flags)
        for kind, inner in _nodes(parser.parse(pattern.pattern, pattern.flags))
    )


def _nodes(tree: Any) -> Iterator[tuple[Any, Any]]:
    for kind, inner in tree:
        yield kind, inner
        for below in _several(inner):
            for one in _several(below):
                if type(one).__name__ == "SubPattern":
                    yield from _nodes(one)


def _several(value: object) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, tuple | list) else [value]


def _fails_at_once(items: list[Any], flags: int) -> bool:
    if len(items) == 1 and str(items[0][0]) == "SUBPATTERN":
        return _fails_at_once(list(items[0][1][3]), flags)
    first, *others = ((str(kind), inner) for kind, inner in items)
    return first[0] in _SINGLE and all(
        (kind == "ANY" and flags & re.DOTALL) or (kind in _REPEATS and inner[0] == 0)
        for kind, inner in others
    )


def test_no_pattern_counts_what_failed_as_matched_in_an_older_python() -> None:
    found = dict(patterns())
    assert len(found) >= _LEAST
    assert [name for name, pattern in found.items() if fails_inside(pattern)] == []


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [
        (r"0(?:[eE][+-]?[0-9]+)?+", True),
        (r"(?:[^\\]|\\(?:n|u[0-9a-f]{4}))*+", True),
        (r"x(y(?:ab)*+)", True),
        (r"(?:ab|a)++|c", True),
        (r"(?:\\.)*+", True),
        (r"(?s:(?:\\.[^\\]*+)*+)", True),
        (r"[0-9]++(?:a)*+", False),
        (r"(?:\.[0-9]++)?", False),
    ],
)
def test_such_a_pattern_is_found(pattern: str, wrong: bool) -> None:  # noqa: FBT001  # a case
    assert fails_inside(re.compile(pattern)) == wrong


def test_one_that_can_fail_at_the_end_of_the_text_only_is_not() -> None:
    assert not fails_inside(re.compile(r"(?:\\.[^\\]*+)*+", re.DOTALL))
