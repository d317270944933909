"""Sessions as families: forks and sub-agents below what they came from.

The rule: every session is shown once, whatever the headers claim of each other; one whose parent is not there stands
alone.
"""

from __future__ import annotations

from typing import Any

from dsh_client.cli.values import as_object

_BRANCHES = ("└ ", "` ")


def branches(
    sessions: list[dict[str, Any]], limit: int, encoding: str
) -> list[tuple[str, dict[str, Any]]]:
    """Return the sessions with what stands in front of each, tree by tree; the tree of newest activity first.

    Args:
        sessions: In the order in which siblings are to stand.
        limit: At most so many trees; 0 for all.
        encoding: Of the terminal.
    """
    known = {str(session["id"]): session for session in sessions}
    children: dict[str, list[str]] = {}
    roots: list[str] = []
    for name, session in known.items():
        parent = _parent(session)
        if parent in known and not _circles(name, known):
            children.setdefault(parent, []).append(name)
        else:
            roots.append(name)
    rows = [_rows(root, known, children, encoding) for root in roots]
    rows.sort(key=lambda tree: -max(one.get("updatedAt") or 0 for _, one in tree))
    return [row for tree in rows[: limit or None] for row in tree]


def _parent(session: dict[str, Any]) -> str:
    return str(as_object(session.get("header")).get("parentSession") or "")


def _circles(name: str, known: dict[str, dict[str, Any]]) -> bool:
    """Whether a session's forebears lead back to one of them."""
    seen: set[str] = set()
    while name in known:
        if name in seen:
            return True
        seen.add(name)
        name = _parent(known[name])
    return False


def _rows(
    root: str, known: dict[str, dict[str, Any]], children: dict[str, list[str]], encoding: str
) -> list[tuple[str, dict[str, Any]]]:
    mark = next((each for each in _BRANCHES if _shows(each, encoding)), _BRANCHES[-1])
    rows: list[tuple[str, dict[str, Any]]] = []
    left = [(root, 0)]
    while left:
        name, depth = left.pop()
        rows.append(("" if depth == 0 else "  " * (depth - 1) + mark, known[name]))
        left += [(child, depth + 1) for child in reversed(children.get(name, []))]
    return rows


def _shows(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
