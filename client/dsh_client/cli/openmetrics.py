"""The daemon's figures, read from their text: sums of counters, and quantiles between two looks at a histogram."""

from __future__ import annotations

import re

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([-+.\w]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = dict[tuple[str, str], float]
"""By name and `le`; other labels are summed up."""


def parse(text: str) -> Samples:
    """Return the samples of an OpenMetrics text; a line that is none is left out."""
    found: Samples = {}
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match is not None:
            try:
                value = float(match[3])
            except ValueError:
                continue
            labels = dict(_LABEL.findall(match[2] or ""))
            key = (match[1], labels.get("le", ""))
            found[key] = found.get(key, 0.0) + value
    return found


def total(samples: Samples, name: str) -> float:
    """Return a counter or gauge, summed over its labels; 0 where it never moved."""
    return samples.get((name, ""), 0.0)


def rate(before: Samples, after: Samples, name: str, seconds: float) -> float:
    """Return how fast a counter grew; never less than 0, since a daemon that was started anew counts from 0."""
    return max(total(after, name) - total(before, name), 0.0) / seconds if seconds > 0 else 0.0


def quantile(before: Samples, after: Samples, name: str, share: float) -> float | None:
    """Return a quantile of what a histogram saw between two looks; None where it saw nothing.

    Inside of a bucket the values are taken to be spread evenly.
    """
    bounds = sorted(
        (float("inf") if le == "+Inf" else float(le), key)
        for key in after
        if (le := key[1]) and key[0] == f"{name}_bucket"
    )
    counts = [(bound, max(after[key] - before.get(key, 0.0), 0.0)) for bound, key in bounds]
    if not counts or counts[-1][1] <= 0:
        return None
    wanted = counts[-1][1] * share
    lower, below = 0.0, 0.0
    for bound, count in counts:
        if count >= wanted:
            inside = (wanted - below) / (count - below) if count > below else 1.0
            return lower if bound == float("inf") else lower + (bound - lower) * inside
        lower, below = bound, count
    return lower
