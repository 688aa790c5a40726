"""Careful paces as text, and pace changes."""

from __future__ import annotations

from typing import Any

from dashboard.web.figures import percent
from jobs_admin.core import pacing
from jobs_admin.core.figures import rate as rate_words


def careful_in_words(pace: dict[str, Any], *, is_of_last_hour: bool) -> str:
    """Return the Careful pace as text, with its numbers. `pace` is complete (`core.pacing.settled`)."""
    canary, ramp = pace.get("canary") or {}, pace.get("ramp") or {}
    words = ""
    if canary:
        jobs = canary["jobs"]
        first = "1 job" if jobs == 1 else f"{jobs:,} jobs"
        words = f"starts with {first}. If {percent(canary['success'])} succeed, "
    words += f"ramps from {rate_words(ramp['from'])} to {rate_words(ramp['to'])}"
    words += " (median rate of these queues in the last hour). " if is_of_last_hour else ". "
    if stop := pace.get("stop"):
        words += pacing.stop_rule(stop["failed"])
    return words[0].upper() + words[1:]


def scaled(pace: dict[str, Any], by: float) -> dict[str, Any] | None:
    """Return the pace multiplied by `by`; None without a rate, or if the result is out of bounds."""
    changed = dict(pace)
    if ramp := pace.get("ramp"):
        if not ramp.get("to"):
            return None
        to = _rounded(ramp["to"] * by)
        changed["ramp"] = {**ramp, "to": to} | ({"from": min(ramp["from"], to)} if ramp.get("from") else {})
        rate = to
    elif pace.get("every"):
        changed["every"] = _rounded(pace["every"] / by)
        rate = 1 / changed["every"]
    elif pace.get("rate"):
        changed["rate"] = rate = _rounded(pace["rate"] * by)
    else:
        return None
    return changed if pacing.SLOWEST <= rate <= pacing.FASTEST else None


def amount(pace: dict[str, Any]) -> str:
    """Return the rate in jobs per second for an input; for a ramp that of its end."""
    rate = (pace.get("ramp") or {}).get("to") or pace.get("rate") or (1 / pace["every"] if pace.get("every") else None)
    return "" if rate is None else f"{rate:.4g}" if rate < 1000 else f"{rate:.0f}"


def at_rate(pace: dict[str, Any], requested: dict[str, Any]) -> dict[str, Any]:
    """Return the pace with the requested rate, which is the end of a ramp, and unchanged limits."""
    rate = (
        requested["rate"]
        if "rate" in requested
        else _rounded(1 / requested["every"])
        if requested.get("every")
        else None
    )
    ramp = pace.get("ramp")
    if rate is None:
        return requested
    if ramp:
        return {**pace, "ramp": {**ramp, "to": rate} | ({"from": min(ramp["from"], rate)} if ramp.get("from") else {})}
    rest = {name: value for name, value in pace.items() if name not in {"style", "rate", "every", "over"}}
    return {**rest, **requested}


def _rounded(value: float) -> float:
    """Round to three digits, so that numbers stay readable after repeated changes."""
    number = float(f"{value:.3g}")
    return int(number) if number == int(number) else number
