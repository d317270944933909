"""Other processes that make the calls a test tells them to. See tests/e2e/agents/puppet.py.

The one rule: a puppet does one thing at a time and says how it ended, so that a test knows what has happened.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from support.agents import AgentProcess, open_agents
from support.rpc import CallRefusedError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

Call = tuple[str, dict[str, Any]]


class Puppet:
    """One process under the test's hand."""

    def __init__(self, process: AgentProcess) -> None:
        self.process = process
        self.name = process.plan["name"]

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.process.pid

    def connect(self, connection: str = "a") -> None:
        """Let it open a connection under a name of the test's."""
        self._do("connect", connection)

    def close(self, connection: str = "a") -> None:
        """Let it close one."""
        self._do("close", connection)

    def send(self, *calls: Call, connection: str = "a") -> list[int]:
        """Let it send calls in one piece, and return their ids."""
        ids: list[int] = self._do("send", connection, calls)["ids"]
        return ids

    def answer(self, call_id: int, connection: str = "a") -> dict[str, Any]:
        """Let it wait for the whole answer to a call."""
        return self._do("answer", connection, call_id)

    def call(self, method: str, connection: str = "a", /, **params: Any) -> Any:
        """Let it make a call, and return the result.

        Raises:
            CallRefusedError: The answer is an error.
        """
        (call_id,) = self.send((method, params), connection=connection)
        answer = self.answer(call_id, connection)
        if "error" in answer:
            raise CallRefusedError(answer["error"])
        return answer["result"]

    def refusal(self, method: str, connection: str = "a", /, **params: Any) -> CallRefusedError:
        """Let it make a call that must be refused, and return the refusal."""
        (call_id,) = self.send((method, params), connection=connection)
        answer = self.answer(call_id, connection)
        assert "error" in answer, f"not refused: {answer}"
        return CallRefusedError(answer["error"])

    def begin(self, *request: Any) -> None:
        """Let it begin something and do not wait for the outcome."""
        self.process.tell(json.dumps(request))

    def outcome(self) -> dict[str, Any]:
        """Return the outcome of what was begun."""
        outcome: dict[str, Any] = json.loads(self.process.wait_word())
        return outcome

    def _do(self, *request: Any) -> dict[str, Any]:
        self.begin(*request)
        return self.outcome()


@contextmanager
def open_puppets(socket: Path, *names: str) -> Generator[list[Puppet], None, None]:
    """Start a puppet for each name, each with a connection `a`; kill them all on leaving."""
    plans = [{"socket": str(socket), "name": name} for name in names]
    with open_agents("puppet.py", *plans) as agents:
        puppets = [Puppet(agent) for agent in agents]
        for puppet in puppets:
            puppet.begin("connect", "a")
        for puppet in puppets:
            puppet.outcome()
        yield puppets
