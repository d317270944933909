"""How long `dshctl list` takes as a whole process on a root of many sessions: `python tests/cli/start.py`.

Every round runs each command once, in turns, so that whatever else the machine does falls on all of them. Told are the
time on the clock and that of the processor, at best and in the middle. As in an installation, the modules are compiled.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.daemon import DaemonProcess, open_daemon
from support.events import turn_end, turn_start, user


def write_root(daemon: DaemonProcess, count: int) -> None:
    """Have the daemon itself write that many sessions, by forks of one."""
    with daemon.connect() as agent:
        made = agent.call("session.create", id="s00000", cwd="/w/project")
        handle = {"id": "s00000", "writer": made["writer"]}
        events = [turn_start(), user("fix the build"), turn_end()]
        agent.call("session.append", **handle, events=events)
        agent.call("session.close", **handle)
        for number in range(1, count):
            agent.call("session.fork", id="s00000", newId=f"s{number:05}")


class Measured:
    """The times of one command, in milliseconds."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self.words = words
        self.env = env
        self.clock: list[float] = []
        self.processor: list[float] = []

    def run(self) -> None:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            self.words,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.env,
        )
        self.clock.append(1000 * (time.perf_counter() - began))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.processor.append(1000 * spent)

    def told(self) -> str:
        return (
            f"{min(self.clock):6.1f} ms at best, {statistics.median(self.clock):6.1f} in the middle;"
            f" {min(self.processor):6.1f} and {statistics.median(self.processor):6.1f} of the processor"
        )


def compiling(base: Path) -> dict[str, str]:
    """The environment in which modules are compiled once, to a folder of the measurement's own."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(base / "compiled")}


def measure(sessions: int, rounds: int, base: Path) -> dict[str, Measured]:
    """Return the times of a bare interpreter, of `dshctl list`, and of a search."""
    with open_daemon(base) as daemon:
        write_root(daemon, sessions)
        env = compiling(base)
        dshctl = [sys.executable, "-m", "dsh_client.cli.main", "--socket", str(daemon.socket)]
        measured = {
            "python": Measured([sys.executable, "-c", "pass"], env),
            "dshctl list": Measured([*dshctl, "list"], env),
            "dshctl search": Measured([*dshctl, "search", "build"], env),
        }
        for one in measured.values():
            one.run()
            one.clock.clear()
            one.processor.clear()
        for _ in range(rounds):
            for one in measured.values():
                one.run()
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        for name, one in measure(asked.sessions, asked.rounds, Path(base)).items():
            sys.stdout.write(f"{name:14} {one.told()}\n")


if __name__ == "__main__":
    main()
