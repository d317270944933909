"""What looks like a secret, and the mark that is shown in its place.

The rule: a log stays as it was written; what leaves through `dshctl` went through a `Redactor`, which counts. It looks
for shapes, so it is a net and no proof: what has no shape of a secret passes. A pattern is compiled when a text holds
one of its hints, so that a text without any costs a few searches. Standard library only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator

_CARRY = 4096
_LONGEST_NAME = 100


class Shape(NamedTuple):
    """One kind of secret.

    Attributes:
        name: What the mark calls it.
        hints: In lower case; the pattern is tried where one of them begins (`after`: where it ends).
        pattern: The group that took part, where there is one, is all that is hidden.
        after: The hint is the name of a value, which follows.
    """

    name: str
    hints: tuple[str, ...]
    pattern: str
    after: bool = False


_KEYS = ("api", "access", "auth", "client", "private", "signing", "encryption", "account", "secret")
_NAMES = (
    *("password", "passwd", "passphrase", "pwd", "secret", "credential", "token"),
    *(f"{word}{joint}key" for word in _KEYS for joint in ("", "_", "-")),
)
_WORD = r"(?<![A-Za-z0-9])"
# No placeholder, no variable, no call, nothing that is hidden already.
_NOT_A_VALUE = (
    r"(?!\[redacted|[$%{<*(]|(?i:none|null|true|false|undefined)\b|x{3}|X{3}|\.{3}|your[_-])"
)
_BARE = r"[^\s\"'`,;&)\]}>|\\(]"
SHAPES = (
    Shape(
        "private key",
        ("-----begin ",),
        r"(?s:-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z))",
    ),
    Shape("password", ("://",), r"://[^\s:/@\"'<>]{0,200}:([^\s/@\"'<>]{1,200})@"),
    Shape(
        "api key",
        ("sk-", "sk_", "rk_", "pk_"),
        _WORD + r"(?:sk-(?=[A-Za-z_-]{0,200}+\d)[A-Za-z0-9_-]{16,}"
        r"|[srp]k_(?:live|test)_[A-Za-z0-9]{12,})",
    ),
    Shape(
        "github token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        _WORD + r"(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
    ),
    Shape("gitlab token", ("glpat-",), _WORD + r"glpat-[A-Za-z0-9_.-]{16,}"),
    Shape("aws key id", ("akia", "asia"), _WORD + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    Shape(
        "google key",
        ("aiza", "ya29."),
        _WORD + r"(?:AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,})",
    ),
    Shape(
        "slack token",
        ("xox", "hooks.slack.com/"),
        _WORD + r"(?:xox[abeoprs]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/[A-Za-z0-9/]{20,})",
    ),
    Shape(
        "registry token",
        ("npm_", "pypi-", "hf_", "dckr_pat_"),
        _WORD + r"(?:npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{20,}"
        r"|dckr_pat_[A-Za-z0-9_-]{20,})",
    ),
    Shape(
        "web token",
        ("eyj",),
        _WORD + r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    ),
    Shape(
        "bearer token",
        ("bearer ",),
        r"(?i:bearer) {1,8}((?=[A-Za-z_.~+/=-]{0,400}+\d)[A-Za-z0-9_.~+/=-]{16,})",
    ),
    Shape(
        "password",
        ("authorization",),
        r"(?i:authorization[\\\"']{0,4}\s{0,8}[:=]\s{0,8}[\\\"']{0,4}basic) {1,8}([A-Za-z0-9_+/=-]{8,})",
    ),
    Shape(
        "password",
        _NAMES,
        r"(?:"
        # a name and its value in quotes, also where both stand in a JSON text that is itself in quotes
        r"(?:\\{0,3}[\"'])?\s{0,8}(?::=|=>|[:=])\s{0,8}"
        rf"(?:\\{{0,3}}\"{_NOT_A_VALUE}([^\"\\\r\n]{{3,2000}})|\\{{0,3}}'{_NOT_A_VALUE}([^'\\\r\n]{{3,2000}}))"
        # the same without quotes, joined by an equals sign
        rf"|={_NOT_A_VALUE}({_BARE}{{4,400}}+)(?![(\[.])"
        # the same with space around: it must have a digit, and be more than a number
        rf"|\s{{0,8}}[:=]\s{{0,8}}{_NOT_A_VALUE}(?=\d{{0,20}}+[^\s\d,;])(?=[^\s\d\"'`,;&)\]}}>|\\(]{{0,100}}+\d)"
        rf"({_BARE}{{6,400}}+)(?![(\[.])"
        # an option with its value
        rf"|\s{{1,4}}+{_NOT_A_VALUE}(?=[A-Za-z_+/=.-]{{0,100}}+\d)(?=\d{{0,100}}+[A-Za-z])"
        r"([A-Za-z0-9_+/=.-]{12,400}+)(?![(\[])"
        r")",
        after=True,
    ),
)
_KEY = (
    rf"(?:[\w.-]{{0,60}}[_.-])?(?:{'|'.join(_NAMES)})"
    r"|[a-z]{1,40}(?:Password|Secret|ApiKey|AccessKey|Token)"
)
_VALUE = _NOT_A_VALUE + r"(?s:.{3,})"
_COMPILED: dict[str, re.Pattern[str]] = {}  # a cache of the constants above


class Redactor:
    """Hides what looks like a secret, and counts.

    Attributes:
        counts: How many of each shape were hidden so far.
    """

    def __init__(self) -> None:
        """Begin with nothing hidden."""
        self.counts: dict[str, int] = {}

    @property
    def total(self) -> int:
        """How many were hidden."""
        return sum(self.counts.values())

    def text(self, text: str) -> str:
        """Return `text` with a mark in place of each likely secret. Doing it twice changes nothing more."""
        spans = find(text)
        if not spans:
            return text
        parts: list[str] = []
        at = 0
        for start, end, name in spans:
            self._count(name)
            parts += [text[at:start], mark(name)]
            at = end
        return "".join([*parts, text[at:]])

    def texts(self, texts: list[str]) -> list[str]:
        """Return many short texts, redacted; where none has a secret, that costs one search for all."""
        return [self.text(text) for text in texts] if find("\n".join(texts)) else texts

    def value(self, value: Any) -> Any:
        """Return a JSON value with every text in it redacted, keys too; what needs nothing is the same object.

        A text under a key such as `password` is hidden whatever it looks like.
        """
        root: list[Any] = [value]
        open_ends: list[tuple[Any, Any, Any]] = [(root, 0, value)]
        while open_ends:
            holder, place, item = open_ends.pop()
            if isinstance(item, str):
                clean = self.text(item)
                if clean is not item:
                    holder[place] = clean
            elif _is_object(item):
                copy = {self.text(key): self._member(key, member) for key, member in item.items()}
                holder[place] = copy
                open_ends += [(copy, key, member) for key, member in copy.items() if _open(member)]
            elif _is_list(item):
                holder[place] = copied = list(item)
                open_ends += [(copied, at, one) for at, one in enumerate(copied) if _open(one)]
        return root[0]

    def _member(self, key: str, member: Any) -> Any:
        if not isinstance(member, str) or len(key) > _LONGEST_NAME:
            return member
        named = _compiled(_KEY).fullmatch(_unfolded(key))
        if named and _compiled(_VALUE).match(member) and find(member) == []:
            self._count("password")
            return mark("password")
        return member

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


class Pieces:
    """Redacts a text that comes in pieces, such as streamed chunks.

    A secret that is cut over the pieces of one call is hidden whole; of one that goes on in the next call, what was
    given out already is out.
    """

    def __init__(self, redactor: Redactor) -> None:
        """Begin a text."""
        self._redactor = redactor
        self._before = ""

    def take(self, pieces: list[str]) -> list[str]:
        """Return as many pieces, without the secrets; the mark stands where a secret begins."""
        joined = self._before + "".join(pieces)
        spans = [span for span in find(joined) if span[1] > len(self._before)]
        for _, _, name in spans:
            self._redactor.counts[name] = self._redactor.counts.get(name, 0) + 1
        out: list[str] = []
        at = len(self._before)
        for piece in pieces:
            out.append(_without(joined, at, at + len(piece), spans, len(self._before)))
            at += len(piece)
        self._before = joined[-_CARRY:]
        return out


def mark(name: str) -> str:
    """Return what is shown in place of a secret."""
    return f"[redacted {name}]"


def find(text: str) -> list[tuple[int, int, str]]:
    """Return where likely secrets stand in `text`: start, end and shape, in order and apart from each other."""
    low = _lower(text)
    found = [
        span
        for shape in SHAPES
        for hint in shape.hints
        if hint in low
        for span in _found(text, low, shape, hint)
    ]
    found.sort(key=lambda span: (span[0], -span[1]))
    apart: list[tuple[int, int, str]] = []
    for span in found:
        if not apart or span[0] >= apart[-1][1]:
            apart.append(span)
    return apart


def _found(text: str, low: str, shape: Shape, hint: str) -> Iterator[tuple[int, int, str]]:
    """Yield the secrets of one shape after one hint. Not `finditer`: that is slower by far on a long text."""
    match_at = _compiled(shape.pattern).match
    skip = len(hint) if shape.after else 0
    at = low.find(hint)
    while at >= 0:
        match = match_at(text, at + skip)
        if match is None:
            at = low.find(hint, at + len(hint))
        else:
            yield (*match.span(match.lastindex or 0), shape.name)
            at = low.find(hint, max(match.end(), at + 1))


def _lower(text: str) -> str:
    """Return `text` in lower case and of the same length: one letter of all becomes two."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("\u0130", "I").lower()


def _without(text: str, start: int, end: int, spans: list[tuple[int, int, str]], shown: int) -> str:
    """Return `text[start:end]` without the spans; each leaves its mark where it first can be seen."""
    parts: list[str] = []
    at = start
    for first, last, name in spans:
        if last <= start or first >= end:
            continue
        parts.append(text[at : max(first, start)])
        if max(first, shown) >= start:
            parts.append(mark(name))
        at = min(last, end)
    return "".join([*parts, text[at:end]])


def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern not in _COMPILED:
        _COMPILED[pattern] = re.compile(pattern)
    return _COMPILED[pattern]


def _unfolded(key: str) -> str:
    """Return a key in lower case, but for capitals inside of it."""
    return key.lower() if key.isupper() or "_" in key or "-" in key else key[:1].lower() + key[1:]


def _open(value: Any) -> bool:
    return isinstance(value, str | dict | list)


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
