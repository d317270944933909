"""What is run beside the manager: installs the units, kills the daemon, probes each protection from inside the unit.

Prints one line a finding; the exit code is 1 when one of them is not what it must be.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

KILLS, CONNECTS = int(os.environ.get("PYTHON_KILLS", "20")), 10
RUNTIME = Path(os.environ["XDG_RUNTIME_DIR"])
SOCKET = RUNTIME / "dshd/dshd.sock"
UNITS = Path.home() / ".config/systemd/user"
FAILED: list[str] = []

C = "import ctypes; c = ctypes.CDLL(None, use_errno=True); "
EXIT_32 = (
    "7f454c46010101000000000000000000020003000100000054800408340000000000000000000000340020000100"
    "00000000000001000000000000000080040800800408"
    "5d0000005d0000000500000000100000"  # an i386 program of 93 bytes: its headers,
    "31dbb801000000cd80"  # and exit(0)
)
RUNS_32 = os.uname().machine == "x86_64" and Path("/proc/sys/abi/vsyscall32").exists()
PROBES = {
    "RestrictAddressFamilies": "import socket; socket.socket(socket.AF_INET)",
    "MemoryDenyWriteExecute": "import mmap; mmap.mmap(-1, 4096, prot=7)",
    "RestrictNamespaces": C + "assert c.unshare(0x10000000) == 0",
    "LockPersonality": C + "c.personality(8); assert c.personality(-1) == 8",
    "RestrictSUIDSGID": "import os; open('x', 'w').close(); os.chmod('x', 0o4755)",
    "SystemCallFilter": C + "assert c.ptrace(0, 0, 0, 0) == 0",
    "NoNewPrivileges": "assert 'NoNewPrivs:\\t0' in open('/proc/self/status').read()",
    "UMask": "import os; assert os.umask(0) != 0o077",
    "SystemCallArchitectures": (
        f"import os; one = open('old', 'wb'); one.write(bytes.fromhex('{EXIT_32}')); one.close(); "
        "os.chmod('old', 0o755); assert os.spawnl(os.P_WAIT, 'old', 'old') == 0"
    ),
}
if not RUNS_32:
    del PROBES["SystemCallArchitectures"]  # this kernel has one way in, whatever the unit says
GIVE_UP_S = 60
STRONGER = {
    "a file in the home folder": "import pathlib; (pathlib.Path.home() / 'outside').write_text('')",
    "a file in the runtime folder": f"open('{RUNTIME}/outside', 'w')",
    "somebody else's file in /tmp": "open({seen!r})",
    "a network interface": "import socket; assert len(socket.if_nameindex()) > 1",
    "the devices of the machine": "import os; assert len(os.listdir('/dev')) > 25",
    "its own control group": (
        "import os; own = {line.strip().split(':')[2] for line in open('/proc/self/cgroup')}; "
        "tops = [f'/sys/fs/cgroup{one}' for one in ('', '/systemd', '/unified')]; "
        "assert any(os.access(f'{top}{one}/cgroup.procs', os.W_OK) for top in tops for one in own)"
    ),
}
"""What the drop-in of the documentation keeps from the daemon besides."""


def tell(good: bool, text: str) -> None:  # noqa: FBT001  # a line of a report
    """Print a finding."""
    print(f"{'ok' if good else 'FAILED'}: {text}", flush=True)  # noqa: T201  # a report
    if not good:
        FAILED.append(text)


def call(method: str = "daemon.status", **params: Any) -> tuple[Any, float]:
    """One call over a connection of its own, and how long it took."""
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(30)
        one.connect(str(SOCKET))
        line = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        one.sendall(json.dumps(line).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            piece = one.recv(1 << 16)
            if not piece:
                raise ConnectionError("ended before the answer")
            answer += piece
    return json.loads(answer)["result"], time.monotonic() - began


def call_again() -> tuple[Any, float, int]:
    """As a client does: a connection that is cut is made again; one that is refused is counted."""
    began, refused = time.monotonic(), 0
    while True:
        try:
            found, _ = call()
        except ConnectionRefusedError:
            refused += 1
        except (ConnectionError, OSError):
            if time.monotonic() - began > GIVE_UP_S:
                raise
        else:
            return found, time.monotonic() - began, refused
        time.sleep(0.02)  # a real daemon restarts by the real clock


def systemctl(*words: str) -> str:
    """What `systemctl --user` says."""
    done = subprocess.run(
        ["systemctl", "--user", *words],  # noqa: S607  # wherever this system has it
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def show(name: str) -> str:
    """One property of the service."""
    return systemctl("show", "-P", name, "dshd.service")


def activation(program: list[str]) -> None:
    """Installed by itself, started by its first client."""
    done = subprocess.run(
        [*program, "install", "--now"], capture_output=True, text=True, check=False
    )
    tell(done.returncode == 0, f"install --now {done.stderr.strip()}")
    tell(show("ActiveState") == "inactive", "not started before the first connection")
    _, seconds = call()
    tell(show("ActiveState") == "active", f"started by the first connection, in {seconds:.2f} s")
    tell(
        "live sessions" in show("StatusText") or "serving" in show("StatusText"), show("StatusText")
    )


def kills() -> None:
    """Killed again and again between connections."""
    refused, worst, ended = 0, 0.0, 0
    for _ in range(KILLS):
        for _ in range(CONNECTS):
            _, seconds, more = call_again()
            refused, worst = refused + more, max(worst, seconds)
        os.kill(int(show("MainPID")), signal.SIGKILL)
        ended += 1
    call_again()
    tell(
        refused == 0,
        f"{KILLS * CONNECTS} connections over {ended} kills: {refused} refused, worst {worst:.2f} s",
    )


def watchdog() -> None:
    """A daemon that stands still is killed and started again."""
    before = int(show("MainPID"))
    drop = UNITS / "dshd.service.d"
    drop.mkdir(exist_ok=True)
    (drop / "quick.conf").write_text("[Service]\nWatchdogSec=3s\n")
    systemctl("daemon-reload")
    systemctl("restart", "dshd.service")
    pid = int(show("MainPID"))
    os.kill(pid, signal.SIGSTOP)
    found, seconds, refused = call_again()
    tell(
        found["server"]["pid"] not in {pid, before} and refused == 0,
        f"a daemon that stood still was replaced by the watchdog in {seconds:.1f} s",
    )
    (drop / "quick.conf").unlink()
    systemctl("daemon-reload")


def probes() -> None:
    """Each protection: nothing without it, and inside the running unit it holds."""
    text = (UNITS / "dshd.service").read_text()
    section = text.partition("NoNewPrivileges")[2].partition("[Install]")[0]
    lines = ["NoNewPrivileges" + section.split("\n")[0], *section.split("\n")[1:], "UMask=0077"]
    settings = [line for line in lines if "=" in line and not line.startswith("#")]
    within = _inside(PROBES, [])
    for name, code in PROBES.items():
        plain = _run_in_unit([], code)
        alone = _run_in_unit([line for line in settings if line.startswith(f"{name}=")], code)
        tell(
            plain == 0 and alone != 0 and within.get(name, 0) != 0,
            f"{name}: without it {plain}, with it alone {alone}, in the running unit {within.get(name)}",
        )
    listed = {line.partition("=")[0] for line in settings}
    tell(
        listed - {"SystemCallErrorNumber"} <= {*PROBES, "SystemCallArchitectures"},
        f"nothing is listed that has no probe; programs of 32 bits: {'tried' if RUNS_32 else 'not here'}",
    )


def stronger(readme: Path) -> None:
    """The drop-in of the documentation, as it stands there, where this kernel lets a user have it."""
    text = readme.read_text("utf-8")
    drop = text.partition("## Stronger protections")[2].partition("```\n")[2].partition("```")[0]
    if _run_in_unit(["PrivateUsers=yes"], "") != 0:
        tell(
            good=True, text="no user namespaces for users here: the stronger drop-in was not tried"
        )
        return
    if Path(__file__).is_relative_to("/tmp"):  # noqa: S108  # a place, not a file
        tell(good=True, text="this tree lies in /tmp, which the stronger drop-in hides: not tried")
        return
    seen = Path("/tmp/dshd-seen-by-all")  # noqa: S108  # what the drop-in is to hide
    seen.write_text("")
    codes = {name: code.replace("{seen!r}", repr(str(seen))) for name, code in STRONGER.items()}
    open_to_all = [name for name, code in codes.items() if _run_in_unit([], code) == 0]
    tell(len(open_to_all) > 3, f"without the drop-in: {', '.join(open_to_all)}")
    within = _inside(codes, drop.split("\n"))
    for name in open_to_all:
        tell(within.get(name, 0) != 0, f"with the drop-in of the documentation not: {name}")
    seen.unlink()


def _inside(codes: dict[str, str], drop: list[str]) -> dict[str, int]:
    """Restart the service with a drop-in, run each code inside of it beside the daemon; return how they end."""
    place, told = UNITS / "dshd.service.d", RUNTIME / "dshd/told"
    place.mkdir(exist_ok=True)
    script = RUNTIME / "dshd/probes.py"
    script.write_text(
        "import json, subprocess, sys\n"
        f"codes = {codes!r}\n"
        "run = lambda code: subprocess.run([sys.executable, '-c', code], cwd=sys.argv[2], check=False).returncode\n"
        "open(sys.argv[1], 'w').write(json.dumps({name: run(code) for name, code in codes.items()}))\n"
    )
    lines = ["[Service]", *drop, f"ExecStartPost=/usr/bin/python3 {script} {told} {RUNTIME}/dshd"]
    (place / "inside.conf").write_text("\n".join(lines) + "\n")
    systemctl("daemon-reload")
    systemctl("restart", "dshd.service")
    tell(call_again()[0]["problems"] == [], "it serves in its unit with the probes beside it")
    found: dict[str, int] = json.loads(told.read_text()) if told.exists() else {}
    (place / "inside.conf").unlink()
    systemctl("daemon-reload")
    systemctl("restart", "dshd.service")
    return found


def _run_in_unit(settings: list[str], code: str) -> int:
    flags = [word for line in settings for word in ("-p", line)]
    command = ["systemd-run", "--user", "--wait", "--quiet", "--collect", *flags]
    where = ["--working-directory", str(RUNTIME)]
    done = subprocess.run(
        [*command, *where, "/usr/bin/python3", "-c", code], capture_output=True, check=False
    )
    return done.returncode


def write_on(number: int, admitted: list[int]) -> None:
    """Append to a session of its own for as long as the daemon answers; note what it admitted."""
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(30)
    one.connect(str(SOCKET))
    name, answers = f"busy-{number}", one.makefile("rb")
    event = {"type": "feedback/record", "data": {"text": "x" * 2000}}
    params: dict[str, Any] = {"id": name}
    method = "session.create"
    with one, answers:
        while True:
            call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            try:
                one.sendall(json.dumps(call).encode() + b"\n")
                answer = json.loads(answers.readline() or b"{}")
            except OSError:
                return
            if "result" not in answer:
                return
            if method == "session.create":
                method = "session.append"
                params |= {"writer": answer["result"]["writer"], "events": [event] * 50}
            else:
                admitted[number] = answer["result"]["nextSeq"]


def stop() -> None:
    """Stopped under load within its time and with nothing lost, and the socket goes on."""
    admitted = [0] * 8
    busy = [threading.Thread(target=write_on, args=(n, admitted)) for n in range(len(admitted))]
    for one in busy:
        one.start()
    deadline = time.monotonic() + 30
    while not all(admitted) and time.monotonic() < deadline:
        time.sleep(0.05)  # real clients get going by the real clock
    began = time.monotonic()
    systemctl("stop", "dshd.service")
    seconds = time.monotonic() - began
    for one in busy:
        one.join()
    tell(
        seconds < 15 and show("Result") == "success" and all(admitted),
        f"stopped under {len(busy)} busy writers in {seconds:.1f} s: {show('Result')}",
    )
    found = [call("session.stat", id=f"busy-{n}")[0] for n in range(len(admitted))]
    kept = [one["session"]["nextSeq"] for one in found]
    tell(
        all(have >= told for have, told in zip(kept, admitted, strict=True)),
        f"{sum(admitted)} events were admitted before the stop and {sum(kept)} are kept",
    )
    call()
    tell(show("ActiveState") == "active", "the next connection started it again")


def main() -> int:
    """Run all of it with the `dshd` that is named."""
    readme, *program = sys.argv[1:]
    activation(program)
    kills()
    watchdog()
    probes()
    stronger(Path(readme))
    stop()
    done = subprocess.run([*program, "install", "--uninstall"], capture_output=True, check=False)
    tell(done.returncode == 0 and not SOCKET.exists(), "uninstalled, and the socket is gone")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
