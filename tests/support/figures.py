"""The daemon's own figures, as a scraper reads them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.daemon import DaemonProcess


def figure(daemon: DaemonProcess, name: str) -> float:
    """Return the sum of a sample's values over its labels; 0 where it was never counted."""
    text: str = daemon.call("daemon.metrics")["text"]
    found = 0.0
    for line in text.split("\n"):
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name:
            found += float(value)
    return found


def wait_figure(daemon: DaemonProcess, name: str, least: float, limit_s: float) -> None:
    """Wait until a figure has come to so much."""
    began = time.monotonic()
    while (found := figure(daemon, name)) < least:
        assert time.monotonic() - began < limit_s, f"{name} is {found}, not {least}"
        time.sleep(0.1)  # a real process counts by the real clock
