"""Every import contract, broken on purpose: a contract that nothing can break guards nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

TREE = Path(__file__).resolve().parents[2]
PYPROJECT = TREE / "pyproject.toml"

# Contract id → a module, and the forbidden import to plant in it.
BREAKS = {
    "meet": ("client/dsh_client/errors.py", "import dshd.settings"),
    "protocol-pure": ("protocol/dsh_protocol/framing.py", "import trio"),
    "down": ("daemon/dshd/storage/store.py", "import dshd.sessions.fold"),
    "storage-blocking": ("daemon/dshd/storage/jsonl/rows.py", "import trio"),
    "rpc-library": ("daemon/dshd/sessions/session.py", "import jsonrpcserver"),
    "blocking-client-light": ("client/dsh_client/errors.py", "import msgspec"),
    "pure-sessions": ("daemon/dshd/sessions/closers.py", "import trio"),
}


def contracts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"][
        "contracts"
    ]
    return found


def lint(tree: Path, contract: str) -> subprocess.CompletedProcess[str]:
    if find_spec("importlinter") is None:
        pytest.skip("contracts are broken where the lint group is installed")
    code = (
        "import sys; sys.path[:0] = ['daemon', 'client', 'protocol']\n"
        "from importlinter.cli import lint_imports\n"
        f"sys.exit(lint_imports(config_filename='pyproject.toml', limit_to_contracts=({contract!r},), no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for part in ("daemon", "client", "protocol"):
        shutil.copytree(TREE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PYPROJECT, tmp_path)
    return tmp_path


def test_every_contract_has_a_way_to_break_it() -> None:
    assert {contract["id"] for contract in contracts()} == BREAKS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("contract", BREAKS)
def test_a_planted_import_breaks_the_contract(copy: Path, contract: str) -> None:
    path, statement = BREAKS[contract]
    with (copy / path).open("a") as module:
        module.write(f"\n{statement}\n")
    done = lint(copy, contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN" in done.stdout
