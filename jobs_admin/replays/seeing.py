"""What is known of a replay at one look: what came home, what is out, and who works on its queues."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, F, OuterRef

from jobs_admin.core.pacing import Judged
from jobs_admin.models import Attempt, DepthSample, Group, Replay, ReplayItem
from jobs_admin.models.replay import ItemState

_AT_ONCE = 5_000  # first attempts that are read at one look
_SAMPLED = 500  # items on their way, and as many that go next, which tell the queues of now
_QUEUES_S = 5.0  # how long they are believed
_CLOCKS_DIFFER = timedelta(hours=1)  # at most, a worker's from ours
_FRESH = timedelta(seconds=40)  # an older sample of a queue says nothing of now

Queue = tuple[str, str]  # source, queue


@dataclass(frozen=True, slots=True)
class Staffing:
    """Who works on the queues of a replay. None: nobody can tell, or nobody looked lately."""

    workers: int | None  # guarded ones, of the queue that has the fewest
    waiting: int | None  # jobs in all of them, whoever sent them
    deserted: tuple[Queue, ...] = ()  # the queues without a worker


UNKNOWN = Staffing(None, None)


def sent(replay: Replay) -> int:
    """How many of its jobs were really sent, whatever became of them. What `Replay.may_send` is a bound of."""
    return replay.sent_in_all


def came_home(replay: Replay, after: datetime | None) -> tuple[list[Judged], datetime | None]:
    """The first attempts that came home after that moment, each told once; and the moment to read on from."""
    found = ReplayItem.objects.filter(replay=replay, first_at__isnull=False)
    if after is not None:
        found = found.filter(first_at__gt=after)
    names = ("first_at", "sent_at", "first_ok", "first_group", "failure", "run", "failure__group")
    rows = list(found.order_by("first_at").values_list(*names, named=True)[:_AT_ONCE])
    if len(rows) == _AT_ONCE:
        # Those that came home together are read together.
        rows = [row for row in rows if row.first_at < rows[-1].first_at] or rows
    if not rows:
        return [], after
    failed = [row for row in rows if not row.first_ok]
    runtimes, before = _runtimes(rows), _groups_before(failed)
    new = new_groups(replay, {row.first_group for row in failed if row.first_group})
    judged = [
        Judged(
            at=row.first_at.timestamp(),
            sent_at=(row.sent_at or row.first_at).timestamp(),
            ok=row.first_ok,
            group=row.first_group,
            is_new_group=row.first_group in new,
            is_same_group=row.first_group is not None and before.get(row.failure) == row.first_group,
            runtime_s=runtimes.get(row.failure),
            died_of=row.failure__group if row.first_ok else before.get(row.failure, row.failure__group),
        )
        for row in rows
    ]
    return judged, rows[-1].first_at


def _runtimes(rows: Sequence) -> dict[int, float]:
    runs = {row.failure: row.run for row in rows}
    found = Attempt.objects.filter(failure__in=runs, run__in=set(runs.values()), duration_s__isnull=False)
    # The highest attempt first, so that the lowest is what remains.
    told = found.order_by("-attempt").values_list("failure", "run", "duration_s")
    return {failure: seconds for failure, run, seconds in told if runs[failure] == run}


def _groups_before(rows: Sequence) -> dict[int, int | None]:
    """failure -> the group that it died of in the run before."""
    runs = {row.failure: row.run for row in rows}
    found = Attempt.objects.filter(failure__in=runs).exclude(kind="success")
    told = found.order_by("run", "attempt", "pk").values_list("failure", "run", "group")
    return {failure: group for failure, run, group in told if run < runs[failure]}


def new_groups(replay: Replay, among: Collection[int]) -> set[int]:
    """Those of which nothing had come before the replay, by our clock: `first_seen` is by the workers' clocks."""
    lately = replay.started_at - _CLOCKS_DIFFER  # what came before may have been pruned
    groups = Group.objects.filter(pk__in=among, first_seen__gte=lately)
    before = Attempt.objects.filter(group=OuterRef("pk"), received_at__lt=replay.started_at)
    return set(groups.filter(~Exists(before)).values_list("pk", flat=True))


@dataclass(slots=True)
class FailedIn:
    """How many of the first attempts failed in a group, and how many of these jobs had died of it before."""

    group: int | None
    count: int = 0
    same: int = 0


def failed_of_last(replay: Replay, judged: int, since: datetime) -> list[FailedIn]:
    """Of the last so many first attempts, of jobs that were sent since then; the commonest group first."""
    last = ReplayItem.objects.filter(replay=replay, first_at__isnull=False, sent_at__gte=since).order_by("-first_at")
    rows = last.values_list("first_ok", "first_group", "failure", "run", named=True)[:judged]
    failed = [row for row in rows if not row.first_ok]
    before = _groups_before(failed)
    found: dict[int | None, FailedIn] = {}
    for row in failed:
        one = found.setdefault(row.first_group, FailedIn(row.first_group))
        one.count += 1
        one.same += before.get(row.failure) == row.first_group
    return sorted(found.values(), key=lambda one: (-one.count, one.group or 0))


_queues: dict[str, tuple[float, frozenset[Queue]]] = {}


def queues(replay: Replay) -> frozenset[Queue]:
    """The queues of what is on its way and of what goes next."""
    at, known = _queues.get(replay.key, (float("-inf"), frozenset()))
    if time.monotonic() - at < _QUEUES_S:
        return known
    found: set[Queue] = set()
    for state in (ItemState.SENT, ItemState.RUNNING, ItemState.PLANNED):
        some = ReplayItem.objects.filter(replay=replay, state=state).order_by("n")[:_SAMPLED]
        found |= set(some.values_list(F("failure__source"), F("failure__queue")))
    if replay.to_queue:
        found = {(source, replay.to_queue) for source, _ in found}
    if len(_queues) > 1_000:
        _queues.clear()
    _queues[replay.key] = time.monotonic(), frozenset(found)
    return frozenset(found)


def staffing(of: Collection[Queue], now: datetime) -> Staffing:
    """By the latest sample of each queue."""
    samples = {queue: _sample(*queue, now) for queue in of}
    if not samples or any(sample is None for sample in samples.values()):
        return UNKNOWN
    waiting = [sample.waiting for sample in samples.values()]
    return Staffing(
        workers=min(sample.guarded_workers or 0 for sample in samples.values()),
        waiting=None if None in waiting else sum(waiting),
        deserted=tuple(sorted(queue for queue, sample in samples.items() if not sample.guarded_workers)),
    )


def _sample(source: str, queue: str, now: datetime) -> DepthSample | None:
    fresh = DepthSample.objects.filter(source=source, queue=queue, step=10, at__gt=now - _FRESH, at__lte=now)
    return fresh.only("waiting", "guarded_workers").order_by("-at").first()


def last_staffed(source: str, queue: str) -> datetime | None:
    """When a guarded worker was last seen on the queue; None where that was never, or is kept no longer."""
    found = DepthSample.objects.filter(source=source, queue=queue, step=10, guarded_workers__gt=0)
    return found.order_by("-at").values_list("at", flat=True).first()
