"""How long one step of a daemon's event loop takes, and what clients send to make it long.

The daemon runs in a loop of ours, where every step of every task is measured: by the computing time of the loop's
thread, so that a busy machine changes nothing.
"""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from dshd.lifecycle import serve
from dshd.settings import Settings
from support import events, turns
from support.load import MIB
from support.rpc import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

GAP_S = 0.05
"""No step may take longer."""


class Steps(trio.abc.Instrument):
    """The longest step that any task of the loop has taken, and whose it was."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.whose = ""
        self._began: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if (
            self._began is None
        ):  # the step in which the measuring began, of which the beginning is not known
            return
        seconds = time.thread_time() - self._began
        if seconds > self.longest and "longest_of" not in task.name:
            self.longest, self.whose = seconds, task.name


@asynccontextmanager
async def running() -> AsyncGenerator[tuple[Path, Steps], None]:
    """A daemon in this loop: its socket, and what its steps take from now on."""
    base = Path(tempfile.mkdtemp(prefix="dshd-"))
    settings = Settings(socket=base / "s", root=base / "root", state_dir=base / "state")
    for folder in (settings.root, settings.state_dir):
        folder.mkdir(mode=0o700)
    steps = Steps()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, settings)  # noqa: ASYNC113  # its socket says when it is there
            while not settings.socket.exists():  # noqa: ASYNC110  # a file is no event
                await trio.sleep(0.01)
            gc.freeze()  # what the tests have loaded is not the daemon's to look through
            trio.lowlevel.add_instrument(steps)
            yield settings.socket, steps
            trio.lowlevel.remove_instrument(steps)
            nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(base, ignore_errors=True)  # a thread may still be at the derived file


def call(method: str, params: Any, **style: Any) -> bytes:
    """Return a call as a line, in a style of `json.dumps`."""
    request = {"jsonrpc": "2.0", "id": 99, "method": method, "params": params}
    return json.dumps(request, **style).encode()


def wide(value: Any, count: int) -> dict[str, Any]:
    """Return an object of so many members."""
    return {str(number): value for number in range(count)}


LINES: dict[str, Callable[[], bytes]] = {
    "a bomb of empty arrays": lambda: (
        call("session.append", {"events": 0})[:-2] + b'"x":[' + b"[]," * 5_000_000 + b"[]]}}"
    ),
    "200,000 keys": lambda: call("session.stat", wide(1, 200_000)),
    "90,000 keys": lambda: call("session.stat", wide(1, 90_000)),
    "90,000 keys, spaced": lambda: call("session.stat", wide(1, 90_000), separators=(", ", ": ")),
    "a defect behind 90,000 keys": lambda: call("session.stat", wide(1, 90_000))[:-3] + b"-0}}",
    "no JSON behind 90,000 keys": lambda: call("session.stat", wide(1, 90_000))[:-3] + b"?}}",
    "a long string": lambda: call("session.stat", {"id": "x" * (15 * MIB)}),
    "a string of escapes": lambda: call("session.stat", {"id": "\n" * (7 * MIB)}),
    "a string of pairs": lambda: call("session.stat", {"id": "😀" * MIB}),
    "a long key": lambda: call("session.stat", {"\n" * (7 * MIB): 1}),
    "backslashes without an end": lambda: b'{"id":1,"method":"' + b"\\" * (15 * MIB),
    "white space": lambda: b"[" + b" " * (15 * MIB),
    "100,000 brackets": lambda: b"[" * 100_000,
    "a batch of numbers": lambda: b"[" + b"1," * 90_000 + b"1]",
    "a batch of bad calls": lambda: b"[" + b'{"id":-0},' * 999 + b"1]",
    "a batch of calls": lambda: b"[" + b",".join([call("session.list", {})] * 999) + b"]",
    "a batch of unknown calls": lambda: b"[" + b",".join([call("?", {})] * 999) + b"]",
    "discover": lambda: call("rpc.discover", {}),
}


def append_much(one: Connection) -> None:
    """Append as many events as a call may have, then large ones."""
    handle = turns.begin_turn(one, "much")
    one.call("session.append", **handle, events=[events.chunk("x")] * 10_000)
    one.call("session.append", **handle, events=[events.chunk("x" * 500)] * 5000)
    one.call("session.flush", **handle)


def append_large(one: Connection) -> None:
    """Append the largest events, and read them."""
    handle = turns.begin_turn(one, "large")
    for text in ("x" * (7 * MIB), "\n" * (2 * MIB), "é" * (2 * MIB)):
        one.call("checkpoint.request", **handle, events=[events.chunk(text)])
    one.call("session.append", **handle, events=[events.chunk("x" * 7 * MIB)] * 2)
    for offset in range(4, 9):
        one.call("session.read", id="large", offset=offset, maxBytes=16 * MIB)
    one.call("session.messages", id="large")


def follow_much(one: Connection) -> None:
    """Follow a long session from its beginning."""
    append_much(one)
    one.call("session.subscribe", id="much", fromSeq=0)
    seen = 0
    while seen < 15_000:
        seen = one.notification()["params"]["events"][-1]["seq"]
    one.call("session.read", id="much", maxBytes=16 * MIB)


def have_many(one: Connection) -> None:
    """Have many sessions, and list them."""
    for number in range(400):
        name = f"s{number}"
        created = one.call("session.create", id=name)
        one.call("session.append", id=name, writer=created["writer"], events=[events.title()])
        one.call("session.close", id=name, writer=created["writer"])
    one.call("session.list", limit=1000)
    one.call("daemon.status")
    one.call("daemon.metrics")


WORKS: tuple[Callable[[Connection], None], ...] = (
    append_much,
    append_large,
    follow_much,
    have_many,
)


async def longest_of_line(line: bytes) -> Steps:
    """Send one line to a fresh daemon and wait for an answer; return what its loop's steps took."""

    def ask(socket: Path) -> None:
        with Connection(socket, name="bad") as one:
            one.send_line(line)
            assert one.read_message()

    async with running() as (socket, steps):
        await trio.to_thread.run_sync(ask, socket)
    return steps


async def longest_of_work(work: Callable[[Connection], None]) -> Steps:
    """Let a client do some work with a fresh daemon; return what its loop's steps took."""

    def ask(socket: Path) -> None:
        with Connection(socket, name="busy") as one:
            work(one)

    async with running() as (socket, steps):
        await trio.to_thread.run_sync(ask, socket)
    return steps
