"""One headless Chromium, spoken to over its debugging pipe by the standard library alone.

The rule: everything that the browser says is kept: console messages, exceptions, every request of every page.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


class Shape(NamedTuple):
    """What a page is looked at with."""

    name: str
    width: int
    height: int
    scale: float = 1.0
    dark: bool = False


def find() -> str | None:
    """Return the browser's program, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """The browser's side of the pipe.

    Attributes:
        heard: Every event so far: method and parameters.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self._in = os.fdopen(reading, "rb", buffering=0)
        self._out = os.fdopen(writing, "wb", buffering=0)
        self._last = 0
        self._received = b""

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method and return its result."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.heard.append((answer["method"], answer.get("params", {})))

    def wait(self, method: str) -> dict[str, Any]:
        """Wait for an event that was not heard yet."""
        while True:
            answer = self._read()
            self.heard.append((answer["method"], answer.get("params", {})))
            if answer["method"] == method:
                return self.heard[-1][1]

    def close(self) -> None:
        self._in.close()
        self._out.close()

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            piece = self._in.read(1 << 20)
            assert piece, "the browser ended"
            self._received += piece
        line, self._received = self._received.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer


class Page:
    """One tab."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of this tab."""
        return self._browser.call(method, self._session, **params)

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self._browser.heard.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        if not any(name == "Page.loadEventFired" for name, _ in self._browser.heard):
            self._browser.wait("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def look(self, shape: Shape) -> None:
        """Give the tab the size, density and colours of a device."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=shape.width,
            height=shape.height,
            deviceScaleFactor=shape.scale,
            mobile=shape.width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if shape.dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what is seen, or the whole page, as PNG."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def complaints(self) -> list[str]:
        """Return console messages, exceptions and log entries since the page was opened."""
        found: list[str] = []
        for name, params in self._browser.heard:
            if name == "Runtime.consoleAPICalled":
                found.append(f"console.{params['type']}: {params['args']}")
            elif name == "Runtime.exceptionThrown":
                found.append(f"exception: {params['exceptionDetails']['text']}")
            elif name == "Log.entryAdded":
                found.append(f"log: {params['entry']['text']}")
        return found

    def requests(self) -> list[str]:
        """Return the address of every request since the page was opened, the page's own first."""
        return [
            params["request"]["url"]
            for name, params in self._browser.heard
            if name == "Network.requestWillBeSent"
        ]


@contextmanager
def open_page() -> Generator[Page, None, None]:
    """Start a browser and give one tab of it; nothing of it outlives the block."""
    program = find()
    assert program is not None, "no chromium is installed"
    with tempfile.TemporaryDirectory(prefix="dshd-browser-", ignore_cleanup_errors=True) as home:
        to_read, to_write = os.pipe()  # what the browser reads
        from_read, from_write = os.pipe()
        joined = ("/bin/sh", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "sh")
        process = subprocess.Popen(
            [*joined, program, *_FLAGS, f"--user-data-dir={home}"],
            pass_fds=(to_read, from_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        browser = Browser(from_read, to_write)
        try:
            yield Page(browser)
        finally:
            browser.close()
            process.kill()
            process.wait()
