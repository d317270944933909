"""The precise reader of JSON: slow, exact, and able to say what is wrong and where.

`jsontext` asks it only about texts that cannot be shown to be good in a cheaper way. It reads token by token with a
stack of its own, so that no depth of nesting ends in a RecursionError, and it never turns a long number into an `int`
before it has looked at its length. A text that is not JSON at all is told as such, even when something else is wrong
before that.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from dsh_protocol.jsontypes import MAX_SAFE_INTEGER

T = TypeVar("T")
Path: TypeAlias = tuple[str | int, ...]
Steps: TypeAlias = Generator[None, None, T]
"""Work in steps: it gives way between them, and returns what it comes to."""

# Before Python 3.11.5 a possessive repeat of a group counts the front of what then fails as matched: in "1e", or in an
# escape that is cut off. What may be left in the middle is repeated greedily here; in strings, where that would cost
# memory, any escape is passed over, and judged afterwards.
_WS = rb"[ \t\n\r]*+"
_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_VALUE_AT = re.compile(
    _WS
    + rb"(?:(?P<string>%b)|(?P<number>%b)|(?P<word>true|false|null)|(?P<open>[\[{]))"
    % (_STRING, _NUMBER),
    re.DOTALL,
)
_KEY_AT = re.compile(_WS + rb"(?P<key>%b)" % _STRING + _WS + rb":", re.DOTALL)
_SPACES = re.compile(_WS)
_COLON_AT = re.compile(_WS + rb":")
_CLOSER_AT = re.compile(_WS + rb"([\]}])")
_NEXT_AT = re.compile(_WS + rb"([,\]}])")
_END_AT = re.compile(_WS + rb"\Z")

_CHARACTERS = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HALF_PAIR_AT_END = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")

SLICE = 256 * 1024
"""How much of a text one step looks at."""

_STEP_VALUES = 500
_PAIR_BYTES = 12  # a character outside the basic plane, escaped

_SAFE_DIGITS = 16
_INT_DIGITS = 4300  # what int() takes of a text unless told otherwise
_CLOSER = {b"[": b"]", b"{": b"}"}
_WORDS = {b"true": True, b"false": False, b"null": None}
_OPENED: Final = object()


class JsonTextError(ValueError):
    """A text that the gate does not let pass.

    Attributes:
        rule: `not-json`, `not-utf8`, `duplicate-key`, `negative-zero`, `number-range`, `lone-surrogate`, `too-deep`
            or `too-many-values`.
        offset: Of the first byte at fault.
        path: Keys and indices that lead to the value at fault; empty where it is the whole text.
    """

    def __init__(self, rule: str, offset: int, path: Path = ()) -> None:
        """Name what is wrong and where."""
        super().__init__(f"{rule} at byte {offset}")
        self.rule = rule
        self.offset = offset
        self.path = path


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is read, and how strictly.

    Attributes:
        max_depth: Arrays and objects inside each other.
        max_values: Values in the text.
        stored: Take what a log on disk may hold: duplicate keys (the last wins), lone surrogates, whole numbers of any
            size, negative zero.
        surrogates_at: Take lone surrogates in the string at this path, and nowhere else.
    """

    max_depth: int
    max_values: int
    stored: bool = False
    surrogates_at: Path | None = None


@dataclass(slots=True)
class _Open:
    """An array or object that is not closed yet, with the key that comes next."""

    value: Any
    closer: bytes
    key: str = ""


def drain(steps: Steps[T]) -> T:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def scan(text: bytes, bounds: Bounds) -> Any:
    """Return the value of a text.

    Raises:
        JsonTextError: It breaks a rule; the first one broken, but `not-json` before any other.
    """
    return drain(scan_steps(text, bounds))


def scan_steps(text: bytes, bounds: Bounds) -> Steps[Any]:
    """Return the value of a text as `scan` does, in steps that are short whatever the text holds."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise JsonTextError("not-utf8", error.start) from None
    yield
    return (yield from _Reader(text, bounds).read())


class _Reader:
    """One pass over one text."""

    def __init__(self, text: bytes, bounds: Bounds) -> None:
        self._text = text
        self._bounds = bounds
        self._at = 0
        self._values = 0
        self._long = len(text) > SLICE
        self._open: list[_Open] = []
        self._defect: JsonTextError | None = None

    def read(self) -> Steps[Any]:
        while True:
            value = yield from self._read_value()
            if self._values % _STEP_VALUES == 0:
                yield
            if value is _OPENED:
                continue
            while self._open and (yield from self._put(value)):
                value = self._open.pop().value
            if not self._open:
                break
        yield from self._pass_space()
        if _END_AT.match(self._text, self._at) is None:
            self._not_json()
        if self._defect is not None:
            raise self._defect
        return value

    def _read_value(self) -> Steps[Any]:
        """Read a scalar or an empty container, or open one that is not empty."""
        if self._long:
            yield from self._pass_space()
        ahead = self._at + SLICE
        found = _VALUE_AT.match(self._text, self._at, ahead)
        if found is None or found.end() == ahead:
            start = self._skip_space()
            if self._text[start : start + 1] == b'"':
                self._count(start)
                return (yield from self._long_string(start))
            found = _VALUE_AT.match(self._text, self._at)
        if found is None:
            self._not_json()
        start = found.start(found.lastindex or 0)
        self._count(start)
        self._at = found.end()
        token = found[found.lastindex or 0]
        if found.lastgroup == "string":
            return self._string(token, start)
        if found.lastgroup == "number":
            return self._number(token, start)
        if found.lastgroup == "word":
            return _WORDS[token]
        return (yield from self._enter(token, start))

    def _count(self, start: int) -> None:
        self._values += 1
        if self._values > self._bounds.max_values:
            raise JsonTextError("too-many-values", start, self._path())

    def _skip_space(self) -> int:
        found = _SPACES.match(self._text, self._at)
        return self._at if found is None else found.end()

    def _pass_space(self) -> Steps[None]:
        """Go on to what follows a long run of white space; a short one is left to the patterns."""
        while True:
            found = _SPACES.match(self._text, self._at, self._at + SLICE)
            if found is None or found.end() - self._at < SLICE:
                return
            self._at = found.end()
            yield

    def _long_string(self, start: int) -> Steps[str]:
        """Read a string that is longer than a step, piece by piece."""
        text, at = self._text, start + 1
        pieces: list[str] = []
        while True:
            found = _CHARACTERS.match(text, at, at + SLICE + _PAIR_BYTES)
            end = at if found is None else found.end()
            closed = text[end : end + 1] == b'"'
            if not closed:
                end = _whole_characters(text, at, end)
            if end == at and not closed:
                self._at = end
                self._not_json()
            pieces.append(json.loads(b'"%b"' % text[at:end]))
            at = end
            yield
            if closed:
                break
        self._at = at + 1
        return self._checked("".join(pieces), start)

    def _enter(self, opener: bytes, start: int) -> Steps[Any]:
        if len(self._open) >= self._bounds.max_depth:
            raise JsonTextError("too-deep", start, self._path())
        value: Any = [] if opener == b"[" else {}
        closer = _CLOSER[opener]
        if self._long:
            yield from self._pass_space()
        ended = _CLOSER_AT.match(self._text, self._at)
        if ended is not None and ended[1] == closer:
            self._at = ended.end()
            return value
        self._open.append(_Open(value, closer))
        if opener == b"{":
            yield from self._read_key()
        return _OPENED

    def _put(self, value: Any) -> Steps[bool]:
        """Put a complete value into what is open; return whether that is closed now."""
        inside = self._open[-1]
        if self._long:
            yield from self._pass_space()
        if inside.closer == b"]":
            inside.value.append(value)
        else:
            inside.value[inside.key] = value
        found = _NEXT_AT.match(self._text, self._at)
        if found is None:
            self._not_json()
        if found[1] != b"," and found[1] != inside.closer:
            self._not_json()
        self._at = found.end()
        if found[1] != b",":
            return True
        if inside.closer == b"}":
            yield from self._read_key()
        return False

    def _read_key(self) -> Steps[None]:
        inside = self._open[-1]
        if self._long:
            yield from self._pass_space()
        found = _KEY_AT.match(self._text, self._at, self._at + SLICE)
        if found is not None:
            start = found.start("key")
            inside.key = self._string(found["key"], start)
            self._at = found.end()
        else:
            start = self._skip_space()
            if self._text[start : start + 1] != b'"':
                self._not_json()
            inside.key = yield from self._long_string(start)
            colon = _COLON_AT.match(self._text, self._at)
            if colon is None:
                self._not_json()
            self._at = colon.end()
        if inside.key in inside.value and not self._bounds.stored:
            self._note("duplicate-key", start)

    def _string(self, token: bytes, start: int) -> str:
        if b"\\" not in token:
            return token[1:-1].decode()
        try:
            text: str = json.loads(token)
        except ValueError:
            return drain(self._long_string(start))  # which finds the escape that is none
        return self._checked(text, start)

    def _checked(self, text: str, start: int) -> str:
        if not self._bounds.stored and has_lone_surrogate(text):
            allowed = self._bounds.surrogates_at
            if allowed is None or self._path() != allowed:
                self._note("lone-surrogate", start)
        return text

    def _number(self, token: bytes, start: int) -> float:
        digits = token.removeprefix(b"-")
        if digits.isdigit():
            stored = self._bounds.stored
            if len(digits) > (_INT_DIGITS if stored else _SAFE_DIGITS):
                self._note("number-range", start)
                return 0
            whole = int(token)
            if not stored and abs(whole) > MAX_SAFE_INTEGER:
                self._note("number-range", start)
            if not stored and whole == 0 and digits != token:
                self._note("negative-zero", start)
            return whole
        real = float(token)
        if math.isinf(real):
            self._note("number-range", start)
        if real == 0 and digits != token and not self._bounds.stored:
            self._note("negative-zero", start)
        return real

    def _path(self) -> Path:
        return tuple(len(each.value) if each.closer == b"]" else each.key for each in self._open)

    def _note(self, rule: str, offset: int) -> None:
        """Keep the first defect and read on: the text may not be JSON at all."""
        if self._defect is None:
            self._defect = JsonTextError(rule, offset, self._path())

    def _not_json(self) -> NoReturn:
        raise JsonTextError("not-json", self._skip_space(), self._path())


def _whole_characters(text: bytes, start: int, end: int) -> int:
    """The last place up to `end` where a string may be cut: inside no character, and between no two halves of one."""
    while start < end < len(text) and text[end] & 0xC0 == 0x80:  # noqa: PLR2004  # UTF-8's continuation bytes
        end -= 1
    if text[end : end + 2] == b"\\u" and _HALF_PAIR_AT_END.search(text, max(start, end - 6), end):
        end -= 6
    return end


def has_lone_surrogate(text: str) -> bool:
    """Whether a string holds half of a surrogate pair, which UTF-8 cannot carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
