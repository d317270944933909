# ruff: noqa: T201  # a program for people prints
"""`make pictures`: the README's pictures, made from a real run: a daemon, an agent, a kill, a recovery.

The rule: what the pictures show was printed by `dshctl` and drawn by a browser; nothing is written into them by hand.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

from browser.chromium import Shape, open_page
from support.daemon import DaemonProcess, open_daemon

TREE = Path(__file__).resolve().parents[2]
AGENT = Path(__file__).with_name("agent.py")
SESSION = "release-4.2"
COLUMNS = 100
_LIMIT_S = 30
_WIDE, _HIGH, _PAD, _BAR = 8.43, 19, 18, 34
_SHADE = {
    "ink": "#d8dee9",
    "soft": "#8f99ab",
    "back": "#1d2129",
    "bar": "#2a303b",
    "prompt": "#8fbf8f",
}
PAGE = Shape("page", 1100, 1000)


def on_terminal(daemon: DaemonProcess, *words: str) -> str:
    """Run `dshctl` on a terminal of its own and return what is on the screen."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    env = {
        **daemon.env,
        "LC_ALL": "C.UTF-8",
        "DSHD_SOCKET": str(daemon.socket),
        "DSHD_PAGER": "cat",
    }
    command = [sys.executable, "-m", "dsh_client.cli.main", *words]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=env)
    os.close(terminal)
    seen = b""
    while True:
        try:
            piece = os.read(master, 1 << 16)
        except OSError:  # how a terminal says that nobody is left on the other side
            break
        if not piece:
            break
        seen += piece
    process.wait(_LIMIT_S)
    os.close(master)
    return seen.decode().replace("\r\n", "\n")


def drawing(shown: list[tuple[str, str]]) -> str:
    """Return a terminal as SVG: commands and what they printed."""
    lines: list[tuple[str, str]] = []
    for command, output in shown:
        if lines:
            lines.append(("ink", ""))
        lines.append(("prompt", f"$ {command}"))
        # A terminal breaks what is too long for it.
        lines += [
            ("ink", line[at : at + COLUMNS])
            for line in output.rstrip("\n").split("\n")
            for at in range(0, max(len(line), 1), COLUMNS)
        ]
    width = round(COLUMNS * _WIDE + 2 * _PAD)
    height = _BAR + len(lines) * _HIGH + _PAD
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<rect width="{width}" height="{height}" rx="9" fill="{_SHADE["back"]}"/>',
        f'<path d="M0 9a9 9 0 0 1 9-9h{width - 18}a9 9 0 0 1 9 9v17H0z" fill="{_SHADE["bar"]}"/>',
        '<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14">',
    ]
    for number, (tone, line) in enumerate(lines):
        if line:
            y = _BAR + 14 + number * _HIGH
            long = round(len(line) * _WIDE, 1)
            parts.append(
                f'<text x="{_PAD}" y="{y}" fill="{_SHADE[tone]}" xml:space="preserve" textLength="{long}" '
                f'lengthAdjust="spacingAndGlyphs">{escape(line)}</text>'
            )
    return "\n".join([*parts, "</g></svg>", ""])


def run_agent(daemon: DaemonProcess, folder: Path) -> subprocess.Popen[bytes]:
    """Start the agent."""
    command = [sys.executable, str(AGENT), str(daemon.socket), SESSION, str(folder)]
    return subprocess.Popen(command, env=daemon.env)


def cut_off(daemon: DaemonProcess, folder: Path) -> None:
    """Let the agent work until a mail is on its way, and kill it and the daemon."""
    agent = run_agent(daemon, folder)
    deadline = time.monotonic() + _LIMIT_S
    while not (folder / "in-the-body").exists():
        assert agent.poll() is None, "the agent ended too early"
        assert time.monotonic() < deadline, "the agent does not get there"
        time.sleep(0.01)  # a real process moves by the real clock
    agent.kill()
    daemon.kill()
    agent.wait()
    daemon.start()


def take(daemon: DaemonProcess, work: Path, to: Path) -> None:
    """Play the run and take the three pictures on the way."""
    folder = work / "calendar"
    folder.mkdir()
    cut_off(daemon, folder)
    commands = (["list"], ["recover", SESSION])
    shown = [(" ".join(["dshctl", *words]), on_terminal(daemon, *words)) for words in commands]
    (to / "recover.svg").write_text(drawing(shown), "utf-8")
    time.sleep(1.0)  # somebody has to notice first
    assert run_agent(daemon, folder).wait(_LIMIT_S) == 0
    (to / "show.svg").write_text(
        drawing([(f"dshctl show {SESSION}", on_terminal(daemon, "show", SESSION))]), "utf-8"
    )
    page = work / "page.html"
    on_terminal(daemon, "export", SESSION, "--to", str(page))
    with open_page() as tab:
        tab.look(PAGE)
        tab.open(page)
        tab.picture(to / "page.png", whole=False)


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description="Make the README's pictures from a real run.")
    parser.add_argument("--to", type=Path, default=TREE / "docs" / "pictures")
    to: Path = parser.parse_args().to
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dshd-") as base, open_daemon(Path(base)) as daemon:
        take(daemon, Path(base), to)
    for path in sorted(to.iterdir()):
        print(f"{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
