# ruff: noqa: INP001, T201  an example is a script, and prints
"""A whole agent on the blocking client: a model (scripted here), two tools, and a session that survives a crash.

Run it against a running daemon:  python client/examples/plain_loop.py my-session
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsh_client.session import open_session

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = {"config": {"provider": "scripted", "model": "adder-1"}}
TOOLS: dict[str, Callable[[Any], str]] = {"add": lambda args: str(args["a"] + args["b"])}


def model(messages: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Stand in for a provider: ask for one addition, then tell what it gave."""
    last = messages[-1]["content"][0]
    if last["type"] == "tool-result":
        return f"The sum is {last['content'][0]['text']}."
    return [{"type": "tool-call", "id": "sum-1", "name": "add", "arguments": '{"a": 2, "b": 40}'}]


def main(session_id: str, prompt: str) -> str:
    """Run one turn; return the model's last words."""
    with open_session(session_id) as session:
        for repair in session.repairs:
            print(f"{repair['code']}: {repair['name']} {repair['idempotencyKey']}")
        with session.turn(prompt) as turn:
            while True:
                with turn.step() as step:
                    with step.request(HEADER):
                        answer = model(session.messages())
                    calls = step.answer(answer)
                    for call in calls:
                        with step.tool(call) as tool:
                            tool.result(TOOLS[call.name](call.parsed()))
                if not calls:
                    return str(answer)


if __name__ == "__main__":
    print(main(sys.argv[1], "What is 2 and 40?"))
