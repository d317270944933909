"""The model of a session and its formats: pure, over recorded logs and over events made to be odd."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from browser.hostile import MARKUP, TEXTS, hostile_events
from dsh_client.cli.render import atif, html, markdown, openai
from dsh_client.cli.render.build import build
from dsh_client.cli.render.markup import prose
from dsh_client.cli.render.svg import draw
from dsh_client.cli.render.timeline import Axis, lay_out, on_terminal
from support import events
from support.logs import read_log
from support.vectors import vectors, vectors_present

if TYPE_CHECKING:
    from dsh_client.cli.render.model import Model

NAMES = (
    sorted(path.stem for path in (vectors() / "logs").glob("*.jsonl"))
    if vectors_present()
    else ["absent"]
)
SYMBOLS = {"idle": ".", "model": "=", "tool": "-", "turn": "|", "crash": "X", "recovery": "R"}
VOID = {"meta", "link", "br"}
HANDLED = {"script", "iframe", "object", "embed", "form", "img", "base"}


def modelled(log: list[dict[str, Any]], **session: Any) -> Model:
    recovery = session.pop("recovery", None)
    header = {"id": "s", "createdAt": 1, **session.pop("header", {})}
    return build({"id": "s", "header": header, "state": "idle", **session}, recovery, log)


def recorded(name: str) -> tuple[Model, list[dict[str, Any]]]:
    path = vectors() / "logs" / f"{name}.jsonl"
    log = read_log(path)
    header = json.loads(path.read_text("utf-8").split("\n", 1)[0])
    return modelled(log, header=header), log


def interrupted(*ending: dict[str, Any]) -> list[dict[str, Any]]:
    log = [events.turn_start(), events.step_start(), events.user(), events.request_header()]
    return events.stored([*log, events.assistant("a", "b"), *ending])


class Reader(HTMLParser):
    """Holds a page against what a page may be: balanced tags, no handler, no address, nothing that acts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in HANDLED
        given = dict(attrs)
        assert not [name for name in given if name.startswith("on") or name in {"src", "style"}]
        address = given.get("href") or "#"
        assert address.startswith("#") or address == "data:,", address
        self.targets.add(address)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert {address[1:] for address in reader.targets if address.startswith("#")} - {""} <= set(
        reader.ids
    )
    return reader


# --- every recorded log, in every format


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_log_is_told_in_every_format(name: str) -> None:
    model, log = recorded(name)
    count = {
        kind: sum(event["type"] == kind for event in log) for kind in ("turn/start", "step/start")
    }
    assert (len(model.turns), len(model.steps)) == (count["turn/start"], count["step/start"])
    started = {call.seq for call in model.calls if call.seq is not None}
    assert started == {event["seq"] for event in log if event["type"] == "tool/call"}
    text = "".join(read("".join(html.render(model, 0))).text)
    for call in model.calls:
        assert call.name in text
        assert call.code in text
    assert "".join(markdown.render(model, 0)).count("\n### Step ") >= len(model.steps)
    told = atif.render(model)
    assert [step["step_id"] for step in told["steps"]] == list(range(1, len(told["steps"]) + 1))
    drawn = on_terminal(lay_out(model), 80, SYMBOLS)
    assert len(drawn) == 80


# --- the model


def test_the_fate_of_every_call() -> None:
    result = events.tool_result
    log = interrupted(
        events.tool_call("a"),
        result("a"),
        events.step_end(),
        events.step_start(2),
        events.assistant("c", "d", step=2),
        events.tool_call("c", step=2),
    )
    assert [call.fate for call in modelled(log).calls] == ["answered", "asked", "running", "asked"]
    ended = [*log, *events.stored([events.turn_end()], len(log))]
    assert [call.fate for call in modelled(ended).calls] == ["answered", *3 * ["unanswered"]]


def test_what_a_recovery_would_say_is_due_and_not_done() -> None:
    repairs = [
        {"callId": "a", "code": "TOOL_OUTCOME_UNKNOWN", "idempotencyKey": "k", "message": "m"},
        {"callId": "b", "code": "TOOL_NOT_STARTED", "idempotencyKey": None, "message": "m"},
    ]
    model = modelled(
        interrupted(events.tool_call("a")),
        state="interrupted",
        openTurn=1,
        recovery={"committed": False, "repairs": repairs, "closers": [], "nextSeq": 9},
    )
    assert [(call.fate, call.due) for call in model.calls] == [
        ("outcome unknown", True),
        ("not started", True),
    ]
    page = "".join(html.render(model, 0))
    assert "Cut off in turn 1" in page
    assert page.count("A recovery would say") == 2
    assert [point.kind for point in lay_out(model).points][-1] == "crash"


def test_streamed_pieces_are_folded_or_kept_where_no_message_came() -> None:
    begun = [events.turn_start(), events.step_start(), events.user(), events.request_header()]
    pieces = [events.chunk("Good "), events.chunk("day")]
    (step,) = [
        step for _, step in modelled(events.stored([*begun, *pieces, events.assistant()])).steps
    ]
    assert step.chunks == 2
    assert not [item for item in step.items if getattr(item, "draft", False)]
    model = modelled(events.stored([*begun, *pieces]))
    draft = model.steps[0][1].items[-1]
    assert getattr(draft, "draft", False)
    assert getattr(draft, "blocks", None) == [{"type": "text", "text": "Good day"}]
    assert "no message was stored" in "".join(html.render(model, 0))


def test_a_cut_stands_before_what_the_recovery_wrote() -> None:
    model, log = recorded("derived-resumed-after-crash--acp-fs-read-window")
    closers = next(event["seq"] for event in log if event["type"] == "turn/end")
    line, axis = lay_out(model), Axis(model)
    places = {point.kind: point.at for point in line.points if point.kind in {"crash", "recovery"}}
    started = next(event["seq"] for event in log if event["type"] == "tool/call")
    assert places["crash"] == axis.place(started)
    assert log[closers + 1]["type"] == "session/end-seed"
    assert places["recovery"] == axis.place(closers + 1)


def test_no_time_makes_the_axis_run_backwards() -> None:
    log = interrupted(events.tool_call("a"), events.tool_result("a"))
    for times in ([5, 4, 3, 2, 1], [0, 10**15, -(10**15), 7], [None, "x", 1.5, 2**70]):
        for place, event in enumerate(log):
            event["time"] = times[place % len(times)]
        model = modelled(log)
        axis = Axis(model)
        places = [axis.place(tick.seq) for tick in model.ticks]
        assert places == sorted(places)
        assert all(0 <= place <= 1 for place in places)
        draw(lay_out(model))
        "".join(html.render(model, 0))


@pytest.mark.parametrize(
    "data", [None, [], "x", 5, {}, {"message": []}, {"message": {"content": "x"}}, {"chunk": 1}]
)
def test_no_stored_shape_makes_it_fail(data: Any) -> None:
    kinds = [
        *(
            "turn/start",
            "step/start",
            "request/header",
            "user/message",
            "assistant/chunk",
            "assistant/message",
        ),
        *(
            "tool/call",
            "tool/result",
            "tool/code-dispatch-start",
            "tool/code-dispatch",
            "llm/retry",
        ),
        *(
            "approval/asked",
            "session/title",
            "compaction/summary",
            "todo/write",
            "goal/change",
            "hook/result",
        ),
        *("step/end", "turn/end", "unknown/type"),
    ]
    log = [
        {"type": kind, "seq": seq, "time": seq, "data": data} for seq, kind in enumerate(2 * kinds)
    ]
    model = modelled(log)
    read("".join(html.render(model, 0)))
    "".join(markdown.render(model, 0))
    atif.render(model)


# --- hostile text


def test_hostile_text_stays_text_on_the_page() -> None:
    model = modelled(
        events.stored(hostile_events()), title=MARKUP, problem={"kind": MARKUP, "message": MARKUP}
    )
    page = "".join(html.render(model, 3))
    text = "".join(read(page).text)
    for said in TEXTS[:3]:
        assert said in text
    assert TEXTS[-1] in text
    assert r"\x1b[31mred" in text
    assert r"user\u202egnp.exe" in text
    assert not set(page) & set("\x1b\x07\x08\r\x00\x9b\u202e\u2066\u2028\u2029\x85\ufeff\u200b")
    assert "3 likely secrets hidden" in page


def test_hostile_text_stays_text_in_markdown() -> None:
    model = modelled(events.stored(hostile_events()))
    fence = ""
    for line in "".join(markdown.render(model, 0)).split("\n"):
        inner = line.removeprefix("> ").removeprefix(">")
        run = re.match(r"`{3,}", inner)
        if run and not fence:
            fence = run[0]
        elif run and run[0] == fence and inner == fence:
            fence = ""
        elif not fence:
            assert not re.search(r"(?<!\\)<", line), line[:200]
            assert "![" not in line.replace(r"!\[", "")
            assert not line.startswith("# Turn 99")
            assert not re.match(r"\s*(```|~~~)", inner)
    assert fence == ""


def test_a_models_markdown_is_drawn_without_trusting_it() -> None:
    drawn = prose("# A\n\n**b** `<c>`\n- d\n\n```py\n<e>\n```\n~~~\nopen")
    assert '<p class="heading" dir="auto">A</p>' in drawn
    assert "<strong>b</strong> <code>&lt;c&gt;</code>" in drawn
    assert '<p class="item i1" dir="auto">d</p>' in drawn
    assert '<pre class="code">&lt;e&gt;</pre><pre class="code">open</pre>' in drawn


# --- the chat request


def chat(*messages: dict[str, Any]) -> list[Any]:
    found: list[Any] = openai.render(messages, {"config": {"model": "m"}})["messages"]
    return found


def test_every_answer_stands_behind_the_message_that_asked_for_it() -> None:
    asked = events.assistant("a", "b")["data"]["message"]
    results = [events.tool_result(one)["data"]["message"] for one in ("a", "b")]
    between = events.user("steer")["data"]
    found = chat(events.user()["data"], asked, results[0], between, results[1])
    assert [one["role"] for one in found] == ["user", "assistant", "tool", "tool", "user"]
    assert [call["id"] for call in found[1]["tool_calls"]] == ["a", "b"]
    assert [one.get("tool_call_id") for one in found[2:4]] == ["a", "b"]


def test_half_a_surrogate_pair_is_replaced_where_others_will_read() -> None:
    (found,) = chat(events.user("half \ud83d and \U0001f600")["data"])
    assert found["content"] == "half \ufffd and \U0001f600"


def test_an_inherited_turn_is_marked_as_copied() -> None:
    log = events.stored(
        [events.turn_start(), events.step_start(), events.user(), events.turn_end()]
    )
    told = atif.render(modelled(log, header={"seedLength": 4}))
    assert [step.get("is_copied_context") for step in told["steps"]] == [True]
