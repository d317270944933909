"""What a model streamed, put together: the text of a message that may never come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.values import as_object

if TYPE_CHECKING:
    from dsh_client.cli.render.model import Json


class Draft:
    """The chunks of one attempt.

    Attributes:
        seq: The first of them.
        usage: The figures that came with it.
        finish: Why it ended, or empty.
    """

    def __init__(self, seq: int, time: Any) -> None:
        """Begin with the first chunk's place and time."""
        self.seq = seq
        self.time = time
        self.usage: Json = {}
        self.finish = ""
        self._texts: dict[Any, tuple[str, list[str]]] = {}

    def take(self, chunk: Json) -> None:
        """Take the next chunk."""
        kind = chunk.get("type")
        if kind in {"text-delta", "reasoning-delta"} and isinstance(chunk.get("text"), str):
            self._add(chunk, str(kind).removesuffix("-delta"), chunk["text"])
        elif kind == "tool-call-delta":
            self._add(chunk, f"call of {chunk.get('name', 'a tool')}", chunk.get("argumentsDelta"))
        elif kind == "usage":
            self.usage = as_object(chunk.get("usage"))
        elif kind == "finish":
            self.finish = str(as_object(chunk.get("reason")).get("kind") or chunk.get("reason"))

    @property
    def blocks(self) -> list[Json]:
        """What was streamed, as blocks; a call that was only begun becomes text, for it was never asked."""
        found: list[Json] = []
        for kind, parts in self._texts.values():
            text = "".join(parts)
            if kind in {"text", "reasoning"}:
                found.append({"type": kind, "text": text})
            else:
                found.append({"type": "text", "text": f"({kind} begun: {text})"})
        return [block for block in found if block["text"]]

    def _add(self, chunk: Json, kind: str, text: Any) -> None:
        key = (str(chunk.get("index")), chunk.get("id") if kind.startswith("call") else kind)
        self._texts.setdefault(str(key), (kind, []))[1].append(str(text or ""))
