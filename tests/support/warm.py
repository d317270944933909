"""Runs of test agents, in an interpreter of their own or forked from one that has the framework imported.

The one rule: a test sees no difference; both are a process with a group of its own, which it may kill at any moment.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Order:
    """What is run: the arguments after the script, the environment, and the file that takes what it prints."""

    argv: Sequence[str]
    env: Mapping[str, str]
    output: Path


class Run(Protocol):
    """A run of an agent, as far as a test needs it."""

    @property
    def pid(self) -> int:
        """The process, which leads a group of its own."""
        ...

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        ...

    def wait(self, timeout: float) -> int:
        """Wait for its end and return its exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        ...


def cold(script: Path, order: Order) -> Run:
    """Start a run in a new interpreter."""
    with order.output.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(script), *order.argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(order.env),
            start_new_session=True,
        )


class Warm:
    """An interpreter with a script's imports done; one run at a time is forked from it."""

    def __init__(self, script: Path, env: Mapping[str, str]) -> None:
        """Start it; it is ready when it takes its first order."""
        self._server = subprocess.Popen(
            [sys.executable, str(script.with_name("warm.py")), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(env),
            bufsize=0,
        )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._in, self._out = self._server.stdin, self._server.stdout

    def start(self, order: Order) -> Run:
        """Fork a run."""
        told = {"argv": [*order.argv], "env": dict(order.env), "output": str(order.output)}
        self._in.write(json.dumps(told).encode() + b"\n")
        return _Forked(self, self.line())

    def line(self) -> int:
        """Wait for the next number that the server tells."""
        line = self._out.readline()
        assert line, "the warm interpreter ended; its standard error says why"
        return int(line)

    def has_told(self, within: float) -> bool:
        """Whether it tells something in time."""
        return bool(select.select([self._out], [], [], within)[0])

    def close(self) -> None:
        """End it."""
        self._in.close()
        self._out.close()
        self._server.wait(30)


class _Forked:
    def __init__(self, warm: Warm, pid: int) -> None:
        self._warm = warm
        self._code: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        if self._code is None and self._warm.has_told(0):
            self._code = self._warm.line()
        return self._code

    def wait(self, timeout: float) -> int:
        if self._code is None:
            if not self._warm.has_told(timeout):
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout)
            self._code = self._warm.line()
        return self._code


def end(run: Run) -> None:
    """Kill what a run left behind, itself included (an SDK's own program)."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait(30)
