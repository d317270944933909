"""The openai SDK's tool runner: `runner.run(client, params, ledger=DshdRunner("my-session", model="…").ledger())`.

The SDK's ledger is saved before each request, before and after each body; every save becomes what it means in the log.
The one rule: what `save` raises ends the run before anything further happens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from dsh_client.adapters import openai_items as translate
from dsh_client.adapters.keys import running
from dsh_client.adapters.recorder import Recorder
from dsh_client.adapters.seam import aside, load
from dsh_client.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_client.adapters.held import Settings
    from dsh_client.shapes import Json

_runner: Any = load("openai.lib.responses_tool_runner", "openai")


class DshdRunner:
    """The session of an agent that runs in the SDK's tool runner.

    Attributes:
        recorder: The session; `recorder.flush()` opens the latch after a failure, `recorder.close()` gives it up.
        failure: What stopped a run; the SDK's own error does not tell.
    """

    def __init__(
        self, session: str | None = None, *, model: str, **settings: Unpack[Settings]
    ) -> None:
        """Name the session and the model, which the ledger is not told; see `Settings` for the rest."""
        self.recorder = Recorder(session, "openai", settings)
        self._model = model
        self.failure: BaseException | None = None
        self._said = 0
        self._answered: list[str] = []
        self._attempted: set[str] = set()
        self._returned: set[str] = set()
        self._chunks = translate.Chunks()

    def input(self, prompt: str | None = None) -> list[Json]:
        """Return `input` for `params`: the history, the answers to cut-off calls, and what is said now."""
        items = translate.from_log(self.recorder.begin_run())
        self._said = len(items)
        if prompt is None:
            return items
        item: Json = {"role": "user", "content": prompt}
        return [*items, item] if self.recorder.unsaid([translate.to_prompt(item)]) else items

    async def ainput(self, prompt: str | None = None) -> list[Json]:
        """Return the same, without blocking the event loop."""
        return await aside(self.input, prompt)

    def ledger(self) -> Any:
        """Return the ledger of one run of `ResponsesToolRunner`, whose input came from `input`."""
        return _runner.ResponsesToolLedger(self.recorder.session_id or "dshd", self._save)

    def aledger(self) -> Any:
        """Return the ledger of one run of `AsyncResponsesToolRunner`, whose input came from `ainput`."""

        async def save(checkpoint: Json) -> None:
            await aside(self._save, checkpoint)

        return _runner.AsyncResponsesToolLedger(self.recorder.session_id or "dshd", save)

    def on_event(self, event: Any) -> None:
        """Record a piece of a streamed answer: `runner.run(…, stream=True, on_event=dshd.on_event)`."""
        for chunk in self._chunks.of(event):
            self.recorder.chunk(chunk)

    async def aon_event(self, event: Any) -> None:
        """Record a piece likewise, for the asynchronous runner."""
        for chunk in self._chunks.of(event):
            await self.recorder.achunk(chunk)

    def functions(self, functions: Sequence[Any]) -> list[Any]:
        """Return functions of the (blocking) runner whose bodies find their idempotency key."""
        return [replace(function, execute=self._keyed(function)) for function in functions]

    def _keyed(self, function: Any) -> Any:
        def execute(given: Any) -> Any:
            plain = given.model_dump(mode="json") if hasattr(given, "model_dump") else given
            key = self.recorder.key_for(function.tool["name"], plain)
            with running(key, self.recorder.session_id):
                return function.execute(given)

        return execute

    def _save(self, checkpoint: Json) -> None:
        try:
            self._store(checkpoint)
        except BaseException as failure:
            self.failure = self.failure or failure
            raise

    def _store(self, checkpoint: Json) -> None:
        if checkpoint["phase"] == "boundary":
            self._settle(checkpoint)
            self._request(checkpoint)
        elif checkpoint["phase"] == "pending":
            self._answer(checkpoint["pending_items"])
            items: list[Json] = checkpoint["pending_items"]
            names = {item.get("call_id"): str(item.get("name", "")) for item in items}
            for call_id in checkpoint["attempted_call_ids"]:
                if call_id not in self._attempted:
                    self._attempted.add(call_id)
                    effect = self.recorder.effect_of(names.get(call_id, ""), None)
                    self.recorder.start_tool(call_id, effect)
            self._settle(checkpoint)
        else:
            self._settle(checkpoint)
            final: Json = checkpoint["final_response"] or {}
            self._answer(final.get("output") or [])
            self.recorder.end_run()

    def _request(self, checkpoint: Json) -> None:
        items = [translate.plain(item) for item in checkpoint["history"]]
        fresh = [item for item in items[self._said :] if translate.is_prompt(item)]
        self._said = len(items)
        self._answered, self._chunks = [], translate.Chunks()
        tools: list[Any] = [
            {
                "name": str(tool.get("name") or tool["type"]),
                "description": str(tool.get("description") or ""),
                "parameters": tool.get("parameters") or {},
            }
            for tool in checkpoint["tools"]
        ]
        header: Json = {"config": {"provider": "openai", "model": self._model}}
        self.recorder.request(
            {**header, "tools": tools} if tools else header,
            [translate.to_prompt(item) for item in fresh],
            translate.results_of(items),
        )

    def _answer(self, items: Sequence[Any]) -> None:
        ids = [str(item.get("call_id") or item.get("id")) for item in items]
        if self._answered:
            if ids != self._answered:
                raise MisuseError(
                    "the answer grew after its first tool ran; dshd needs a run without eager=True"
                )
            return
        self._answered = ids
        self.recorder.answer(translate.to_answer(items))

    def _settle(self, checkpoint: Json) -> None:
        outputs = [item for item in checkpoint["returned_outputs"] if "call_id" in item]
        outputs += [i for i in checkpoint["history"] if i.get("type") == "function_call_output"]
        for call_id, result in translate.results_of(outputs).items():
            if call_id in self._attempted and call_id not in self._returned:
                self._returned.add(call_id)
                self.recorder.finish_tool(call_id, result)
