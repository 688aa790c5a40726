"""Parser of a requested pace; its errors name the invalid part."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import time
from typing import Any

from jobs_admin.core.pacing.pace import (
    AT_ONCE,
    CAREFUL,
    DAYS,
    DEFAULT,
    FASTEST,
    SLOWEST,
    STEADY,
    STYLES,
    Canary,
    Pace,
    PerKey,
    Ramp,
    Stop,
    Window,
    default_for,
)  # fmt: skip
from jobs_admin.core.priority import LEVELS
from jobs_admin.core.refused import Refused

LONGEST_S = 30 * 86_400.0
_NAMES = (
    "style", "rate", "every", "over", "jitter", "canary", "ramp", "in_flight", "per_key", "queue_cap", "stop", "window",
    "priority", "shuffle",
)  # fmt: skip
_KEY = re.compile(r"(?:tenant|queue|task|args\.\d{1,3}(?:\.\w{1,80}){0,8}|kwargs(?:\.\w{1,80}){1,8})\Z")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\Z")


def parse(pace: object, jobs: int = 0, *, is_risky: bool = False) -> Pace:
    """Return the requested pace; for None or {}, the default for these jobs (`default_for`). Raises Refused."""
    default = default_for(jobs, is_risky=is_risky)
    if pace is None or pace == {}:
        return default
    if not isinstance(pace, Mapping):
        raise Refused("bad_pace", 'A pace must be an object such as {"style": "steady", "rate": 50}.', "pace")
    for name in pace:
        if name not in _NAMES:
            raise Refused("bad_pace", f"Unknown field {str(name)[:40]!r}. Known: {', '.join(_NAMES)}.", str(name)[:40])
    given = {name: value for name, value in pace.items() if value is not None}
    style = _style(given, default)
    if style == AT_ONCE:
        for name in ("rate", "every", "over", "jitter", "canary", "ramp"):
            if name in given:
                raise Refused("bad_pace", f"{name} does not apply to at_once. Choose steady or careful.", name)
    rate = _rate(given)
    ramp = _ramp(given["ramp"], rate) if "ramp" in given else None
    over = _number("over", given["over"], 1, LONGEST_S, "seconds in total") if "over" in given else None
    if style == STEADY and rate is None and over is None and (ramp is None or ramp.to is None):
        rate = float(DEFAULT["rate"])
    given = {"jitter": 0, "shuffle": False, **given}
    parts = {name: read(given[name]) for name, read in _PARTS.items() if name in given}
    return Pace(style=style, rate=rate, over=over, ramp=ramp, **parts)


def _priority(value: object) -> int | str:
    """Return the queue system's number, or a level, which has its own number in each system."""
    if isinstance(value, str) and value.strip().lower() in LEVELS:
        return value.strip().lower()
    return _integer("priority", value, 0, 9, f"or {', '.join(LEVELS)}")


def _style(given: Mapping[Any, Any], default: Pace) -> str:
    """Return the style. By default: steady with a rate, careful with a ramp or canary, else the default."""
    style = given.get("style")
    if style is None:
        if given.keys() & {"rate", "every", "over"}:
            return STEADY
        return CAREFUL if given.keys() & {"ramp", "canary"} else default.style
    if style not in STYLES:
        raise Refused("bad_pace", "Choose careful, steady (with a rate) or at_once.", "style")
    return str(style)


def _rate(given: Mapping[Any, Any]) -> float | None:
    if "rate" in given and "every" in given:
        raise Refused("bad_pace", "Give rate (jobs per second) or every (seconds between jobs), not both.", "every")
    for name in ("rate", "every"):
        if name in given and "over" in given:
            raise Refused("bad_pace", f"Give {name} or over (seconds in total), not both.", "over")
    if "every" in given:
        return 1 / _number("every", given["every"], 1 / FASTEST, 1 / SLOWEST, "seconds between jobs")
    return _number("rate", given["rate"], SLOWEST, FASTEST, "jobs per second") if "rate" in given else None


def _ramp(value: object, rate: float | None) -> Ramp:
    part = _part("ramp", value, ("from", "to"), '{"from": 5, "to": 100}')
    ends = [
        _number(f"ramp.{n}", part[n], SLOWEST, FASTEST, "jobs per second") if n in part else None
        for n in ("from", "to")
    ]
    start, to = ends[0], ends[1] or rate
    if start is not None and to is not None and start > to:
        raise Refused(
            "bad_pace", f"ramp.from must be a number from {SLOWEST:g} to ramp.to ({to:g} jobs per second).", "ramp.from"
        )
    return Ramp(start, to)


def _canary(value: object) -> Canary:
    part = _part("canary", value, ("jobs", "success", "within"), '{"jobs": 50, "success": 0.8, "within": 300}')
    usual = Canary()
    return Canary(
        jobs=_integer("canary.jobs", part.get("jobs", usual.jobs), 1, 10_000, "jobs"),
        success=_number("canary.success", part.get("success", usual.success), 0, 1, "share that must succeed"),
        within=_number("canary.within", part.get("within", usual.within), 1, 86_400, "seconds"),
    )


def _stop(value: object) -> Stop:
    part = _part("stop", value, ("failed", "of_last", "new_groups"), '{"failed": 0.3, "of_last": 200}')
    usual = Stop()
    return Stop(
        failed=_number("stop.failed", part.get("failed", usual.failed), 0.01, 1, "share of jobs; 1 never stops"),
        of_last=_integer("stop.of_last", part.get("of_last", usual.of_last), 10, 10_000, "jobs"),
        new_groups=_truth("stop.new_groups", part.get("new_groups", usual.new_groups)),
    )


def _per_key(value: object) -> PerKey:
    part = _part("per_key", value, ("key", "concurrency", "rate"), '{"key": "tenant", "concurrency": 5}')
    key = part.get("key")
    if not isinstance(key, str) or not _KEY.match(key):
        raise Refused(
            "bad_pace",
            "per_key.key must be tenant, queue, task, or a path such as kwargs.customer_id or args.0.id.",
            "per_key.key",
        )
    if not part.keys() & {"concurrency", "rate"}:
        raise Refused(
            "bad_pace", "per_key needs concurrency (concurrent jobs) or rate (jobs per second), or both.", "per_key"
        )
    at_once, rate = part.get("concurrency"), part.get("rate")
    return PerKey(
        key,
        None if at_once is None else _integer("per_key.concurrency", at_once, 1, 100_000, "concurrent jobs"),
        None if rate is None else _number("per_key.rate", rate, SLOWEST, FASTEST, "jobs per second"),
    )


def _window(value: object) -> Window:
    part = _part("window", value, ("from", "to", "days"), '{"from": "22:00", "to": "06:00"}')
    days = part.get("days", list(DAYS))
    if isinstance(days, str) or not isinstance(days, (list, tuple)) or not days or not set(map(str, days)) <= set(DAYS):
        raise Refused("bad_pace", f"window.days must be a list of one or more of {', '.join(DAYS)}.", "window.days")
    opens, closes = (_time_of_day(f"window.{name}", part.get(name)) for name in ("from", "to"))
    return Window(opens, closes, tuple(day for day in DAYS if day in days))


def _time_of_day(field: str, value: object) -> time:
    if value == "24:00":
        return time(0)
    if not isinstance(value, str) or not (found := _TIME.match(value)):
        raise Refused("bad_pace", f"{field} must be a time of day in UTC from 00:00 to 24:00, such as 22:00.", field)
    return time(int(found[1]), int(found[2]))


def _part(field: str, value: object, names: tuple[str, ...], example: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Refused("bad_pace", f"{field} must be an object such as {example}.", field)
    for name in value:
        if name not in names:
            raise Refused(
                "bad_pace",
                f"Unknown field {field}.{str(name)[:40]}. Known: {', '.join(names)}.",
                f"{field}.{name}"[:80],
            )
    return {name: inner for name, inner in value.items() if inner is not None}


def _truth(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise Refused("bad_pace", f"{field} must be true or false.", field)
    return value


def _integer(field: str, value: object, least: int, most: int, unit: str) -> int:
    number = _read(value)
    if not least <= number <= most or number != int(number):
        raise Refused("bad_pace", f"{field} must be a whole number from {least:,} to {most:,} ({unit}).", field)
    return int(number)


def _number(field: str, value: object, least: float, most: float, unit: str) -> float:
    number = _read(value)
    if not least <= number <= most:  # also false for NaN
        raise Refused("bad_pace", f"{field} must be a number from {least:g} to {most:,.0f} ({unit}).", field)
    return number


def _read(value: object) -> float:
    """Return a number; NaN for anything else."""
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            return math.nan
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


# Independent parts, in the order of validation.
_PARTS: dict[str, Callable[[object], Any]] = {
    "jitter": lambda value: _number("jitter", value, 0, 1, "share of the gap between jobs"),
    "canary": _canary,
    "in_flight": lambda value: _integer("in_flight", value, 1, 10_000_000, "jobs"),
    "per_key": _per_key,
    "queue_cap": lambda value: _integer("queue_cap", value, 1, 10_000_000, "waiting jobs"),
    "stop": _stop,
    "window": _window,
    "priority": _priority,
    "shuffle": lambda value: _truth("shuffle", value),
}
