"""Where a session lies: the names of directories and files, from ids and working directories and back.

`<root>/--<project key>--/<encoded id>/session.jsonl.zstd`, without a cwd `<root>/_no-cwd/…`. The rule that holds here:
the encoding of an id is injective and yields one plain path segment, so that no id can name anything outside the root.
Both encodings work on UTF-16 code units, as every program that reads these roots does.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from dsh_protocol.errors import IdInvalidError, InvalidParamsError

Compression = Literal["zstd", "none"]

NO_CWD = "_no-cwd"
ZSTD_LOG = "session.jsonl.zstd"
RAW_LOG = "session.jsonl"
LOG_NAMES = (ZSTD_LOG, RAW_LOG)
NAME_MAX = 255
_CWD = "params.cwd"  # as a caller knows it
PATH_MAX = 4096
_PROJECT_UNITS = 251

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
_SEPARATORS = re.compile(r"[/\\:]+")
_ESCAPE = re.compile(r"~([0-9A-F]{4})")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
NEWER_LOG = re.compile(r"session\.v[0-9]+\.jsonl(\.zstd)?")
"""A log of a later format version, which stands beside version 0 and goes before it."""
LEFTOVER = re.compile(
    r"(session\.jsonl(\.zstd)?|holder\.json|labels\.json|derived\.bin|torn)\.[0-9a-f]{12}\.tmp"
)
"""A file that was not yet published under its name when its writer died."""


class Place(NamedTuple):
    """One log below a root."""

    project: str
    segment: str
    log_name: str

    @property
    def directory(self) -> str:
        """The session's directory, relative to the root."""
        return f"{self.project}/{self.segment}"

    @property
    def log(self) -> str:
        """The log, relative to the root."""
        return f"{self.project}/{self.segment}/{self.log_name}"

    @property
    def zstd(self) -> bool:
        """Whether the log is made of Zstandard frames."""
        return self.log_name == ZSTD_LOG


def log_name(compression: Compression) -> str:
    """Return the file name of a log of that encoding."""
    return ZSTD_LOG if compression == "zstd" else RAW_LOG


def _escaped(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"~{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def encode_segment(text: str) -> str:
    """Return the path segment for a session id: everything but `[A-Za-z0-9._-]` becomes `~XXXX` per code unit.

    Raises:
        ValueError: The text is empty.
    """
    if not text:
        raise ValueError("an empty text names no path segment")
    if text in {".", ".."}:
        return text.replace(".", "~002E")
    return _UNSAFE.sub(_escaped, text)


def decode_segment(segment: str) -> str | None:
    """Return the id that a directory's name stands for; None where no id is encoded so."""
    if _PLAIN.fullmatch(segment) and segment not in {".", ".."}:
        return segment
    units = _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), segment)
    text = units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text if text and encode_segment(text) == segment else None


def project_key(cwd: str) -> str:
    """Return the project directory's name for a working directory.

    Lossy on purpose: two working directories may share one; session ids keep their sessions apart.

    Raises:
        ValueError: The cwd is empty.
    """
    if not cwd:
        raise ValueError("an empty cwd names no project")
    dashed = "".join(
        "-" if _SEPARATORS.fullmatch(part) else _UNSAFE.sub(_escaped, part)
        for part in re.split(r"([/\\:]+)", cwd)
        if part
    )
    return f"--{(dashed.lstrip('-') or 'root')[:_PROJECT_UNITS]}--"


def project_name(cwd: str | None) -> str:
    """Return the directory, directly under the root, of sessions with that cwd."""
    return NO_CWD if cwd is None else project_key(cwd)


def is_project(name: str) -> bool:
    """Whether a name directly under the root can be a project directory's."""
    return name == NO_CWD or (name.startswith("--") and name.endswith("--"))


def check_id(session_id: str) -> str:
    """Return the segment of an id that a directory can have.

    Raises:
        IdInvalidError: Empty, or longer than a file name may be once encoded.
    """
    if not session_id:
        raise IdInvalidError("the session id is empty; give one of at least one character")
    # An id of megabytes is not encoded only to be refused; a character never takes less than a byte.
    segment = encode_segment(session_id[: NAME_MAX + 1])
    if len(segment) > NAME_MAX:
        size = max(len(segment), len(session_id))
        raise IdInvalidError(
            f"session id {session_id[:32]!r}… takes {size} bytes or more as a directory name, "
            f"more than {NAME_MAX}; use a shorter one, of letters, digits and '._-'"
        )
    return segment


def check_new_id(session_id: str) -> str:
    """Return the segment of an id that a new session may have: `check_id`, and no lone surrogate."""
    segment = check_id(session_id)
    if _SURROGATE.search(session_id):
        raise IdInvalidError(f"session id {session_id!r} holds half of a surrogate pair; use text")
    return segment


def check_cwd(cwd: str | None) -> str:
    """Return the project directory's name for a new session's cwd.

    Raises:
        InvalidParamsError: The cwd is not an absolute path that the system could have.
    """
    if cwd is None:
        return NO_CWD
    if not cwd.startswith("/"):
        text = f"{_CWD} {cwd[:64]!r} is not an absolute path; it must begin with '/'"
        raise InvalidParamsError(text, path=_CWD)
    if "\0" in cwd or _SURROGATE.search(cwd):
        text = f"{_CWD} {cwd[:64]!r} holds a NUL or half of a surrogate pair; send a path"
        raise InvalidParamsError(text, path=_CWD)
    if len(cwd.encode()) >= PATH_MAX:
        text = f"{_CWD} {cwd[:64]!r}… is longer than {PATH_MAX - 1} bytes; send a path that exists"
        raise InvalidParamsError(text, path=_CWD)
    return project_key(cwd)
