"""Times as whole seconds since 1970, for both databases.

Converting a thousand rows to datetimes costs more than reading them.
"""

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

# A sample may be written this long after its time: the folds of that period are repeated until then.
LATE_S = 120


def retention_by_step() -> dict[int, timedelta | None]:
    """Return how long the rows of each step are stored; None: permanently."""
    longest = config.keep()["depths"]
    return {
        rung.step_s: longest if rung.longest is None else min(rung.longest, longest or rung.longest) for rung in LADDER
    }


def start_of(seconds: int, step_s: int) -> int:
    return seconds - seconds % step_s


def moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def epoch(expression: str) -> str:
    """Return the SQL expression of a time as seconds since 1970."""
    if connection.vendor == "sqlite":
        return f"CAST(strftime('%%s', {expression}) AS INTEGER)"
    return f"EXTRACT(EPOCH FROM {expression})::bigint"


def to_database_time(at: int | datetime) -> object:
    """Return a time in the form that the database compares."""
    return connection.ops.adapt_datetimefield_value(moment(at) if isinstance(at, int) else at)


DAY = timedelta(days=1)
CHART_STEPS = (60, 300, 900, 3_600, 21_600, 86_400)
MOST_CHART_STEPS = 96  # a day of quarter hours
MOST_LONG_STEPS = 180  # a week of hours, a month of quarter days


def chart_steps(now: datetime, since: datetime | None = None, length: timedelta = DAY) -> range:
    """Return the steps of a chart of the last `length`, or since `since` if that is later.

    The values are the starts in seconds since 1970; the last one is the current step. A shorter chart has shorter
    steps.
    """
    end, length_s = int(now.timestamp()), int(length.total_seconds())
    begin = max(end - length_s, int(since.timestamp()) if since else 0)
    most = MOST_CHART_STEPS if length <= DAY else MOST_LONG_STEPS
    step = next((one for one in CHART_STEPS if end - begin <= one * most), CHART_STEPS[-1])
    last = start_of(end, step)
    first = max(last - (length_s // step - 1) * step, start_of(begin, step))
    return range(min(first, last), last + 1, step)
