"""A session as OpenTelemetry spans: well formed by OpenTelemetry's own types, and without what was said."""

from __future__ import annotations

import base64
import importlib
import json
import re
from typing import Any

import pytest

from browser.hostile import hostile_events
from cli.test_render import NAMES, interrupted, modelled, recorded
from dsh_client.cli.render import otlp
from support import events
from support.vectors import vectors_present

CANARY = "sk-canary-5b0e"


def spans_of(request: dict[str, Any]) -> list[dict[str, Any]]:
    (resource,) = request["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    assert scope["schemaUrl"] == resource["schemaUrl"] == otlp.SCHEMA_URL
    spans: list[dict[str, Any]] = scope["spans"]
    return spans


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def check(spans: list[dict[str, Any]]) -> None:
    """Every id is one, unique, and every parent is there and of the same trace."""
    traces = {span["spanId"]: span["traceId"] for span in spans}
    assert len(traces) == len(spans)
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert traces.get(span.get("parentSpanId", span["spanId"])) == span["traceId"]
        assert 0 <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) < 1 << 63


def turn_with_everything() -> list[dict[str, Any]]:
    return interrupted(
        events.tool_call("a"),
        events.tool_result("a"),
        events.tool_call("b"),
        events.chunk(CANARY),
    )


@pytest.mark.skipif(not vectors_present(), reason="the recorded logs do not lie beside the tree")
@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_log_becomes_spans_of_turns_model_calls_and_started_tools(name: str) -> None:
    model, log = recorded(name)
    spans = spans_of(otlp.render(model))
    check(spans)
    kinds = [attributes(span)["gen_ai.operation.name"] for span in spans]
    assert kinds.count("invoke_agent") == sum(event["type"] == "turn/start" for event in log)
    assert kinds.count("chat") == sum(event["type"] == "step/start" for event in log)
    assert kinds.count("execute_tool") >= sum(event["type"] == "tool/call" for event in log)
    assert otlp.render(model) == otlp.render(recorded(name)[0]), "the same session, the same spans"
    for span in spans:
        assert not {"gen_ai.input.messages", "gen_ai.output.messages"} & set(attributes(span))
        assert "gen_ai.tool.call.arguments" not in attributes(span)


def test_a_call_without_an_answer_is_an_error_and_one_that_was_not_started_no_span() -> None:
    spans = spans_of(otlp.render(modelled(turn_with_everything())))
    check(spans)
    turn, chat, answered, open_call = spans
    assert (turn["name"], chat["kind"]) == ("invoke_agent dshd", 3)
    assert attributes(answered)["gen_ai.tool.call.id"] == "a"
    assert "status" not in answered
    assert open_call["status"]["code"] == 2
    assert attributes(open_call)["error.type"] == "running"
    asked_only = spans_of(otlp.render(modelled(interrupted())))
    assert [one["name"].split(" ")[0] for one in asked_only] == ["invoke_agent", "chat"]


def test_what_was_said_is_in_it_only_when_it_is_asked_for() -> None:
    log = [events.turn_start(), events.step_start(), events.user(CANARY), events.request_header()]
    answer = events.tool_result("a")
    answer["data"]["message"]["content"][0]["content"] = [{"type": "text", "text": CANARY}]
    log += [events.assistant("a"), events.tool_call("a"), answer]
    model = modelled(events.stored(log))
    assert CANARY not in json.dumps(otlp.render(model))
    told = otlp.render(model, content=True)
    assert json.dumps(told).count(CANARY) == 2
    assert json.loads(attributes(spans_of(told)[0])["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": CANARY}]}
    ]


def test_hostile_text_costs_no_span() -> None:
    for content in (False, True):
        request = otlp.render(modelled(hostile_events()), content=content)
        check(spans_of(request))
        assert len(spans_of(request)) > 2
        json.dumps(request, ensure_ascii=False).encode()


def test_opentelemetry_s_own_types_and_names_take_it() -> None:
    why = "OpenTelemetry is not installed: pip install 'dshd[otel]'"
    found = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason=why
    )
    json_format = importlib.import_module("google.protobuf.json_format")
    names = importlib.import_module(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes"
    )
    known = {value for name, value in vars(names).items() if name.startswith("GEN_AI")}
    request = otlp.render(modelled(turn_with_everything()), content=True)
    for span in spans_of(request):
        assert {key for key in attributes(span) if key.startswith("gen_ai.")} <= known
        for key in {"traceId", "spanId", "parentSpanId"} & set(
            span
        ):  # protobuf's JSON has base64 there, OTLP's hex
            span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    taken = json_format.ParseDict(request, found.ExportTraceServiceRequest())
    spans = taken.resource_spans[0].scope_spans[0].spans
    assert [len(span.trace_id) for span in spans] == [16] * 4
    assert [len(span.parent_span_id) for span in spans] == [0, 8, 8, 8]
