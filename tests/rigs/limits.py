"""The most jobs of a customer that ran at the same moment."""

from __future__ import annotations

from collections.abc import Iterable


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return the most of the spans [from, until) at once: one that ends as another begins is not beside it."""
    moves = sorted((at, change) for since, until in spans for at, change in ((since, 1), (until, -1)))
    most = now = 0
    for _, change in moves:
        now += change
        most = max(most, now)
    return most
