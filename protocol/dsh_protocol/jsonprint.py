r"""The precise writer of JSON: prints what `JSON.stringify` prints.

`jsontext` asks it only for values that the fast encoder would print otherwise or not at all: whole floats, lone
surrogates (printed as \udxxx), deep nesting, and what is no JSON, of which it says what it is and where. Two
digressions from ECMAScript: a whole float of 2^53 or more is printed with an exponent, because our own reader takes a
plain run of digits for an integer and refuses it; and what is not finite is refused, not printed as null.
"""

from __future__ import annotations

import math
import re
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import msgspec

from dsh_protocol.jsonnumbers import print_finite
from dsh_protocol.jsontypes import is_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    _Member: TypeAlias = tuple[str | int, str, Any]
    """Its name in what it is in, what is printed in front of it, and itself."""

_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_NESTED = 10_000
"""Arrays and objects inside each other. What is deeper cannot be read back; what holds itself has no end."""
_SHOWN_PATH = 12


class JsonValueError(ValueError):
    """A value that is no JSON, or that no reader of ours would take back.

    Attributes:
        path: Where in the value the fault is, as `.key` and `[index]`; empty where it is all of it.
    """

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(f"{what}, at {path}" if path else what)
        self.path = path


def print_json(value: Any) -> bytes:
    """Return the text of a JSON value, or of a Struct of such; `msgspec.Raw` is copied as it is.

    Raises:
        JsonValueError: Something in it is no JSON value, not finite, or nested deeper than any reader takes.
    """
    parts: list[str] = []
    inside: list[Iterator[_Member]] = [iter([("", "", value)])]
    closers = [""]
    path: list[str | int] = [""]
    try:
        while inside:
            member = next(inside[-1], None)
            if member is None:
                inside.pop()
                path.pop()
                parts.append(closers.pop())
                continue
            path[-1], prefix, child = member
            parts.append(prefix)
            if not _opens(child):
                parts.append(_scalar(child))
                continue
            inside.append(_members(child, len(inside)))
            path.append("")
            closers.append("]" if _is_sequence(child) else "}")
    except JsonValueError as error:
        raise JsonValueError(str(error), _path_text(path[1:])) from None
    return "".join(parts).encode()


def _path_text(path: list[str | int]) -> str:
    shown = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    if len(shown) > _SHOWN_PATH:
        shown[_SHOWN_PATH:] = ["…"]
    return "".join(shown)


def _is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _opens(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | msgspec.Struct)


def _members(value: Any, depth: int) -> Iterator[_Member]:
    if depth > MAX_NESTED:
        raise JsonValueError(f"nested more than {MAX_NESTED} deep, or within itself")
    if _is_sequence(value):
        return _array_members(value)
    return _object_members(value.items() if is_object(value) else _fields(value))


def print_number(number: float) -> str:
    """Return a float as ECMAScript prints it: the shortest digits that read back as the same double.

    Raises:
        JsonValueError: It is not finite.
    """
    if not math.isfinite(number):
        raise JsonValueError(f"{number!r} is no JSON number")
    return print_finite(number)


def _array_members(array: Sequence[Any]) -> Iterator[_Member]:
    if not array:
        yield 0, "[", msgspec.Raw(b"")
    for index, child in enumerate(array):
        yield index, ("," if index else "["), child


def _object_members(members: Iterable[tuple[str, Any]]) -> Iterator[_Member]:
    opened = False
    for key, child in members:
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # Python's own keys may be anything
            raise JsonValueError(f"the key {key!r} is no string")
        yield key, f"{',' if opened else '{'}{_string(key)}:", child
        opened = True
    if not opened:
        yield "", "{", msgspec.Raw(b"")


def _fields(struct: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    omit = struct.__struct_config__.omit_defaults
    for field in msgspec.structs.fields(struct):
        child = getattr(struct, field.name)
        if child is not msgspec.UNSET and not (omit and child == field.default):
            yield field.encode_name, child


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return print_number(value)
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    raise JsonValueError(f"a {type(value).__name__} is no JSON value")


def _whole(number: int) -> str:
    try:
        return str(number)
    except ValueError:  # an interpreter's limit, and the reader's
        raise JsonValueError("a whole number of more than 4,300 digits") from None


def _string(text: str) -> str:
    quoted = encode_basestring(text)
    if _SURROGATE.search(quoted) is None:
        return quoted
    whole = quoted.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", whole)
