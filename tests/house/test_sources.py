"""Gates on the source text. Each is a function over a folder, so that a planted fault proves that it sees one."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TREE = Path(__file__).resolve().parents[2]
PARTS = ("protocol/dsh_protocol", "client", "daemon/dshd")
MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 400  # 300 by habit
BANNED_NAMES = re.compile(
    r"Manager|Helper|Util|Service$|Info|Impl|(^|_)(do|handle_it)_|Base$|Data$"
)


def python_files(root: Path, parts: tuple[str, ...] = (*PARTS, "tests")) -> Iterator[Path]:
    for part in parts:
        yield from sorted((root / part).rglob("*.py"))


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").split("\n")


def long_functions(root: Path) -> list[str]:
    found: list[str] = []
    for path in python_files(root):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(
                        f"{path.relative_to(root)}:{node.lineno} {node.name} has {lines} lines"
                    )
    return found


def long_files(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)} has {len(lines)} lines"
        for path in python_files(root, PARTS)
        if len(lines := lines_of(path)) - 1 > MAX_FILE_LINES
    ]


def banned_calls(root: Path) -> list[str]:
    """`splitlines` cuts at U+2028 and U+0085, which a log line may hold; the others have no place in these parts."""
    everywhere, in_the_program = ("unittest.mock",), (".splitlines(", "time.sleep(")
    return [
        f"{path.relative_to(root)}:{number} {call} without a reason beside it"
        for path in python_files(root)
        if path.name != "test_sources.py"
        for number, line in enumerate(lines_of(path), 1)
        for call in (
            everywhere if path.is_relative_to(root / "tests") else everywhere + in_the_program
        )
        if call in line and "#" not in line
    ]


def machine_paths(root: Path) -> list[str]:
    """No tracked text may name a place of somebody's machine."""
    pattern = re.compile("/" + r"(home/\w+|root/|work/|Users/\w+|opt/)")
    allowed = re.compile("/" + r"home/u\b")
    found: list[str] = []
    places = [*python_files(root), *root.glob("*.md"), root / "Makefile", root / "pyproject.toml"]
    places += [p for part in ("systemd", ".ci", ".changes") for p in (root / part).glob("*")]
    places += [p for part in ("daemon", "protocol", "client") for p in (root / part).rglob("*.md")]
    for path in places:
        if not path.is_file():
            continue
        for number, line in enumerate(lines_of(path), 1):
            hit = pattern.search(allowed.sub("", line))
            if hit and "machine-path: " not in line:
                found.append(f"{path.relative_to(root)}:{number} {hit.group()}")
    return found


def bare_suppressions(root: Path) -> list[str]:
    """Every suppression names its rule and has its reason in the same line."""
    marker = r"(noqa: [A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)*|(type|pyright): ignore\[[\w, -]+\])"
    reasoned = re.compile(rf"#\s*{marker}(\s+#\s*{marker})*\s+(#\s*)?\w")
    suppressed = re.compile(r"#\s*(noqa|(type|pyright): ignore)\b")
    return [
        f"{path.relative_to(root)}:{number} {line.strip()}"
        for path in python_files(root)
        if path.name != "test_sources.py"
        for number, line in enumerate(lines_of(path), 1)
        if suppressed.search(line) and not reasoned.search(line)
    ]


def banned_names(root: Path) -> list[str]:
    found: list[str] = []
    for path in python_files(root, PARTS):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    name = node.name
                case _:
                    continue
            if BANNED_NAMES.search(name):
                found.append(f"{path.relative_to(root)}:{node.lineno} {name}")
    return found


def modules_without_a_rule(root: Path) -> list[str]:
    """A module opens with what it owns; a package's own file is empty, or says what it is for."""
    found: list[str] = []
    for path in python_files(root, PARTS):
        text = path.read_text("utf-8")
        if ast.get_docstring(ast.parse(text)) is None and (
            text.strip() or path.name != "__init__.py"
        ):
            found.append(f"{path.relative_to(root)} does not say what it owns")
    return found


GATES: dict[Callable[[Path], list[str]], str] = {
    long_functions: "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES,
    long_files: "x = 1\n" * (MAX_FILE_LINES + 1),
    banned_calls: "'a'.splitlines()\n",
    machine_paths: "where = '/" + "home/somebody/x'\n",
    bare_suppressions: "x = 1  # noqa" + "\n",
    banned_names: "class SessionManager: ...\n",
    modules_without_a_rule: "x = 1\n",
}


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__)
def test_the_tree_passes(gate: Callable[[Path], list[str]]) -> None:
    assert gate(TREE) == []


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__)
def test_a_planted_fault_is_seen(gate: Callable[[Path], list[str]], tmp_path: Path) -> None:
    planted = tmp_path / "daemon/dshd/planted.py"
    planted.parent.mkdir(parents=True)
    planted.write_text(GATES[gate])
    (found,) = gate(tmp_path)
    assert found.startswith("daemon/dshd/planted.py")


def test_what_a_comment_justifies_is_let_through(tmp_path: Path) -> None:
    planted = tmp_path / "daemon/dshd/planted.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("'a'.splitlines()  # our own text\nx = 1  # noqa: E501  # a reason\n")
    assert banned_calls(tmp_path) == []
    assert bare_suppressions(tmp_path) == []
