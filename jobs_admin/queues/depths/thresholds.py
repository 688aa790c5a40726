"""From how many dead jobs on a rule tells: the lines that a picture of them has to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs_admin.core.matching import matches
from jobs_admin.models import Rule
from jobs_admin.models.access import Viewer

_LOOKED_AT = 500


@dataclass(frozen=True, slots=True)
class Threshold:
    rule: str
    source: str  # a glob
    queue: str  # a glob
    value: float
    severity: str


def thresholds(viewer: Viewer) -> list[Threshold]:
    """Those of the enabled rules on the dead jobs of whole queues that the viewer may see, the lowest first."""
    whole = dict.fromkeys(("task", "group", "tenant"), "*")
    found = Rule.objects.filter(metric="dead", enabled=True, **whole).order_by("threshold", "name")
    rows = found.values_list("name", "source", "queue", "threshold", "severity")[:_LOOKED_AT]
    return [Threshold(*row) for row in rows if viewer.sees_any_of(row[1])]


def of_queue(found: Sequence[Threshold], source: str, queue: str) -> list[Threshold]:
    return [one for one in found if matches(one.source, source) and matches(one.queue, queue)]
