"""Promise 7 as the kernel sees it: the real daemon plays W under a tracer, and no byte of a log is written over.

The one rule: every call that could write to a log is counted, by the name that the kernel gives for its descriptor,
whether it went through the disk's door or not.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from crash import workload
from crash.playing import Account
from crash.proof import Result, Size, not_run
from crash.served import Wish
from crash.wire import Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WHAT = "calls of the kernel that write over a log"
_PROMISED = "0"
_CALLS = "openat,write,writev,pwrite64,pwritev,pwritev2,mmap,fallocate,copy_file_range,sendfile"
_LOG = r"<[^>]*/session\.jsonl[^>]*>"
_APPENDS = re.compile(r"\bwritev?\(\d+" + _LOG)
_OPENS = re.compile(r"\bopenat\(.*session\.jsonl[^\"]*\", (?P<flags>[A-Z_|]+)")
_PLACED = re.compile(r"\b(?:pwrite64|pwritev2?|fallocate|sendfile)\(\d+" + _LOG)
_MAPPED = re.compile(r"\bmmap\(.*PROT_WRITE.*MAP_SHARED.*" + _LOG)


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Trace one W."""
    tracer = shutil.which("strace")
    if tracer is None:
        yield not_run(7, _WHAT, _PROMISED, "there is no strace")
        return
    trace = scratch / "trace"
    folder = scratch / "case"
    folder.mkdir()
    served = Served(folder, Wish())
    # -D: the daemon keeps its own pid, so that it is the daemon that gets the signals
    front = [tracer, "-D", "-f", "-y", "-o", str(trace), "-e", f"trace={_CALLS}"]
    served.daemon.command = [*front, *served.daemon.command]
    code = served.play(workload.whole())
    refusals = Account(folder).refusals()
    served.remove()
    if code or refusals or not trace.exists():
        why = f"the traced daemon ended with {code}, refused {refusals}: {served.daemon.output()}"
        yield not_run(7, _WHAT, _PROMISED, why)
        return
    appends, bad = judged(trace.read_text("utf-8", "replace"))
    held = not bad and appends > 0
    reached = f"{len(bad)}, and {appends} that append"
    yield Result(7, _WHAT, reached, _PROMISED, held=held, why=tuple(bad))


def judged(trace: str) -> tuple[int, list[str]]:
    """Return how many calls appended to a log, and those that could have written over one."""
    appends, bad = 0, list[str]()
    for line in trace.split("\n"):
        appends += bool(_APPENDS.search(line))
        opened = _OPENS.search(line)
        flags = set(opened["flags"].split("|")) if opened else set[str]()
        writes = flags & {"O_WRONLY", "O_RDWR"}
        if (
            (writes and "O_APPEND" not in flags)
            or "O_TRUNC" in flags
            or _PLACED.search(line)
            or _MAPPED.search(line)
        ):
            bad.append(line)
    return appends, bad
