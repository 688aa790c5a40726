"""Progress of a replay over time, the replays of a failure, and the recent throughput of queues."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Count, F, IntegerField, Max, Min, Q, QuerySet, Sum
from django.db.models.expressions import Func
from django.utils import timezone

from jobs_admin.models import AuditEvent, Failure, QueueCounter, Replay, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import HOUR, MINUTE
from jobs_admin.models.replay import SENDING, ItemState
from jobs_admin.queues import rates
from jobs_admin.replays import controlling
from jobs_admin.search import scope as scopes

_BUCKETS = 90
_RATE_OVER_S = 10
_MOST_PHASES = 500


class _Epoch(Func):
    """Whole seconds since 1970."""

    output_field = IntegerField()
    arity = 1

    def as_sqlite(self, compiler, connection, **more):
        return super().as_sql(
            compiler, connection, template="CAST(strftime('%%%%s', %(expressions)s) AS INTEGER)", **more
        )

    def as_postgresql(self, compiler, connection, **more):
        return super().as_sql(
            compiler, connection, template="CAST(FLOOR(EXTRACT(EPOCH FROM %(expressions)s)) AS BIGINT)", **more
        )


@dataclass(frozen=True, slots=True)
class OverTime:
    """Course of a replay. `buckets`: (start, sent, succeeded, failed again) of each step, oldest first."""

    buckets: list[tuple[datetime, int, int, int]]
    rate_now: float  # see `rates_now`


def items_of_failure(failure: Failure, limit: int = 50) -> list[ReplayItem]:
    """Return the items of this failure, latest first, each with its replay."""
    found = ReplayItem.objects.filter(failure=failure)
    if not found.exists():  # usually none: this check takes a fifth of the time
        return []
    found = found.select_related("replay")
    return list(found.defer("replay__selection", "replay__blocked", "replay__query").order_by("-pk")[:limit])


def started_runs(failure: Failure) -> dict[int, ReplayItem]:
    """Return run -> the item that started it, with its replay. An unsent item started no run."""
    return {item.run: item for item in items_of_failure(failure) if item.sent_at is not None}


def count_pruned(replay: Replay) -> int:
    """Return how many of the replay's jobs are pruned; the replay still has their outcomes."""
    return max(0, replay.total - _visible_items(replay).count()) if replay.ended_at else 0


def _visible_items(replay: Replay) -> QuerySet[ReplayItem]:
    """Return the items that the replay's viewer may see."""
    items = ReplayItem.objects.filter(replay=replay)
    return items if replay.seen_sources is None else items.filter(failure__source__in=replay.seen_sources)


def over_time(replay: Replay, now: datetime | None = None, since: datetime | None = None) -> OverTime:
    """Return the numbers of sent jobs and of outcomes over time, in at most _BUCKETS steps.

    `since`: only from then until now.
    """
    now = now or timezone.now()
    items = _visible_items(replay).order_by()
    ends = items.aggregate(first=Min("sent_at"), last_sent=Max("sent_at"), last_settled=Max("settled_at"))
    if ends["first"] is None:
        return OverTime([], 0.0)
    is_cut = since is not None and since > ends["first"]
    first = int((since if is_cut else ends["first"]).timestamp())
    latest = max(t for t in (ends["last_sent"], ends["last_settled"]) if t is not None) if since is None else now
    last = max(int(latest.timestamp()), first)
    step = max(1, -(-(last - first + 1) // _BUCKETS))
    sent_items, settled = items.filter(sent_at__isnull=False), items
    if since is not None:
        sent_items, settled = sent_items.filter(sent_at__gte=since), settled.filter(settled_at__gte=since)
    sent = _count_by_step(sent_items, "sent_at", first, step)
    ran = _count_by_step(settled.filter(state=ItemState.SUCCEEDED), "settled_at", first, step)
    again = _count_by_step(settled.filter(state=ItemState.FAILED_AGAIN), "settled_at", first, step)
    # One step before the first job, so that the chart starts at zero.
    buckets = [] if is_cut else [(datetime.fromtimestamp(first - step, UTC), 0, 0, 0)]
    for n in range((last - first) // step + 1):
        at = datetime.fromtimestamp(first + n * step, UTC)
        buckets.append((at, sent.get(n, 0), ran.get(n, 0), again.get(n, 0)))
    return OverTime(buckets, rates_now([replay], now)[replay.pk])


def phases(replay: Replay) -> list[tuple[datetime, str]]:
    """Return (time, state) of each state that the replay entered, oldest first.

    The controller recorded some, the audit those that operators caused.
    """
    events = AuditEvent.objects.filter(object=f"replay:{replay.pk}", act__startswith="replay.", allowed=True)
    acts = events.order_by("pk").values_list("at", "after")[:_MOST_PHASES]
    found = [(at, str(after["state"])) for at, after in acts if isinstance(after, dict) and after.get("state")]
    found += [(datetime.fromisoformat(at), state) for at, state in controlling.phases(replay)]
    if replay.state_since:
        found.append((replay.state_since, replay.state))
    found.sort(key=lambda entered: entered[0])
    return [one for n, one in enumerate(found) if not n or found[n - 1][1] != one[1]]


def rates_now(replays: Sequence[Replay], now: datetime | None = None) -> dict[int, float]:
    """Return replay id -> jobs per second sent over the last 10 s, or since its start; 0 if it does not send."""
    now = now or timezone.now()
    moving = [replay.pk for replay in replays if replay.state in SENDING and replay.started_at]
    sent: dict[int, int] = {}
    if moving:
        lately = ReplayItem.objects.filter(replay__in=moving, sent_at__gte=now - timedelta(seconds=_RATE_OVER_S))
        sent = dict(lately.order_by().values_list("replay").annotate(n=Count("pk")))
        restricted = [replay for replay in replays if replay.seen_sources is not None and replay.pk in sent]
        if restricted:
            seen = {source for replay in restricted for source in replay.seen_sources or ()}  # all have the same viewer
            mine = lately.filter(replay__in=restricted, failure__source__in=seen)
            sent |= dict.fromkeys((replay.pk for replay in restricted), 0)
            sent |= dict(mine.order_by().values_list("replay").annotate(n=Count("pk")))
    found = {}
    for replay in replays:
        running_s = (now - replay.started_at).total_seconds() if replay.started_at else 0.0
        found[replay.pk] = round(sent.get(replay.pk, 0) / min(_RATE_OVER_S, max(1.0, running_s)), 2)
    return found


def _count_by_step(items, field: str, first: int, step: int) -> dict[int, int]:
    """Return step -> number of items.

    An item whose report is older than its time of sending, by our clock, counts in step 0.
    """
    rows = items.annotate(bucket=(_Epoch(F(field)) - first) / step).values_list("bucket").annotate(n=Count("pk"))
    found: dict[int, int] = {}
    for bucket, n in rows:
        at = max(0, int(bucket or 0))
        found[at] = found.get(at, 0) + n
    return found


def succeeded_per_minute(
    viewer: Viewer, queues: Sequence[str], now: datetime | None = None, minutes: int = 60
) -> list[int]:
    """Return the number of succeeded jobs of these queues for each full minute before now, oldest first."""
    end = (now or timezone.now()).replace(second=0, microsecond=0)
    start = end - timedelta(minutes=minutes)
    rows = QueueCounter.objects.filter(
        scopes.visible(viewer), step=MINUTE, queue__in=list(queues), at__gte=start, at__lt=end
    )
    counts = dict(rows.values_list("at").annotate(n=Sum("succeeded")))
    return [int(counts.get(start + timedelta(minutes=n), 0)) for n in range(minutes)]


def read_successes(
    viewer: Viewer, places: Collection[tuple[str, str]], now: datetime
) -> dict[tuple[str, str], tuple[float, datetime | None]]:
    """Return (source, queue) -> succeeded jobs per minute in the window of `rates`, and the latest success.

    The success is dated to the start of its minute, or of its hour if that is longer than an hour ago.
    """
    if not places:
        return {}
    since, hour_ago = rates.window_start(now), now - timedelta(hours=1)
    counted = QueueCounter.objects.filter(
        scopes.visible(viewer),
        Q(step=MINUTE, at__gte=hour_ago) | Q(step=HOUR),
        queue__in={queue for _, queue in places},
        succeeded__gt=0,
        at__lte=now,
    ).order_by()
    lately = Sum("succeeded", filter=Q(step=MINUTE, at__gte=since))
    found = counted.values_list("source", "queue").annotate(n=lately, latest=Max("at"))
    return {
        (source, queue): ((n or 0) / rates.window_minutes(now), latest)
        for source, queue, n, latest in found
        if (source, queue) in places
    }
