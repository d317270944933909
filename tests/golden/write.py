"""Writes the golden files anew: `make golden`. The diff is what changed on the wire; read it before committing it."""

from __future__ import annotations

import json
from pathlib import Path

from dsh_protocol.openrpc import discover

OPENRPC = Path(__file__).with_name("openrpc.json")


def openrpc_text() -> str:
    return json.dumps(discover(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    OPENRPC.write_text(openrpc_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
