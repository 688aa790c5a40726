"""When an error was about: the times in which attempts of its group failed, with no gap of more than a few minutes.

From counters, by the minute for two days and by the hour before: a group that comes back tomorrow is another episode.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import Q

from jobs_admin.models import GroupCounter
from jobs_admin.models.counter import HOUR, MINUTE

# An error that was not seen for so long is over.
QUIET = timedelta(minutes=5)
_BY_THE_MINUTE = timedelta(hours=47)  # minutes are kept for two days


class Episodes:
    """Of these groups, from `since` on."""

    def __init__(self, groups: Iterable[int], since: datetime, now: datetime) -> None:
        self._spans: dict[int, list[tuple[datetime, datetime]]] = defaultdict(list)
        fine = now - _BY_THE_MINUTE
        steps = Q(step=MINUTE, at__gte=max(since, fine)) | Q(step=HOUR, at__gte=since, at__lt=fine)
        counted = GroupCounter.objects.filter(steps, group_id__in=list(groups)).exclude(failed=0, retried=0)
        for group, step, at in counted.order_by("group_id", "at").values_list("group_id", "step", "at"):
            spans, until = self._spans[group], at + timedelta(seconds=step)
            if spans and at - spans[-1][1] <= QUIET:
                spans[-1] = (spans[-1][0], until)
            else:
                spans.append((at, until))

    def over(self, group: int | None, at: datetime) -> datetime:
        """When the episode that a failure at this moment was part of had ended; the moment itself where none is known."""
        spans = self._spans.get(group or 0, [])
        place = bisect_right(spans, at, key=lambda span: span[0]) - 1
        return max(at, spans[place][1]) if place >= 0 and spans[place][1] >= at else at
