from __future__ import annotations

import os
import shutil
import socket
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from dshd.binding import Binding
from dshd.listener import Listeners, open_listeners, run_listeners
from dshd.settings import CannotStartError, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

LONGER_THAN_A_LOOK_S = 5


@pytest.fixture
def folder() -> Generator[Path, None, None]:
    """A short private folder: a socket's path has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="dshd-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@asynccontextmanager
async def listening(folder: Path) -> AsyncGenerator[Listeners, None]:
    """Listeners in `folder/in` that greet whoever connects."""
    settings = Settings(socket=folder / "in/s", root=folder / "root", state_dir=folder / "state")

    async def accept(listener: trio.SocketListener) -> None:
        while True:
            async with await listener.accept() as stream:
                await stream.send_all(b"hello")

    with open_listeners(settings) as listeners:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_listeners, listeners, settings, accept)
            yield listeners
            nursery.cancel_scope.cancel()


async def greeting(path: Path) -> bytes:
    async with await trio.open_unix_socket(str(path)) as stream:
        return await stream.receive_some()


@pytest.mark.parametrize("what", ["file", "folder", "link", "fifo", "another program's socket"])
def test_a_path_that_is_refused_gets_no_lock_beside_it(folder: Path, what: str) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as other:
        if what == "file":
            path.write_text("mine")
        elif what == "folder":
            path.mkdir()
        elif what == "link":
            path.symlink_to("elsewhere")
        elif what == "fifo":
            os.mkfifo(path)
        else:
            other.bind(str(path))
            other.listen()
        before = path.lstat()
        with pytest.raises(CannotStartError), Binding(path):
            pass
        assert [one.name for one in folder.iterdir()] == ["s"]
        assert path.lstat().st_ino == before.st_ino


@pytest.mark.parametrize("removed", ["socket", "socket and lock", "folder"])
async def test_a_socket_that_was_removed_is_bound_again(
    folder: Path, removed: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with listening(folder):
        assert await greeting(folder / "in/s") == b"hello"
        if removed == "folder":
            shutil.rmtree(folder / "in")
        else:
            (folder / "in/s").unlink()
        if removed == "socket and lock":
            (folder / "in/s.lock").unlink()
        (folder / "state/socket").unlink()
        await trio.sleep(LONGER_THAN_A_LOOK_S)
        assert await greeting(folder / "in/s") == b"hello"
        assert (folder / "in/s").stat().st_mode & 0o777 == 0o600
        assert (folder / "state/socket").read_text() == str(folder / "in/s")
        with pytest.raises(CannotStartError, match="already listens"), Binding(folder / "in/s"):
            pass
    assert not (folder / "in/s").exists()


async def test_a_socket_that_another_daemon_has_locked_meanwhile_is_left_to_it(
    folder: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with listening(folder) as listeners:
        shutil.rmtree(folder / "in")
        with Binding(folder / "in/s") as other:
            await trio.sleep(LONGER_THAN_A_LOOK_S)
            assert not other.is_lost()
            assert listeners.problem is not None
            assert "already listens" in listeners.problem
        await trio.sleep(LONGER_THAN_A_LOOK_S)
        assert listeners.problem is None
        assert await greeting(folder / "in/s") == b"hello"


async def test_what_somebody_put_in_the_socket_s_place_is_left_there(
    folder: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with listening(folder) as listeners:
        (folder / "in/s").unlink()
        (folder / "in/s").write_text("kept")
        await trio.sleep(LONGER_THAN_A_LOOK_S)
        assert listeners.problem is not None
        assert (folder / "in/s").read_text() == "kept"
        (folder / "in/s").unlink()
        with socket.socket(socket.AF_UNIX) as foreign:
            foreign.bind(str(folder / "in/s"))
            foreign.listen()
            await trio.sleep(LONGER_THAN_A_LOOK_S)
            assert "another program listens" in listeners.problem
    assert (folder / "in/s").is_socket(), "the other program's socket was removed"
