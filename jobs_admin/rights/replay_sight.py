"""The part of a replay that a viewer may read: jobs of visible sources, and reasons if all its sources are visible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, TextField, Value
from django.db.models.functions import Cast, Concat

from jobs_admin.models import AuditEvent, FrozenBatch, Replay, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.replay import ItemState

_HIDDEN = "Reason hidden: the replay has jobs of a source that you may not see."


def visible(viewer: Viewer) -> QuerySet[Replay]:
    """Return the replays with jobs of a source that the viewer reads, and the viewer's own."""
    sources = viewer.sources()
    if sources is None:
        return Replay.objects.all()
    theirs = ReplayItem.objects.filter(replay=OuterRef("pk"), failure__source__in=sources)
    # Only for logins: a token may be limited to one source, and must not see what its owner did at another.
    own = Q(created_by_id=viewer.user_id) if viewer.user_id else Q(pk__in=[])
    if viewer.focus:
        own &= Q(started_at=None)  # a draft has no source yet
    # A replay waiting for approval has no items yet; the audit of its start names its sources.
    begun = AuditEvent.objects.filter(
        object=Concat(Value("replay:"), Cast(OuterRef("pk"), TextField())),
        act="replay.start",
        allowed=True,
        source__in=sources,
    )
    return Replay.objects.filter(own | Exists(begun) | Exists(theirs))


def restrict(viewer: Viewer, replays: Iterable[Replay]) -> None:
    """Reduce these replays, in memory, to the sources that the viewer reads.

    Their counts are then of these sources, which `seen_sources` names; it is None for a replay counted completely. If a
    replay has a source out of the viewer's sight, everything that names jobs, errors or queues of other sources is
    removed: why it is held or needs approval, excluded jobs, search, patch, queue, and the reason given by a person.
    Sources that the viewer only filtered out hide nothing. The number of queries does not depend on the number of
    replays.
    """
    sources, allowed = viewer.sources(), viewer.unfocused.sources()
    begun = [replay for replay in replays if replay.started_at is not None]
    if sources is None or not begun:
        return
    named = _find_sources(begun)
    # If the audit of its start names no source, its sources are unknown.
    partly = {replay.pk: replay for replay in begun if not (named[replay.pk] or {""}) <= {*sources}}
    if not partly:
        return
    items = ReplayItem.objects.filter(replay__in=partly, failure__source__in=sources).order_by()
    counts: dict[int, Counter[str]] = {pk: Counter() for pk in partly}
    for pk, state, count in items.values_list("replay", "state").annotate(n=Count("pk")):
        counts[pk][state] = count
    frozen = set(FrozenBatch.objects.filter(replay__in=partly).order_by().values_list("replay", flat=True).distinct())
    for pk, replay in partly.items():
        _count(replay, sources, counts[pk], is_frozen=pk in frozen)
        if allowed is not None and not (named[pk] or {""}) <= {*allowed}:
            _hide(replay)


def _find_sources(begun: list[Replay]) -> dict[int, set[str]]:
    named: dict[int, set[str]] = {replay.pk: set(replay.by_source) for replay in begun}
    older = [f"replay:{pk}" for pk, found in named.items() if not found]  # started before the audit named sources
    started = AuditEvent.objects.filter(object__in=older, act="replay.start", allowed=True)
    for event in started.exclude(source="") if older else ():
        named[int(event.object.partition(":")[2])].add(event.source)
    return named


def _count(replay: Replay, sources: Collection[str], counts: Counter[str], *, is_frozen: bool) -> None:
    if is_frozen:
        created = counts.total()
        counts["planned"] += max(0, sum(n for name, n in replay.by_source.items() if name in sources) - created)
    for state in ItemState.values:
        setattr(replay, state, counts[state])
    replay.total = replay.matched = counts.total()
    replay.taken, replay.evidence = 0, None
    replay.by_source = {name: n for name, n in replay.by_source.items() if name in sources}
    replay.seen_sources = sorted(sources)


def _hide(replay: Replay) -> None:
    replay.hides_sources = True
    replay.blocked, replay.query, replay.selection = [], "", []
    replay.patch, replay.edit, replay.to_queue, replay.reason = None, None, "", ""
    if replay.held_because:
        replay.held_because = _HIDDEN
    if replay.approval_because:
        replay.approval_because = _HIDDEN
