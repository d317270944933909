"""What can go wrong on this side of the socket.

Errors that the daemon answers are the classes of `dsh_protocol.errors`; the ones here are found by the client alone, so
they have no code on the wire. An error says whether a tool may have been allowed to run: none of these ever does.
"""

from __future__ import annotations

from typing import ClassVar

from dsh_protocol.errors import EXIT_CHECKPOINT_REFUSED, EXIT_FAILURE, EXIT_NOT_RUNNING


class ClientError(Exception):
    """An error found by the client, not answered by the daemon.

    Args:
        message: One line, lower case: what, which, since when, and what to do.
    """

    exit_code: ClassVar[int] = EXIT_FAILURE

    def __init__(self, message: str) -> None:
        """Keep the text; an error of this family carries no other facts."""
        super().__init__(message)
        self.message = message


class DaemonUnavailableError(ClientError):
    """No daemon answers at the socket, or it went away and did not come back in time."""

    exit_code = EXIT_NOT_RUNNING


class ConnectionLostError(DaemonUnavailableError):
    """The connection ended before the answer came: whether the call was carried out is not known."""


class CallTimeoutError(ClientError):
    """A call got no answer in time. Its connection is closed: whether it was carried out is not known."""


class AnswerUnreadableError(ClientError):
    """What came over the socket is not an answer; the connection is closed."""


class LatchedError(ClientError):
    """An earlier checkpoint of this write handle failed: nothing was sent, nothing may run.

    Call `flush()` on the session; the latch opens when that succeeds.

    Attributes:
        first_failure: What closed the latch.
    """

    exit_code = EXIT_CHECKPOINT_REFUSED

    def __init__(self, message: str, first_failure: BaseException) -> None:
        """Keep the failure that closed the latch."""
        super().__init__(message)
        self.first_failure = first_failure


class NotDispatchedError(ClientError):
    """The daemon did not let this tool call run (its checkpoint had been cancelled); the result is recorded."""

    exit_code = EXIT_CHECKPOINT_REFUSED


class MisuseError(ClientError):
    """The program asked for something that the order of turn, step, request and tool does not allow."""
