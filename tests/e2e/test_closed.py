"""Nobody but the daemon's own user gets in, whatever the route; no id leads out of the root."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.daemon import DaemonProcess, open_daemon
from support.figures import figure
from support.rpc import CallRefusedError, Connection

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

OTHER_UID = 12345
CALLER = """
import json, socket, sys
one = socket.socket(socket.AF_UNIX)
one.settimeout(5)
try:
    one.connect(sys.argv[1])
    one.sendall(b'{"jsonrpc":"2.0","id":1,"method":"daemon.status"}\\n')
    answer = one.recv(100)
except (BrokenPipeError, ConnectionResetError):
    print("closed unread")
except OSError as error:
    print(type(error).__name__)
else:
    print("let in" if answer else "closed unread")
"""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)


def call_as(uid: int, socket: Path, *wrapper: str) -> str:
    """What a process of another user gets."""
    become = ["setpriv", f"--reuid={uid}", "--regid=65534", "--clear-groups", "--no-new-privs"]
    caps = ["--inh-caps=-all", "--bounding-set=-all"] if uid else []
    done = subprocess.run(
        [*become, *caps, *wrapper, "/usr/bin/python3", "-c", CALLER, str(socket)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout.strip() or done.stderr.strip()


@contextmanager
def reachable(tmp_path: Path) -> Generator[DaemonProcess, None, None]:
    """A daemon whose socket anybody could reach, were its folder and mode what they should never be."""
    with open_daemon(tmp_path) as daemon:
        yield daemon


@needs_root
@pytest.mark.parametrize("opened", [(), ("folder",), ("folder", "socket")], ids=len)
def test_another_user_gets_in_by_no_route(tmp_path: Path, opened: Sequence[str]) -> None:
    with reachable(tmp_path) as daemon:
        if "folder" in opened:
            daemon.socket.parent.chmod(0o755)
        if "socket" in opened:
            daemon.socket.chmod(0o666)
        expected = "closed unread" if "socket" in opened else "PermissionError"
        assert call_as(OTHER_UID, daemon.socket) == expected
        if shutil.which("unshare") is not None:
            inside = call_as(OTHER_UID, daemon.socket, "unshare", "--user", "--map-root-user")
            if "unshare" not in inside:  # user namespaces are allowed here
                assert inside == expected, "root of a namespace of its own is another user, too"
        refused = figure(daemon, "dshd_peers_refused_total")
        assert (refused > 0) == ("socket" in opened)
        assert daemon.call("daemon.status")
        assert daemon.output().count("peer") == 0, "a line for each refused peer would fill the log"


@needs_root
def test_root_is_not_let_in_to_another_user_s_daemon() -> None:
    base = Path(tempfile.mkdtemp(prefix="dshd-"))
    try:
        base.chmod(0o711)
        home = base / "home"
        home.mkdir()
        os.chown(home, OTHER_UID, 65534)
        become = ("setpriv", f"--reuid={OTHER_UID}", "--regid=65534", "--clear-groups")
        daemon = DaemonProcess(home, prefix=become)
        os.chown(daemon.socket.parent, OTHER_UID, 65534)
        log = home / "dshd.log"
        log.touch()
        daemon.launch()
        for _ in range(400):
            if daemon.socket.exists() or daemon.process.poll() is not None:
                break
            subprocess.run(["sleep", "0.05"], check=True)  # noqa: S607  # a real process starts by the real clock
        if daemon.process.poll() is not None:
            pytest.skip(f"that user cannot run this program: {daemon.output()[-200:]}")
        assert call_as(0, daemon.socket) == "closed unread"
        assert call_as(OTHER_UID, daemon.socket) == "let in"
        daemon.remove()
    finally:
        shutil.rmtree(base)


def hostile_ids(count: int) -> list[str]:
    """Ids that would lead somewhere else if they were paths, and any others."""
    choose = random.Random(count)  # noqa: S311  # the same ids every time
    parts = [
        "..",
        ".",
        "/",
        "\\",
        "~",
        "~002F",
        "\0",
        "a",
        "é",
        "😀",
        " ",
        "\n",
        "-",
        "etc",
        "~FFFF",
        "%2e",
    ]
    return ["".join(choose.choices(parts, k=choose.randrange(1, 12))) for _ in range(count)]


@pytest.mark.slow
def test_ten_thousand_hostile_ids_open_nothing_outside_the_root(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    prefix = (
        "strace",
        "-f",
        "-qq",
        "-o",
        str(trace),
        "-e",
        "trace=openat,openat2,open,mkdirat,unlinkat",
    )
    with open_daemon(tmp_path, prefix=prefix) as daemon, Connection(daemon.socket) as one:
        before, kinds = trace.stat().st_size, set[str]()
        for number, name in enumerate(hostile_ids(10_000)):
            try:
                one.call("session.stat", id=name)
                if number % 50 == 0:
                    one.call("session.create", id=name)
            except CallRefusedError as refused:
                kinds.add(refused.kind)
        text = trace.read_bytes()[before:].decode("utf-8", "replace")
        root = str(daemon.root)
    assert kinds <= {"SESSION_NOT_FOUND", "ID_INVALID", "SESSION_EXISTS"}
    absolute = [line for line in text.split("\n") if '"/' in line]
    known = (
        f'"{root}',
        '"/proc/',
        f'"{sys.base_prefix}',
        f'"{sys.prefix}',
    )  # its root, itself, its modules
    outside = [line for line in absolute if not any(place in line for place in known)]
    assert outside == []
    assert '".."' not in text


def test_every_path_that_was_made_is_below_the_root_and_private(tmp_path: Path) -> None:
    with open_daemon(tmp_path) as daemon, Connection(daemon.socket) as one:
        for name in ("../x", "..", ".", "/etc/passwd", "a/../../b", "\u202e", "~", "a~002Fb"):
            made = one.call("session.create", id=name, cwd="/../..")
            one.call("session.flush", id=name, writer=made["writer"])
            assert one.call("session.stat", id=name)["session"]["id"] == name
        made_paths = list(tmp_path.rglob("*"))
    assert len([path for path in made_paths if path.name.startswith("session.jsonl")]) == 8
    for path in made_paths:
        assert path.is_relative_to(daemon.root) or path.parent in {tmp_path, daemon.state_dir}
        if path != daemon.log:
            assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path


def test_the_refusal_of_a_socket_of_somebody_else_never_suggests_to_share_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dsh_client.cli.main", "--socket", "/proc/1/cwd/x", "list"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "666" not in done.stderr
    assert json.dumps(done.stderr)
