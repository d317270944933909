"""Small files as other programs leave them, and how they break: each is made after a kind of public bug report."""

from __future__ import annotations

import json
import re
from typing import Any

Json = dict[str, Any]
BOM = b"\xef\xbb\xbf"


def line(record: Any) -> bytes:
    text = json.dumps(record, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text).encode() + b"\n"


def lines(*records: Any) -> bytes:
    return b"".join(line(one) for one in records)


# ------------------------------------------------------------ Claude Code


def claude(kind: str, number: int, message: Json | None = None, **more: Any) -> Json:
    record: Json = {
        "parentUuid": f"u{number - 1}" if number else None,
        "isSidechain": False,
        "type": kind,
        "uuid": f"u{number}",
        "sessionId": "5e55",
        "cwd": "/src/parser",
        "timestamp": f"2026-08-21T09:00:{number:02}.000Z",
    }
    if message is not None:
        record["message"] = message
    return {**record, **more}


def asked(number: int, text: Any, **more: Any) -> Json:
    return claude("user", number, {"role": "user", "content": text}, **more)


def answered(number: int, *blocks: Json, key: str = "", **more: Any) -> Json:
    message = {
        "id": key or f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-example",
        "content": list(blocks),
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }
    return claude("assistant", number, message, **more)


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def call(name: str, **given: Any) -> Json:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": given}


def returned(number: int, name: str, content: Any = "done", **more: Any) -> Json:
    block = {"type": "tool_result", "tool_use_id": name, "content": content, **more}
    return asked(number, [block])


CLAUDE_WHOLE = lines(
    {"type": "summary", "summary": "Fix the parser", "leafUuid": "u6"},
    claude("file-history-snapshot", 0, messageId="u1", snapshot={}),
    asked(1, "make the tests pass"),
    answered(2, {"type": "thinking", "thinking": "look first", "signature": "c2ln"}, key="m1"),
    answered(3, text("I look."), key="m1"),
    answered(4, call("toolu_1", command="ls"), key="m1"),
    answered(5, call("toolu_2", command="cat"), key="m1"),
    returned(6, "toolu_2", [{"type": "text", "text": "two"}]),
    claude("system", 7, subtype="turn_duration", durationMs=5),
    returned(8, "toolu_1", "one", is_error=True),
    answered(9, text("done")),
    asked(10, "thanks"),
    answered(11, text("\u2028 \x85 welcome")),
)
"""Nothing wrong: parallel calls come one a record, are answered out of order, and other records stand between."""

_WHOLE_LINE = line(answered(3, text("the second half of this talk is not lost")))
CLAUDE_TORN = (
    BOM
    + lines(asked(1, "begin"), answered(2, call("toolu_1", command="make")))
    + line(returned(3, "toolu_1", "x" * 50))[:90]
    + _WHOLE_LINE
    + b"\0" * 300
    + line(asked(4, "still here?")).replace(b"\n", b"\r\n")
    + b'{"type":"user","uuid":"u5","message":{"role":"us'
)
"""A byte-order mark; half of a result, and the next record on the same line; NULs; CRLF; a torn end."""

CLAUDE_UNANSWERED = lines(
    asked(1, "go"),
    answered(2, call("toolu_1", command="deploy"), call("toolu_2", command="tell")),
    returned(3, "toolu_2"),
    asked(4, "[Request interrupted by user]"),
    answered(5, call("toolu_1", command="deploy again")),
    returned(6, "toolu_1", "deployed"),
    returned(7, "toolu_9", "of nobody"),
    answered(8, text("hm"), isSidechain=True, agentId="a1"),
    asked(4, "[Request interrupted by user]"),
    asked(4, "the same uuid, something else"),
)
"""A call that was never answered, its id again later, a result of nobody, a record twice, a uuid twice."""

CLAUDE_ODD = (
    lines(
        asked(1, "half of a pair: \ud83d"),
        answered(2, {"type": "redacted_thinking", "data": "eA=="}, text("see")),
        asked(3, [text("look"), {"type": "image", "source": {"type": "base64", "data": "eA=="}}]),
        ["no", "object"],
        claude("atis-latch", 4, latch={"deep": 1}),
        {"uuid": "u5", "no": "type"},
    )
    + b'{"type":"user","uuid":"u6","n":1e999,"big":%b,"n":NaN,' % (b"1" * 5000)
    + b'"message":{"role":"user","content":"numbers"}}\n'
    + b'{"type":"user","uuid":"u7","message":{"role":"user","content":"\xff\xfe bytes"}}\n'
    + b'{"type":"user","uuid":"u8","message":'
    + b"[" * 20_000
    + b"]" * 20_000
    + b"}\n"
    + line(asked(9, "long " * 900_000))
    + line(asked(10, "the end"))
)
"""Half a surrogate pair, numbers and bytes that no log holds, deep nesting, a line of 4 MB, unknown records."""

# ------------------------------------------------------------ Codex


def codex(kind: str, payload: Any, second: int = 0) -> Json:
    return {"timestamp": f"2026-08-21T10:00:{second:02}.000Z", "type": kind, "payload": payload}


def item(second: int, kind: str, **payload: Any) -> Json:
    return codex("response_item", {"type": kind, **payload}, second)


def codex_said(second: int, role: str, said: str) -> Json:
    part = "output_text" if role == "assistant" else "input_text"
    return item(second, "message", role=role, content=[{"type": part, "text": said}])


META = codex(
    "session_meta", {"id": "0198", "cwd": "/src/parser", "cli_version": "0.171.0", "git": {}}
)
CONTEXT = codex("turn_context", {"cwd": "/src/parser", "model": "gpt-example", "effort": "high"})

CODEX_WHOLE = lines(
    META,
    codex_said(0, "developer", "be brief"),
    CONTEXT,
    codex_said(1, "user", "fix it"),
    codex("event_msg", {"type": "user_message", "message": "fix it"}, 1),
    item(2, "reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="e"),
    item(3, "function_call", name="shell", arguments='{"command":["ls"]}', call_id="c1"),
    item(3, "custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="c2"),
    item(4, "function_call_output", call_id="c1", output='{"output":"x"}'),
    item(5, "custom_tool_call_output", call_id="c2", output="ok"),
    codex("event_msg", {"type": "token_count", "info": None}, 6),
    codex_said(7, "assistant", "fixed"),
)
CODEX_TORN = (
    lines(META, CONTEXT, codex_said(1, "user", "a"))
    + b'{"timestamp":"2026-08-21T10:00:02.000Z","type":"response_item","payload":{"type":"mess'
    + line(codex_said(2, "assistant", "b"))
    + b"\0" * 4096
)
"""Half a record and at once a whole one, and an end of NULs, as after a power cut."""
CODEX_UNANSWERED = lines(
    META,
    codex_said(1, "user", "a"),
    item(2, "function_call", name="shell", arguments="{not json", call_id="c1"),
    codex_said(3, "user", "b"),
    item(4, "function_call", name="shell", arguments="{}", call_id="c1"),
    item(4, "function_call", name="shell", arguments="{}", call_id="c1"),
    item(5, "function_call_output", call_id="c1", output={"content": "two", "success": False}),
    item(6, "function_call_output", call_id="c1", output="three"),
)
"""A call without a result whose id comes again, a record twice, a second result."""
CODEX_OLD = (
    line({"id": "0197", "timestamp": "2025-05-01T00:00:00Z", "instructions": "be kind"})
    + line({"record_type": "state"})
    + line(
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}, {"type": "input_image"}],
        }
    )
    + line(
        {
            "type": "local_shell_call",
            "call_id": "c1",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"]},
        }
    )
    + line({"type": "function_call_output", "call_id": "c1", "output": "a\x00b \ud83d"})
    + line({"type": "web_search_call", "status": "completed"})
    + line(codex("compacted", {"message": "summary", "replacement_history": []}))
    + line(codex("thread_paginated", {"page": 2}))
    + b"not json at all\n"
)
"""The first form of the files, items and records that nobody knows, half of a pair, a line of something else."""

# ------------------------------------------------------------ OpenAI

CHAT: list[Json] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{}"}},
            {"id": "c2", "type": "function", "function": {"name": "w", "arguments": '{"a":1}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "c2", "content": "wet"},
    {"role": "tool", "tool_call_id": "c1", "content": "dry"},
    {"role": "assistant", "content": "dry and wet"},
]
OPENAI_WHOLE = json.dumps({"model": "gpt-example", "messages": CHAT}, indent=2).encode()
OPENAI_ITEMS = json.dumps(
    {
        "model": "gpt-example",
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": "weather?"},
            {"type": "function_call", "call_id": "c1", "name": "w", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "dry"},
        ],
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "dry"}],
            }
        ],
    }
).encode()
OPENAI_TORN = BOM + OPENAI_WHOLE.replace(b"\n", b"\r\n")[:-60]
"""One document, cut inside the last message; CRLF and a byte-order mark."""
OPENAI_LINES = (
    lines({"messages": CHAT[:2]})
    + b'{"messages": [{"role": "user", "content": "torn'
    + b"\n"
    + lines(
        {
            "messages": [
                {"role": "user", "content": "second \ud83d"},
                {"role": "assistant", "content": "talk", "audio": {"id": "x"}},
                {"role": "narrator", "content": "?"},
                "stray",
            ]
        },
    )
)
"""A conversation a line; one torn, one with a role that nobody knows."""
OPENAI_UNANSWERED = lines(
    *CHAT[:4],
    {"role": "user", "content": "well?"},
    {"role": "tool", "tool_call_id": "c9", "content": "of nobody"},
    {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}},
    {"role": "function", "name": "old", "content": "answered"},
    {"usage": "no message"},
)
"""A message a line: a call without a result, a result of nobody, the older form of calls."""
