"""A session of which every text would like to be more than text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

MARKUP = '</pre></div><script>document.title="taken"</script><img src="http://127.0.0.1:9/x" onerror="alert(1)">'
STYLE = "</style><style>*{display:none}</style><link rel=stylesheet href=http://127.0.0.1:9/s.css>"
ENTITY = "&lt;b&gt; &amp;#60;script&amp;#62; &#x3c;script&#x3e;"
ESCAPES = (
    "red \x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J bell\x07 back\x08 cr\rline null\x00 c1\x9b31m"
)
BIDI = (
    "user\u202egnp.exe\u202c \u2066isolate\u2069 \u200fRLM zero\u200bwidth \ufeffbom \U000e0041tag"
)
ARABIC = "مرحبا بالعالم, hello, שלום"
SEPARATORS = "one\u2028two\u2029three\x85four\x0bfive\x0csix"
MARKDOWN = (
    "# Turn 99\n\n```\nunclosed\n~~~\n![x](http://127.0.0.1:9/i.png) "
    "[l](javascript:alert(1)) <details open ontoggle=alert(1)>"
)
SVG = '<svg onload=alert(1)><a xlink:href="javascript:alert(1)">x</a></svg>'
LINE = "x" * 1_000_000
LEAK = "the key is sk-ant-api03-abcdefghijklmnop1234567890 and password=hunter2hunter2"
TEXTS = (MARKUP, STYLE, ENTITY, ESCAPES, BIDI, ARABIC, SEPARATORS, MARKDOWN, SVG, LINE)


def hostile_events() -> list[dict[str, Any]]:
    """Return one turn that says each text as a user, a model, a plugin, a tool, and in every name."""
    events: list[dict[str, Any]] = [
        {"type": "turn/start", "data": {"turn": 1}},
        {"type": "step/start", "data": {"turn": 1, "step": 1}},
        _title(MARKUP),
    ]
    events += [_user(f"u{number}", text) for number, text in enumerate((*TEXTS, LEAK))]
    events.append(_user("plugin", STYLE, {"kind": "plugin", "plugin": MARKUP}))
    events.append(_header())
    events.append(_answer())
    for number, text in enumerate(TEXTS):
        events += [_call(number, text), _result(number, text)]
    events += [
        {"type": "step/end", "data": {"turn": 1, "step": 1}},
        {
            "type": "turn/end",
            "data": {
                "turn": 1,
                "reason": {"kind": "error", "error": {"code": SVG, "message": MARKUP}},
            },
        },
    ]
    return events


def write_hostile(daemon: DaemonProcess, session_id: str) -> None:
    """Write the session through a real daemon."""
    with daemon.connect() as agent:
        made = agent.call("session.create", id=session_id, cwd=f"/{MARKUP}")
        handle = {"id": session_id, "writer": made["writer"]}
        for event in hostile_events():
            agent.call("session.append", **handle, events=[event])
        agent.call("session.close", **handle)


def _title(text: str) -> dict[str, Any]:
    return {
        "type": "session/title",
        "data": {"title": text, "messageSeqs": [], "source": {"kind": "user"}},
    }


def _user(message_id: str, text: str, source: dict[str, Any] | None = None) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    data = {
        "id": message_id,
        "role": "user",
        "content": content,
        "source": source or {"kind": "user"},
    }
    return {"type": "user/message", "data": data}


def _header() -> dict[str, Any]:
    tools = [{"name": MARKUP, "description": STYLE, "parameters": {"type": "object"}}]
    header = {"config": {"provider": SVG, "model": MARKUP}, "system": MARKUP, "tools": tools}
    return {"type": "request/header", "data": {"header": header, "reason": "initial"}}


def _name(number: int) -> str:
    return MARKUP if number == 0 else f"tool\x1b[2J{number}\u202e"


def _answer() -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "reasoning", "text": text} for text in TEXTS[:-1]]
    content += [{"type": "text", "text": text} for text in TEXTS]
    content += [
        {
            "type": "tool-call",
            "id": f"c{number}<b>",
            "name": _name(number),
            "arguments": _arguments(text),
        }
        for number, text in enumerate(TEXTS)
    ]
    content.append(
        {"type": "image", "attachment": {"attachmentId": MARKUP, "name": STYLE, "mediaType": SVG}}
    )
    message = {
        "id": "a1",
        "role": "assistant",
        "content": content,
        "source": {"kind": "model", "provider": SVG, "model": MARKUP},
    }
    return {"type": "assistant/message", "data": {"turn": 1, "step": 1, "message": message}}


def _arguments(text: str) -> str:
    return '{"' + MARKUP.replace('"', "'") + '": 1, "text": ' + json.dumps(text) + "}"


def _call(number: int, text: str) -> dict[str, Any]:
    data = {"turn": 1, "step": 1, "callId": f"c{number}<b>", "name": _name(number)}
    return {"type": "tool/call", "data": {**data, "arguments": _arguments(text)}}


def _result(number: int, text: str) -> dict[str, Any]:
    block = {
        "type": "tool-result",
        "toolCallId": f"c{number}<b>",
        "content": [{"type": "text", "text": text}],
    }
    message = {
        "id": f"r{number}",
        "role": "user",
        "source": {"kind": "tool", "callId": f"c{number}<b>"},
        "content": [block],
    }
    return {"type": "tool/result", "data": {"turn": 1, "step": 1, "message": message}}
