"""The table of what is served: one line a method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dshd.rpc.handlers import checkpoint, daemon, order, session, watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from dshd.rpc.context import Context

HANDLERS: Mapping[str, Callable[[Context, Any], Awaitable[Any]]] = {
    "initialize": daemon.initialize,
    "session.create": session.create,
    "session.open": session.open_session,
    "session.append": session.append,
    "session.flush": session.flush,
    "session.recover": session.recover,
    "session.read": session.read,
    "session.messages": session.messages,
    "session.stat": session.stat,
    "session.list": session.list_sessions,
    "session.fork": session.fork_session,
    "session.close": session.close,
    "session.subscribe": watch.subscribe,
    "session.unsubscribe": watch.unsubscribe,
    "session.delete": order.delete_session,
    "session.undelete": order.undelete_session,
    "session.purge": order.purge_session,
    "session.setLabel": order.set_label,
    "session.search": order.search,
    "checkpoint.request": checkpoint.request,
    "checkpoint.tool": checkpoint.tool,
    "checkpoint.postStep": checkpoint.post_step,
    "checkpoint.turnEnd": checkpoint.turn_end,
    "daemon.status": daemon.status,
    "daemon.metrics": daemon.metrics,
    "daemon.shutdown": daemon.shutdown,
    "rpc.discover": daemon.discover,
}
