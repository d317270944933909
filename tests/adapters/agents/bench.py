"""What the adapters' test agents have in common: three tools, a model that follows its history, and a fuse.

An agent under test is a real process. What it does to the world lies in files of its folder, so that it can be counted
after a SIGKILL: `bodies` (a line for each entry into a tool's body) and `requests` (what the fake model received).
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh_client.adapters.keys import idempotency_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dsh_client.adapters.effects import Unfinished

PROMPT = "Look the price up, pay it, and post the receipt."
TOOLS = {"look": "read-only", "pay": "side-effect", "post": "side-effect"}
NOT_STARTED = "did not run"
UNKNOWN = "result was lost"
LIMIT_S = 60.0
PIECES_APART_S = 0.15
"""Between the pieces of a slow stream: more than they wait for each other to go together."""


@dataclass(frozen=True)
class Said:
    """One message that the fake model received: who, the text, and the call that it answers."""

    role: str
    text: str
    call_id: str | None = None


@dataclass(frozen=True)
class Asked:
    """One call that the fake model asks for."""

    id: str
    name: str


class Bench:
    """One run of a test agent: `argv` is SOCKET SESSION FOLDER POINT [KEY=VALUE …]."""

    def __init__(self) -> None:
        self.socket, self.session, folder, self.point = sys.argv[1:5]
        self.folder = Path(folder)
        self.options = dict(pair.split("=", 1) for pair in sys.argv[5:])
        self._count: dict[str, int] = {}
        self._lock = threading.Lock()
        self._pad = " " + secrets.token_hex(8000) if "pad" in self.options else ""

    @property
    def settings(self) -> dict[str, Any]:
        """What the adapter is given besides the session."""
        found: dict[str, Any] = {
            "socket": self.socket,
            "timeout": float(self.options.get("timeout", "20")),
        }
        found["effects"] = {name: effect for name, effect in TOOLS.items() if name == "look"}
        if "unstarted" in self.options:
            found["unstarted"] = self.options["unstarted"]
        if "verify" in self.options:
            found["verify"] = self.verify
        return found

    def verify(self, call: Unfinished) -> str:
        """Know what became of a call."""
        return f"{call.name} was done, says {self.options['verify']}"

    def what(self, name: str) -> str:
        """The argument of a tool; where the disk is full, more than what the log's last page has room for."""
        return f"{name}{self._pad}"

    # -- the world ----------------------------------------------------------------------------------------------------

    def body(self, name: str) -> str:
        """Run a tool's body: count it, then do what the point of this run says."""
        self.note("bodies", {"name": name, "pid": os.getpid(), "key": idempotency_key()})
        self.fault("in-body")
        if self.point == "in-tool" and name == "pay":
            self.wait_for_all()
            self.die()
        if self.point == "after-one-result" and name != "look":
            threading.Event().wait(LIMIT_S)  # the kill comes from whoever finishes
        return f"{name}: ok{self._pad}"

    def model(self, history: list[Said]) -> str | list[Asked]:
        """Answer as the history wants it; what was received is counted."""
        self.note("requests", [vars(said) for said in history])
        self.hit("in-request")
        answered = [said for said in history if said.call_id is not None]
        if not answered:
            return [Asked(f"call-{name}", name) for name in TOOLS]
        lost = [said for said in answered if NOT_STARTED in said.text]
        ids = [said.call_id or "" for said in answered]
        again = [
            said for said in lost if not any(one.startswith(f"{said.call_id}-") for one in ids)
        ]
        if again:
            return [Asked(f"{s.call_id}-b", (s.call_id or "").split("-")[1]) for s in again]
        return "all done"

    def note(self, what: str, line: Any) -> None:
        """Add a line to a file of the folder, in one write."""
        with self._lock, (self.folder / what).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def wait_for_all(self) -> None:
        """Wait until every tool's body has begun, where they run side by side."""
        if "sequential" not in self.options:
            self.wait_for_lines("bodies", len(TOOLS))

    def lines(self, what: str) -> list[str]:
        """The lines of a file of the folder."""
        path = self.folder / what
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def wait_for_lines(self, what: str, count: int) -> None:
        """Wait until a file has that many lines."""
        tick = threading.Event()
        for _ in range(int(LIMIT_S * 100)):
            if len(self.lines(what)) >= count:
                return
            tick.wait(0.01)

    # -- the fuse -----------------------------------------------------------------------------------------------------

    def arm(self, recorder: Any) -> None:
        """Put the fuse around what the adapter records: the same points for every framework."""
        for name, before, after in (
            ("asking", "before-request", "request-passed"),
            ("answer", "answer-unrecorded", "after-answer"),
            ("starting", "before-tool", "tool-started"),
            ("finish_tool", "result-unrecorded", "after-one-result"),
            ("end_run", "before-end", "at-end"),
            ("chunk", "before-piece", "piece"),
        ):
            method = getattr(recorder, name)
            around = self._around_shared if iscoroutinefunction(method) else self._around
            setattr(recorder, name, around(method, before, after))

    def _around(self, method: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.hit(before)
            if before == "before-piece" and "slow" in self.options:
                threading.Event().wait(PIECES_APART_S)
            found = method(*args, **kwargs)
            self.hit(after)
            return found

        return call

    def _around_shared(
        self, method: Callable[..., Awaitable[Any]], before: str, after: str
    ) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.hit(before)
            found = await method(*args, **kwargs)
            self.hit(after)
            return found

        return call

    def hit(self, point: str) -> None:
        """Pass a point; die there if this run is to."""
        with self._lock:
            count = self._count[point] = self._count.get(point, 0) + 1
        if self.point in (point, f"{point}-{count}"):
            if point == "after-one-result":
                # not here: this may be the event loop, without which the other bodies do not begin
                threading.Thread(target=self._die_among_all, daemon=True).start()
                return
            self.die()
        if self.point == "after-step" and point == "after-one-result" and count == len(TOOLS):
            self.die()
        self.fault(point)

    def fault(self, point: str) -> None:
        """Tell the test that a point is passed, and wait until it has done its damage."""
        if self.options.get("fault") != point or (self.folder / "reached").exists():
            return
        (self.folder / "reached").write_text("yes")
        tick = threading.Event()
        for _ in range(int(LIMIT_S * 100)):
            if (self.folder / "done").exists():
                return
            tick.wait(0.01)

    def _die_among_all(self) -> None:
        self.wait_for_all()
        self.die()

    @staticmethod
    def die() -> None:
        """SIGKILL: no handler, no last words."""
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
