"""A process that makes the calls it is told to: another pid than the test's, alive for as long as the test wants.

Each line in is a JSON array: what to do and its arguments. Each line out is the JSON outcome. The standard library
only.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from support.rpc import Connection

Outcome = dict[str, Any]


class Puppet:
    """Holds connections by name."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.connections: dict[str, Connection] = {}

    def connect(self, name: str) -> Outcome:
        client = self.plan["name"]
        self.connections[name] = Connection(self.plan["socket"], name=client, limit_s=60)
        return {}

    def close(self, name: str) -> Outcome:
        self.connections.pop(name).close()
        return {}

    def send(self, name: str, calls: list[list[Any]]) -> Outcome:
        """Send calls in one piece, each `[method, params]`."""
        one = self.connections[name]
        asked = [one.request(method, **params) for method, params in calls]
        return {"ids": one.send_together(*asked)}

    def answer(self, name: str, call_id: int) -> Outcome:
        return self.connections[name].answer(call_id)


if __name__ == "__main__":
    puppet = Puppet(json.loads(sys.argv[1]))
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        outcome = getattr(puppet, what)(*arguments)
        os.write(1, json.dumps(outcome).encode() + b"\n")
