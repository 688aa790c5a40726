"""Replays and their items, for pages, API and terminal."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import NamedTuple

from django.db.models import Count, Exists, OuterRef, Q
from django.utils import timezone

from jobs_admin import failures
from jobs_admin.core.text import whole_number
from jobs_admin.db import statements
from jobs_admin.models import Failure, FailureCount, Group, Replay, ReplayItem
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.group import IS_TAKEN_IN, GroupState
from jobs_admin.models.replay import SENDING, START, ItemState, ReplayState
from jobs_admin.replays import observation, prognosis, setting_aside
from jobs_admin.replays.target import build_target
from jobs_admin.rights import group_sight, replay_sight
from jobs_admin.search import scope as scopes

LARGEST_PAGE = 500
MOST_COMPARED = 500  # latest jobs that failed again, whose earlier errors are read
_MOST_COUNTED = 100_000
_LEFT = (FailureState.DEAD, FailureState.RETRYING, FailureState.REPLAYING, FailureState.QUARANTINED)
_STANDING = (ReplayState.HELD, ReplayState.PAUSED, ReplayState.WAITING)
_OPEN_GROUP = (GroupState.NEW, GroupState.ONGOING, GroupState.REGRESSED)


@dataclass(frozen=True, slots=True)
class ReplayPage:
    rows: list[Replay]
    next: str | None  # pass it as `after`; None on the last page


@dataclass(frozen=True, slots=True)
class ItemPage:
    rows: list[ReplayItem]  # with their failures, in the order of sending
    next: str | None
    due: dict[int, datetime]  # item id -> when it is due at the present pace; only for waiting items of a paced replay


def find(viewer: Viewer, pk: int) -> Replay:
    """Return the replay. Raises Replay.DoesNotExist, also if the viewer may not see it."""
    if not 0 < int(pk) < 2**63:
        raise Replay.DoesNotExist
    replay = replay_sight.visible(viewer).get(pk=pk)
    replay_sight.restrict(viewer, [replay])
    return replay


def listing(viewer: Viewer, after: str | None = None, limit: int = 50) -> ReplayPage:
    """Return a page of replays, latest first. An invalid `after` returns the first page."""
    limit = max(1, min(limit, LARGEST_PAGE))
    found = replay_sight.visible(viewer).order_by("-pk")
    if cursor := whole_number(after):
        found = found.filter(pk__lt=cursor)
    rows = list(found.defer("set_aside")[: limit + 1])
    replay_sight.restrict(viewer, rows)
    return ReplayPage(rows[:limit], str(rows[limit - 1].pk) if len(rows) > limit else None)


def count(viewer: Viewer) -> tuple[int, bool]:
    """Return how many replays the viewer may see, and whether there are more: exact up to 10,000."""
    found = replay_sight.visible(viewer).order_by()[: failures.EXACT + 1].count()
    return min(found, failures.EXACT), found > failures.EXACT


def items(
    viewer: Viewer,
    replay: Replay,
    state: str | None = None,
    after: str | None = None,
    limit: int = 50,
    now: datetime | None = None,
    *,
    is_latest_first: bool = False,
) -> ItemPage:
    """Return a page of items in the order of sending, or backwards. Only items of sources that the viewer may see."""
    limit = max(1, min(limit, LARGEST_PAGE))
    found = ReplayItem.objects.filter(replay=replay)
    sources = viewer.sources(VIEWER)
    if sources is not None:
        found = found.filter(failure__source__in=sources)
    if state:
        found = found.filter(state=state)
    if cursor := whole_number(after):
        found = found.filter(n__lt=cursor) if is_latest_first else found.filter(n__gt=cursor)
    light = found.select_related("failure", "failed_group").defer(
        "failure__args", "failure__kwargs", "failure__headers", "failure__message"
    )
    rows = list(light.order_by("-n" if is_latest_first else "n")[: limit + 1])
    if replay.seen_sources is not None:
        for row in rows:
            row.outcome = setting_aside.without_search(row.outcome)
    next_ = str(rows[limit - 1].n) if len(rows) > limit else None
    return ItemPage(rows[:limit], next_, _due_times(replay, rows[:limit], now or timezone.now()))


def count_items(viewer: Viewer, replay: Replay, state: str | None = None) -> tuple[int, bool]:
    """Return how many items the viewer may see, and whether there are more.

    Exact up to 10,000 if sources are hidden.
    """
    sources = viewer.sources(VIEWER)
    if sources is None:
        return (getattr(replay, state) if state else replay.total), False
    found = ReplayItem.objects.filter(replay=replay, failure__source__in=sources)
    count = (found.filter(state=state) if state else found).order_by()[: failures.EXACT + 1].count()
    return min(count, failures.EXACT), count > failures.EXACT


def count_dead(viewer: Viewer, replay: Replay) -> int:
    """Return how many of the replay's jobs are dead now, as the search `replay:N state:dead` finds."""
    found = ReplayItem.objects.filter(replay=replay, failure__state=FailureState.DEAD)
    sources = viewer.sources(VIEWER)
    if sources is not None:
        found = found.filter(failure__source__in=sources)
    return found.count()


def count_excluded_dead(viewer: Viewer, replay: Replay) -> int:
    """Return how many jobs matched the replay's draft, are dead now, and have no item of it; 0 if none was excluded."""
    if not replay.query or not replay.blocked:
        return 0
    matching = build_target(replay.query, (), timezone.now()).within(viewer, timezone.now(), VIEWER)
    mine = ReplayItem.objects.filter(replay=replay, failure=OuterRef("pk"))
    left = matching.filter(~Exists(mine), state=FailureState.DEAD, pk__lte=replay.scope_max_id)
    return left.order_by()[:_MOST_COUNTED].count()


_MOST_COUNTED = 10_000


def _due_times(replay: Replay, rows: list[ReplayItem], now: datetime) -> dict[int, datetime]:
    """Return the due times of planned items: place divided by rate. An estimate, because the pace may change."""
    waiting = [row.n for row in rows if row.state == ItemState.PLANNED]
    if not waiting or replay.state not in SENDING or not replay.rate:
        return {}
    planned = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED)
    before = planned.filter(n__lt=waiting[0]).count()
    # Includes items that the viewer may not see, which are sent in their turn.
    order = list(planned.filter(n__range=(waiting[0], waiting[-1])).order_by("n").values_list("n", flat=True))
    return {
        row.pk: now + timedelta(seconds=(before + bisect_left(order, row.n)) / replay.rate)
        for row in rows
        if row.state == ItemState.PLANNED
    }


def stopped_replays(failures: Sequence[Failure]) -> dict[int, tuple[int, str]]:
    """Return failure id -> (number, state) of the held, paused or waiting replay in which the job is planned."""
    dead = [failure.pk for failure in failures if failure.state == FailureState.DEAD]
    if not dead:
        return {}
    sql, values = _planned_items()
    among, ids = statements.one_of(f"{ReplayItem._meta.db_table}.failure_id", dead)
    return {pk: (replay, state) for pk, replay, state in statements.fetch_rows(f"{sql} {among}", [*values, *ids])}


@cache
def _planned_items() -> tuple[str, tuple[object, ...]]:
    """Return the statement that reads failure, replay and its state of planned items. Django takes 0.5 ms to build it."""
    planned = ReplayItem.objects.filter(state=ItemState.PLANNED, replay__state__in=_STANDING).order_by()
    return planned.values_list("failure", "replay", "replay__state").query.sql_with_params()


@dataclass(frozen=True, slots=True)
class FailedGroup:
    """A group with which jobs of a replay failed again, and the errors that these jobs had died of before."""

    group: Group
    count: int
    same: int  # of `compared`: had died of this error before
    compared: int  # the latest of them whose earlier error is known


def failed_again_groups(viewer: Viewer, replay: Replay, limit: int = 20) -> list[FailedGroup]:
    """Return the groups with which jobs of the replay failed again, most frequent first.

    Only jobs of sources that the viewer may see count.
    """
    found = ReplayItem.objects.filter(replay=replay, state=ItemState.FAILED_AGAIN)
    sources = viewer.sources(VIEWER)
    if sources is not None:
        found = found.filter(failure__source__in=sources)
    in_group = found.filter(failed_group__isnull=False).order_by()
    counted = in_group.values("failed_group").annotate(n=Count("pk")).order_by("-n", "failed_group")[:limit]
    numbers = [(row["failed_group"], row["n"]) for row in counted]
    groups = group_sight.read(viewer, [pk for pk, _ in numbers])
    rows = list(found.order_by("-n").values_list("failed_group", "failure", "run", named=True)[:MOST_COMPARED])
    before = observation.read_groups_before(rows)
    compared = [(row.failed_group, before[row.failure]) for row in rows if row.failure in before]
    known, same = Counter(pk for pk, _ in compared), Counter(pk for pk, died_of in compared if died_of == pk)
    return [FailedGroup(groups[pk], n, same[pk], known[pk]) for pk, n in numbers if pk in groups]


def compare_errors(rows: Sequence[FailedGroup]) -> str:
    """Return how many of these failed with the same and with a new error, as text; "" if unknown."""
    same, compared = sum(row.same for row in rows), sum(row.compared for row in rows)
    if not compared:
        return ""
    new = compared - same
    words = [f"{same:,} failed as before"] if same else []
    words += [f"{new:,} with a new error"] if new else []
    text = ", ".join(words) if same else f"{new:,} failed with a new error"
    return text if compared == sum(row.count for row in rows) else f"{text} (latest {compared:,})"


def read_errors_before(viewer: Viewer, rows: Sequence[ReplayItem]) -> dict[int, Group | None]:
    """Return item id -> the group of its job's error in the previous run, for items that failed again.

    None: no group that the viewer may see. An item whose earlier attempts are not stored is absent.
    """
    failed = [row for row in rows if row.state == ItemState.FAILED_AGAIN]
    if not failed:
        return {}
    before = observation.read_groups_before([_Run(row.failure_id, row.run) for row in failed])
    groups = group_sight.read(viewer, {pk for pk in before.values() if pk})
    return {row.pk: groups.get(before[row.failure_id] or 0) for row in failed if row.failure_id in before}


class _Run(NamedTuple):
    failure: int
    run: int


@dataclass(frozen=True, slots=True)
class FailingGroup:
    """A group that jobs of a held replay had died of before their first attempts failed, and its unsent jobs."""

    group: Group
    failed_in: list[tuple[Group, int]]  # groups of their final errors, or else first ones, most frequent first
    first_failed_in: frozenset[int]  # groups of these first attempts' errors
    count: int  # of these among the latest MOST_COMPARED of the replay
    planned: int | None  # unsent jobs that died of it; None: too many to count


def failing_groups(viewer: Viewer, replay: Replay, limit: int = 10) -> list[FailingGroup]:
    """Return the groups whose jobs failed in their first attempts, most frequent first.

    The group is the one that a job *died of*, because unsent jobs are excluded by that group. Only jobs of sources that
    the viewer may see count.
    """
    found = ReplayItem.objects.filter(replay=replay, first_at__isnull=False, first_ok=False)
    sources = viewer.sources(VIEWER)
    if sources is not None:
        found = found.filter(failure__source__in=sources)
    names = ("first_group", "failed_group", "failure", "run", "failure__group")
    rows = list(found.order_by("-first_at").values_list(*names, named=True)[:MOST_COMPARED])
    before = observation.read_groups_before(rows)
    failed: dict[int, Counter[int]] = defaultdict(Counter)
    first: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if died_of := before.get(row.failure, row.failure__group):
            failed[died_of][row.failed_group or row.first_group or 0] += 1
            first[died_of].add(row.first_group or 0)
    largest = sorted(failed, key=lambda pk: (-failed[pk].total(), pk))[:limit]
    groups = group_sight.read(viewer, {*largest, *(pk for one in largest for pk in failed[one])})
    planned: dict[int, int] = {}
    if (is_countable := replay.planned <= _MOST_COUNTED) and largest:
        waiting = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, failure__group__in=largest)
        if sources is not None:
            waiting = waiting.filter(failure__source__in=sources)
        planned = dict(waiting.order_by().values_list("failure__group").annotate(n=Count("pk")))
    return [
        FailingGroup(
            groups[pk],
            [(groups[one], n) for one, n in failed[pk].most_common() if one in groups],
            frozenset(first[pk]),
            failed[pk].total(),
            planned.get(pk, 0) if is_countable else None,
        )
        for pk in largest
        if pk in groups
    ]


def cured_groups(viewer: Viewer, replay: Replay, limit: int = 10) -> list[Group]:
    """Return open groups whose jobs all succeeded in this replay, latest seen first, as suggestions for resolving."""
    counts = FailureCount.objects.filter(group_id=OuterRef("pk"), count__gt=0)
    seen = counts.filter(scopes.visible(viewer), state=FailureState.RECOVERED)
    left = counts.filter(state__in=_LEFT)
    rested = Group.objects.filter(~IS_TAKEN_IN, Exists(seen), ~Exists(left), state__in=_OPEN_GROUP).order_by(
        "-last_seen"
    )
    ran = ReplayItem.objects.filter(replay=replay, state=ItemState.SUCCEEDED, failure=OuterRef("pk"))
    mine = Failure.objects.filter(Exists(ran), group=OuterRef("pk"), state=FailureState.RECOVERED)
    found = list(rested.filter(Exists(mine))[:limit])
    group_sight.restrict(viewer, found)
    return found


@dataclass(frozen=True, slots=True)
class GroupAside:
    """A group that a replay excludes."""

    group: Group
    phase: str  # start: excluded in the draft; run: set aside during the replay
    code: str
    reason: str
    by: str
    at: datetime
    jobs: int | None  # not sent because of the exclusion; None: unknown


_UNCOUNTED = {
    prognosis.FAILED_AGAIN: "its jobs failed again",
    prognosis.STILL_FAILING: "still failing",
    prognosis.POISON: "poison: jobs of it are in quarantine for crashing their workers",
}


def groups_aside(viewer: Viewer, replay: Replay) -> list[GroupAside]:
    """Return the excluded groups with failures that the viewer may see.

    Those set aside during the replay come first, latest first. Reasons with numbers are replaced by their kind if the
    numbers include jobs of other sources.
    """
    ids = [row["group"] for row in replay.set_aside]
    if not ids:
        return []
    # A group that is being merged into another is excluded with that group, and shown there.
    groups = group_sight.read(
        viewer, Group.objects.exclude(IS_TAKEN_IN).filter(pk__in=ids).values_list("pk", flat=True)
    )
    mine = ReplayItem.objects.filter(replay=replay, failure__group__in=ids).filter(
        Q(state=ItemState.PLANNED) | Q(state=ItemState.CANCELLED, outcome__startswith=setting_aside.SET_ASIDE)
    )
    sources = viewer.sources(VIEWER)
    if sources is not None:
        mine = mine.filter(failure__source__in=sources)
        counts = FailureCount.objects.filter(group_id__in=ids, source__in=sources)
        groups = {pk: groups[pk] for pk in set(counts.values_list("group_id", flat=True)) & groups.keys()}
    unsent = dict(mine.order_by().values_list("failure__group").annotate(n=Count("pk")))
    found = []
    for row in replay.set_aside:
        if group := groups.get(row["group"]):
            is_start = row["phase"] == START
            jobs = (row["jobs"] if sources is None else None) if is_start else unsent.get(group.pk, 0)
            at = datetime.fromisoformat(row["at"])
            reason = row["reason"] if replay.seen_sources is None else _UNCOUNTED.get(row["code"], row["reason"])
            found.append(GroupAside(group, row["phase"], row["code"], reason, row["by"], at, jobs))
    return sorted(found, key=lambda one: (one.phase == START, -one.at.timestamp(), -(one.jobs or 0)))


def excluded_groups(viewer: Viewer, rows: Sequence[Replay]) -> dict[int, str]:
    """Return id -> fingerprint of the groups that these replays exclude and the viewer may see."""
    ids = {pk for row in rows for pk in row.without_groups}
    if ids and (sources := viewer.sources(VIEWER)) is not None:
        ids &= set(FailureCount.objects.filter(group_id__in=ids, source__in=sources).values_list("group_id", flat=True))
    return dict(Group.objects.exclude(IS_TAKEN_IN).filter(pk__in=ids).values_list("pk", "fingerprint")) if ids else {}
