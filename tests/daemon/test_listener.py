from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from dshd.listener import is_admitted, open_listeners, peer, run_acceptor
from dshd.metrics import Metrics
from dshd.sessions.processes import Peer
from dshd.settings import CannotStartError, Settings

if TYPE_CHECKING:
    from collections.abc import Generator

ODD_FILES = ("file", "folder", "fifo", "link to nothing", "link to a file")


def make_odd(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("kept")
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere" if kind == "link to nothing" else __file__)


@pytest.fixture
def folder() -> Generator[Path, None, None]:
    """A short private folder: a socket's path has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="dshd-"))
    yield made
    shutil.rmtree(made)


def settings(folder: Path, name: str = "s") -> Settings:
    return Settings(socket=folder / name, root=folder / "root", state_dir=folder / "state")


@contextmanager
def umask(mask: int) -> Generator[None, None, None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def refusal(of: Settings) -> str:
    with pytest.raises(CannotStartError) as caught, open_listeners(of):
        pass
    return str(caught.value)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777])
async def test_socket_and_pointer_are_private_whatever_the_umask(folder: Path, mask: int) -> None:
    with umask(mask), open_listeners(settings(folder / "new")):
        assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "new/s").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / "new/s.lock").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / "new/state").stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "new/state/socket").stat().st_mode) == 0o600


async def test_the_pointer_names_the_socket_and_leaving_removes_the_socket(folder: Path) -> None:
    with open_listeners(settings(folder)):
        assert (folder / "state/socket").read_text() == str(folder / "s")
        assert (folder / "s").is_socket()
    assert not (folder / "s").exists()


async def test_a_peer_is_known_by_pid_uid_and_start_time(folder: Path) -> None:
    with open_listeners(settings(folder)) as (listener,):
        client = await trio.open_unix_socket(str(folder / "s"))
        stream = await listener.accept()
        who = peer(stream)
        assert (who.pid, who.uid, who.gid) == (os.getpid(), os.geteuid(), os.getegid())
        assert who.start_time is not None
        assert is_admitted(who)
        await client.aclose()
        await stream.aclose()


def test_no_other_user_is_admitted_not_even_root() -> None:
    for uid in {0, 1, 65534, os.geteuid() + 1} - {os.geteuid()}:
        assert not is_admitted(Peer(1, uid, uid, None))


@pytest.mark.parametrize("kind", ODD_FILES)
async def test_what_is_no_socket_is_refused_and_left_as_it_is(folder: Path, kind: str) -> None:
    make_odd(folder / "s", kind)
    before = (folder / "s").lstat()
    assert "is not a socket" in refusal(settings(folder))
    assert (folder / "s").lstat() == before


async def test_the_socket_of_a_killed_daemon_is_replaced(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "s"))
    with open_listeners(settings(folder)):
        client = await trio.open_unix_socket(str(folder / "s"))
        await client.aclose()


async def test_a_socket_that_somebody_listens_on_is_left_to_them_also_when_they_do_not_answer(
    folder: Path,
) -> None:
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(folder / "s"))
        living.listen(0)
        with socket.socket(
            socket.AF_UNIX
        ) as waiting:  # fills the queue: the next connect would block
            waiting.connect(str(folder / "s"))
            assert "another program listens" in refusal(settings(folder))
        assert (folder / "s").is_socket()


async def test_a_second_daemon_on_the_path_is_refused_by_the_lock_and_told_the_pid(
    folder: Path,
) -> None:
    with open_listeners(settings(folder)):
        os.unlink(folder / "s")  # noqa: PTH108  # the lock holds although the socket is gone
        assert f"a daemon (pid {os.getpid()}) already listens" in refusal(settings(folder))


async def test_leaving_does_not_remove_the_socket_of_a_successor(folder: Path) -> None:
    with open_listeners(settings(folder)):
        os.rename(folder / "s", folder / "old")  # noqa: PTH104  # a plain rename
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(folder / "s"))
    assert (folder / "s").is_socket()


@pytest.mark.parametrize("letter", ["s", "é"])
async def test_the_longest_path_is_bound_and_one_byte_more_is_refused(
    folder: Path, letter: str
) -> None:
    room = 107 - len(os.fsencode(folder)) - 1
    name = letter * (room // len(letter.encode())) + "x" * (room % len(letter.encode()))
    with open_listeners(settings(folder, name)):
        assert (folder / name).is_socket()
    text = refusal(settings(folder, name + "x"))
    assert "has 108 bytes and the kernel takes 107" in text


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o701])
async def test_a_folder_that_others_get_into_is_refused_with_the_remedy(
    folder: Path, mode: int
) -> None:
    (folder / "run").mkdir()
    (folder / "run").chmod(mode)
    text = refusal(settings(folder / "run"))
    assert f"mode {mode:04o}" in text
    assert f"chmod 700 {folder / 'run'}" in text
    assert os.listdir(folder / "run") == []  # noqa: PTH208  # names are enough


async def test_a_link_to_a_folder_is_refused_and_a_missing_parent_is_not_made(folder: Path) -> None:
    (folder / "real").mkdir(mode=0o700)
    (folder / "run").symlink_to("real")
    assert "it is a link" in refusal(settings(folder / "run"))
    assert "No such file" in refusal(settings(folder / "a" / "b"))
    assert not (folder / "a").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_what_belongs_to_another_user_is_refused(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(folder / "s"))
    os.chown(folder / "s", 12345, 12345)
    assert "belongs to uid 12345" in refusal(settings(folder))
    (folder / "run").mkdir(mode=0o700)
    os.chown(folder / "run", 12345, 12345)
    assert "belongs to uid 12345" in refusal(settings(folder / "run"))


async def test_a_lock_that_is_a_link_is_not_followed(folder: Path) -> None:
    (folder / "target").write_text("kept")
    (folder / "s.lock").symlink_to("target")
    assert "cannot be opened" in refusal(settings(folder))
    assert (folder / "target").read_text() == "kept"


async def test_accepting_starts_the_service_with_the_peer(folder: Path) -> None:
    served: list[Peer] = []

    async def serve(stream: trio.SocketStream, who: Peer) -> None:
        served.append(who)
        await stream.send_all(b"hello")
        await stream.aclose()

    with open_listeners(settings(folder)) as (listener,):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_acceptor, listener, nursery, serve, Metrics())
            client = await trio.open_unix_socket(str(folder / "s"))
            assert await client.receive_some() == b"hello"
            await client.aclose()
            nursery.cancel_scope.cancel()
    assert [who.pid for who in served] == [os.getpid()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_is_closed_unread_and_counted(folder: Path) -> None:
    metrics = Metrics()

    async def serve(stream: trio.SocketStream, who: Peer) -> None:
        raise AssertionError(f"let in: {who}")

    script = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); os.setgid(12345); os.setuid(12345);"
        "s.connect(sys.argv[1]); s.sendall(b'x'); print(s.recv(10))"
    )
    with open_listeners(settings(folder)) as (listener,):
        # The two outer walls are taken down, so that the innermost one is what is tested.
        await trio.Path(folder).chmod(0o755)
        await trio.Path(folder / "s").chmod(0o666)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_acceptor, listener, nursery, serve, metrics)
            done = await trio.run_process(
                [sys.executable, "-c", script, str(folder / "s")],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
            nursery.cancel_scope.cancel()
    assert (
        b"b''" in done.stdout or b"ConnectionReset" in done.stderr or b"BrokenPipe" in done.stderr
    )
    assert metrics.value("dshd_peers_refused", reason="other-user") == 1


def test_descriptors_that_run_out_pause_accepting_without_a_flood_in_the_log(folder: Path) -> None:
    script = f"""
import resource, socket, trio
from pathlib import Path
from dshd.listener import open_listeners, run_acceptor
from dshd.logs import configure_logs
from dshd.metrics import Metrics
from dshd.sessions.processes import Peer
from dshd.settings import Settings

folder = Path({str(folder)!r})
held = []
answered = trio.Event()

async def serve(stream, who):
    held.append(stream)
    answered.set()

async def main():
    global answered
    configure_logs()
    metrics = Metrics()
    with open_listeners(Settings(folder / "s", folder / "root", folder / "state")) as (listener,):
        async with trio.open_nursery() as nursery:
            clients = [socket.socket(socket.AF_UNIX) for _ in range(40)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            for client in clients:
                client.connect(str(folder / "s"))
            nursery.start_soon(run_acceptor, listener, nursery, serve, metrics)
            while metrics.value("dshd_accept_failures") < 3:
                await trio.sleep(0.01)
            before = len(held)
            for stream in held:
                stream.socket.close()
            while len(held) == before:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

trio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr.count("listener.exhausted") == 1
    assert done.stderr.count("\n") == 1
