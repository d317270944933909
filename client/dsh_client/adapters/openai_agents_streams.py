"""openai-agents: models whose streams are recorded piece by piece: `Agent(model=watched("gpt-5"))`.

The SDK's hooks see a request and its whole answer, never the pieces between. It owns nothing but the model that it
stands before. The one rule: a request is told from others by the very list that the hooks were shown and the model is
sent; of a request that no hooks of ours saw, nothing is recorded.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from dsh_client.adapters import openai_items as translate
from dsh_client.adapters.seam import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dsh_client.adapters.recorder import Recorder

_agents: Any = load("agents", "openai-agents")


class Requests:
    """The request that the hooks of one run were shown last."""

    def __init__(self, recorder: Recorder) -> None:
        """Stand for a session's requests."""
        self.recorder = recorder
        self.shown: Any = None
        _all.add(self)


_all: weakref.WeakSet[Requests] = weakref.WeakSet()


def watched(model: Any) -> Any:
    """Return the model, by its name or itself, so that what it streams is recorded; makes it stream nothing."""
    return Watched(model)


class Watched(_agents.Model):  # type: ignore[misc]  # untyped where openai-agents is not installed
    """A model like the one that it stands before.

    Attributes:
        given: The model as it was given: by its name or itself.
    """

    def __init__(self, given: Any) -> None:
        """Stand before a model."""
        self.given: Any = given
        named = given is None or isinstance(given, str)
        self._inner: Any = _agents.MultiProvider().get_model(given) if named else given

    def __getattr__(self, name: str) -> Any:
        """Be in all else what the model is, its name included."""
        return getattr(self._inner, name)

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the model."""
        return await self._inner.get_response(*args, **kwargs)

    async def stream_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002  as the SDK names it
        *args: Any,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Ask the model, and record the pieces of what it says before anybody sees them."""
        recorder = next((one.recorder for one in _all if one.shown is input), None)
        chunks = translate.Chunks()
        async for event in self._inner.stream_response(system_instructions, input, *args, **kwargs):
            if recorder is not None:
                for chunk in chunks.of(event):
                    await recorder.achunk(chunk)
            yield event

    def get_retry_advice(self, request: Any) -> Any:
        """Ask the model."""
        return self._inner.get_retry_advice(request)

    async def close(self) -> None:
        """Close the model."""
        await self._inner.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)  # noqa: SLF001  the SDK asks every model for it
