"""Following a session: durable events as they come, from any seq on."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from dsh_protocol import envelope
from dsh_protocol.errors import DshdError, OverloadedError, SessionNotFoundError
from dshd.sessions import reading
from dshd.sessions.watchers import DELETED, Watcher

if TYPE_CHECKING:
    from dsh_protocol.methods import watch as methods
    from dshd.rpc.context import Context


async def subscribe(context: Context, params: methods.SubscribeParams) -> dict[str, Any]:
    """Begin to follow; the first event comes after this reply."""
    registry, connection = context.services.registry, context.connection
    limit = context.services.settings.limits.max_subscriptions
    if len(connection.subscriptions) >= limit:
        raise OverloadedError(
            f"this connection has {limit} subscriptions, which is maxSubscriptions; end one first",
            limit="maxSubscriptions",
            maximum=limit,
        )
    await registry.require_stored(params.id)
    subscription_id = secrets.token_hex(8)
    watcher, scope = Watcher(params.id, params.from_seq), trio.CancelScope()
    connection.subscriptions[subscription_id] = (watcher, scope)
    registry.watchers.add(watcher)
    context.call.after_reply = lambda: connection.nursery.start_soon(
        _follow, context, subscription_id
    )
    return {"subscriptionId": subscription_id}


async def unsubscribe(context: Context, params: methods.UnsubscribeParams) -> dict[str, Any]:
    """Stop following. One that has ended already is no error."""
    found = context.connection.subscriptions.get(params.subscription_id)
    if found is not None:
        found[1].cancel()
        _forget(context, params.subscription_id)
    return {}


def _forget(context: Context, subscription_id: str) -> None:
    found = context.connection.subscriptions.pop(subscription_id, None)
    if found is not None:
        context.services.registry.watchers.remove(found[0])


async def _follow(context: Context, subscription_id: str) -> None:
    found = context.connection.subscriptions.get(subscription_id)
    if found is None:
        return
    watcher, scope = found
    with scope:
        try:
            while await _send_next(context, subscription_id, watcher):
                pass
        except SessionNotFoundError:  # it was there when the subscription began
            _tell(context, "session.ended", subscription_id, reason=DELETED)
        except DshdError as error:
            _tell(context, "session.ended", subscription_id, reason=error.message)
    _forget(context, subscription_id)


async def _send_next(context: Context, subscription_id: str, watcher: Watcher) -> bool:
    """Send what the watcher is owed next; False when the subscription has ended."""
    if watcher.ended is not None and not watcher.queued:
        _tell(context, "session.ended", subscription_id, reason=watcher.ended)
        return False
    if watcher.lagged:
        context.services.metrics.inc("dshd_subscriptions_lagged")
        _tell(context, "session.lagged", subscription_id, fromSeq=watcher.next_seq)
        return False
    if not watcher.joined:
        await _catch_up(context, subscription_id, watcher)
        return True
    await watcher.wait_change()
    await context.connection.outbox.wait_room()  # and take only then: the queue is bounded
    events = [msgspec.Raw(line) for line in watcher.take()]
    if events:
        _tell(context, "session.event", subscription_id, events=events)
    return True


async def _catch_up(context: Context, subscription_id: str, watcher: Watcher) -> None:
    """Send a page of stored events, or join the watcher to the live ones where there is none left."""
    registry = context.services.registry
    async with context.connection.outbox.large(refused=False):
        # in here, or every subscription of a peer that does not read would hold a page
        watcher.missed = False
        events = await reading.durable_page(registry, watcher.session_id, watcher.next_seq)
        if events:
            _tell(context, "session.event", subscription_id, events=events)
            watcher.next_seq += len(events)
        elif not watcher.missed:
            registry.watchers.join(watcher)


def _tell(context: Context, method: str, subscription_id: str, **params: Any) -> None:
    message = {"subscriptionId": subscription_id, **params}
    context.connection.outbox.put(envelope.encode_notification(method, message))
