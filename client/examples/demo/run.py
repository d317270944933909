# ruff: noqa: INP001, T201  an example is a script, and prints
"""The main job on one screen: an agent and the daemon are killed, nothing is lost, the next agent is told what to do.

Starts a real daemon and a real agent, kills both with SIGKILL while one tool call is finished, one is inside its body
and one has not begun, starts both anew, and checks each claim that it prints. Exit 0 only if all hold.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh_client.blocking import Client
from dsh_client.errors import ClientError
from dsh_protocol.ids import idempotency_key

if TYPE_CHECKING:
    from collections.abc import Generator

SESSION = "sale-of-tea"
LIMIT_S = 20.0
HERE = Path(__file__).resolve().parent


class ClaimError(Exception):
    """A claim of the demo does not hold."""


def check(holds: object, claim: str) -> None:
    """Print a claim that was checked."""
    if not holds:
        raise ClaimError(claim)
    print(f"  ✓ {claim}")


@contextmanager
def started(*command: str, env: dict[str, str]) -> Generator[subprocess.Popen[bytes], None, None]:
    """Run a program; nothing of it outlives the block."""
    process = subprocess.Popen([sys.executable, *command], env=env)  # noqa: S603  our own programs
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_until(happened: Any, what: str) -> None:
    """Wait for another process to get somewhere."""
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        if time.monotonic() > deadline:
            raise ClaimError(f"{what} within {LIMIT_S:.0f} s")
        time.sleep(0.01)  # another process moves by the real clock


def answers(socket: str) -> bool:
    """Whether the daemon answers."""
    try:
        with Client(socket, timeout=1) as client:
            client.call("daemon.status")
    except ClientError:
        return False
    return True


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL: no handler, no last words."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def events_of(socket: str) -> list[dict[str, Any]]:
    """Read the whole session."""
    with Client(socket) as client:
        found: list[dict[str, Any]] = client.call("session.read", id=SESSION)["events"]
    return found


def answer_of(events: list[dict[str, Any]], call_id: str) -> dict[str, Any]:
    """The one result of a call."""
    results: list[dict[str, Any]] = [
        event["data"]
        for event in events
        if event["type"] == "tool/result"
        and event["data"]["message"]["source"]["callId"] == call_id
    ]
    if len(results) != 1:
        raise ClaimError(f"{call_id} has {len(results)} results instead of one")
    return results[0]


def first_life(socket: str, root: Path, folder: Path, env: dict[str, str]) -> list[dict[str, Any]]:
    """Run daemon and agent up to the middle of a tool's body, and kill both; return what was stored then."""
    serve = (
        "-m",
        "dshd.main",
        "serve",
        "--socket",
        socket,
        "--root",
        str(root),
        "--log-level",
        "error",
    )
    agent = (str(HERE / "agent.py"), socket, SESSION, str(folder))
    with started(*serve, env=env) as daemon:
        wait_until(lambda: answers(socket), "the daemon answers")
        print(
            f"dshd runs as pid {daemon.pid}. An agent begins: read a price, enter a sale, print a receipt."
        )
        with started(*agent, env=env) as first:
            marker = folder / "in-the-body"
            wait_until(lambda: marker.exists() and marker.read_text() == "yes", "a tool body runs")
            before = events_of(socket)
            kill(first)
            kill(daemon)
    print(f"\nSIGKILL to the agent (pid {first.pid}) and to the daemon (pid {daemon.pid}):")
    starts = [event["data"]["callId"] for event in before if event["type"] == "tool/call"]
    check(answer_of(before, "call-1"), "call-1 read_price had finished")
    check(
        lines(folder) == 1 and "call-2" in starts,
        "call-2 enter_sale was inside its body, its line written",
    )
    check("call-3" not in starts, "call-3 print_receipt had not begun")
    return before


def second_life(
    socket: str, root: Path, folder: Path, env: dict[str, str], before: list[dict[str, Any]]
) -> None:
    """Start both anew, let the agent finish, and check what came of it."""
    serve = (
        "-m",
        "dshd.main",
        "serve",
        "--socket",
        socket,
        "--root",
        str(root),
        "--log-level",
        "error",
    )
    agent = (str(HERE / "agent.py"), socket, SESSION, str(folder))
    with started(*serve, env=env):
        wait_until(lambda: answers(socket), "the new daemon answers")
        print(
            "\nA new daemon and a new agent start. The agent is told of each call that was cut off:"
        )
        with started(*agent, env=env) as second:
            second.wait(LIMIT_S)
        check(second.returncode == 0, "the agent went on and finished")
        with Client(socket) as client:
            view = client.call("session.stat", id=SESSION)["session"]
        check_outcome(before, events_of(socket), folder)
        check_key(view["header"], before, folder)
        check(view["state"] == "idle" and view["turns"] == 2, "two turns, nothing left open")  # noqa: PLR2004  as said
        for verb in (["list"], ["show", SESSION]):
            print(f"\n$ dshctl {' '.join(verb)}", flush=True)
            command = [sys.executable, "-m", "dsh_client.cli.main", "--socket", socket, *verb]
            check_run(subprocess.run(command, env=env, check=False))  # noqa: S603  our own program


def check_run(done: subprocess.CompletedProcess[bytes]) -> None:
    """The command line answered."""
    if done.returncode != 0:
        raise ClaimError(f"{done.args[-2:]} ended with {done.returncode}")


def lines(folder: Path) -> int:
    """How many sales are in the ledger."""
    return (folder / "ledger.txt").read_text("utf-8").count("\n")


def check_key(header: dict[str, Any], before: list[dict[str, Any]], folder: Path) -> None:
    """The key that the dead agent wrote beside its effect is the one that the repair named."""
    start = next(e for e in before if e["type"] == "tool/call" and e["data"]["callId"] == "call-2")
    key = idempotency_key(header["id"], header["createdAt"], start["seq"], "call-2")
    check(
        key in (folder / "ledger.txt").read_text("utf-8"),
        "its idempotency key is the one in the ledger",
    )


def check_outcome(before: list[dict[str, Any]], events: list[dict[str, Any]], folder: Path) -> None:
    """Hold what was said of the repairs against the log and the world outside."""
    check(events[: len(before)] == before, "nothing that was stored is lost or changed")
    check("error" not in answer_of(events, "call-1"), "the finished call kept its result")
    unknown, fresh = answer_of(events, "call-2"), answer_of(events, "call-3")
    check(
        unknown["error"]["code"] == "TOOL_OUTCOME_UNKNOWN",
        "the call in its body: TOOL_OUTCOME_UNKNOWN",
    )
    check(fresh["error"]["code"] == "TOOL_NOT_STARTED", "the call not begun: TOOL_NOT_STARTED")
    check("error" not in answer_of(events, "call-4"), "the receipt was printed in the second turn")
    check(
        [event["seq"] for event in events] == list(range(len(events))), "no seq is missing or twice"
    )
    check(lines(folder) == 1, "the line stands in the ledger once")


def main() -> int:
    """Run the demo; return the exit code."""
    base = Path(tempfile.mkdtemp(prefix="dshd-demo-"))
    root, folder = base / "sessions", base / "desk"
    folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DSHD_")}
    env = kept | {"DSHD_STATE_DIR": str(base / "state"), "PYTHONUNBUFFERED": "1"}
    socket = str(base / "s")
    try:
        before = first_life(socket, root, folder, env)
        second_life(socket, root, folder, env, before)
    except ClaimError as failed:
        print(f"  ✗ {failed}\n\nThe demo failed: this did not hold.", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print("\nEvery line with ✓ was checked by this run.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
