"""Numbers for people: spans of time, sizes, tokens."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_THOUSAND = 1000
_KIBI = 1024


def span(milliseconds: int | None) -> str:
    """Return how long something took, in one or two units."""
    if milliseconds is None:
        return "-"
    if milliseconds < _THOUSAND:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    if seconds < 60:  # noqa: PLR2004  # of a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004  # of an hour
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:  # noqa: PLR2004  # then days read better
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def size(count: object) -> str:
    """Return a size in bytes with a binary unit."""
    if not isinstance(count, int):
        return "-"
    amount = float(count)
    for unit in _UNITS:
        if amount < _KIBI or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KIBI
    return f"{count} B"


def many(count: int) -> str:
    """Return a count in few characters: 950, 12.3k, 4.5M."""
    for limit, unit in ((1_000_000, "M"), (_THOUSAND, "k")):
        if count >= limit:
            return (
                f"{count / limit:.1f}{unit}" if count < 100 * limit else f"{count // limit}{unit}"
            )
    return str(count)


def tokens(usage: dict[str, int]) -> str:
    """Return tokens in (those from a cache among them) and out; nothing where a provider told none."""
    if not usage:
        return "-"
    return f"{many(tokens_in(usage))} in, {many(usage.get('outputTokens', 0))} out"


def tokens_in(usage: dict[str, int]) -> int:
    """Return all tokens that a model read: fresh ones, and those read from a cache or written to it."""
    return sum(
        usage.get(name, 0) for name in ("inputTokens", "cacheReadTokens", "cacheWriteTokens")
    )


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return a number of things with its noun."""
    return f"{count} {one if count == 1 else several or one + 's'}"
