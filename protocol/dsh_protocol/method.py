"""The closed table of methods: what the daemon answers, and all that it answers.

Adding a method is: its parameters and result in `methods/`, one line here, `make golden docs`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dsh_protocol.errors import InvalidParamsError, MethodNotFoundError
from dsh_protocol.jsontypes import is_object
from dsh_protocol.methods import checkpoint, daemon, session, watch
from dsh_protocol.objects import Empty, Params, Position, Recovery

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_FIELDS = 64
_LONGEST_NAME = 64
_LONGEST_REASON = 200
_AT = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_FIELD = re.compile(r"field `(?P<field>.*)`$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the wire.

    Attributes:
        name: As it is called.
        params: The type of its parameters.
        result: The type of its result; None for an OpenRPC document, and where nothing is answered.
        summary: One sentence.
        session_param: Whether `id` names a session.
        notification_allowed: Whether it may be called without an id.
    """

    name: str
    params: type[Params]
    result: type[msgspec.Struct] | None
    summary: str
    session_param: bool
    notification_allowed: bool


def _method(
    name: str,
    params: type[Params],
    result: type[msgspec.Struct] | None,
    *,
    notification_allowed: bool = False,
) -> Method:
    summary = (params.__doc__ or "").partition("\n")[0]
    names_session = "id" in params.__struct_fields__ and name != "$/cancelRequest"
    in_session = names_session and name != "session.create"
    return Method(name, params, result, summary, in_session, notification_allowed)


_TABLE: Final = (
    _method("initialize", daemon.InitializeParams, daemon.InitializeResult),
    _method("session.create", session.CreateParams, session.CreateResult),
    _method("session.open", session.OpenParams, session.OpenResult),
    _method(
        "session.append", session.AppendParams, session.AppendResult, notification_allowed=True
    ),
    _method("session.flush", session.FlushParams, Position),
    _method("session.recover", session.RecoverParams, Recovery),
    _method("session.read", session.ReadParams, session.ReadResult),
    _method("session.messages", session.MessagesParams, session.MessagesResult),
    _method("session.stat", session.StatParams, session.SessionResult),
    _method("session.list", session.ListParams, session.ListResult),
    _method("session.fork", session.ForkParams, session.SessionResult),
    _method("session.close", session.CloseParams, session.CloseResult),
    _method("session.subscribe", watch.SubscribeParams, watch.SubscribeResult),
    _method("session.unsubscribe", watch.UnsubscribeParams, Empty),
    _method("session.delete", session.DeleteParams, Empty),
    _method("session.undelete", session.UndeleteParams, session.SessionResult),
    _method("session.purge", session.PurgeParams, Empty),
    _method("session.setLabel", session.SetLabelParams, session.SessionResult),
    _method("session.search", session.SearchParams, session.SearchResult),
    _method("checkpoint.request", checkpoint.RequestParams, Position),
    _method("checkpoint.tool", checkpoint.ToolParams, checkpoint.ToolResult),
    _method("checkpoint.postStep", checkpoint.PostStepParams, Position),
    _method("checkpoint.turnEnd", checkpoint.TurnEndParams, Position),
    _method("daemon.status", daemon.StatusParams, daemon.StatusResult),
    _method("daemon.metrics", daemon.MetricsParams, daemon.MetricsResult),
    _method("daemon.shutdown", daemon.ShutdownParams, Empty),
    _method("rpc.discover", daemon.DiscoverParams, None),
    _method("$/cancelRequest", daemon.CancelParams, None, notification_allowed=True),
)

METHODS: Final[Mapping[str, Method]] = MappingProxyType({each.name: each for each in _TABLE})
"""Every method by name, in the order of the documentation."""

ALIASES: Final[Mapping[str, str]] = MappingProxyType({"$/cancel_request": "$/cancelRequest"})
"""Other names under which a method is called."""

NOTIFICATIONS: Final[Mapping[str, type[msgspec.Struct]]] = MappingProxyType(
    {
        "session.event": watch.EventNotice,
        "session.lagged": watch.LaggedNotice,
        "session.ended": watch.EndedNotice,
    }
)
"""What the daemon sends without being asked, with the type of the parameters."""


def find_method(name: str) -> Method:
    """Return the method of that name or alias.

    Raises:
        MethodNotFoundError: There is none.
    """
    found = METHODS.get(ALIASES.get(name, name))
    if found is None:
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
        raise MethodNotFoundError(f"no method '{shown}'; rpc.discover lists those there are")
    return found


def convert_params(method: Method | str, params: dict[str, Any]) -> Params:
    """Return the parameters as their type. Values are those of the JSON gate, so no number is negative zero.

    `1.0` counts as an integer, as it does everywhere in JSON; true and false do not.

    Raises:
        MethodNotFoundError: No such method.
        InvalidParamsError: One is missing, unknown or of the wrong type; the fact `path` names it.
    """
    wanted = find_method(method) if isinstance(method, str) else method
    try:
        return msgspec.convert(params, wanted.params)
    except msgspec.ValidationError as error:
        first = error
    try:
        return msgspec.convert(_with_integers(params), wanted.params)
    except msgspec.ValidationError:
        raise _invalid(wanted.name, str(first)) from first


def _with_integers(params: dict[str, Any]) -> dict[str, Any]:
    """Integral floats as integers, in the parameters and in the small objects among them."""
    if len(params) > _MOST_FIELDS:  # no method has so many: what is wrong has been told
        return params
    return {
        key: _with_integers(value) if is_object(value) else _integer(value)
        for key, value in params.items()
    }


def _integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _invalid(name: str, text: str) -> InvalidParamsError:
    found = _AT.search(text)
    path = "params" + (found["path"] if found else "")
    reason = text[: found.start()] if found else text
    field = _FIELD.search(reason)
    if field and ("missing" in reason or "unknown" in reason):
        path = f"{path}.{field['field'][:_LONGEST_NAME]}"
    reason = reason[:1].lower() + reason[1:_LONGEST_REASON]
    return InvalidParamsError(
        f"{name} cannot take '{path}': {reason}; rpc.discover shows its parameters", path=path
    )
