"""What every adapter needs of the two worlds that it stands between: a framework's module, a thread, plain JSON.

It owns nothing. The one rule: a framework is imported by the adapter that somebody asked for, and by nothing else.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SAFE_INTEGER = 2**53 - 1


def load(module: str, distribution: str) -> Any:
    """Return a framework's module, untyped: the adapters are checked where no framework is installed.

    Raises:
        ImportError: It is not there; the text says what to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"this adapter needs {module!r}, which cannot be imported ({error}); pip install {distribution}"
        ) from error


async def aside(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run blocking code of the recorder in a thread, under asyncio or trio.

    The session's handle is a blocking one because it outlives what asynchronous clients live in: the tasks in which a
    framework calls its hooks, and event loops. A cancelled caller loses its wait; what was asked for goes on.
    """
    call = partial(function, *args, **kwargs)
    limiter = anyio.CapacityLimiter(
        1
    )  # its own: tools that fill the shared pool must not delay a checkpoint
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)


def text_delta(index: int, text: str, *, reasoning: bool = False) -> dict[str, Any]:
    """Return a piece of a streamed text as the log has it."""
    return {"type": "reasoning-delta" if reasoning else "text-delta", "index": index, "text": text}


def call_delta(index: int, call_id: str, name: str | None, arguments: str) -> dict[str, Any]:
    """Return a piece of a streamed call as the log has it; the name comes with the first."""
    found = {"type": "tool-call-delta", "index": index, "id": call_id, "argumentsDelta": arguments}
    return {**found, "name": name} if name else found


def as_mapping(value: Any) -> Mapping[Any, Any] | None:
    """Return the value where it is a mapping, typed; else None."""
    return value if isinstance(value, Mapping) else None  # pyright: ignore[reportUnknownVariableType]  it was Any


def as_list(value: Any) -> list[Any]:
    """Return a list: the value itself, or one that holds it."""
    return value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]  likewise


def jsonable(value: Any) -> Any:  # noqa: PLR0911  one return for each kind of JSON value
    """Return a value as the log takes it: what is not JSON becomes text, so that a tool's result is never refused."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if type(value) is str and value.isascii():
            return value
        return value.encode("utf-8", "backslashreplace").decode()  # a lone surrogate is no text
    if isinstance(value, int):
        return int(value) if abs(value) <= _SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return (value or 0.0) if math.isfinite(value) else str(value)
    members = as_mapping(value)
    if members is not None:
        return {jsonable(str(key)): jsonable(member) for key, member in members.items()}
    if isinstance(value, list | tuple):
        return [jsonable(member) for member in cast("list[Any]", value)]
    return jsonable(str(value))
