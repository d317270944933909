"""The agent of the README's pictures: a scripted model with a release to move. Its first life is meant to be killed.

Usage: agent.py SOCKET SESSION FOLDER. The one rule: what it records, it records as any agent would.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh_client.blocking import Client
from dsh_client.session import open_session

if TYPE_CHECKING:
    from dsh_client.session import Session, Step, Turn

HEADER: dict[str, Any] = {
    "config": {"provider": "scripted", "model": "planner-2"},
    "system": "You look after releases. Use the tools; never tell people the same thing twice.",
    "tools": [
        {"name": "read_calendar", "description": "What is planned for a week.", "parameters": {}},
        {"name": "move_event", "description": "Move an event to another day.", "parameters": {}},
        {
            "name": "send_mail",
            "description": "Send a mail. Cannot be taken back.",
            "parameters": {},
        },
        {"name": "sent_mail", "description": "Whether a mail went out.", "parameters": {}},
    ],
}
CALENDAR = "Mon  sprint review\nTue  release 4.2\nWed  on-call handover\nThu  -\nFri  -"


def say(text: str, thought: str = "", *calls: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Return the blocks of an answer; a call is an id, a name and its arguments."""
    blocks: list[dict[str, Any]] = [{"type": "reasoning", "text": thought}] if thought else []
    if text:
        blocks.append({"type": "text", "text": text})
    kind = "tool-call"
    return blocks + [{"type": kind, "id": i, "name": n, "arguments": a} for i, n, a in calls]


def think(step: Step, seconds: float, answer: list[dict[str, Any]]) -> list[Any]:
    """Play one request: the checkpoint, the time that a model takes, the answer."""
    with step.request(HEADER):
        time.sleep(seconds)  # a model takes its time
    size = sum(len(str(block)) for block in answer)
    read = 1400 + 37 * size
    return step.answer(
        answer, usage={"inputTokens": read // 5, "cacheReadTokens": read, "outputTokens": size // 3}
    )


def work(step: Step, call: Any, seconds: float, result: str) -> None:
    """Play one tool."""
    with step.tool(call) as tool:
        time.sleep(seconds)  # so does a tool
        tool.result(result)


def first_turn(turn: Turn, folder: Path) -> None:
    """Move the release, then be killed with one mail in its body and one not begun."""
    with turn.step() as step:
        (read,) = think(
            step,
            0.5,
            say(
                "I will look at the week first.",
                "The release is on Tuesday. Is Friday free?",
                ("c1", "read_calendar", '{"week": "2026-W49"}'),
            ),
        )
        work(step, read, 0.3, CALENDAR)
    with turn.step() as step:
        move, team, sales = think(
            step,
            0.7,
            say(
                "Friday is free. I move the release and tell both lists.",
                "",
                ("c2", "move_event", '{"event": "release 4.2", "to": "Friday"}'),
                ("c3", "send_mail", '{"to": "team@example.org", "subject": "4.2 moves to Friday"}'),
                (
                    "c4",
                    "send_mail",
                    '{"to": "sales@example.org", "subject": "4.2 moves to Friday"}',
                ),
            ),
        )
        work(step, move, 0.4, "moved: release 4.2 is on Friday")
        with step.tool(team):
            time.sleep(0.5)
            (folder / "in-the-body").write_text("yes")
            time.sleep(60)  # killed here
        work(step, sales, 0.1, "never")


def second_turn(turn: Turn) -> None:
    """Look whether the mail went out; send what is missing."""
    with turn.step() as step:
        (look,) = think(
            step,
            0.6,
            say(
                "One mail may have gone out. I look before I send anything again.",
                "c3 has no known outcome, and a mail cannot be taken back. c4 never started.",
                ("c5", "sent_mail", '{"to": "team@example.org", "subject": "4.2 moves to Friday"}'),
            ),
        )
        work(step, look, 0.3, "sent 1 time, 14:02:11")
    with turn.step() as step:
        (send,) = think(
            step,
            0.5,
            say(
                "",
                "So only the other list is missing.",
                (
                    "c6",
                    "send_mail",
                    '{"to": "sales@example.org", "subject": "4.2 moves to Friday"}',
                ),
            ),
        )
        work(step, send, 0.4, "sent")
    with turn.step() as step:
        think(
            step,
            0.5,
            say(
                "Done:\n\n- **release 4.2** is on *Friday*\n- the team was told once, before the crash\n"
                "- sales was told now, with `send_mail`"
            ),
        )


def play(session: Session, folder: Path) -> None:
    """Play the turn that this life of the agent is about."""
    if not session.repairs:
        title: dict[str, Any] = {
            "title": "Move release 4.2",
            "messageSeqs": [],
            "source": {"kind": "user"},
        }
        session.append([{"type": "session/title", "data": title}])
        with session.turn("Move release 4.2 to Friday and tell the team and sales.") as turn:
            first_turn(turn, folder)
        return
    with session.turn("You were cut off. Finish it, and tell nobody twice.") as turn:
        second_turn(turn)


def main() -> int:
    """Open the session, or make it, and play."""
    socket, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    with (
        Client(socket, name="release-agent") as client,
        open_session(name, cwd=str(folder), client=client) as session,
    ):
        play(session, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
