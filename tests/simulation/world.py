"""A world: a machine, a daemon, its clients and what befalls them, all of it out of one seed.

The rule that holds here: a world is its seed. `python -m simulation.world SEED` (with `tests` on the path) plays one
again, call by call, and prints what happened.
"""

from __future__ import annotations

import errno
import secrets
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import structlog
import trio

from dsh_protocol.errors import DshdError
from dshd.settings import Settings
from dshd.storage.jsonl.store import open_store
from simulation.agents import Agent, Client, Onlooker, RefusedError
from simulation.clock import JumpingClock
from simulation.disk import Fault
from simulation.machine import ROOT, Machine, now_ns
from simulation.oracle import BrokenPromiseError, Oracle, require
from support import events

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, MutableMapping

_WORLD_LIMIT_S = 20_000.0
_FOREVER = 1 << 40
_STORMY_LIVES = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a world.

    Attributes:
        trace: A digest of everything that happened; equal for equal seeds.
        broken: What did not hold; None where everything did.
        lives: How often the daemon was started.
        replies: How many lines it sent.
        acknowledged: How many events it called durable.
    """

    seed: int
    trace: str
    broken: str | None
    lives: int
    replies: int
    acknowledged: int


def play(
    seed: int,
    tell: Callable[[str], None] | None = None,
    prepare: Callable[[Machine], None] | None = None,
) -> Outcome:
    """Play the world of a seed to its end and judge it.

    Args:
        seed: Of everything.
        tell: Told of everything that happens.
        prepare: Changes the machine before anything runs on it.
    """
    return _judged(_World(seed, tell, prepare))


def play_calmly(seed: int, prepare: Callable[[Machine], None]) -> Outcome:
    """Play a larger world in which nothing happens to the daemon but what `prepare` has arranged."""
    return _judged(_World(seed, None, prepare, calm=True))


def _judged(world: _World) -> Outcome:
    broken = None
    logs = structlog.get_config()
    structlog.configure(processors=[world.log])
    try:
        run_simulated(world.seed, world.run)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: ASYNC103, BLE001  # the loop has ended: what ended it is the finding
        broken = _reason(error)
    finally:
        structlog.configure(**logs)
    if world.oracle.broken is not None:
        broken = world.oracle.broken
    if world.incidents and broken is None:
        broken = f"the log has {world.incidents[0]}"
    digest = world.trace.hexdigest()
    oracle = world.oracle
    return Outcome(world.seed, digest, broken, world.lives, oracle.replies, oracle.acknowledged)


def seeded(seed: int) -> Random:
    """Return a source of chance that is none."""
    return Random(seed)  # noqa: S311  # the same every time is what is wanted


def _reason(error: BaseException) -> str:
    while True:
        inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        if not inner:
            return f"{type(error).__name__}: {error}"
        error = inner[0]


def run_simulated(seed: int, main: Callable[[], Awaitable[None]]) -> None:
    """Run an event loop in which nothing is left to chance but what the seed decides."""
    with _substituted(seeded(seed)):
        trio.run(main, clock=JumpingClock())


@contextmanager
def _substituted(chance: Random) -> Generator[None, None, None]:
    """Put what is ours in the place of the clock and of the sources of chance.

    trio has a switch for a deterministic order of tasks, made for Hypothesis: with it the tasks that are ready are
    sorted by their numbers before its own source of chance shuffles them.
    """
    scheduler: Any = sys.modules["trio._core._run"]
    claims: Any = sys.modules["dshd.sessions.claims"]
    own: Any = scheduler._r  # noqa: SLF001  # there is no other way to seed it
    places: list[tuple[Any, str, Any]] = [
        (scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        (time, "time_ns", now_ns),
        (time, "time", lambda: now_ns() / 1e9),
        (secrets, "token_bytes", lambda count=32: chance.randbytes(count or 32)),
        (secrets, "randbits", chance.getrandbits),
        (claims, "process_alive", claims.process_alive),
        (claims, "boot_id", claims.boot_id),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in places]
    state = own.getstate()
    own.seed(chance.random())
    try:
        for place, name, value in places:
            setattr(place, name, value)
        yield
    finally:
        own.setstate(state)
        for place, name, value in before:
            setattr(place, name, value)


class _World:
    def __init__(
        self,
        seed: int,
        tell: Callable[[str], None] | None,
        prepare: Callable[[Machine], None] | None,
        *,
        calm: bool = False,
    ) -> None:
        self.seed = seed
        self.chance = seeded(seed)
        self.trace = blake2b(digest_size=16)
        self.lives = 0
        self._calm = calm
        self._scripted = calm
        self.incidents: list[str] = []
        self.oracle = Oracle(self._note)
        self._tell = tell
        self._prepare = prepare
        self._sessions: set[str] = set()

    def _note(self, text: str) -> None:
        self.trace.update(text.encode())
        if self._tell is not None:
            self._tell(f"{trio.current_time():.6f} {text}")

    def log(self, _logger: Any, level: str, entry: MutableMapping[str, Any]) -> Any:
        """Keep what the daemon logs as a defect of its own; the rest is dropped."""
        if entry["event"].endswith(".fault"):
            self.incidents.append(f"{entry['event']}: {entry.get('exc_info')!r}")
        self._note(f"log {level} {entry['event']}")
        raise structlog.DropEvent

    async def run(self) -> None:
        chance = self.chance
        settings = Settings(
            socket=Path("/simulated/socket"),
            root=ROOT,
            state_dir=ROOT,
            compression="none" if chance.random() < 0.4 and not self._scripted else "zstd",
            batch_window_s=0.2 if self._scripted else chance.choice((0.0, 0.01, 0.2)),
        )
        self.oracle.plain = settings.compression == "none"
        self.machine = machine = Machine(chance, self._note, settings, self.oracle)
        if self._prepare is not None:
            self._prepare(machine)
        claims: Any = sys.modules["dshd.sessions.claims"]  # put back by `_substituted`
        claims.process_alive, claims.boot_id = machine.process_alive, machine.boot_id
        with trio.move_on_after(_WORLD_LIMIT_S) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_alive)
                await self._play_clients()
                await self._judge()
                nursery.cancel_scope.cancel()
        require(not limit.cancelled_caught, "the world does not end")

    # ------------------------------------------------------------------ what befalls the daemon

    async def _keep_alive(self) -> None:
        """Start the daemon again and again, each time with what is to befall it."""
        while True:
            self.lives += 1
            self._plan()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._interfere)
                await self.machine.run_life()
                nursery.cancel_scope.cancel()
            orderly = self.machine.written is not None
            if self.machine.written is False:
                require(self.oracle.failing, "not everything could be written")
            self.machine.restart(power=self.chance.random() < (0.2 if orderly else 0.6))
            self._check_stored()
            await trio.sleep(self.chance.random())

    def _plan(self) -> None:
        """Decide when the disk fails and when the power goes."""
        disk, chance = self.machine.disk, self.chance
        disk.faults = ()
        disk.short = not self._scripted and chance.random() < 0.1
        self.machine.lazy = chance.choice((0.0, 0.1, 0.7))
        calm = self._calm or self.lives > _STORMY_LIVES
        if not calm and chance.random() < 0.5:
            disk.cut_at = disk.changes + chance.randint(1, 80)
        if not calm and chance.random() < 0.25:
            first = disk.changes + chance.randint(3, 60)
            last = first if chance.random() < 0.5 else first + chance.choice((1, 3, 10, _FOREVER))
            number = chance.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS))
            disk.faults = (Fault(first, last, number, half=chance.random() < 0.5),)
            self.oracle.failing = True

    async def _interfere(self) -> None:
        """Slow the disk down, stop the daemon or kill it, at some moment."""
        chance = self.chance
        kind = chance.random()
        if self._calm or self.lives > _STORMY_LIVES or kind > 0.5:
            return
        await trio.sleep(chance.random() ** 3 * 4)
        if kind < 0.2:
            self.machine.slow_until = trio.current_time() + chance.choice((0.5, 3.0, 30.0))
        elif kind < 0.35:
            self.machine.kill()
        else:
            self.machine.stop()

    # ------------------------------------------------------------------ the clients, and the end

    async def _play_clients(self) -> None:
        chance, machine = self.chance, self.machine
        if self._scripted:
            async with trio.open_nursery() as nursery:
                for number in range(2):
                    self._sessions.add(f"s{number}")
                    agent = Agent(machine, chance, 10 + number, f"s{number}")
                    nursery.start_soon(agent.play, 14)
                onlooker = Onlooker(machine, chance, 90)
                nursery.start_soon(onlooker.look, "s0", 4)
            return
        async with trio.open_nursery() as nursery:
            for number in range(chance.choice((1, 1, 1, 1, 2))):
                session_id = f"s{number}"
                self._sessions.add(session_id)
                agent = Agent(machine, chance, 10 + number, session_id)
                nursery.start_soon(agent.play, chance.randint(1, 8))
            if chance.random() < 0.25:
                onlooker = Onlooker(machine, chance, 90)
                nursery.start_soon(onlooker.look, "s0", chance.randint(1, 3))

    async def _judge(self) -> None:
        """Mend the disk, and demand everything of a daemon that nothing befalls any more."""
        self._calm = self.machine.judged = True
        disk = self.machine.disk
        disk.cut_at, disk.faults = 0, ()
        self.machine.slow_until = 0.0
        self._sessions |= set(self.oracle.known)
        await trio.sleep(60)
        self.machine.kill()
        self.machine.alive.clear()
        await trio.sleep(10)
        judge = Client(self.machine, self.chance, 5000)
        for session_id in sorted(self._sessions):
            await self._judge_one(judge, session_id)
        self.machine.kill()
        self.machine.restart(power=True)
        self._check_stored()

    async def _judge_one(self, judge: Client, session_id: str) -> None:
        try:
            opened = await judge.call("session.open", id=session_id, access="write")
        except RefusedError as error:
            require(error.kind == "SESSION_NOT_FOUND", f"{session_id} does not open: {error}")
            self.oracle.check(session_id, None)
            return
        handle = {"id": session_id, "writer": opened["writer"]}
        if opened["recovery"] is not None:
            await judge.call("session.recover", **handle)
        title = events.title(f"the end of {session_id}")
        added = await judge.call("session.append", **handle, events=[title])
        read = await judge.call("session.read", id=session_id)
        require(read["nextOffset"] == added["nextSeq"], f"{read} after {added}")
        self.oracle.check(session_id, read["events"])
        if self.chance.random() < 0.2:
            await judge.call("session.messages", id=session_id)
            await judge.call("session.close", **handle)

    def _check_stored(self) -> None:
        """Judge what is on the disk while no daemon runs, reading it as another program would."""
        store = open_store(ROOT, disk=self.machine.disk)
        for session_id in sorted(self._sessions):
            try:
                handle = store.open(session_id, "read")
            except DshdError as error:
                found = error.kind == "SESSION_NOT_FOUND"
                require(found, f"{session_id} cannot be read: {error}")
                self.oracle.check(session_id, None)
                continue
            try:
                stored = list(handle.read())
            except DshdError as error:
                raise BrokenPromiseError(f"{session_id} cannot be read: {error}") from error
            finally:
                handle.close()
            self.oracle.check(session_id, stored)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main(words: list[str]) -> int:
    """Play the worlds of some seeds and print what happened; exit with 1 where something did not hold."""
    broken = 0
    for word in words:
        outcome = play(int(word), _say)
        _say(str(outcome))
        broken += outcome.broken is not None
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
