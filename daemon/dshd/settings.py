"""What the daemon was told at start: flags, then the environment, then defaults.

The one rule: a value that is set but cannot be used stops the start with its reason. Nothing falls back
silently, and nothing ever falls back to /tmp.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from dsh_protocol import paths
from dsh_protocol.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

Compression = Literal["zstd", "none"]

DEFAULT_BATCH_WINDOW_S = 0.2
MAX_BATCH_WINDOW_S = 60.0
SHUTDOWN_FLUSH_S = 4.5
"""From the signal on; with what follows it, a stop takes five seconds at most."""
NO_TRACES = "--traces needs OpenTelemetry, which is not installed; run: pip install 'dshd[otel]'"


class CannotStartError(Exception):
    """The configuration, the socket or the root cannot be used: exit code 78.

    The text says what, why, and the remedy, in one line.
    """


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the daemon runs by; made once, passed down, never changed.

    Attributes:
        socket: Where clients connect; not used when a listening socket is inherited.
        root: The folder of all sessions.
        state_dir: Holds the pointer to the socket; root and socket lie here where nothing else is said.
        compression: How new logs are written. Both kinds are read.
        batch_window_s: From the first pending event of a session to its write; not moved by later ones.
        limits: What a client may ask for at once.
        traces: Send spans of the daemon's own work to an OpenTelemetry collector.
    """

    socket: Path
    root: Path
    state_dir: Path
    compression: Compression = "zstd"
    batch_window_s: float = DEFAULT_BATCH_WINDOW_S
    limits: Limits = field(default_factory=Limits)
    traces: bool = False


class ServeFlags(Protocol):
    """The parsed flags of `dshd serve`; None where a flag was not given."""

    socket: str | None
    root: str | None
    compression: Compression
    batch_window: float
    traces: bool


def load_settings(flags: ServeFlags, environ: Mapping[str, str] | None = None) -> Settings:
    """Resolve every path and value; touches no file.

    Raises:
        CannotStartError: A path is set but unusable as written (relative, empty, with a NUL byte …).
    """
    env = os.environ if environ is None else environ
    try:
        return Settings(
            socket=Path(paths.socket_path(env, flags.socket)),
            root=Path(paths.root_dir(env, flags.root)),
            state_dir=Path(paths.state_dir(env)),
            compression=flags.compression,
            batch_window_s=flags.batch_window,
            traces=flags.traces,
        )
    except paths.PathUnusableError as exc:
        raise CannotStartError(str(exc)) from exc


def parse_batch_window(text: str) -> float:
    """Return the seconds of `--batch-window`.

    Raises:
        ValueError: Not a number between 0 and 60; the text says so.
    """
    seconds = float(text)
    if not math.isfinite(seconds) or not 0 <= seconds <= MAX_BATCH_WINDOW_S:
        raise ValueError(f"{text!r} is not between 0 and {MAX_BATCH_WINDOW_S:g} seconds")
    return seconds
