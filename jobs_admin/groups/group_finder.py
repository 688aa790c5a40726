"""Search of groups by words of type, message or place in the code, for a quick jump."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Q, Sum

from jobs_admin.core.text import representable
from jobs_admin.models import FailureCount, Group
from jobs_admin.models.access import Viewer
from jobs_admin.models.group import IS_TAKEN_IN
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes

MOST_WORDS = 8
SEARCHED = 200  # groups that have the words, the latest: the dead are counted of these


@dataclass(frozen=True, slots=True)
class FoundGroup:
    group: Group
    dead: int


def find_groups(viewer: Viewer, text: str, *, limit: int) -> list[FoundGroup]:
    """Return those that contain all of the words, most dead jobs first, then the latest; the latest without a word.

    One scan of the groups, which are thousands where failures are millions; no failure is read.
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
        rows.sort(key=lambda row: -row.dead)  # stays by time where as many are dead
    return rows[:limit]
