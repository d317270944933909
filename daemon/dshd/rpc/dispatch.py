"""From a request to a result or an error: the only importer of jsonrpcserver.

The library's pure steps look the method up and bind its arguments. Handlers never show it an exception of their own
making: its answer to one would carry the exception's text. What it refuses is rewritten to our kinds.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from inspect import BoundArguments, Signature, signature
from typing import TYPE_CHECKING, Any, cast

from jsonrpcserver import Success
from jsonrpcserver.async_dispatcher import dispatch_request
from jsonrpcserver.exceptions import JsonRpcError
from jsonrpcserver.request import Request as LibraryRequest
from oslash.either import Left  # type: ignore[import-untyped]  # the library's own, without types

from dsh_protocol.errors import DshdError, InternalFaultError, InvalidParamsError, from_wire
from dsh_protocol.method import METHODS, convert_params, find_method
from dshd.sessions.incidents import new_incident
from dshd.sessions.threads import out_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from dshd.rpc.context import Context

_METHOD_NOT_FOUND = -32601
_INVALID_PARAMS = -32602
_MOST_PARAMS = 64

logging.getLogger("jsonrpcserver").disabled = True
logging.getLogger("jsonrpcserver.async_dispatcher").disabled = True


class Dispatcher:
    """The methods that this daemon serves.

    Args:
        handlers: By method name; each takes the context and the converted parameters. A method of the closed table
            without a handler is answered as unknown.
    """

    def __init__(self, handlers: Mapping[str, Callable[[Context, Any], Awaitable[Any]]]) -> None:
        unknown = handlers.keys() - METHODS.keys()
        if unknown:
            raise ValueError(f"no such methods in the table: {sorted(unknown)}")
        self._handlers = dict(handlers)
        self._methods = {name: _wrap(name, handler) for name, handler in handlers.items()}

    async def dispatch(self, context: Context) -> Any:
        """Serve the context's request and return the result object.

        Raises:
            DshdError: What to answer instead.
        """
        request = context.call.request
        name = find_method(request.method).name
        if name not in self._methods:
            raise from_wire(_not_served(name))
        if len(request.params) > _MOST_PARAMS:  # the library would bind every single one first
            convert_params(name, request.params)
        asked = LibraryRequest(method=name, params=request.params, id=request.id)
        _, outcome = await dispatch_request(self._methods, context, asked)
        either = cast("Any", outcome)  # the library's Either has no types, and no other way in
        if type(either) is Left:
            raise _rewritten(name, vars(either)["_error"])
        return cast("Any", vars(either)["_value"]).result

    async def directly(self, context: Context) -> Any:
        """Serve a request for one of the handlers as `dispatch` does, without the library.

        For what an agent waits for in every step: there the library costs as much as the handler.

        Raises:
            DshdError: What to answer instead.
        """
        request = context.call.request
        handler = self._handlers.get(request.method)
        if handler is None:
            return await self.dispatch(context)
        return await _served(handler, request.method, context, request.params)


async def _served(
    handler: Callable[[Context, Any], Awaitable[Any]],
    name: str,
    context: Context,
    params: dict[str, Any],
) -> Any:
    """Call a handler. Raises DshdError and nothing else."""
    try:
        return await handler(context, convert_params(name, params))
    except DshdError:
        raise
    except MemoryError as error:
        raise out_of("memory") from error
    except Exception as error:  # it stays in the call, and its text here
        raise new_incident("rpc.fault", error, method=name) from error


def _wrap(name: str, handler: Callable[[Context, Any], Awaitable[Any]]) -> Callable[..., Any]:
    async def method(context: Context, /, **params: Any) -> Any:
        try:
            return Success(await _served(handler, name, context, params))
        except DshdError as error:  # of any other the library would send the text to the client
            wire = error.to_wire()
            raise JsonRpcError(wire["code"], wire["message"], wire["data"]) from error

    # The library asks for it at every call, and finds it here instead of reading the function anew.
    cast("Any", method).__signature__ = _Open(list(signature(method).parameters.values()))
    return method


class _Open(Signature):
    """The signature of what takes any names: binding them one by one, which the library asks for, can never fail."""

    def bind(self, /, *_args: Any, **_kwargs: Any) -> BoundArguments:
        """Bind nothing; the library does not look at it."""
        return BoundArguments(self, OrderedDict())


def _not_served(name: str) -> dict[str, Any]:
    return {
        "code": _METHOD_NOT_FOUND,
        "message": f"method '{name}' is not served by this version; daemon.status names it",
        "data": {"kind": "METHOD_NOT_FOUND", "retryable": False},
    }


def _rewritten(name: str, refused: Any) -> DshdError:
    """Turn an error that passed the library into ours; its own have no kind."""
    data = cast("dict[str, Any]", refused.data)
    if isinstance(refused.data, dict) and "kind" in data:
        return from_wire({"code": refused.code, "message": refused.message, "data": data})
    if refused.code == _INVALID_PARAMS:
        return InvalidParamsError(f"{name} does not take these parameters; see rpc.discover")
    return InternalFaultError("the dispatcher refused the call", incident="none")
