"""Pace as text."""

from __future__ import annotations

from typing import Any

from jobs_admin.core.figures import duration, small
from jobs_admin.core.figures import rate as rate_words


def pace_text(pace: dict[str, Any]) -> str:
    """Return a pace as a heading: `50 a second`, `careful, up to 12 a second`."""
    words = _spread(pace)
    if key := (pace.get("per_key") or {}).get("key"):
        words += f", {_per_key(pace['per_key'])} for each {key}"
    return words


def _spread(pace: dict[str, Any]) -> str:
    if pace.get("style") == "at_once":
        return "all at once"
    if to := (pace.get("ramp") or {}).get("to"):
        return f"careful, up to {_step(to)}" if pace.get("style") == "careful" else f"rising to {_step(to)}"
    if pace.get("style") == "careful":
        return "careful"
    if pace.get("over"):
        return f"spread over {duration(pace['over'])}"
    if pace.get("every"):
        return f"one every {duration(pace['every'])}"
    return _step(pace.get("rate") or 50)


def _step(rate: float) -> str:
    return f"{small(rate)}/s" if rate >= 1 else f"one every {duration(1 / rate)}"


def _per_key(limit: dict[str, Any]) -> str:
    at_once, rate = limit.get("concurrency"), limit.get("rate")
    parts = ([f"{at_once:,} at once"] if at_once else []) + ([rate_words(rate)] if rate else [])
    return " and ".join(parts)
