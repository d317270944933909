"""The taxonomy of errors: one class per kind of the wire.

Code, kind, exit code and retryability are on the class, facts are on the instance. Programs branch on
`kind`, never on text. An error is raised where its facts are known and converted once: by the daemon's
dispatcher into a JSON-RPC error, by `dshctl` into an exit code, by the client back into the same class.

Standard library only: `dshctl` imports this module at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from dsh_protocol.jsontypes import is_object

if TYPE_CHECKING:
    from typing import Self

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NOT_RUNNING = 3
EXIT_NO_SUCH_SESSION = 4
EXIT_CONFLICT = 5
EXIT_CHECKPOINT_REFUSED = 6
EXIT_CANNOT_START = 78


class DshdError(Exception):
    """An error that the protocol knows.

    Args:
        message: One line, lower case, values quoted: what, which, since when, and what to do.
        **facts: Values for programs, sent beside `kind` in `error.data`. Any JSON value.
    """

    code: ClassVar[int]
    kind: ClassVar[str]
    exit_code: ClassVar[int] = EXIT_FAILURE
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def with_facts(self, **more: Any) -> Self:
        """Return the same error with more facts: one failure reaches several callers, each with its own."""
        return type(self)(self.message, **{**self.facts, **more})

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON-RPC error object."""
        data = {"kind": self.kind, "retryable": self.retryable, **self.facts}
        return {"code": self.code, "message": self.message, "data": data}


class ParseFailedError(DshdError):
    """A line is not JSON."""

    code = -32700
    kind = "PARSE_ERROR"
    exit_code = EXIT_USAGE


class InvalidRequestError(DshdError):
    """A line is JSON but not a JSON-RPC 2.0 request."""

    code = -32600
    kind = "INVALID_REQUEST"
    exit_code = EXIT_USAGE


class MethodNotFoundError(DshdError):
    """No method of that name."""

    code = -32601
    kind = "METHOD_NOT_FOUND"
    exit_code = EXIT_USAGE


class InvalidParamsError(DshdError):
    """Parameters that the method does not take; the text names the path."""

    code = -32602
    kind = "INVALID_PARAMS"
    exit_code = EXIT_USAGE


class ProtocolVersionError(DshdError):
    """Client and daemon have no protocol version in common."""

    code = 1001
    kind = "PROTOCOL_VERSION"


class FrameTooLargeError(DshdError):
    """A limit of size is passed; the fact `limit` names it."""

    code = 1002
    kind = "FRAME_TOO_LARGE"


class EventInvalidError(DshdError):
    """An event would make the log unloadable or ambiguous. Facts: `index`, `rule`."""

    code = 1003
    kind = "EVENT_INVALID"


class IdInvalidError(DshdError):
    """A session id that cannot name a directory."""

    code = 1004
    kind = "ID_INVALID"
    exit_code = EXIT_USAGE


class SessionNotFoundError(DshdError):
    """No session of that id."""

    code = 2001
    kind = "SESSION_NOT_FOUND"
    exit_code = EXIT_NO_SUCH_SESSION


class SessionExistsError(DshdError):
    """The id is taken."""

    code = 2002
    kind = "SESSION_EXISTS"
    exit_code = EXIT_CONFLICT


class SessionBusyError(DshdError):
    """Somebody else has the write handle. Facts: `holder` (pid, client, since, connected)."""

    code = 2003
    kind = "SESSION_BUSY"
    exit_code = EXIT_CONFLICT
    retryable = True


class WriterLostError(DshdError):
    """The writer string does not hold the write handle (any more)."""

    code = 2004
    kind = "WRITER_LOST"
    exit_code = EXIT_CONFLICT


class SeqConflictError(DshdError):
    """`expectedSeq` or an event's `seq` is not the next one. Facts: `expected`, `got`."""

    code = 2005
    kind = "SEQ_CONFLICT"
    exit_code = EXIT_CONFLICT


class OpenTurnError(DshdError):
    """A fork boundary lies inside a turn."""

    code = 2006
    kind = "OPEN_TURN"


class RecoveryRequiredError(DshdError):
    """The last turn was interrupted: call `session.recover` before appending."""

    code = 2007
    kind = "RECOVERY_REQUIRED"


class LogCorruptError(DshdError):
    """A defect in what was acknowledged. Facts: `path`, `offset`."""

    code = 3001
    kind = "LOG_CORRUPT"


class FormatUnsupportedError(DshdError):
    """A log of another format version or vocabulary."""

    code = 3002
    kind = "FORMAT_UNSUPPORTED"


class WriteFailedError(DshdError):
    """A write or sync failed; the batch is kept, in front. Facts: `errno`."""

    code = 3003
    kind = "WRITE_FAILED"


class NoSpaceError(DshdError):
    """The disk or a quota is full; the batch is kept, in front. Facts: `errno`."""

    code = 3004
    kind = "NO_SPACE"
    retryable = True


class SessionSealedError(DshdError):
    """A failed append could not be undone: reads and close only, until the daemon starts anew."""

    code = 3005
    kind = "SESSION_SEALED"


class LogChangedError(DshdError):
    """Another program changed the log under the daemon."""

    code = 3006
    kind = "LOG_CHANGED"


class RootLockedError(DshdError):
    """Another daemon has the root. Facts: `holder`."""

    code = 3007
    kind = "ROOT_LOCKED"
    exit_code = EXIT_CANNOT_START


class UnsafePathError(DshdError):
    """A path that leads out of the root, or is not what it must be."""

    code = 3008
    kind = "UNSAFE_PATH"


class ShuttingDownError(DshdError):
    """The daemon is stopping."""

    code = 4001
    kind = "SHUTTING_DOWN"
    retryable = True


class OverloadedError(DshdError):
    """A limit of flow is reached."""

    code = 4002
    kind = "OVERLOADED"
    retryable = True


class InternalFaultError(DshdError):
    """A defect of the daemon; its log has the details. Facts: `incident`."""

    code = 4003
    kind = "INTERNAL"


class CallCancelledError(DshdError):
    """The call was cancelled. Facts: `admitted` (firstSeq, nextSeq), where it had admitted events."""

    code = -32800
    kind = "CANCELLED"


def _kinds() -> dict[str, type[DshdError]]:
    return {cls.kind: cls for cls in DshdError.__subclasses__()}


def from_wire(error: dict[str, Any]) -> DshdError:
    """Return the error that a JSON-RPC error object stands for.

    A kind that this version does not know becomes a plain `DshdError` that keeps code, kind and facts.
    """
    data = error.get("data")
    facts = dict(data) if is_object(data) else {}
    kind = facts.pop("kind", None)
    retryable = facts.pop("retryable", False)
    message = str(error.get("message", ""))
    cls = _kinds().get(kind) if isinstance(kind, str) else None
    if cls is not None:
        return cls(message, **facts)
    unknown = DshdError(message, **facts)
    unknown.code = error.get("code", 0)  # type: ignore[misc]  # an instance of an unknown kind carries its own
    unknown.kind = str(kind)  # type: ignore[misc]  # likewise
    unknown.retryable = bool(retryable)  # type: ignore[misc]  # likewise
    return unknown
