# ruff: noqa: INP001, T201  an example is a script, and prints
"""The demo's agent: a scripted model with a real task, two turns and three tools. It knows nothing of the kill.

Usage: agent.py SOCKET SESSION FOLDER
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh_client.blocking import Client
from dsh_client.session import open_session

if TYPE_CHECKING:
    from dsh_client.session import Session, Step, Tool
    from dsh_client.shapes import ToolCall

HEADER = {"config": {"provider": "scripted", "model": "clerk-1"}}
TASK = "Read the price, enter the sale in the ledger, and print the receipt."
GO_ON = "Go on."


class Desk:
    """The tools. What they change lies in a folder, outside the session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ledger = folder / "ledger.txt"

    def run(self, tool: Tool, call: ToolCall) -> str:
        """Run a tool's body; the daemon has let it."""
        arguments = call.parsed()
        if call.name == "read_price":
            return "4.20"
        if call.name == "enter_sale":
            with self._ledger.open("a", encoding="utf-8") as ledger:
                ledger.write(f"{arguments['line']}  [{tool.idempotency_key}]\n")
            self._stand_still_once()
            return "entered"
        (self._folder / "receipt.txt").write_text(f"{arguments['line']}\n", encoding="utf-8")
        return "printed"

    def entered(self, idempotency_key: str) -> bool:
        """Whether the sale of that call is in the ledger: what the key is for."""
        return self._ledger.exists() and idempotency_key in self._ledger.read_text("utf-8")

    def _stand_still_once(self) -> None:
        """The first time, wait to be killed: the effect is there, its result is not recorded."""
        marker = self._folder / "in-the-body"
        if not marker.exists():
            marker.write_text("yes", encoding="utf-8")
            threading.Event().wait()


def model(messages: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Stand in for a provider: what it answers depends on the history alone."""
    last = messages[-1]["content"][0]
    if last["type"] == "text" and last["text"] == TASK:
        return [
            tool_call("call-1", "read_price", '{"item": "tea"}'),
            tool_call("call-2", "enter_sale", '{"line": "tea 4.20"}'),
            tool_call("call-3", "print_receipt", '{"line": "tea 4.20"}'),
        ]
    if last["type"] == "text" and "call-3" in last["text"]:
        return [tool_call("call-4", "print_receipt", '{"line": "tea 4.20"}')]
    return "The sale is entered once and the receipt is printed."


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A block of the model's answer."""
    return {"type": "tool-call", "id": call_id, "name": name, "arguments": arguments}


def verdict(repair: dict[str, Any], desk: Desk) -> str:
    """Say what is to be done about a call that was cut off: verify what may have run, repeat what did not."""
    name, call_id = repair["name"], repair["callId"]
    if repair["code"] == "TOOL_NOT_STARTED":
        return f"{name} ({call_id}) never started: do it."
    if desk.entered(repair["idempotencyKey"]):
        return f"{name} is done: its line is in the ledger."
    return f"{name} ({call_id}) left no trace: do it."


def run_turn(session: Session, prompt: str, desk: Desk) -> str:
    """Run one turn to its end; return the model's last words."""
    with session.turn(prompt) as turn:
        while True:
            with turn.step() as step:
                with step.request(HEADER):
                    answer = model(session.messages())
                calls = step.answer(answer)
                run_calls(step, calls, desk)
            if not calls:
                return str(answer)


def run_calls(step: Step, calls: list[ToolCall], desk: Desk) -> None:
    """Run the calls of one answer."""
    for call in calls:
        with step.tool(call) as tool:
            tool.result(desk.run(tool, call))


def main(socket: str, session_id: str, folder: Path) -> None:
    """Begin the task, or go on with it."""
    desk = Desk(folder)
    with (
        Client(socket, name="demo-agent") as client,
        open_session(session_id, client=client, cwd=str(folder)) as session,
    ):
        if not session.recovery:
            run_turn(session, TASK, desk)
            return
        for repair in session.repairs:
            key = repair["idempotencyKey"] or "-"
            print(f"    {repair['callId']}  {repair['name']:<14} {repair['code']:<21} {key}")
        found = [verdict(repair, desk) for repair in session.repairs]
        print(f"    the agent looks: {found[0]}")
        print(f"    the model says:  {run_turn(session, ' '.join([GO_ON, *found]), desk)}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
