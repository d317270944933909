"""Writing what was read of one conversation as a session: through the daemon, archived, its source marked.

The rule: a session that could not be written to its end does not stay in the list, and where nobody could take it away
(a killed import) its title says what it is; everything in it that is not a turn, a message or a call is an event that
any reader may ignore.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsh_client.cli.importing.carrying import (
    MAX_EVENT_BYTES,
    MAX_EVENT_VALUES,
    carried,
    is_light,
    text_parts,
    visible,
    weight,
)
from dsh_client.cli.importing.course import Course
from dsh_client.cli.importing.known import SOURCE, UNFINISHED
from dsh_client.errors import ClientError
from dsh_protocol.errors import DshdError

if TYPE_CHECKING:
    from dsh_client.cli.context import Context
    from dsh_client.cli.importing.report import Report

    Json = dict[str, Any]

RECORD = "import/record"
REPORT = "import/report"
_BATCH_EVENTS = 500
_NAME_CHARS = 200


class Archive:
    """One session while it is written.

    Args:
        context: Calls the daemon.
        header: Parameters of `session.create`.
        report: What the import finds.
    """

    def __init__(self, context: Context, header: Json, report: Report) -> None:
        """Take the session's id; nothing is on disk before `begin`."""
        self._context = context
        self._report = report
        made = context.call("session.create", header)
        self.id = str(made["session"]["id"])
        self.events = 0
        self._writer = str(made["writer"])
        self._batch: list[Json] = []
        self._bytes = self._values = 0
        self.course = Course(self._emit, report)

    def begin(self, source: Json) -> None:
        """Put it on disk with the event that says what it is an import of, then mark it as unfinished."""
        self._emit({"type": SOURCE, "data": carried(source), "ignorable": True})
        self._send()
        self._context.call("session.flush", {"id": self.id, "writer": self._writer})
        name = visible(str(source["file"]).rpartition("/")[2])[:_NAME_CHARS]
        self._context.call("session.setLabel", {"id": self.id, "title": UNFINISHED + name})

    def keep(self, line: int, kind: str, value: Any, time: int | None = None) -> None:
        """Keep a record, or what of one became nothing else."""
        event: Json = {
            "type": RECORD,
            "data": {"line": line, "kind": carried(kind), "record": carried(value)},
            "ignorable": True,
        }
        if time is not None:
            event["time"] = time
        if is_light(event):
            self._emit(event)
            self._report.taken["kept"] += 1
        else:
            self.keep_text(line, kind, json.dumps(value, ensure_ascii=False))

    def keep_text(self, line: int, kind: str, text: str) -> None:
        """Keep a line as it stood."""
        parts = list(text_parts(text))
        for number, part in enumerate(parts):
            data: Json = {"line": line, "kind": carried(kind), "text": part}
            if len(parts) > 1:
                data |= {"part": number + 1, "parts": len(parts)}
            self._emit({"type": RECORD, "data": data, "ignorable": True})
        self._report.taken["kept"] += 1

    def end(self, source: Json) -> None:
        """Close the session. It is marked as unfinished until the whole file is through."""
        self.course.end()
        found = {**source, **self._report.document()}
        self._emit({"type": REPORT, "data": carried(found), "ignorable": True})
        self._send()
        handle = {"id": self.id, "writer": self._writer}
        self._context.call("session.flush", handle)
        self._context.call("session.close", handle)

    def archive(self) -> Json:
        """Take the mark away and archive the session; return it as the daemon shows it then."""
        labels = {"id": self.id, "title": "", "archived": True}
        return self._context.call("session.setLabel", labels)["session"]  # type: ignore[no-any-return]  # the wire says so

    def abandon(self) -> None:
        """Take back what was written; what cannot be taken back lies in the list, unfinished."""
        call = self._context.call
        with suppress(DshdError, ClientError):
            try:
                call("session.close", {"id": self.id, "writer": self._writer})
            except (
                DshdError,
                ClientError,
            ):  # the handle went with its connection: take it once more, to give it up
                opened = call("session.open", {"id": self.id, "access": "write", "takeover": True})
                call("session.close", {"id": self.id, "writer": opened["writer"]})
        with suppress(DshdError, ClientError):
            call("session.delete", {"id": self.id})

    def _emit(self, event: Json) -> None:
        size, values = weight(event)
        full = self._bytes + size > MAX_EVENT_BYTES or self._values + values > MAX_EVENT_VALUES
        if full or len(self._batch) >= _BATCH_EVENTS:
            self._send()
        self._batch.append(event)
        self._bytes += size
        self._values += values

    def _send(self) -> None:
        if not self._batch:
            return
        params = {
            "id": self.id,
            "writer": self._writer,
            "events": self._batch,
            "expectedSeq": self.events,
        }
        self.events = self._context.call("session.append", params)["nextSeq"]
        self._batch = []
        self._bytes = self._values = 0
