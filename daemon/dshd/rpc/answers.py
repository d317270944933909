"""The answers of one batch, which go out in one line.

The rule that holds here: what is too large for the line costs itself alone. Every call is answered under its own id,
and of large answers no more is kept than one line holds, however many of them are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_protocol import envelope
from dsh_protocol.errors import FrameTooLargeError

if TYPE_CHECKING:
    from dsh_protocol.envelope import CallId


class Answers:
    """Answers as they come, the largest of them replaced by an error where they would pass a line.

    Args:
        most_bytes: The longest line, its newline not counted. The errors of a whole batch fit it, by the limits of a
            batch and of an id.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._answers: dict[int, bytes] = {}
        self._ids: dict[int, CallId] = {}
        self._size = 1

    def put(self, at: int, answer: bytes) -> None:
        """Keep the answer of an item that is no call; it is small."""
        self._answers[at] = answer
        self._size += len(answer) + 1
        self._fit()

    def put_call(self, at: int, call_id: CallId, answer: bytes) -> None:
        """Keep the answer of a call."""
        self._ids[at] = call_id
        self.put(at, answer)

    def joined(self) -> bytes | None:
        """One line; None where nothing is to be answered, as JSON-RPC demands."""
        answers = [self._answers[at] for at in sorted(self._answers)]
        return envelope.encode_batch(answers) if answers else None

    def _fit(self) -> None:
        while self._size > self._most_bytes and self._ids:
            at = max(self._ids, key=lambda each: (len(self._answers[each]), each))
            answer = self._answers[at]
            told = envelope.encode_error(self._ids.pop(at), self._left_out(len(answer)))
            if len(told) < len(answer):
                self._answers[at] = told
                self._size += len(told) - len(answer)

    def _left_out(self, size: int) -> FrameTooLargeError:
        return FrameTooLargeError(
            f"the call was made, and its answer of {size} bytes is left out: with the others of its batch it"
            f" passes maxLineBytes ({self._most_bytes}); ask for less at a time, or in a line of its own",
            limit="maxLineBytes",
            maximum=self._most_bytes,
        )
