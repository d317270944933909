"""A Messages API on loopback that answers as the test agent's model does; what Claude Code asks besides is a no."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def serve(answer: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> str:
    """Serve in a thread for the rest of the process; return the base URL.

    Args:
        answer: From a request's body to the content of the model's message.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
                self.send_error(404)
                return
            content = answer(body)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(streamed(body["model"], content))

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that http.server gives
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def streamed(model: str, content: list[dict[str, Any]]) -> bytes:
    """A message as the API streams it."""
    uses = any(block["type"] == "tool_use" for block in content)
    usage = {"input_tokens": 1, "output_tokens": 1}
    message: dict[str, Any] = {
        "id": f"msg_{threading.get_native_id()}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(content):
        at = {"index": index}
        if block["type"] == "text":
            first: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": block["text"]}]
        else:
            first = {**block, "input": {}}
            given = json.dumps(block["input"])
            parts = given[:4], given[4:8], given[8:]
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        events.append({"type": "content_block_start", **at, "content_block": first})
        events += [{"type": "content_block_delta", **at, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", **at})
    reason = {"stop_reason": "tool_use" if uses else "end_turn", "stop_sequence": None}
    events += [{"type": "message_delta", "delta": reason, "usage": usage}, {"type": "message_stop"}]
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()
