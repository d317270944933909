"""What a handler is given: the daemon's services, the connection, the call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dshd.rpc.making import Making
from dshd.sessions.asked import Caller
from dshd.sessions.claims import Taker

if TYPE_CHECKING:
    from collections.abc import Callable

    import trio

    from dshd.metrics import Metrics
    from dshd.rpc.calls import Call
    from dshd.rpc.outbox import Outbox
    from dshd.sessions.catalogue import Catalogue
    from dshd.sessions.processes import Peer
    from dshd.sessions.registry import Registry
    from dshd.sessions.search import Search
    from dshd.sessions.watchers import Watcher
    from dshd.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """What one daemon has, for all its connections.

    Attributes:
        socket: The path at which it listens.
        unreachable: Tells why clients cannot find the socket there, or None where they can.
        instance_id: Of this run of the daemon.
        started_at: Epoch milliseconds.
        places: One for every connection that is served at a time.
        stopping: Set when the daemon is to end; connections then finish what is in flight.
        making: Who makes a large reply, over all connections.
    """

    settings: Settings
    registry: Registry
    catalogue: Catalogue
    search: Search
    metrics: Metrics
    socket: str
    unreachable: Callable[[], str | None]
    instance_id: str
    started_at: int
    places: trio.CapacityLimiter
    stopping: trio.Event
    making: Making = field(default_factory=Making)


@dataclass(eq=False, slots=True)
class Connected:
    """One connection as handlers see it.

    Attributes:
        peer: Credentials from the kernel.
        client: The name given in `initialize`.
        outbox: Where notifications go.
        nursery: Of the connection; subscriptions run there.
        subscriptions: The connection's own, by id.
    """

    peer: Peer
    outbox: Outbox
    nursery: trio.Nursery
    client: str = "unnamed client"
    subscriptions: dict[str, tuple[Watcher, trio.CancelScope]] = field(
        default_factory=dict[str, "tuple[Watcher, trio.CancelScope]"]
    )

    def taker(self) -> Taker:
        """This connection as one that asks for a write handle."""
        return Taker(self, self.peer.pid, self.peer.start_time, self.client)


@dataclass(frozen=True, slots=True)
class Context:
    """One call with everything around it."""

    services: Services
    connection: Connected
    call: Call

    def caller(self) -> Caller:
        """The call as sessions see it."""
        call = self.call
        return Caller(call.note_admission, call.is_cancelled, call.hold_cancel)
