"""Bundles taken in: `dshd restore` checks and writes, on the root of the daemon that runs; labels follow.

The rule: a bundle makes a whole session or none, and never over another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from dsh_client.cli.text import escape, shell_word
from dsh_client.cli.values import as_object
from dsh_protocol.errors import EXIT_CONFLICT, EXIT_FAILURE, EXIT_OK

if TYPE_CHECKING:
    from dsh_client.cli.context import Context

_LABELS = {"title": str, "archived": bool, "pinned": bool}


def take_in(files: list[str], wanted: str | None, context: Context) -> int:
    """Take in one bundle after the other; the first that fails ends it, with its exit code."""
    root = str(context.call("daemon.status")["root"])
    made: list[dict[str, Any]] = []
    code = EXIT_OK
    for path in files:
        code, found = _restore(path, root, wanted)
        if found is None:
            context.out.note(f"try: {_next(path, code)}")
            break
        labels = as_object(found.get("labels"))
        known = {
            name: labels[name] for name, kind in _LABELS.items() if type(labels.get(name)) is kind
        }
        if known:
            context.call("session.setLabel", {"id": found["id"], **known})
        made.append({"file": path, **found})
        if context.out.is_table:
            hidden = f"; {found['redacted']} secrets were hidden in it" if found["redacted"] else ""
            context.out.line(f"{path}: {found['id']}, {found['events']} events{hidden}")
        elif context.out.form == "jsonl":
            context.out.json(made[-1])
    if context.out.form == "json":
        context.out.json({"imported": made})
    return code


def _next(path: str, code: int) -> str:
    if code == EXIT_CONFLICT:
        return f"dshctl import {shell_word(path)} --as ID"
    return "dshctl import --help (what is no bundle needs --from)"


def _restore(path: str, root: str, wanted: str | None) -> tuple[int, dict[str, Any] | None]:
    """Run the daemon's own program, which knows how logs are written; it says on standard error what it refuses."""
    words = [sys.executable, "-m", "dshd.main", "restore", "--json", "--root", root]
    words.append("--said-by=dshctl")
    if wanted is not None:
        words.append(f"--id={wanted}")
    ended = subprocess.run([*words, "--", path], check=False, stdout=subprocess.PIPE)  # noqa: S603  # words of our own
    if ended.returncode != 0:
        return ended.returncode, None
    try:
        return EXIT_OK, as_object(json.loads(ended.stdout))
    except ValueError:
        sys.stderr.write(f"dshctl: dshd restore answered {escape(repr(ended.stdout[:200]))}\n")
        return EXIT_FAILURE, None
