"""What is built is what was meant: an empty wheel builds with exit code 0, so its contents are a test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from dsh_protocol.version import FORMAT_VERSION, PROTOCOL_VERSION, VERSION

TREE = Path(__file__).resolve().parents[2]
PARTS = ("daemon/dshd", "client/dsh_client", "protocol/dsh_protocol")


def run(*argv: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel built from the sdist alone."""
    pytest.importorskip("build", reason="the wheel is built where the build group is installed")
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, TREE)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def test_the_version_is_the_same_in_the_program_and_in_the_distribution() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION


def test_every_dependency_says_what_it_is_for() -> None:
    text = (TREE / "pyproject.toml").read_text()
    block = text.split("dependencies = [")[1].split("\n]")[0]
    for line in filter(str.strip, block.split("\n")):
        assert re.search(r'",\s+# \w', line), line


@pytest.mark.slow
def test_the_wheel_holds_exactly_the_three_packages(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[1]).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"dshd", "dsh_client", "dsh_protocol", f"dshd-{VERSION}.data"}
    assert f"dshd-{VERSION}.data/data/share/dshd/systemd/dshd.service" in names
    assert f"dshd-{VERSION}.data/data/share/man/man1/dshctl.1" in names
    sources = {
        str(path.relative_to(TREE / part).parent.joinpath(path.name))
        for part in PARTS
        for path in (TREE / part).rglob("*.py")
    }
    inside = {name.split("/", 1)[1] for name in names if name.endswith(".py")}
    assert inside == sources


@pytest.mark.slow
def test_the_sdist_carries_the_tests_and_nothing_that_was_built(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {name.split("/", 1)[-1] for name in sdist.getnames()}
    assert {"Makefile", "LICENSE", "tests/house/test_distribution.py"} <= names
    assert not [name for name in names if "__pycache__" in name or ".venv" in name]


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin/python", "-m", "pip", "install", "--quiet", built[1])
    version = run(venv / "bin/dshd", "--version", cwd=tmp_path)
    assert version == f"dshd {VERSION} (protocol {PROTOCOL_VERSION}, log format {FORMAT_VERSION})\n"
    assert run(venv / "bin/dshctl", "--help", cwd=tmp_path)
    found = run(
        venv / "bin/python",
        "-c",
        "import json, importlib.metadata as m;"
        "print(json.dumps([p for p, d in m.packages_distributions().items() if 'dshd' in d]))",
        cwd=tmp_path,
    )
    assert sorted(json.loads(found)) == ["dsh_client", "dsh_protocol", "dshd"]
