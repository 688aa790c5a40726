"""Places of groups in a few words, to distinguish groups of equal title."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q, Sum

from jobs_admin.models import FailureCount, Group
from jobs_admin.models.access import Viewer
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes

SHOWN = 2  # tasks that are named


@dataclass(frozen=True, slots=True)
class Place:
    words: str  # `task shop.deliver · shop/hooks.py in post`; empty where nothing is known
    jobs: int  # that are counted


def read_places(groups: Sequence[Group], viewer: Viewer | None = None) -> dict[int, Place]:
    """By the group's id: its fullest tasks and its place in the code, as far as `viewer` may see. In one query."""
    seen = Q() if viewer is None else scopes.visible(viewer)
    counts = FailureCount.objects.filter(seen, group_id__in=[group.pk for group in groups], count__gt=0).order_by()
    tasks: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for group, task, n in counts.values_list("group_id", "task").annotate(n=Sum("count")):
        tasks[group].append((-n, task))
    return {group.pk: _place(group.culprit, sorted(tasks[group.pk])) for group in groups}


def read_places_by_name(fingerprints: Sequence[str], viewer: Viewer) -> dict[str, Place]:
    """By fingerprint."""
    groups = list(Group.objects.filter(fingerprint__in=fingerprints))
    group_sight.restrict(viewer, groups)
    places = read_places(groups, viewer) if groups else {}
    return {group.fingerprint: places[group.pk] for group in groups}


def _place(culprit: str, tasks: list[tuple[int, str]]) -> Place:
    names = [task for _, task in tasks if task]
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    of_tasks = f"{'tasks' if len(names) > 1 else 'task'} {', '.join(names[:SHOWN])}{more}" if names else ""
    return Place(" · ".join(part for part in (of_tasks, culprit) if part), -sum(n for n, _ in tasks))
