"""Observations of a replay for its controller: first attempts, groups, staffing, and the evidence of a verdict."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, F, OuterRef

from jobs_admin.core.figures import clock
from jobs_admin.core.pacing import Evidence, Judged
from jobs_admin.core.text import class_name
from jobs_admin.models import Attempt, DepthSample, Group, Replay, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.replay import ItemState
from jobs_admin.rights import group_sight

_AT_ONCE = 5_000  # first attempts per read
_SAMPLED = 500  # items in flight, and as many due next, that show which queues are in use
_QUEUES_S = 5.0  # how long the queues are cached
_CLOCKS_DIFFER = timedelta(hours=1)  # largest difference between a worker's clock and ours
_FRESH = timedelta(seconds=40)  # an older sample of a queue is stale

Queue = tuple[str, str]  # source, queue


@dataclass(frozen=True, slots=True)
class Staffing:
    """Workers of the queues of a replay. None: unknown, or no recent sample."""

    workers: int | None  # guarded workers of the queue that has the fewest
    waiting: int | None  # waiting jobs in all of them, whoever sent them
    deserted: tuple[Queue, ...] = ()  # the queues without a worker


UNKNOWN = Staffing(None, None)


def count_sent(replay: Replay) -> int:
    """Return how many jobs of the replay were actually sent, whatever their outcome.

    `Replay.may_send` is an upper bound.
    """
    return replay.sent_in_all


def read_first_attempts(replay: Replay, after: datetime | None) -> tuple[list[Judged], datetime | None]:
    """Return the first attempts reported after that time, each once, and the time to continue from."""
    found = ReplayItem.objects.filter(replay=replay, first_at__isnull=False)
    if after is not None:
        found = found.filter(first_at__gt=after)
    names = ("first_at", "sent_at", "first_ok", "first_group", "failure", "run", "failure__group")
    rows = list(found.order_by("first_at").values_list(*names, named=True)[:_AT_ONCE])
    if len(rows) == _AT_ONCE:
        # Attempts reported at the same time are read together.
        rows = [row for row in rows if row.first_at < rows[-1].first_at] or rows
    if not rows:
        return [], after
    failed = [row for row in rows if not row.first_ok]
    runtimes, before = _read_runtimes(rows), read_groups_before(failed)
    new = find_new_groups(replay, {row.first_group for row in failed if row.first_group})
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


def _read_runtimes(rows: Sequence) -> dict[int, float]:
    runs = {row.failure: row.run for row in rows}
    found = Attempt.objects.filter(failure__in=runs, run__in=set(runs.values()), duration_s__isnull=False)
    # Highest attempt first, so that the lowest overwrites it.
    attempts = found.order_by("-attempt").values_list("failure", "run", "duration_s")
    return {failure: seconds for failure, run, seconds in attempts if runs[failure] == run}


def read_groups_before(rows: Sequence) -> dict[int, int | None]:
    """Return failure -> the group of its error in the previous run."""
    runs = {row.failure: row.run for row in rows}
    found = Attempt.objects.filter(failure__in=runs).exclude(kind="success")
    attempts = found.order_by("run", "attempt", "pk").values_list("failure", "run", "group")
    return {failure: group for failure, run, group in attempts if run < runs[failure]}


def find_new_groups(replay: Replay, among: Collection[int]) -> set[int]:
    """Return the groups without an attempt before the replay, by our clock: `first_seen` is by the workers' clocks."""
    lately = replay.started_at - _CLOCKS_DIFFER  # earlier attempts may have been pruned
    groups = Group.objects.filter(pk__in=among, first_seen__gte=lately)
    before = Attempt.objects.filter(group=OuterRef("pk"), received_at__lt=replay.started_at)
    return set(groups.filter(~Exists(before)).values_list("pk", flat=True))


@dataclass(slots=True)
class GroupFailures:
    """Number of first attempts that failed with a group, and how many of these jobs had died of it before."""

    group: int | None
    count: int = 0
    same: int = 0


def count_recent_failures(replay: Replay, judged: int, since: datetime) -> list[GroupFailures]:
    """Return the failures by group, most frequent first, of the last `judged` first attempts sent after `since`."""
    last = ReplayItem.objects.filter(replay=replay, first_at__isnull=False, sent_at__gte=since).order_by("-first_at")
    rows = last.values_list("first_ok", "first_group", "failure", "run", named=True)[:judged]
    failed = [row for row in rows if not row.first_ok]
    before = read_groups_before(failed)
    found: dict[int | None, GroupFailures] = {}
    for row in failed:
        one = found.setdefault(row.first_group, GroupFailures(row.first_group))
        one.count += 1
        one.same += before.get(row.failure) == row.first_group
    return sorted(found.values(), key=lambda one: (-one.count, one.group or 0))


_queues: dict[str, tuple[float, frozenset[Queue]]] = {}


def read_queues(replay: Replay) -> frozenset[Queue]:
    """Return the queues of the jobs in flight and of the jobs due next."""
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


def read_staffing(of: Collection[Queue], now: datetime) -> Staffing:
    """Return the staffing according to the latest sample of each queue."""
    samples = {queue: _latest_sample(*queue, now) for queue in of}
    if not samples or any(sample is None for sample in samples.values()):
        return UNKNOWN
    waiting = [sample.waiting for sample in samples.values()]
    return Staffing(
        workers=min(sample.guarded_workers or 0 for sample in samples.values()),
        waiting=None if None in waiting else sum(waiting),
        deserted=tuple(sorted(queue for queue, sample in samples.items() if not sample.guarded_workers)),
    )


def _latest_sample(source: str, queue: str, now: datetime) -> DepthSample | None:
    fresh = DepthSample.objects.filter(source=source, queue=queue, step=10, at__gt=now - _FRESH, at__lte=now)
    return fresh.only("waiting", "guarded_workers").order_by("-at").first()


def last_staffed_at(source: str, queue: str) -> datetime | None:
    """Return when a guarded worker was last seen on the queue; None if never, or if those samples were pruned."""
    found = DepthSample.objects.filter(source=source, queue=queue, step=10, guarded_workers__gt=0)
    return found.order_by("-at").values_list("at", flat=True).first()


_MOST_GROUPS = 5  # number of groups named


def build_evidence(
    replay: Replay, because: Evidence, deserted: Sequence[Queue], since: datetime, now: datetime
) -> tuple[str, dict[str, Any]]:
    """Return the sentence and the value of `Replay.evidence`, which covers jobs sent after `since`.

    The column has the fields of `core.pacing.Evidence` (kind, failed, judged, limit …) and: sentence, at, sent,
    unsettled, planned, succeeded, failed_again, queues (without a worker), groups [{group, fingerprint, title, culprit,
    count, same, is_new}] of the failed jobs, most frequent first, and others (failed jobs of groups not listed).
    """
    failed = count_recent_failures(replay, because.judged, since) if because.judged else []
    seen = group_sight.viewer_of_sources(replay.by_source)
    named = group_sight.read(seen, [one.group for one in failed[:_MOST_GROUPS] if one.group])
    new = find_new_groups(replay, named)
    details = {
        "at": now.isoformat(),
        "sent": count_sent(replay),
        "unsettled": replay.sent + replay.running,
        "planned": replay.planned,
        "succeeded": replay.succeeded,
        "failed_again": replay.failed_again,
        "groups": [
            {
                "group": group.pk,
                "fingerprint": group.name,
                "title": group.title,
                "culprit": group.culprit,
                "count": one.count,
                "same": one.same,
                "is_new": group.pk in new,
            }
            for one in failed
            if (group := named.get(one.group or 0))
        ],
    }
    details["others"] = sum(one.count for one in failed) - sum(row["count"] for row in details["groups"])
    if because.kind == "workers_gone":
        details["queues"] = [list(queue) for queue in deserted]
        sentence = _workers_gone_sentence(because, deserted, now)
    else:
        sentence = because.sentence(_group_title(seen, because))
    return sentence, {**because.as_dict(), **details, "sentence": sentence}


def _group_title(seen: Viewer, because: Evidence) -> str:
    """Return a short recognizable title: `TimeoutError at shop/pay.py in charge`."""
    group = group_sight.read(seen, [because.group]).get(because.group) if because.group else None
    if group is None:
        return ""
    return f"{class_name(group.error_type)} at {group.culprit}" if group.culprit else group.title


def _workers_gone_sentence(because: Evidence, deserted: Sequence[Queue], now: datetime) -> str:
    many_sources = len({source for source, _ in deserted}) > 1
    names = [f"{source}/{queue}" if many_sources else queue for source, queue in deserted] or ["its queues"]
    seen = [at for queue in deserted if (at := last_staffed_at(*queue))]
    since = max(seen, default=now - timedelta(seconds=because.seconds))
    jobs = "1 job is" if because.unsettled == 1 else f"{because.unsettled:,} jobs are"
    where = names[0] if len(names) == 1 else f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
    return f"No live worker has taken jobs from {where} since {clock(since, now)} UTC, and {jobs} sent and not settled."
