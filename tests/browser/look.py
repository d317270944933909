# ruff: noqa: T201  # a program for people prints
"""`make browser`: exported pages in a real browser. They may ask for nothing, complain of nothing, and miss nothing.

Pictures at the width of a desk and of a phone are left in a folder outside of the tree, to be looked at.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from browser.chromium import Page, Shape, open_page
from browser.hostile import write_hostile
from support.daemon import DaemonProcess, open_daemon
from support.vectors import vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOGS = (
    "web-goal-multi-turn-actions",
    "derived-resumed-after-crash--acp-fs-read-window",
    "acp-code-mode-turn",
    "derived-open-after-answered-call--acp-workspace-edit",
)
SHAPES = (
    Shape("desk", 1280, 900),
    Shape("desk-dark", 1280, 900, dark=True),
    Shape("phone", 390, 844, 2.0),
    Shape("phone-dark", 390, 844, 2.0, dark=True),
)
HOSTILE = "hostile"
_TEXT = "document.documentElement.textContent"
_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_COUNT = "document.querySelectorAll({}).length"


def place_logs(daemon: DaemonProcess, names: Sequence[str] = LOGS) -> None:
    """Lay recorded logs below the daemon's root, each under its own name."""
    for name in names:
        text = (vectors() / "logs" / f"{name}.jsonl").read_bytes()
        folder = daemon.root / "--fixture--" / name
        folder.mkdir(parents=True, mode=0o700)
        log = folder / "session.jsonl"
        log.write_bytes(text.replace(b'"id":"s"', f'"id":"{name}"'.encode(), 1))
        log.chmod(0o600)


def dshctl(daemon: DaemonProcess, *words: str) -> bytes:
    """Run `dshctl` and return what it printed."""
    command = [sys.executable, "-m", "dsh_client.cli.main", "--socket", str(daemon.socket), *words]
    done = subprocess.run(command, check=False, capture_output=True, env=daemon.env, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def faults(
    page: Page, name: str, steps: list[dict[str, Any]], messages: list[Any]
) -> Iterator[str]:
    """Yield what is wrong with the page that is open."""
    yield from (f"it says {text}" for text in page.complaints())
    yield from (f"it asks for {address[:200]}" for address in page.requests()[1:])
    yield from (f"{count} elements could act" for count in [page.evaluate(_ACTIVE)] if count)
    text = page.evaluate(_TEXT)
    for step in steps:
        if f"step {step['step']}" not in text:
            yield f"step {step['turn']}.{step['step']} is missing"
        for call in step["calls"]:
            target = "c" + str(call["callSeq"])
            if call["callSeq"] is not None and not page.evaluate(
                _COUNT.format(json.dumps(f"#{target}"))
            ):
                yield f"call {call['callId']} is missing"
            if call["code"] and call["code"] not in text:
                yield f"the verdict of {call['callId']} is missing"
    seen = "".join(text.split())
    for said in texts(messages):
        if "".join(said.split())[:60] not in seen and name != HOSTILE:
            yield f"not found: {said[:60]!r}"


_ACTIVE = (
    "document.querySelectorAll('script,iframe,object,embed,form,base,meta[http-equiv=refresh],[onclick],[onload],"
    "[onerror],img,link:not([rel=icon])').length + "
    "[...document.querySelectorAll('[href]')].filter(e => !/^(#|data:,$)/.test(e.getAttribute('href'))).length"
)


def texts(messages: list[Any]) -> Iterator[str]:
    """Yield the texts that people and tools said; what a model wrote may be drawn without its Markdown signs."""
    for message in messages:
        for block in message["content"]:
            inner = block.get("content") if block["type"] == "tool-result" else [block]
            for one in inner if message["role"] == "user" else ():
                if one["type"] == "text" and one["text"].strip():
                    yield one["text"]


def check(page: Page, daemon: DaemonProcess, name: str, folder: Path) -> list[str]:
    """Export a session, look at it in every shape, and return what is wrong."""
    path = folder / f"{name}.html"
    dshctl(daemon, "export", name, "--to", str(path))
    steps: list[dict[str, Any]] = json.loads(dshctl(daemon, "-o", "json", "steps", name))["steps"]
    messages = json.loads(dshctl(daemon, "-o", "json", "messages", name))["messages"]
    found: list[str] = []
    for shape in SHAPES:
        page.look(shape)
        page.open(path)
        if shape is SHAPES[0]:
            found += faults(page, name, steps, messages)
        if (wide := page.evaluate(_WIDE)) > 0:
            found.append(f"{shape.name}: {wide} pixels wider than the screen")
        page.picture(folder / f"{name}-{shape.name}.png", whole=name != HOSTILE)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    if (wide := page.evaluate(_WIDE)) > 0:
        found.append(f"opened: {wide} pixels wider than the screen")
    print(f"{name}: {'; '.join(found) or 'good'}")
    return found


def main() -> int:
    """Check all pages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, help="where pages and pictures are left")
    arguments = parser.parse_args()
    folder = arguments.to or Path(tempfile.gettempdir()) / "dshd-browser"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dshd-") as base, open_daemon(Path(base)) as daemon:
        place_logs(daemon)
        write_hostile(daemon, HOSTILE)
        with open_page() as page:
            wrong = [
                fault for name in (*LOGS, HOSTILE) for fault in check(page, daemon, name, folder)
            ]
    print(f"pages and pictures: {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
