"""The surface of a log: which events the model's history is made of, in which order.

Three types take part: `user/message`, `assistant/message`, `tool/result`. Each is appended or replaces a range of what
stands there. The one rule: an event that is refused changes nothing, and no old event is read again to judge a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from dsh_protocol import events as protocol_events
from dshd.sessions.values import is_object, json_digest

if TYPE_CHECKING:
    from dsh_protocol.events import Event


# what a list of sources says is asked only where the range stands: a missing range is the graver defect
_ABOUT_MEMBERS = frozenset({"sources-empty", "sources-duplicate", "sources-not-earlier"})

Mark: TypeAlias = "tuple[list[int], int, dict[int, bytes], int]"


class SurfaceDefectError(ValueError):
    """An event that does not fit the surface; `rule` names what it breaks."""

    def __init__(self, rule: str, text: str) -> None:
        """Say in `text` what does not fit."""
        super().__init__(text)
        self.rule = rule


def _without_content(data: Any) -> Any:
    """Return the data of a `tool/result` without the one thing that a rewrite may change."""
    try:
        message = data["message"]
        blocks = message["content"]
        block = {key: value for key, value in blocks[0].items() if key != "content"}
        return {**data, "message": {**message, "content": [block, *blocks[1:]]}}
    except (KeyError, IndexError, TypeError, AttributeError):
        return data


class Surface:
    """The ordered list of surface events of a log, by seq, as it grows.

    Attributes:
        nodes: Seqs in surface order, which after a replacement is not their numeric order. Read only.
        generation: How many replacements there were; a cached history is valid for one generation.
    """

    __slots__ = ("_results", "generation", "nodes")

    def __init__(self) -> None:
        """Begin with an empty surface."""
        self.nodes: list[int] = []
        self.generation = 0
        self._results: dict[int, bytes] = {}

    def apply(self, event: Event) -> None:
        """Take one event in, of a surface type or not.

        Raises:
            SurfaceDefectError: Its metadata is malformed, or its range does not fit. Nothing changed.
        """
        op = event.get("surfaceOp")
        rule = protocol_events.surface_metadata_defect(event)
        if rule is not None:
            if rule in _ABOUT_MEMBERS and is_object(op):
                self._range(op)
            raise SurfaceDefectError(rule, protocol_events.defect_text(rule))
        if op is None:
            return
        seq: int = event["seq"]
        if op != "append":
            self._replace(event, op)
        else:
            self.nodes.append(seq)
        if event["type"] == "tool/result":
            self._results[seq] = json_digest(_without_content(event["data"]))

    def position(self, seq: int) -> int | None:
        """Return the place of a node in surface order; None where it is no current node."""
        try:
            return self.nodes.index(seq)
        except ValueError:
            return None

    def _range(self, op: dict[str, Any]) -> tuple[int, int]:
        start, end = op["start"], op["end"]
        first, last = self.position(start), self.position(end)
        if first is None:
            text = f"start {start} is not on the surface"
            raise SurfaceDefectError("replace-start-missing", text)
        if last is None:
            raise SurfaceDefectError("replace-end-missing", f"end {end} is not on the surface")
        if first > last:
            text = f"start {start} stands after end {end} on the surface"
            raise SurfaceDefectError("replace-start-after-end", text)
        return first, last

    def _replace(self, event: Event, op: dict[str, Any]) -> None:
        first, last = self._range(op)
        shadowed = self.nodes[first : last + 1]
        missing = set(shadowed).difference(event.get("sourceEventSeqs", ()))
        if missing:
            text = f"sourceEventSeqs must cite every replaced event; {min(missing)} is missing"
            raise SurfaceDefectError("sources-miss-shadowed", text)
        if event["type"] == "tool/result":
            self._check_rewrite(event, shadowed)
        self.nodes = [*self.nodes[:first], event["seq"], *self.nodes[last + 1 :]]
        self._results = {seq: rest for seq, rest in self._results.items() if seq not in shadowed}
        self.generation += 1

    def _check_rewrite(self, event: Event, shadowed: list[int]) -> None:
        before = self._results.get(shadowed[0])
        if len(shadowed) != 1 or before is None:
            text = "a replacing tool/result must replace exactly one tool/result"
            raise SurfaceDefectError("result-rewrite-target", text)
        if json_digest(_without_content(event["data"])) != before:
            text = "a replacing tool/result may change only the content of its block"
            raise SurfaceDefectError("result-rewrite-drift", text)

    def contents(self) -> tuple[list[int], dict[int, bytes], int]:
        """Return copies of all that the surface holds, for `restore`."""
        return self.nodes.copy(), self._results.copy(), self.generation

    def restore(self, nodes: list[int], results: dict[int, bytes], generation: int) -> None:
        """Take over what another surface held."""
        self.nodes, self._results, self.generation = nodes, results, generation

    # Taking back: appends are undone by cutting the list; a replacement leaves the list before it as it was.

    def mark(self) -> Mark:
        """Return what `rollback` needs to come back to the present state."""
        return self.nodes, len(self.nodes), self._results, self.generation

    def rollback(self, mark: Mark) -> None:
        """Undo everything since `mark`."""
        self.nodes, length, self._results, self.generation = mark
        for seq in self.nodes[length:]:
            self._results.pop(seq, None)
        del self.nodes[length:]
