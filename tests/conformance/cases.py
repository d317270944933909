"""How a case is written down: a function over what it judges, with the ids of the contract that it holds.

The one rule: a case asks for nothing but the seam. It may be run on anybody's store.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from dshd.storage.store import SessionStore

Subject = TypeVar("Subject")


class Storage(Protocol):
    """A place where sessions are stored, empty at first."""

    def open(self) -> SessionStore:
        """Return a store over it that shares no memory with those returned before.

        So would a second process see it, or the same one after a restart.
        """
        ...


class FileStorage(Storage, Protocol):
    """A place where sessions are stored as files of format version 0."""

    @property
    def root(self) -> Path:
        """The root of the sessions."""
        ...

    @property
    def log_name(self) -> str:
        """The name of a new log's file."""
        ...


@dataclass(frozen=True)
class Case(Generic[Subject]):
    """One case: the ids of the contract that it holds, and the check."""

    ids: tuple[str, ...]
    check: Callable[[Subject], None]

    @property
    def name(self) -> str:
        """The ids and the function's name, for a report."""
        return f"{'-'.join(self.ids)}-{self.check.__name__.removeprefix('check_')}"


class Suite(Generic[Subject]):
    """Cases over one kind of subject, in order."""

    def __init__(self) -> None:
        self.cases: list[Case[Subject]] = []

    def holds(self, *ids: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
        """Add the decorated check as a case that holds these ids."""

        def add(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
            self.cases.append(Case(ids, check))
            return check

        return add


@contextmanager
def refused(*errors: type[Exception]) -> Generator[list[Any], None, None]:
    """Demand that what is inside is refused with one of these errors, and give it.

    Raises:
        AssertionError: It was not refused.
    """
    caught: list[Any] = []
    try:
        yield caught
    except errors as error:
        caught.append(error)
        return
    raise AssertionError(f"not refused with any of {[error.__name__ for error in errors]}")
