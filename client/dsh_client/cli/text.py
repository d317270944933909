"""Text as a terminal may see it: nothing stored in a session ever steers the reader's screen.

The rule: every string that reaches a terminal went through `escape`. Control characters, lone surrogates and the
characters that turn or hide text become visible escapes; everything else stays as it is.
"""

from __future__ import annotations

import re

# C0, DEL and C1; what reorders or hides text (bidi controls, zero-width and tag characters, line separators);
# lone surrogates. The joiners U+200C and U+200D stay: scripts and emoji need them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LATIN_END = 0x100
_BMP_END = 0x10000


def _visible(match: re.Match[str]) -> str:
    char = match.group()
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if code < _LATIN_END:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < _BMP_END else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < _BMP_END:
        return f"\\u{code:04x}"
    code -= _BMP_END
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def escape(text: str) -> str:
    """Return `text` as one line that is safe on a terminal. Escaping twice changes nothing more."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_visible, text)


def escape_lines(text: str) -> str:
    """Return `text` with its line breaks and tabs, and everything else that is unsafe made visible."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(lambda found: found[0] if found[0] in "\n\t" else _visible(found), text)


def split_unsafe(text: str) -> list[str]:
    """Return the parts of `text`, safe and unsafe in turn; the unsafe ones are made visible. Breaks, tabs are safe."""
    parts: list[str] = []
    at = 0
    for found in _UNSAFE.finditer(text):
        if found[0] not in "\n\t":
            parts += [text[at : found.start()], _visible(found)]
            at = found.end()
    return [*parts, text[at:]]


def escape_json(text: str) -> str:
    r"""Return the same JSON document with unsafe characters as `\uXXXX`; the values are unchanged.

    `text` is what a JSON writer made without line breaks, so that such characters occur inside of strings only.
    """
    return _UNSAFE.sub(_json_escape, text)


def width(text: str) -> int:
    """Return how many terminal columns the escaped `text` takes: two for wide characters, none for marks."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width  # most output is ASCII

    columns = 0
    for char in text:
        if category(char) not in {"Mn", "Me", "Cf"}:
            columns += 2 if east_asian_width(char) in {"W", "F"} else 1
    return columns


def clip(text: str, columns: int, ellipsis: str = "…") -> str:
    """Return `text` cut to at most `columns` columns; `ellipsis` shows the cut where it fits."""
    if width(text) <= columns:
        return text
    room = columns - len(ellipsis)
    if room < 0:
        room, ellipsis = columns, ""
    used = 0
    for index, char in enumerate(text):
        used += width(char)
        if used > room:
            return text[:index] + ellipsis
    return text


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return `text` filled with spaces to `columns` columns; on the left where `right` aligns it."""
    fill = " " * (columns - width(text))
    return fill + text if right else text + fill


def shell_word(text: str) -> str:
    """Return `text` as one word for a shell, for commands that a person is told to run."""
    if re.fullmatch(r"[\w@%+=:,./][\w@%+=:,./-]*", text, re.ASCII):
        return text
    quoted = "'" + text.replace("'", "'\"'\"'") + "'"
    return f"-- {quoted}" if text.startswith("-") else quoted
