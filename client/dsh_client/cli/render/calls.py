"""A tool call as a card: what was asked, what came back, and what is known where nothing came back."""

from __future__ import annotations

from dsh_client.cli.figures import span
from dsh_client.cli.render.markup import arguments, block, folded, markup
from dsh_client.cli.render.model import (
    ABORTED,
    ANSWERED,
    FAILED,
    NOT_STARTED,
    UNANSWERED,
    UNKNOWN,
    Call,
    elapsed,
)

_TONES = {ANSWERED: "ok", FAILED: "bad", UNKNOWN: "bad", UNANSWERED: "bad"}
_DEEPEST = 8
VERDICTS = {
    UNKNOWN: "It was started and no result is stored: it may have run. Run it again only if it is read-only or "
    "idempotent; otherwise look at the world first, or ask.",
    NOT_STARTED: "It was never started: it may be run if it is still needed.",
    ABORTED: "It was called off before it ran.",
    UNANSWERED: "The turn ended without a result of it.",
}


def call_card(call: Call, target: str, depth: int = 0) -> str:
    """Return the card of a call, with the calls that it made in turn."""
    tone = _TONES.get(call.fate, "warn")
    took = span(elapsed(call.time, call.end_time))
    meta = [] if took == "-" or call.repaired else [took]
    if call.fate == FAILED and call.code:
        meta.append(call.code)
    if call.approval:
        meta.append(call.approval)
    if call.rewritten:
        meta.append("shortened later for the model")
    head = (
        f'<article class="call {tone}" id="{target}"><header><b>{markup(call.name or "?")}</b>'
        f'<span class="badge {tone}">{markup(call.fate)}{" (due)" if call.due else ""}</span>'
        f'<span class="meta">{markup(" · ".join(meta))}</span>'
        f'<span class="mono">{markup(call.id)}</span></header>'
    )
    parts = [
        head,
        "" if call.arguments is None else arguments(call.arguments),
        _verdict(call),
        *_nested(call, depth),
        _result(call),
        "</article>",
    ]
    return "".join(parts)


def _verdict(call: Call) -> str:
    text = VERDICTS.get(call.fate)
    if text is None:
        return ""
    written = "A recovery would say" if call.due else "The recovery said" if call.repaired else ""
    code = f" <code>{markup(call.code)}</code>" if call.code else ""
    key = f" Its idempotency key: <code>{markup(call.key)}</code>" if call.key else ""
    lead = f"<b>{written}:{code}</b> " if written else f"{code} "
    tone = "warn" if call.fate in {NOT_STARTED, ABORTED} else "bad"
    return f'<div class="verdict {tone}">{lead}{markup(text)}{key}</div>'


def _result(call: Call) -> str:
    if call.result is None:
        return ""
    parts = [
        folded(str(one.get("text", "")), "result") if one.get("type") == "text" else block(one)
        for one in call.result
    ]
    name = "verdict as the model reads it" if call.repaired else "result"
    tone = " bad" if call.fate == FAILED else ""
    body = "".join(parts) or '<span class="meta">empty</span>'
    return f'<h4>{name}</h4><div class="result{tone}">{body}</div>'


def _nested(call: Call, depth: int) -> list[str]:
    if not call.nested:
        return []
    if depth >= _DEEPEST:
        return [f'<p class="meta">and {len(call.nested)} more below</p>']
    cards = [call_card(one, f"c{one.seq}", depth + 1) for one in call.nested]
    return ["<h4>calls that it made</h4>", *cards]
