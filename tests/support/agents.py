"""Agents as real processes: started with a plan, waited for until they stand still, killed.

The one rule: no agent outlives the test that started it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

_TESTS = Path(__file__).resolve().parents[1]
_WAIT_LIMIT_S = 60.0


class AgentProcess:
    """One running agent: a file of tests/e2e/agents with its plan as its argument.

    It talks by lines: words on its standard output; a line on its standard input lets it go on.
    """

    def __init__(self, script: str, plan: dict[str, Any]) -> None:
        self.plan = plan
        self._words = b""
        # -S: the standard library is all that an agent needs, and it starts in a third of the time
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(_TESTS / "e2e" / "agents" / script), json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(_TESTS)},
        )

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._process.pid

    def wait_word(self) -> str:
        """Return the next line that it says."""
        assert self._process.stdout is not None
        while b"\n" not in self._words:
            ready, _, _ = select.select([self._process.stdout], [], [], _WAIT_LIMIT_S)
            assert ready, f"the agent of {self.plan} says nothing"
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            assert piece, f"the agent of {self.plan} has ended"
            self._words += piece
        word, self._words = self._words.split(b"\n", 1)
        return word.decode()

    def expect(self, word: str) -> None:
        """Wait for the next line that it says, which must be `word`."""
        assert self.wait_word() == word

    def tell(self, word: str = "go") -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()

    def suspend(self) -> None:
        """SIGSTOP it."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL it and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what it was not read any more

    def wait_end(self) -> int:
        """Wait until it ends by itself, and return its exit code."""
        code = self._process.wait(_WAIT_LIMIT_S)
        self.kill()
        return code


@contextmanager
def open_agents(script: str, *plans: dict[str, Any]) -> Generator[list[AgentProcess], None, None]:
    """Start an agent for each plan, side by side; kill them all on leaving."""
    agents: list[AgentProcess] = []
    try:
        for plan in plans:
            agents.append(AgentProcess(script, plan))  # noqa: PERF401  # those started are killed when a later one fails
        yield agents
    finally:
        for agent in agents:
            agent.kill()
