"""What a stored header and stored events must be before a log is continued: version, vocabulary, shapes.

The rule that holds here: what is odd is refused for writing and named, with its bytes untouched, and read all the same.
What depends on the log so far (the surface) is not looked at here: that is the fold's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_protocol.defects import (
    defect_text,
    envelope_defect,
    message_defect,
    retired_shape,
    surface_metadata_defect,
)
from dsh_protocol.errors import FormatUnsupportedError
from dsh_protocol.events import HeaderDefectError, check_header
from dsh_protocol.jsontext import JsonTextError, decode_stored
from dsh_protocol.vocabulary import KNOWN_TYPES
from dshd.storage.jsonl.faults import corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_protocol.errors import DshdError
    from dsh_protocol.events import Header
    from dsh_protocol.vocabulary import Event
    from dshd.storage.jsonl.index import SeqIndex

_CHUNK_KEYS = 4


def parse_header(line: bytes, path: str) -> Header:
    """Return the header that a log's first line holds.

    Raises:
        FormatUnsupportedError: It is another version's, whatever else is in it.
        LogCorruptError: It is no header.
    """
    try:
        return check_header(decode_stored(line))
    except JsonTextError as error:
        raise corrupt(path, 0, f"the header line is not JSON: {error.rule}") from error
    except HeaderDefectError as error:
        raise corrupt(path, 0, str(error)) from error
    except FormatUnsupportedError as error:
        raise FormatUnsupportedError(f"log {path!r}: {error}", path=path, **error.facts) from None


def stored_defect(event: Event) -> tuple[str, bool] | None:
    """Return the rule that keeps a log with this event from being continued; None where none does.

    Returns:
        The rule, and whether it is one of format (another vocabulary, a retired shape) and not a damage.
    """
    kind = event.get("type")
    if not isinstance(kind, str):
        return "invalid-envelope", False
    if kind == "assistant/chunk" and len(event) == _CHUNK_KEYS:
        rule = envelope_defect(
            event
        )  # most events of most logs: nothing else can be wrong with one
        return (rule, False) if rule else None
    rule = retired_shape(event)
    if rule is not None:
        return rule, True
    rule = message_defect(event)
    if rule is not None:
        return rule, False
    if kind not in KNOWN_TYPES and event.get("ignorable") is not True:
        return "unknown-event-type", True
    rule = envelope_defect(event) or surface_metadata_defect(event)
    return (rule, False) if rule else None


def find_problem(batches: Iterable[list[Event]], index: SeqIndex, path: str) -> DshdError | None:
    """Read a log to its end and return the first reason not to continue it; None where there is none.

    Corruption that the reading itself comes upon is raised, and so goes before any reason found here.
    """
    problem = None
    for batch in batches:
        for event in batch:
            if problem is None:
                problem = _problem(event, index, path)
    return problem


def _problem(event: Event, index: SeqIndex, path: str) -> DshdError | None:
    defect = stored_defect(event)
    if defect is None:
        return None
    rule, of_format = defect
    seq = int(event["seq"])
    offset = index.locate(seq).offset
    if not of_format:
        return corrupt(path, offset, f"event {seq} breaks {rule!r}: {defect_text(rule)}")
    return FormatUnsupportedError(
        f"log {path!r} holds event {seq} that breaks {rule!r}: {defect_text(rule)}; it can be read, "
        "not continued, by this version",
        path=path,
        offset=offset,
        rule=rule,
    )
