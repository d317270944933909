r"""JSON as a log has it, printed by the standard library: what is read back and printed again is the same bytes.

The one rule: only where Python prints otherwise (some numbers, half of a surrogate pair) is its text looked at again.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dsh_protocol.jsonnumbers import print_finite

_SUSPECT = re.compile(r"[0-9]e-0|\.0[,\]}]")
"""`1e-05` and `9007199254740992.0`: a log has `0.00001` and `9.007199254740992e+15`."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?')
_HALF = re.compile("[\ud800-\udfff]")


def stored_text(value: Any) -> str:
    """Return the text of a decoded value without line breaks."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if _SUSPECT.search(text) is not None:
        text = _TOKEN.sub(_as_stored, text)
    if not text.isascii():
        text = _HALF.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text


def _as_stored(token: re.Match[str]) -> str:
    text = token[0]
    real = text[0] != '"' and ("." in text or "e" in text)
    return print_finite(float(text)) if real else text
