"""Groups to choose from: a search by words of type, message or place in the code.

Groups with equal titles are distinguished by their places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Q, Sum

from jobs_admin.core.text import list_some, representable
from jobs_admin.models import FailureCount, Group
from jobs_admin.models.access import Viewer
from jobs_admin.models.group import IS_TAKEN_IN
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes

MOST_WORDS = 8
SEARCHED = 200  # latest groups that contain the words: dead jobs are counted for these

SHOWN = 2  # tasks that are named


@dataclass(frozen=True, slots=True)
class FoundGroup:
    group: Group
    dead: int


def find_groups(viewer: Viewer, text: str, *, limit: int) -> list[FoundGroup]:
    """Return the groups that contain all words, most dead jobs first, then the latest; the latest without a word.

    Scans the groups once, which are thousands where failures are millions; no failure is read.
    """
    seen = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), count__gt=0)
    condition = ~IS_TAKEN_IN & Q(Exists(seen))
    words = [word.strip(":")[:100] for word in representable(text).split()[:MOST_WORDS]]
    for word in words:
        has_word = Q(error_type__icontains=word) | Q(message__icontains=word) | Q(culprit__icontains=word)
        condition &= group_sight.reads(viewer, has_word)
    latest = Group.objects.filter(condition).order_by(group_sight.seen_at(viewer, "last_seen").desc(), "-pk")
    found = list(latest[: SEARCHED if words else limit])
    group_sight.restrict(viewer, found)
    counts = FailureCount.objects.filter(scopes.visible(viewer), state="dead", group_id__in=[one.pk for one in found])
    dead = dict(counts.order_by().values_list("group_id").annotate(n=Sum("count")))
    rows = [FoundGroup(one, dead.get(one.pk) or 0) for one in found]
    if words:
        rows.sort(key=lambda row: -row.dead)  # stable: equal numbers stay sorted by time
    return rows[:limit]


@dataclass(frozen=True, slots=True)
class Place:
    words: str  # `task shop.deliver · shop/hooks.py in post`; empty if unknown
    jobs: int  # counted jobs


def read_places(groups: Sequence[Group], viewer: Viewer | None = None) -> dict[int, Place]:
    """Return group id -> its most frequent tasks and its place in the code, within the rights of `viewer`.

    One query.
    """
    seen = Q() if viewer is None else scopes.visible(viewer)
    counts = FailureCount.objects.filter(seen, group_id__in=[group.pk for group in groups], count__gt=0).order_by()
    tasks: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for group, task, n in counts.values_list("group_id", "task").annotate(n=Sum("count")):
        tasks[group].append((-n, task))
    return {group.pk: _place(group.culprit, sorted(tasks[group.pk])) for group in groups}


def read_places_by_name(fingerprints: Sequence[str], viewer: Viewer) -> dict[str, Place]:
    """Return the same by fingerprint."""
    groups = list(Group.objects.filter(fingerprint__in=fingerprints))
    group_sight.restrict(viewer, groups)
    places = read_places(groups, viewer) if groups else {}
    return {group.fingerprint: places[group.pk] for group in groups}


def _place(culprit: str, tasks: list[tuple[int, str]]) -> Place:
    names = [task for _, task in tasks if task]
    of_tasks = f"{'tasks' if len(names) > 1 else 'task'} {list_some(names, SHOWN)}" if names else ""
    return Place(" · ".join(part for part in (of_tasks, culprit) if part), -sum(n for n, _ in tasks))
