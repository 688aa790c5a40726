"""Failed attempts of a queue in each step of time, and the times in which they far exceeded the usual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Sum

from jobs_admin.db.counters import step_start
from jobs_admin.models import QueueCounter
from jobs_admin.models.counter import HOUR, MINUTE, MINUTES_BACK, QUARTER, QUARTERS_BACK
from jobs_admin.queues.rates import CALM_MIN, FAILED

_TIMES_USUAL = 3
_OF_PEAK = 20  # what is less than a twentieth of the most is no part of it
_AFTERWARDS = 10  # steps after the peak, and more, tell what goes on failing after it …
_BACKGROUND = 6  # … if it is no more than a sixth of the peak


@dataclass(frozen=True, slots=True)
class Loudness:
    step_s: int
    since: datetime  # the start of the first step
    failed: list[int]  # attempts of each step, the oldest first
    least: int  # so many in a step are loud

    @classmethod
    def read(cls, source: str, queue: str, since: datetime, until: datetime, now: datetime) -> Loudness:
        """Read one queue, or the whole source without one; in the shortest step that is still stored."""
        back = now - since
        step = MINUTE if back <= MINUTES_BACK else QUARTER if back <= QUARTERS_BACK else HOUR
        first = step_start(since, step)
        counted = QueueCounter.objects.filter(source=source, step=step, at__gte=first, at__lte=until)
        if queue:
            counted = counted.filter(queue=queue)
        found = dict(counted.order_by().values_list("at").annotate(n=Sum(FAILED)))
        count = max(1, int((until - first).total_seconds() // step) + 1)
        failed = [int(found.get(first + timedelta(seconds=n * step), 0)) for n in range(count)]
        # Not the mean: the outage is in it. Whoever reads takes at least as long a time before it as it lasted.
        usual = max(sorted(failed)[len(failed) // 4], _background(failed))
        return cls(step, first, failed, max(1, _TIMES_USUAL * usual, max(failed) // _OF_PEAK))

    def at(self, n: int) -> datetime:
        return self.since + timedelta(seconds=n * self.step_s)

    def around(self, begin: datetime, end: datetime) -> tuple[datetime, datetime]:
        """This time with the loud one that it is part of, or comes after."""
        for first, last in reversed(outages(self)):
            if first <= end and last >= begin - timedelta(minutes=CALM_MIN):
                begin, end = min(begin, first), max(end, last)
        return begin, end


def _background(failed: Sequence[int]) -> int:
    """Return how many attempts continue to fail in each step since the peak, 0 if that may be the outage itself.

    A fresh desk has no time before the outage to compare with.
    """
    peak = max(range(len(failed)), key=failed.__getitem__)
    after = sorted(failed[peak + 1 : -1])  # the last step may have just begun
    level = after[len(after) // 2] if len(after) >= _AFTERWARDS else 0
    return level if level * _BACKGROUND <= failed[peak] else 0


def outages(loud: Loudness) -> list[tuple[datetime, datetime]]:
    """The times that were loud, each from the start of its first step to the end of its last, the oldest first."""
    calm = max(1, CALM_MIN * 60 // loud.step_s)
    found: list[list[int]] = []
    for n, failed in enumerate(loud.failed):
        if failed >= loud.least:
            if found and n - found[-1][1] <= calm + 1:
                found[-1][1] = n
            else:
                found.append([n, n])
    return [(loud.at(first), loud.at(last + 1)) for first, last in found]
