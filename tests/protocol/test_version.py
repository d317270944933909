from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dsh_protocol import version

ROOT = Path(__file__).resolve().parents[2]
STDLIB_ONLY = ("version", "ids", "paths", "errors", "framing", "calls", "jsontypes", "vocabulary")


def test_the_version_is_the_distributions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == version.VERSION


def test_this_program_speaks_protocol_1_and_format_0() -> None:
    assert (version.PROTOCOL_VERSION, version.FORMAT_VERSION) == (1, 0)


@pytest.mark.parametrize("name", STDLIB_ONLY)
def test_what_a_client_imports_needs_only_the_standard_library(name: str) -> None:
    code = (
        f"import sys, dsh_protocol.{name}\n"
        "heavy = {'msgspec', 'trio', 'anyio', 'zstandard', 'structlog', 'jsonrpcserver'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
