"""A session as a person looks at it: turns, steps, what was said, calls with their fate, marks.

Pure values, made by `render.build` and read by every format. The one rule: nothing here is a judgement that the
log does not hold; what a recovery would say is marked as due.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

ANSWERED = "answered"
FAILED = "failed"
NOT_STARTED = "not started"
UNKNOWN = "outcome unknown"
ABORTED = "aborted"
RUNNING = "running"
ASKED = "asked"
UNANSWERED = "unanswered"

FATE_OF_CODE = {
    "TOOL_NOT_STARTED": NOT_STARTED,
    "TOOL_OUTCOME_UNKNOWN": UNKNOWN,
    "ABORTED_BEFORE_DISPATCH": ABORTED,
    "ABORTED": ABORTED,
}
USAGE = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")


@dataclass(slots=True)
class Said:
    """One message, or what was streamed of one.

    Attributes:
        seq: The event that holds it; of a draft its first chunk.
        role: `user` or `assistant`.
        kind: Where it comes from: `user`, `model`, `plugin`, …
        blocks: Its content but for tool calls, which stand beside it.
        label: What its source says of itself, such as the plugin's name.
        cut: The model was interrupted while it spoke.
        draft: Streamed only; no message was ever stored.
        replaces: The first and last event that it stands for in what the model sees.
    """

    seq: int
    time: Any
    role: str
    kind: str
    blocks: list[Json]
    label: str = ""
    cut: bool = False
    draft: bool = False
    replaces: tuple[Any, Any] | None = None


@dataclass(slots=True)
class Call:
    """A tool call and what became of it.

    Attributes:
        place: How many calls of the session came before it.
        asked_seq: The message that asks for it, or -1.
        seq: Its `tool/call`, or None: it was not started.
        end_seq: Its result, or None.
        arguments: The text as the model wrote it; of a nested call a JSON value.
        result: The blocks that answered it.
        code: The error code of its result.
        repaired: A recovery wrote the result, not the tool.
        due: The fate is what a recovery would write; nothing is written yet.
        rewritten: A later event shortened the result that the model sees.
        approval: What a person decided about it.
    """

    id: str
    name: str
    arguments: Any
    asked_seq: int
    place: int = 0
    seq: int | None = None
    time: Any = None
    end_seq: int | None = None
    end_time: Any = None
    fate: str = ASKED
    result: list[Json] | None = None
    code: str = ""
    repaired: bool = False
    due: bool = False
    rewritten: bool = False
    approval: str = ""
    key: str = ""
    message: str = ""
    nested: list[Call] = field(default_factory=list["Call"])

    @property
    def failed(self) -> bool:
        """Whether it has a result, and that is an error of the tool itself."""
        return self.fate == FAILED


@dataclass(slots=True)
class Mark:
    """Something that happened beside the talk: a retry, an approval, a compaction, a crash, a recovery."""

    seq: int
    time: Any
    kind: str
    text: str
    tone: str = "plain"


@dataclass(slots=True)
class Step:
    """One model call and the tools that it asked for.

    Attributes:
        request_seq: The last event before the model spoke.
        answer_seq: The message that it gave.
    """

    number: Any
    seq: int
    time: Any
    end_seq: int | None = None
    end_time: Any = None
    provider: str = ""
    model: str = ""
    finish: str = ""
    retries: int = 0
    chunks: int = 0
    request_seq: int | None = None
    request_time: Any = None
    answer_seq: int | None = None
    answer_time: Any = None
    usage: dict[str, int] = field(default_factory=dict[str, int])
    items: list[Said | Call | Mark] = field(default_factory=list["Said | Call | Mark"])

    @property
    def calls(self) -> list[Call]:
        """The calls, in the order in which they were asked for."""
        return [item for item in self.items if isinstance(item, Call)]


@dataclass(slots=True)
class Turn:
    """What happened from one request of the user to its end. `ended` is the kind of its end, or empty."""

    number: Any
    seq: int
    time: Any
    end_seq: int | None = None
    end_time: Any = None
    ended: str = ""
    reason: Json = field(default_factory=dict[str, Any])
    inherited: bool = False
    items: list[Step | Said | Mark] = field(default_factory=list["Step | Said | Mark"])

    @property
    def steps(self) -> list[Step]:
        """The steps."""
        return [item for item in self.items if isinstance(item, Step)]

    @property
    def calls(self) -> list[Call]:
        """The calls of all steps."""
        return [call for step in self.steps for call in step.calls]

    @property
    def asked(self) -> str:
        """The first text that a person wrote."""
        said = [item for item in self.items if isinstance(item, Said)]
        said += [item for step in self.steps for item in step.items if isinstance(item, Said)]
        people = [one for one in said if one.role == "user" and one.kind == "user"]
        texts = [text_of(one.blocks) for one in people or [s for s in said if s.role == "user"]]
        return next((text for text in texts if text), "")


@dataclass(slots=True)
class Tick:
    """When an event was: the material of time lines. `busy` is whether a turn was open before it."""

    seq: int
    time: Any
    busy: bool


@dataclass(slots=True)
class Model:
    """A whole session.

    Attributes:
        session: What the daemon says of it.
        items: Turns, and what stands between them.
        requests: The snapshots of what the model was configured with: seq and header.
        events: How many there are.
    """

    session: Json
    header: Json
    recovery: Json
    title: str = ""
    items: list[Turn | Said | Mark] = field(default_factory=list["Turn | Said | Mark"])
    requests: list[tuple[int, Json]] = field(default_factory=list[tuple[int, Json]])
    ticks: list[Tick] = field(default_factory=list[Tick])
    events: int = 0
    chunks: int = 0

    @property
    def id(self) -> str:
        """The session's id."""
        return str(self.session.get("id", ""))

    @property
    def turns(self) -> list[Turn]:
        """The turns."""
        return [item for item in self.items if isinstance(item, Turn)]

    @property
    def steps(self) -> list[tuple[Turn, Step]]:
        """The steps, each with its turn."""
        return [(turn, step) for turn in self.turns for step in turn.steps]

    @property
    def calls(self) -> list[Call]:
        """The calls of all turns, without the nested ones."""
        return [call for turn in self.turns for call in turn.calls]


def text_of(blocks: list[Json]) -> str:
    """Return the plain text of blocks."""
    return "\n".join(
        str(block.get("text", "")) for block in blocks if block.get("type") == "text"
    ).strip()


def add_usage(total: dict[str, int], more: dict[str, int]) -> None:
    """Add figures to figures."""
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


def usage_of(steps: list[Step]) -> dict[str, int]:
    """Return the tokens of several steps."""
    total: dict[str, int] = {}
    for step in steps:
        add_usage(total, step.usage)
    return total


def elapsed(start: Any, end: Any) -> int | None:
    """Return the milliseconds between two stored times; None where that is no time that passed."""
    if not isinstance(start, int) or not isinstance(end, int) or end < start:
        return None
    return end - start
