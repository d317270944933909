"""Asking the person at the terminal before something goes that is not easily had back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dsh_client.cli.context import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_client.cli.context import Context


def agreed(who: str, heading: str, lines: Iterable[str], context: Context) -> bool:
    """Show what it is about and ask; whatever is not a yes is a no.

    Args:
        who: Which verb asks, for the error.
        heading: Over the lines.
        lines: What it is about, one by one.
        context: Has the terminal.

    Raises:
        UsageError: There is nobody to ask.
    """
    try:
        asks = sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):  # closed, or never there
        asks = False
    if not asks:
        raise UsageError(f"{who}, and there is no terminal; add --yes")
    context.out.note(heading)
    for line in lines:
        context.out.note(f"  {line}")
    context.out.note("really? [y/N]")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
