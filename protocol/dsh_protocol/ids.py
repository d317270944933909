"""The strings that name things: sessions, writers, and calls that may have been run.

All three are opaque to those who receive them. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def idempotency_key(session_id: str, created_at: int, call_seq: int, call_id: str) -> str:
    """Return the key under which a tool can find out whether it has already run.

    It depends on what is stored and on nothing else, so that it is the same before a crash and after it.

    Args:
        session_id: From the session's header.
        created_at: From the session's header, epoch milliseconds: a deleted id that is used again has other keys.
        call_seq: The seq of the stored `tool/call`.
        call_id: As the model gave it.
    """
    text = json.dumps(
        [session_id, created_at, call_seq, call_id], ensure_ascii=False, separators=(",", ":")
    )
    text = _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return "dshd1-" + hashlib.sha256(text.encode()).hexdigest()[:32]


def new_session_id() -> str:
    """Return a fresh id; ids made later sort later (UUID version 7: milliseconds, then chance)."""
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | secrets.randbits(80)
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def new_writer() -> str:
    """Return a fresh writer: whoever knows it may append, so it cannot be guessed."""
    return secrets.token_urlsafe(24)
