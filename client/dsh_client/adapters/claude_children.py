"""The sub-agents of a Claude Agent SDK run: which call started which, and the session that each of them has.

Hooks name a sub-agent by an id of its own and never say which call it works for; it is the last one that asked for a
sub-agent and has none yet. The one rule: what fails in a sub-agent's session stops the agents above it as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dsh_client.adapters.keys import child_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_client.adapters.held import Settings
    from dsh_client.adapters.recorder import Recorder

Hooks = TypeVar("Hooks")

_TOOLS = {"Task", "Agent"}


@dataclass(frozen=True, slots=True)
class _Delegation:
    call_id: str
    key: str | None
    prompt: str
    recorder: Recorder


class Children(Generic[Hooks]):
    """The sub-agents of one run, at any depth.

    Attributes:
        failure: What failed in the session of one of them.
    """

    def __init__(self, make: Callable[[str, Settings], Hooks]) -> None:
        """Make hooks for a session by its id and settings."""
        self._make = make
        self._wanted: list[_Delegation] = []
        self._running: dict[str, Hooks] = {}
        self.failure: BaseException | None = None

    def check(self) -> None:
        """Raise what failed in the session of a sub-agent."""
        if self.failure is not None:
            raise self.failure

    def of(self, agent_id: Any) -> Hooks | None:
        """Return the hooks of a sub-agent that runs; None where nobody knows which call it works for."""
        return self._running.get(agent_id)

    def called(self, told: Any, call_id: str, key: str | None, recorder: Recorder) -> None:
        """Note a call whose body begins: perhaps one that starts a sub-agent."""
        if told["tool_name"] in _TOOLS:
            prompt = str(told["tool_input"].get("prompt") or "")
            self._wanted.append(_Delegation(call_id, key, prompt, recorder))

    def failed(self, call_id: str) -> None:
        """Note that a call failed: no sub-agent comes of it any more."""
        self._wanted = [one for one in self._wanted if one.call_id != call_id]

    def begin(self, agent_id: str) -> tuple[Hooks, str] | None:
        """Return the hooks of a sub-agent that starts, and what it is asked."""
        if not self._wanted:
            return None
        wanted = self._wanted.pop()
        settings = wanted.recorder.inherited
        child = child_of(wanted.key, wanted.recorder.session_id)
        settings["parent"] = child["parent"]
        self._running[agent_id] = hooks = self._make(child["session"], settings)
        return hooks, wanted.prompt

    def end(self, agent_id: str) -> Hooks | None:
        """Forget a sub-agent that has ended; return its hooks."""
        return self._running.pop(agent_id, None)
