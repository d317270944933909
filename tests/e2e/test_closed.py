"""Nobody but the daemon's own user gets in, whatever the route; no id leads out of the root."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.daemon import DaemonProcess, open_daemon
from support.figures import figure
from support.load import tell
from support.rpc import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

OTHER_UID = 12345
CALLER = """
import socket, sys
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
TREE = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"  # one that another user may run

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)


def become(uid: int, *more: str) -> list[str]:
    """How root becomes another user for good."""
    return ["setpriv", f"--reuid={uid}", "--clear-groups", "--no-new-privs", *more]


ANOTHER = become(OTHER_UID, "--regid=65534", "--inh-caps=-all", "--bounding-set=-all")
ROUTES: dict[str, list[str]] = {
    "another uid": [*ANOTHER, PYTHON, "-"],
    "su nobody": ["su", "-s", "/bin/sh", "nobody", "-c", f'exec {PYTHON} - "$0"'],
    "root of a user namespace": [*ANOTHER, "unshare", "--user", "--map-root-user", PYTHON, "-"],
    "root of all namespaces": [
        *ANOTHER,
        *["unshare", "-U", "-r", "-m", "-n", "-p", "-f"],
        PYTHON,
        "-",
    ],
    "the daemon's own group": [*become(OTHER_UID, f"--regid={os.getegid()}"), PYTHON, "-"],
    "a link in a public folder": [*ANOTHER, PYTHON, "-"],
}


def call_by(route: list[str], socket: Path) -> str:
    """What a process gets that takes this route; empty where the route itself does not exist here."""
    if any(shutil.which(word) is None for word in ("su", "unshare") if word in route):
        return ""
    done = subprocess.run(
        [*route, str(socket)],
        input=CALLER,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stdout.strip() or route[0] == "su" or "unshare" in route, done.stderr
    return done.stdout.strip()


@needs_root
@pytest.mark.parametrize("opened", [(), ("folder",), ("folder", "socket")], ids=len)
def test_another_user_gets_in_by_no_route(daemon: DaemonProcess, opened: Sequence[str]) -> None:
    if "folder" in opened:
        daemon.socket.parent.chmod(0o755)
    if "socket" in opened:
        daemon.socket.chmod(0o666)
    expected = "closed unread" if "socket" in opened else "PermissionError"
    with tempfile.TemporaryDirectory(prefix="dshd-") as public:
        Path(public).chmod(0o755)
        link = Path(public) / "s"
        link.hardlink_to(daemon.socket)
        found = {
            name: call_by(route, link if "link" in name else daemon.socket)
            for name, route in ROUTES.items()
        }
    taken = {name: answer for name, answer in found.items() if answer}
    tell(f"{len(taken)} of {len(ROUTES)} routes could be tried: {expected}")
    assert len(taken) >= 3
    assert taken == dict.fromkeys(taken, expected)
    refused = figure(daemon, "dshd_peers_refused_total")
    assert refused == (len(taken) if "socket" in opened else 0)
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
        daemon = DaemonProcess(home, prefix=become(OTHER_UID, "--regid=65534"))
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
        assert call_by([PYTHON, "-"], daemon.socket) == "closed unread"
        assert call_by(ROUTES["another uid"], daemon.socket) == "let in"
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


TRACED = "trace=open,openat,openat2,mkdir,mkdirat,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlinkat"
_BY = re.compile(r'(?:AT_FDCWD|[0-9]+)<([^>]*)>, "([^"]*)"')
_OPENED = re.compile(r" = [0-9]+<(/[^>]*)>")
EVERY: tuple[tuple[str, dict[str, object]], ...] = (
    ("session.read", {}),
    ("session.messages", {}),
    ("session.open", {"access": "read"}),
    ("session.subscribe", {"fromSeq": 0}),
    ("session.delete", {}),
    ("session.undelete", {}),
    ("session.purge", {"deletedAt": 1}),
    ("session.setLabel", {"title": "t"}),
    ("session.fork", {}),
    ("session.create", {}),
)


def led_outside(trace: str, allowed: tuple[str, ...]) -> list[str]:
    """The lines of a trace that opened or named something elsewhere, as the kernel itself resolved it."""
    found: list[str] = []
    for line in trace.split("\n"):
        named = [
            name if name.startswith("/") else f"{base}/{name}" for base, name in _BY.findall(line)
        ]
        places = [*named, *_OPENED.findall(line)]
        if not all(place.startswith(allowed) and "/../" not in f"{place}/" for place in places):
            found.append(line)
    return found


@pytest.mark.slow
def test_ten_thousand_hostile_ids_open_nothing_outside_the_root(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    prefix = (
        "strace",
        "--seccomp-bpf",
        "-f",
        "-y",
        "-qq",
        "-s",
        "4096",
        "-o",
        str(trace),
        "-e",
        TRACED,
    )
    kinds: Counter[str] = Counter()
    with open_daemon(tmp_path, prefix=prefix) as daemon, Connection(daemon.socket) as one:
        before, ids = trace.stat().st_size, hostile_ids(10_000)
        for start in range(0, len(ids), 100):
            calls = [one.request("session.stat", id=name) for name in ids[start : start + 100]]
            for place, (method, more) in enumerate(EVERY):
                name = ids[start + 11 * place]
                calls.append(one.request(method, id=name, **more))
            one.send_together(*calls)
            for call in calls:
                answer = one.answer(call["id"])
                kinds[answer["error"]["data"]["kind"] if "error" in answer else "OK"] += 1
        text = trace.read_bytes()[before:].decode("utf-8", "replace")
        # its root, itself, its modules
        allowed = (str(daemon.root), "/proc/", sys.base_prefix, sys.prefix, str(TREE))
    assert set(kinds) <= {"OK", "SESSION_NOT_FOUND", "SESSION_EXISTS", "ID_INVALID", "SESSION_BUSY"}
    assert kinds["OK"] > 100
    assert text.count("\n") > 10_000
    assert led_outside(text, allowed) == []
    tell(
        f"{dict(kinds)}: {len(_OPENED.findall(text))} files and folders were opened, all below the root"
    )


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
