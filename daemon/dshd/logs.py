"""The daemon's own log: one line an event on standard error; JSON, or what a person reads where that is a terminal.

The one rule: the content of sessions never enters it. Event names are constants, values are short scalars, and
the text of an exception is kept only where the exception's class promises that it holds no content.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, cast

import msgspec
import structlog

from dsh_protocol.errors import DshdError
from dshd.journal import datagram
from dshd.settings import CannotStartError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from structlog.typing import EventDict, Processor, WrappedLogger

    from dshd.journal import Journal

_MAX_TEXT = 400
_MAX_FRAMES = 40
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_TEXT_IS_CONTENT_FREE = (DshdError, OSError, CannotStartError, AssertionError, ImportError)


def configure_logs(
    level: str = "info",
    environ: Mapping[str, str] | None = None,
    journal: Journal | None = None,
) -> None:
    """Send `structlog.get_logger()` and the standard library's log to standard error. Call once, at start.

    Under the journal each line gets its `<n>` priority, elsewhere none.

    Args:
        level: The least that is told.
        environ: The process's own by default.
        journal: Where standard error is the journal, events go there instead, with fields of their own.
    """
    stream = sys.stderr
    under_journal = is_journal(stream, os.environ if environ is None else environ)
    render: Processor = _render_for_people if stream.isatty() else _Renderer(prefixed=under_journal)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _describe_exception,
            _drop_content,
            render if journal is None or not under_journal else _JournalRenderer(journal, render),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: _LineWriter(stream),
        cache_logger_on_first_use=True,
    )
    logging.root.handlers[:] = [_Bridge()]
    logging.root.setLevel(logging.WARNING)
    # The dispatcher's library logs `str(exc)` of whatever a handler raised; our own dispatcher logs an incident.
    silenced = logging.getLogger("jsonrpcserver")
    silenced.handlers[:] = [logging.NullHandler()]
    silenced.propagate = False


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream is the journal: `$JOURNAL_STREAM` names its device and inode, not just any."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _describe_exception(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace `exc_info` by the exception's type and where it came from, without the values it carries."""
    exc: object = event.pop("exc_info", None)
    if exc is True:
        exc = sys.exc_info()[1]
    if isinstance(exc, BaseException):
        event["error"] = type(exc).__qualname__
        if isinstance(exc, _TEXT_IS_CONTENT_FREE):
            event["reason"] = str(exc)
        event["stack"] = _frames(exc)
    return event


def _frames(exc: BaseException) -> str:
    """One line: innermost frame first, and below a group or a cause its own frames."""
    frames = traceback.extract_tb(exc.__traceback__)
    text = " < ".join(
        f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames[-_MAX_FRAMES:])
    )
    if isinstance(exc, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", exc)
        inner = "; ".join(f"{type(one).__qualname__}: {_frames(one)}" for one in group.exceptions)
        return f"{text} [{inner}]"
    if exc.__cause__ is not None:
        return f"{text} [from {type(exc.__cause__).__qualname__}: {_frames(exc.__cause__)}]"
    return text


def _drop_content(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Cut long texts and name the type of what is no scalar, whatever a call site passed."""
    for key, value in event.items():
        if isinstance(value, str):
            if len(value) > _MAX_TEXT and key != "stack":
                event[key] = value[:_MAX_TEXT] + "…"
        elif value is not None and not isinstance(value, bool | int | float):
            event[key] = (
                str(value)[:_MAX_TEXT]
                if isinstance(value, PurePath)
                else f"<{type(value).__name__}>"
            )
    return event


class _Renderer:
    def __init__(self, *, prefixed: bool) -> None:
        self._prefixed = prefixed

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> str:
        level = str(event.get("level", "info"))
        ordered = {
            "time": event.pop("timestamp", None),
            "level": level,
            "event": event.pop("event", ""),
        }
        ordered.update(event)
        line = msgspec.json.encode({str(k): _encodable(v) for k, v in ordered.items()}).decode()
        return f"<{_PRIORITIES.get(level, 6)}>{line}" if self._prefixed else line


class _JournalRenderer:
    """Sends an event to the journal; what it does not take is a line on standard error, as ever."""

    def __init__(self, journal: Journal, otherwise: Processor) -> None:
        self._journal = journal
        self._otherwise = otherwise

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> Any:
        values = {key: value for key, value in event.items() if key != "timestamp"}
        priority = _PRIORITIES.get(str(values.pop("level", "info")), 6)
        rest = (f"{key}={_plain(value)}" for key, value in values.items() if key != "event")
        message = " ".join([str(values.get("event", "")), *rest])
        if self._journal.send(datagram(message, priority, values)):
            raise structlog.DropEvent
        return self._otherwise(logger, method, event)


def _render_for_people(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Time, level, event, then the rest; nothing in it steers the terminal."""
    when = str(event.pop("timestamp", ""))[11:23]
    level, name = str(event.pop("level", "info")), str(event.pop("event", ""))
    rest = (f"{key}={_plain(value)}" for key, value in event.items())
    return " ".join([when, f"{level:<7}", name, *rest])


def _plain(value: object) -> str:
    """A value as one word, or quoted; what is not printable is shown as Python escapes it."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))
    return f'"{text}"' if " " in text or not text else text


def _encodable(value: object) -> object:
    """Ids and paths may hold lone surrogates, which no log line can carry."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


class _LineWriter:
    """Writes whole lines; a reader that went away must not take the daemon with it.

    Past the stream's own buffer: what stays in there is flushed at the end, and Python ends with 120 where that fails.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._fd: int | None = None
        with suppress(OSError, ValueError):
            self._fd = stream.fileno()

    def msg(self, message: str) -> None:
        try:
            if self._fd is None:
                self._stream.write(message + "\n")
                return
            data = f"{message}\n".encode(errors="backslashreplace")
            while data:
                data = data[os.write(self._fd, data) :]
        except (OSError, ValueError):
            return

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class _Bridge(logging.Handler):
    """The standard library's records as events of ours: who, where and which exception, but not the text."""

    def emit(self, record: logging.LogRecord) -> None:
        logger: Any = structlog.get_logger()
        exc = record.exc_info[1] if record.exc_info else None
        log = logger.error if record.levelno >= logging.ERROR else logger.warning
        log(
            "library.log",
            logger=record.name,
            where=f"{record.module}:{record.lineno}",
            exc_info=exc,
        )
