"""What an import has to tell: how much was taken, and what was not understood, by kind and line.

The rule: `damaged` means that the file is not what its program meant to write; what is merely unknown is told apart.
"""

from __future__ import annotations

from typing import Any

_LINES = 5
_KIND_CHARS = 80


class Finding:
    """One kind of oddity: how often, and on which lines first."""

    def __init__(self, *, damage: bool) -> None:
        """Begin with none."""
        self.damage = damage
        self.count = 0
        self.lines: list[int] = []

    def note(self, line: int) -> None:
        """Count one more."""
        self.count += 1
        if len(self.lines) < _LINES and line not in self.lines:
            self.lines.append(line)


class Report:
    """What is known of the import of one file."""

    def __init__(self) -> None:
        """Begin with nothing taken."""
        self.taken: dict[str, int] = {"messages": 0, "calls": 0, "results": 0, "kept": 0}
        self.findings: dict[str, Finding] = {}

    def damage(self, kind: str, line: int) -> None:
        """Note that something is broken."""
        self._note(kind, line, damage=True)

    def unknown(self, kind: str, line: int) -> None:
        """Note that something was kept without being understood."""
        self._note(kind, line, damage=False)

    def _note(self, kind: str, line: int, *, damage: bool) -> None:
        self.findings.setdefault(kind[:_KIND_CHARS], Finding(damage=damage)).note(line)

    @property
    def damaged(self) -> bool:
        """Whether anything was broken."""
        return any(finding.damage for finding in self.findings.values())

    def document(self) -> dict[str, Any]:
        """Return the report as JSON; keys are stable."""
        return {
            **self.taken,
            "damaged": self.damaged,
            "notUnderstood": [
                {"kind": kind, "damage": one.damage, "count": one.count, "lines": one.lines}
                for kind, one in self.findings.items()
            ],
        }
