"""The units as they are shipped, under a real user manager. Figures are shown with `-s`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.load import tell

if TYPE_CHECKING:
    from collections.abc import Generator

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
PYTHON = "/usr/bin/python3"  # one that another user may run
KILLS = os.environ.get("DSHD_UNIT_KILLS", "10")


@pytest.fixture
def program() -> Generator[Path, None, None]:
    """A `dshd` of this tree that the throw-away user can run, and not in /tmp, which a unit may have of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder = Path(tempfile.mkdtemp(prefix="dshd-", dir="/opt"))
    folder.chmod(0o755)
    modules = [str(TREE / name) for name in ("daemon", "client", "protocol")]
    found = ":".join([*modules, sysconfig.get_path("purelib")])
    script = folder / "dshd"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={found} exec {PYTHON} -m dshd.main "$@"\n')
    script.chmod(0o755)
    yield script
    shutil.rmtree(folder)


def runs_as_another_user(program: Path) -> bool:
    become = ["setpriv", "--reuid=12345", "--regid=65534", "--clear-groups", "--bounding-set=-all"]
    done = subprocess.run([*become, str(program), "--version"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.slow
def test_the_units_start_restart_and_confine_the_daemon(program: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    if not runs_as_another_user(program):
        pytest.skip("another user cannot run this tree with the system's Python")
    probe = [PYTHON, str(HERE / "probe.py"), str(TREE / "systemd/README.md"), str(program)]
    done = subprocess.run(
        [PYTHON, str(HERE / "manager.py"), "--", *probe],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHON_KILLS": KILLS},
        timeout=900,
    )
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    tell(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
