"""Graphs made by hand: `graph = durable(builder, "my-session")`, or `DurableGraph` where the history is wanted too.

A graph has no middleware. The model is gated by a callback, which LangChain calls before every chat model wherever it
stands in the graph, and tools by the wrapper of their `ToolNode`; a tool called elsewhere meets the latch only.
The one rule: a callback of ours raises its errors; a node that catches one and goes on meets the latch.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Unpack
from uuid import uuid4

from dsh_client.adapters import langchain_messages as translate
from dsh_client.adapters.keys import in_body_of
from dsh_client.adapters.langchain import Dshd, Listener
from dsh_client.adapters.seam import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsh_client.adapters.held import Settings
    from dsh_client.adapters.recorder import Recorder
    from dsh_client.shapes import Json

_messages: Any = load("langchain_core.messages", "langchain")
_nodes: Any = load("langgraph.prebuilt.tool_node", "langgraph")


def durable(builder: Any, session: str | None = None, **settings: Unpack[Settings]) -> Any:
    """Return a compiled graph whose model calls and tools are checkpointed; see `DurableGraph` for more."""
    return DurableGraph(session, **settings).compile(builder)


class DurableGraph:
    """A session for a graph whose state has `messages`.

    Attributes:
        recorder: The session; `recorder.flush()` opens the latch after a failure, `recorder.close()` gives it up.
    """

    def __init__(self, session: str | None = None, **settings: Unpack[Settings]) -> None:
        """Name the session; see `Settings` for the rest."""
        self._dshd = Dshd(session, **settings)
        self.recorder: Recorder = self._dshd.recorder

    def compile(self, builder: Any, **options: Any) -> Any:
        """Compile a builder, with a checkpointer or without; what a checkpointer stores is stored before the next node.

        Raises:
            TypeError: This version's `ToolNode` has no place for a wrapper.
        """
        for node in _tool_nodes(builder):
            self._gate(node)
        config: Json = {"callbacks": [_Gate(self._dshd)]}
        if options.get("checkpointer"):
            # without one, LangGraph 1.2 fails in the code that waits for a checkpoint to be stored
            config["configurable"] = {"__pregel_durability": "sync"}
        return builder.compile(**options).with_config(config)

    def messages(self, prompt: str | None = None) -> list[Any]:
        """Return `messages` for a run's input: the history, the answers to cut-off calls, and what is said now."""
        history = self._dshd.history()
        if prompt is None:
            return history
        message = _messages.HumanMessage(content=prompt, id=str(uuid4()))
        said = self.recorder.unsaid([translate.to_prompt(message)])
        return [*history, message] if said else history

    def _gate(self, node: Any) -> None:
        for name, ours in (
            ("_wrap_tool_call", self._dshd.wrap_tool_call),
            ("_awrap_tool_call", self._dshd.awrap_tool_call),
        ):
            if not hasattr(node, name):
                raise TypeError(
                    f"the ToolNode of this LangGraph has no {name}; dshd cannot gate its tools"
                )
            inner = getattr(node, name)
            setattr(node, name, ours if inner is None else _around(ours, inner))


class _Gate(Listener):
    """The callback: the model's gate, the pieces that it streams, and the end of the run."""

    raise_error = True
    run_inline = False  # checkpoints wait: not in the event loop

    def __init__(self, dshd: Dshd) -> None:
        super().__init__(dshd.recorder)
        self._dshd = dshd
        self._root: Any = None

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: Any, **rest: Any) -> None:
        if self._root is None:
            self._root = run_id

    def on_chain_end(self, outputs: Any, *, run_id: Any, **rest: Any) -> None:
        if run_id == self._root:
            self._root = None
            self._recorder.end_run()

    def on_chain_error(self, error: BaseException, *, run_id: Any, **rest: Any) -> None:
        if run_id == self._root:
            self._root = None
            self._recorder.fail_run(error)

    def on_chat_model_start(self, serialized: Any, messages: Any, **rest: Any) -> None:
        if in_body_of(self._recorder.session_id):
            self._recorder.check(None)
            return  # a model inside of a tool's body is the body's own business
        seen: list[Any] = messages[0]
        said = [_named(message) for message in seen if message.type != "system"]
        system = "\n\n".join(str(message.text) for message in seen if message.type == "system")
        self._dshd.take_checkpoint(said, _header(system, rest))

    def on_llm_end(self, response: Any, **rest: Any) -> None:
        if not in_body_of(self._recorder.session_id):
            self._dshd.take_answer([response.generations[0][0].message])

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, **rest: Any) -> None:
        if not in_body_of(self._recorder.session_id):
            super().on_llm_new_token(token, chunk=chunk, **rest)

    def on_tool_start(self, serialized: Any, input_str: str, **rest: Any) -> None:
        call_id = rest.get("tool_call_id")
        self._recorder.check(call_id if isinstance(call_id, str) else None)


def _tool_nodes(builder: Any) -> Iterator[Any]:
    """Find what runs tools, also in graphs that are nodes of this one."""
    for spec in builder.nodes.values():
        inner = getattr(spec.runnable, "builder", None)
        if isinstance(spec.runnable, _nodes.ToolNode):
            yield spec.runnable
        elif hasattr(inner, "nodes"):
            yield from _tool_nodes(inner)


def _around(ours: Any, inner: Any) -> Any:
    def wrapped(request: Any, handler: Any) -> Any:
        def body(again: Any) -> Any:
            return inner(again, handler)

        return ours(request, body)

    return wrapped


def _named(message: Any) -> Any:
    """Give a message that a node makes anew for each request the same id each time."""
    if not message.id:
        words = json.dumps([message.type, message.content], default=str, sort_keys=True)
        message.id = hashlib.sha256(words.encode()).hexdigest()[:32]
    return message


def _header(system: str, told: Json) -> Json:
    metadata: Json = told.get("metadata") or {}
    parameters: Json = told.get("invocation_params") or {}
    name = str(parameters.get("_type", "unknown"))
    config = {
        "provider": metadata.get("ls_provider") or name,
        "model": metadata.get("ls_model_name") or parameters.get("model") or name,
    }
    header: Json = {"config": config}
    if system:
        header["system"] = system
    schemas: Sequence[Json] = parameters.get("tools") or []
    functions: list[Json] = [schema.get("function", schema) for schema in schemas]
    tools: list[Any] = [
        {
            "name": str(one.get("name")),
            "description": one.get("description", ""),
            "parameters": one.get("parameters") or one.get("input_schema") or {},
        }
        for one in functions
    ]
    return {**header, "tools": tools} if tools else header
