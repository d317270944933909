"""What every verb gets: the output, the daemon's connection, and how a person names a session.

The rule: a session is named by its whole id, a prefix that only one id has, or `@last`; an id that holds control
characters may be written as `dshctl` shows it. A whole id always wins, and a name is resolved once, so that what
follows speaks of one session whatever happens meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsh_client.cli.text import escape
from dsh_client.cli.values import as_object, has_utf8
from dsh_protocol.errors import EXIT_USAGE, IdInvalidError, SessionNotFoundError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator

    from dsh_client.blocking import Client
    from dsh_client.cli.output import Output
    from dsh_client.cli.redaction import Redactor

LAST = "@last"
_PAGE = 1000
_CANDIDATES = 20


class UsageError(Exception):
    """The command cannot be meant as it is written. The text says what to write instead."""

    exit_code = EXIT_USAGE


class Context:
    """One command's surroundings.

    Args:
        out: Where results and notes go.
        arguments: The parsed options that all verbs share: `socket`, `timeout`, `no_redact`.
    """

    def __init__(self, out: Output, arguments: Namespace) -> None:
        """Keep the options; nothing is connected yet."""
        self.out = out
        self._socket: str | None = arguments.socket
        self._timeout: float = arguments.timeout
        self._any_version: bool = getattr(arguments, "any_version", False)
        self._client: Client | None = None
        self._redacts: bool = not arguments.no_redact
        self._redactor: Redactor | None = None

    @property
    def redactor(self) -> Redactor | None:
        """What hides secrets in this command's output; None where they are asked for."""
        if self._redacts and self._redactor is None:
            from dsh_client.cli.redaction import Redactor  # nothing to hide in most commands

            self._redactor = Redactor()
        return self._redactor

    def clean(self, value: Any) -> Any:
        """Return a value of a session as it may be shown: a JSON value without likely secrets."""
        return value if self.redactor is None else self.redactor.value(value)

    def tell_redacted(self) -> None:
        """Say on standard error how many secrets were hidden, and how to see them."""
        counts = {} if self._redactor is None else self._redactor.counts
        if total := sum(counts.values()):
            kinds = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            likely = "likely secret is" if total == 1 else "likely secrets are"
            self.out.note(f"{total} {likely} hidden ({kinds}); to see them: --no-redact")

    def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Call the daemon; the connection is made by the first call and kept.

        Raises:
            DshdError: What the daemon answered.
            ClientError: Why it could not be asked, or gave no answer.
            PathUnusableError: The environment names a place that cannot be used.
        """
        if self._client is None:
            from dsh_client.blocking import Client  # `--help` needs no client

            self._client = Client(self._socket, name="dshctl", timeout=self._timeout)
        link = self._client.link(self._timeout, any_version=self._any_version)
        # Not `Client.call`: a raw call may have a parameter named `method`, or one that is null.
        return link.wait(link.start(method, params or {}, self._timeout), self._timeout)

    @property
    def greeting(self) -> dict[str, Any]:
        """What the daemon answered to `initialize`; empty where it did not, or was not asked."""
        return {} if self._client is None else self._client.server

    @property
    def daemon_version(self) -> str | None:
        """The version of the daemon that was asked last; None where none told it."""
        server = as_object(self.greeting.get("server"))
        return str(server["version"]) if "version" in server else None

    def close(self) -> None:
        """Close the connection, where there is one."""
        if self._client is not None:
            self._client.close()

    def call_session(self, method: str, name: str, params: dict[str, Any]) -> tuple[str, Any]:
        """Call a method that takes a session's `id`, and return the id that `name` stands for with the result.

        Raises:
            UsageError: Several ids begin with `name`.
            SessionNotFoundError: None does.
        """
        if name == LAST:
            found = self._last()
            return found, self.call(method, {"id": found, **params})
        if has_utf8(name):
            with suppress(SessionNotFoundError, IdInvalidError):
                return name, self.call(method, {"id": name, **params})
        found = self._by_prefix(name)
        return found, self.call(method, {"id": found, **params})

    def sessions(
        self, filters: dict[str, Any], limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the results of `session.list`, page by page, until `limit` sessions were asked for."""
        cursor: str | None = None
        left = limit
        while True:
            params = dict(filters)
            params["limit"] = _PAGE if left is None else min(left, _PAGE)
            if cursor is not None:
                params["cursor"] = cursor
            page = self.call("session.list", params)
            yield page
            cursor = page.get("nextCursor")
            if left is not None:
                left -= len(page["sessions"])
            if cursor is None or (left is not None and left <= 0):
                return

    def _last(self) -> str:
        page = self.call("session.list", {"limit": 1})
        for session in page["sessions"]:
            return str(session["id"])
        raise SessionNotFoundError(f"there is no session yet, so {LAST} names none")

    def _by_prefix(self, prefix: str) -> str:
        """Return the only id that begins with `prefix`, or is shown so."""
        pages = self.sessions({}) if prefix else ()
        return self.pick(prefix, (str(one["id"]) for page in pages for one in page["sessions"]))

    def pick(self, prefix: str, ids: Iterable[str]) -> str:
        """Return the only one of some ids that begins with `prefix`, or is shown so.

        Raises:
            UsageError: Several do.
            SessionNotFoundError: None does.
        """
        found = {one: None for one in ids if prefix and _begins(one, prefix)}
        whole = [one for one in found if prefix in {one, escape(one)}]
        if len(whole or found) == 1:
            return next(iter(whole or found))
        if not found:
            raise SessionNotFoundError(
                f"no session has the id {escape(prefix)!r}, and none begins with it"
            )
        shown = [f"  {escape(one)}" for one in list(found)[:_CANDIDATES]]
        if len(found) > _CANDIDATES:
            shown.append(f"  and {len(found) - _CANDIDATES} more")
        head = f"{len(found)} sessions begin with {escape(prefix)!r}; write more of the id:"
        raise UsageError("\n".join([head, *shown]))


def _begins(session_id: str, prefix: str) -> bool:
    return session_id.startswith(prefix) or escape(session_id).startswith(prefix)
