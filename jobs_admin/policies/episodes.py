"""When an error was about: the times in which attempts of its group failed, with no gap of more than a few minutes.

From counters, by the minute for two days and by the hour before: a group that comes back tomorrow is another episode.
A group's counters know no source. Where a group failed in several, a minute is part of a source's episode only if
something failed in that source too: its queues' counters tell.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import Count, Q

from jobs_admin.models import FailureCount, GroupCounter, QueueCounter
from jobs_admin.models.counter import HOUR, MINUTE, MINUTES_BACK

# An error that was not seen for so long is over.
QUIET = timedelta(minutes=5)


class Episodes:
    """Of these groups in these sources, from `since` on."""

    def __init__(self, wanted: Iterable[tuple[str, int]], since: datetime, now: datetime) -> None:
        self._spans: dict[tuple[str, int], list[tuple[datetime, datetime]]] = defaultdict(list)
        sources: dict[int, set[str]] = defaultdict(set)
        for source, group in wanted:
            sources[group].add(source)
        fine = now - MINUTES_BACK
        steps = Q(step=MINUTE, at__gte=max(since, fine)) | Q(step=HOUR, at__gte=since, at__lt=fine)
        shared = _in_several_sources(sources)
        failed = _failed({source for group in shared for source in sources[group]}, steps)
        counted = GroupCounter.objects.filter(steps, group_id__in=list(sources)).exclude(failed=0, retried=0)
        for group, step, at in counted.order_by("group_id", "at").values_list("group_id", "step", "at"):
            for source in sources[group]:
                if group not in shared or (source, step, at) in failed:
                    self._add((source, group), at, at + timedelta(seconds=step))

    def _add(self, place: tuple[str, int], at: datetime, until: datetime) -> None:
        spans = self._spans[place]
        if spans and at - spans[-1][1] <= QUIET:
            spans[-1] = (spans[-1][0], until)
        else:
            spans.append((at, until))

    def over(self, source: str, group: int | None, at: datetime) -> datetime:
        """When the episode that a failure at this moment was part of had ended; the moment itself where none is known."""
        spans = self._spans.get((source, group or 0), [])
        place = bisect_right(spans, at, key=lambda span: span[0]) - 1
        return max(at, spans[place][1]) if place >= 0 and spans[place][1] >= at else at


def _in_several_sources(groups: Iterable[int]) -> set[int]:
    counted = FailureCount.objects.filter(group_id__in=list(groups)).values("group_id")
    found = counted.annotate(sources=Count("source", distinct=True)).filter(sources__gt=1)
    return set(found.values_list("group_id", flat=True))


def _failed(sources: set[str], steps: Q) -> set[tuple[str, int, datetime]]:
    """Source, step and start of the steps in which attempts failed there."""
    if not sources:
        return set()
    counted = QueueCounter.objects.filter(steps, source__in=sources).exclude(failed=0, retried=0)
    return set(counted.values_list("source", "step", "at").distinct())
