"""Times as whole seconds since 1970, exchanged with either database: to make a time of each of a thousand rows costs
more than to read them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection

from jobs_admin import config


@dataclass(frozen=True, slots=True)
class Rung:
    step_s: int
    longest: timedelta | None  # None: as long as `depths` of REDRIVE_KEEP


SAMPLE_S = 10
LADDER = (
    Rung(SAMPLE_S, timedelta(days=1)),
    Rung(60, timedelta(days=14)),
    Rung(300, timedelta(days=14)),
    Rung(900, timedelta(days=14)),
    Rung(3_600, None),
    Rung(21_600, None),
    Rung(86_400, None),
)
FOLDS = tuple((low.step_s, high.step_s) for low, high in itertools.pairwise(LADDER))

# A look may be written so long after its moment: what was folded of that time is folded again until then.
LATE_S = 120


def retention_by_step() -> dict[int, timedelta | None]:
    """Time for which the rows of each step are stored; None is for ever."""
    longest = config.keep()["depths"]
    return {
        rung.step_s: longest if rung.longest is None else min(rung.longest, longest or rung.longest) for rung in LADDER
    }


def start_of(seconds: int, step_s: int) -> int:
    return seconds - seconds % step_s


def moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def epoch(expression: str) -> str:
    """Expression of a time as seconds since 1970."""
    if connection.vendor == "sqlite":
        return f"CAST(strftime('%%s', {expression}) AS INTEGER)"
    return f"EXTRACT(EPOCH FROM {expression})::bigint"


def to_database_time(at: int | datetime) -> object:
    """A moment as the database compares it."""
    return connection.ops.adapt_datetimefield_value(moment(at) if isinstance(at, int) else at)


CHART_STEPS = (60, 300, 900)
MOST_CHART_STEPS = 96  # a day of quarter hours


def chart_steps(now: datetime, since: datetime | None = None) -> range:
    """Return the steps of a chart of the last day, or of the time since `since` where that is younger: their beginnings
    in seconds since 1970, the last one the step that runs. A younger chart has shorter steps.
    """
    end = int(now.timestamp())
    begin = int(since.timestamp()) if since else 0
    step = next((one for one in CHART_STEPS if end - begin < one * MOST_CHART_STEPS), CHART_STEPS[-1])
    last = start_of(end, step)
    first = max(last - (MOST_CHART_STEPS - 1) * step, start_of(begin, step))
    return range(min(first, last), last + 1, step)
