"""A test agent's interpreter with its framework imported, which forks a process for each run: `warm.py SCRIPT`.

Imports of a framework take longer than a whole run of its agent. The one rule: what is forked has no threads and no
connections, so that a run is as new as one in an interpreter of its own.

A line of JSON in (`argv`, `env`, `output`), then two lines out: the run's pid, and, when it has ended, its exit code.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import threading
from typing import Any


def main() -> None:
    script = sys.argv[1]
    sys.argv = [script, "-", "-", "-", "none"]
    runpy.run_path(script, run_name="imported")
    gc.collect()
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        assert threading.active_count() == 1, f"importing it started {threading.enumerate()}"
        pid = os.fork()
        if pid == 0:
            become(json.loads(line))
            runpy.run_path(script, run_name="__main__")
            return
        tell(pid)
        tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def become(run: dict[str, Any]) -> None:
    """Turn a fork into the process of a run: its own group, output, arguments and environment."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(run["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(run["env"])
    sys.argv = [sys.argv[0], *run["argv"]]


def tell(number: int) -> None:
    os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    main()
