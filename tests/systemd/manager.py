"""Runs a command beside a `systemd --user` of a throw-away user, in namespaces of its own: `manager.py -- COMMAND`.

Where init is not systemd, units are proven all the same: mount and process namespaces are private, the user exists only
in a private copy of /etc/passwd, and everything ends with the namespaces. Needs root, util-linux, systemd and a D-Bus
daemon. Exit code: that of the command; 77 when it could not be run here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

UID, GID = 12345, 65534
CANNOT = 77
LIMIT_S = 10.0
MANAGERS = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
HIERARCHIES = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")


def cannot(why: str) -> None:
    """End with the code that means: not here."""
    sys.stderr.write(f"manager: cannot run: {why}\n")
    sys.exit(CANNOT)


def outside(command: list[str]) -> int:
    """Make the control group, then go on in new namespaces."""
    if os.geteuid() != 0:
        cannot("needs root")
    for program in ("unshare", "setpriv", "systemctl", "dbus-daemon", "mount"):
        if shutil.which(program) is None:
            cannot(f"{program} is not installed")
    made = _groups()
    if not made:
        cannot("no control group can be made")

    def enter() -> None:
        for group in made:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    flags = [
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation",
        "private",
    ]
    try:
        return subprocess.run(
            ["unshare", *flags, sys.executable, __file__, "--inside", *command],  # noqa: S607  # wherever it is
            preexec_fn=enter,  # one thread, and the group must be entered before the namespaces
            check=False,
        ).returncode
    finally:
        for group in made:
            _remove(group)


def _groups() -> list[Path]:
    """A group of the user's own in each hierarchy that takes one."""
    made: list[Path] = []
    for hierarchy in HIERARCHIES:
        group = Path(hierarchy) / f"dshd-{os.getpid()}"
        try:
            if not (group.parent / "cgroup.procs").exists():
                continue
            group.mkdir()
        except OSError:
            continue
        for path in (group, *group.iterdir()):
            os.chown(path, UID, GID)
        made.append(group)
    return made


def _remove(group: Path) -> None:
    for _ in range(50):
        for folder in sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True):
            try:
                folder.rmdir()
            except OSError:
                continue
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)  # the kernel reaps the dead by the real clock
        else:
            return


def inside(command: list[str]) -> int:
    """Be process 1: lay out /run, start the manager as the user, run the command beside it."""
    run, home = Path(f"/run/user/{UID}"), Path("/run/user/home")  # what `ProtectHome=` is about
    _do("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    Path("/run/systemd/system").mkdir(parents=True)  # "booted with systemd"
    Path(
        "/run/systemd/unit-root"
    ).mkdir()  # made by the system's manager; what is private to a unit is put there
    for folder in (run, home):
        folder.mkdir(parents=True)
        folder.chmod(0o700)
        os.chown(folder, UID, GID)
    users = Path("/etc/passwd").read_text("utf-8")
    Path("/run/passwd").write_text(f"{users}probe:x:{UID}:{GID}::{home}:/bin/sh\n", "utf-8")
    _do("mount", "--bind", "/run/passwd", "/etc/passwd")
    become = ["setpriv", f"--reuid={UID}", f"--regid={GID}", "--clear-groups", "--inh-caps=-all"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "USER": "probe",
        "LOGNAME": "probe",
        "XDG_RUNTIME_DIR": str(run),
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={run}/bus",
        **{name: value for name, value in os.environ.items() if name.startswith("PYTHON")},
    }
    program = next((one for one in MANAGERS if Path(one).exists()), None)
    if program is None:
        cannot("systemd is not installed")
    manager = subprocess.Popen(
        [*become, str(program), "--user", "--unit=basic.target"],
        env=env | {"SYSTEMD_LOG_LEVEL": "err", "SYSTEMD_LOG_TARGET": "console"},
        stdin=subprocess.DEVNULL,
        cwd=home,
    )
    deadline = time.monotonic() + LIMIT_S
    while not (run / "systemd/private").exists():
        if manager.poll() is not None or time.monotonic() > deadline:
            cannot("systemd --user does not come up")
        time.sleep(0.1)  # a real manager starts by the real clock
    return subprocess.run([*become, *command], env=env, cwd=home, check=False).returncode


def _do(*command: str) -> None:
    if subprocess.run(command, check=False).returncode:
        cannot(f"{' '.join(command)} failed")


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--inside"]:
        sys.exit(inside(words[1:]))
    sys.exit(outside([word for word in words if word != "--"]))
