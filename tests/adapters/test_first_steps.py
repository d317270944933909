"""What somebody does who has read the documentation and nothing else: install, copy ten lines, kill, run again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.adapters import TABLE, TREE
from support.daemon import clean_environ
from support.frameworks import case

if TYPE_CHECKING:
    from collections.abc import Generator

NAMES = {"langgraph": "langchain", "pydantic_ai": "pydantic-ai", "openai_agents": "openai-agents"}
PACKAGES = {**NAMES, "pydantic_ai": "pydantic-ai-slim"}
LIMIT_S = 60.0


def documented(name: str) -> str:
    """The ten lines, as they stand in the documentation."""
    found = re.search(rf"```python\n(# {name}\n.*?)```", TABLE.read_text("utf-8"), re.DOTALL)
    assert found, f"{TABLE.name} has no agent.py for {name}"
    return found[1]


def in_the_readme() -> str:
    """The agent that the README shows first."""
    found = re.search(r"```python\n(.*?)```", (TREE / "README.md").read_text("utf-8"), re.DOTALL)
    assert found, "README.md shows no agent"
    return found[1]


class Machine:
    """A user's machine: a home with nothing in it, an environment's programs on the path, no variable of ours."""

    def __init__(self, home: Path, programs: Path) -> None:
        self.home = home
        path = f"{programs}:{os.environ['PATH']}"
        self.env = clean_environ(home) | {"PATH": path, "OPENAI_AGENTS_DISABLE_TRACING": "1"}

    def start(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            argv,
            cwd=self.home,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.home,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    @contextmanager
    def daemon(self) -> Generator[None, None, None]:
        """`dshd &`, and what a user waits before he types the next line."""
        log = self.home / "dshd.log"
        with log.open("wb") as output:
            daemon = subprocess.Popen(["dshd"], env=self.env, stdout=output, stderr=output)  # noqa: S607  as typed
        try:
            deadline = time.monotonic() + LIMIT_S
            while self.run("dshctl", "status").returncode != 0:
                assert daemon.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
            yield
        finally:
            daemon.kill()
            daemon.wait()


@pytest.fixture
def home() -> Generator[Path, None, None]:
    base = Path(tempfile.mkdtemp(prefix="home-"))  # short: the socket lies in it
    yield base
    shutil.rmtree(base)


def check_it_goes_on(machine: Machine, program: str) -> None:
    (machine.home / "agent.py").write_text(program)
    with machine.daemon():
        agent = machine.start("python", "agent.py")
        assert agent.stdout is not None
        said = agent.stdout.readline()
        assert said.startswith("paying"), said + agent.communicate(timeout=LIMIT_S)[1]
        agent.send_signal(signal.SIGKILL)
        agent.communicate()
        again = machine.run("python", "agent.py")
        assert again.returncode == 0, again.stderr
        assert "paying" not in again.stdout
        assert "result was lost" in again.stdout
        listed = machine.run("dshctl", "list").stdout
        assert "tea" in listed


@pytest.mark.parametrize("framework", [case(one, slow=one == "pydantic_ai") for one in NAMES])
def test_the_ten_lines_go_on_after_a_kill(home: Path, framework: str) -> None:
    check_it_goes_on(Machine(home, Path(sys.executable).parent), documented(NAMES[framework]))


@pytest.mark.parametrize("framework", [case("pydantic_ai")])
def test_so_does_the_agent_of_the_readme(home: Path, framework: str) -> None:
    check_it_goes_on(Machine(home, Path(sys.executable).parent), in_the_readme())


@pytest.mark.parametrize("framework", [case(one, slow=True) for one in NAMES])
def test_they_do_so_in_an_environment_with_a_wheel_and_the_framework_alone(
    home: Path, framework: str
) -> None:
    made = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(home)]
    subprocess.run([*made, str(TREE)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
    wheel = next(home.glob("dshd-*.whl"))
    pip = [str(home / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, str(wheel), PACKAGES[framework]], check=True)
    check_it_goes_on(Machine(home, home / "venv" / "bin"), documented(NAMES[framework]))
