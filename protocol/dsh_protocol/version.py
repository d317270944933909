"""The three numbers by which programs know each other."""

from __future__ import annotations

VERSION = "0.1.0"
"""Of the distribution; the same as in pyproject.toml."""

PROTOCOL_VERSION = 1
"""Of the methods and objects on the wire; `initialize` compares it."""

OLDEST_PROTOCOL_VERSION = 1
"""The oldest that this daemon still speaks; `initialize` states the range in `capabilities.protocolVersions`."""

FORMAT_VERSION = 0
"""Of the logs on disk: the one version that this program reads and writes."""
