"""Epoch milliseconds as people and as programs read them.

The rule: no stored number makes these fail; a time outside the calendar is printed as the number that it is.
"""

from __future__ import annotations

import time
from contextlib import suppress

from dsh_client.cli.values import duration

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_MANY_DAYS = 60
_FORMS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S")


def rfc3339(epoch_ms: object) -> str:
    """Return a time in UTC with milliseconds, such as `2026-08-21T09:00:00.000Z`."""
    if not isinstance(epoch_ms, int):
        return "-"
    seconds, millis = divmod(epoch_ms, 1000)
    try:
        parts = time.gmtime(seconds)
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', parts)}.{millis:03}Z"
    except (OverflowError, ValueError, OSError):
        return str(epoch_ms)


def relative(epoch_ms: object, now_ms: int) -> str:
    """Return how long ago a time was, in one unit; the date where that is more than two months."""
    if not isinstance(epoch_ms, int):
        return "-"
    ago = now_ms - epoch_ms
    for size, unit in _UNITS:
        count = abs(ago) // size
        if count and unit == "d" and count > _MANY_DAYS:
            return rfc3339(epoch_ms)[:10]
        if count:
            return f"{count} {unit} ago" if ago > 0 else f"in {count} {unit}"
    return "now"


def moment(text: str) -> int:
    """Return the epoch milliseconds of `2d` (so long ago) or of a day or time as `-o json` prints it, in UTC."""
    with suppress(ValueError):
        return max(now_ms() - duration(text), 0)
    import calendar  # only where a day is named

    for form in _FORMS:
        with suppress(ValueError):
            return max(calendar.timegm(time.strptime(text, form)) * 1000, 0)
    raise ValueError(f"{text!r} is no time such as 2d or 2026-08-21")


def now_ms() -> int:
    """Return the clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000
