"""Texts of measured values."""

from __future__ import annotations

from collections.abc import Iterable


def spread(values: Iterable[float], digits: int = 3) -> dict[str, float]:
    """Median, 99th percentile and the most of some values. Raises ValueError where there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], digits)

    return {"p50": at(0.5), "p99": at(0.99), "most": round(ordered[-1], digits)}
