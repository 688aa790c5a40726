"""List of all queues with their waiting, running and dead jobs, worst first, page by page.

Queue names come from messages: anyone who can publish can create thousands of them. So reading is limited to a page as
well: the database ranks the queues, and the rest is read for the page's queues only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Max, Q, Sum, Value

from jobs_admin.core.text import representable, whole_number
from jobs_admin.fleet import durability
from jobs_admin.models import DepthSample, FailureCount, QueueCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import MINUTE
from jobs_admin.queues import rates
from jobs_admin.search import scope as scopes

PAGE = 100
LARGEST_PAGE = 500
_OPEN = ("dead", "retrying")


@dataclass(frozen=True, slots=True)
class QueueRow:
    source: str
    queue: str
    reachable: bool | None  # None: never sampled
    why: str
    sampled_at: datetime | None
    waiting: int | None
    active: int | None
    delayed: int | None
    dead: int
    retrying: int
    source_dead: int | None
    oldest_dead_age_s: int | None
    failed_per_minute: float
    succeeded_per_minute: float
    workers: int | None
    guarded_workers: int | None
    durability: str  # when its jobs are acknowledged: late, early, mixed; "" if unknown
    fetch_window: bool  # whether a message may be lost between the broker and a worker that dies
    by_priority: dict[str, int]


@dataclass(frozen=True, slots=True)
class QueuePage:
    rows: list[QueueRow]
    next: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Ranked:
    source: str
    queue: str
    dead: int
    failed: int  # attempts, in the last five minutes
    of: int  # number of ranked queues

    @property
    def cursor(self) -> str:
        return f"{self.dead}~{self.failed}~{self.source}~{self.queue}"


def queue_page(
    viewer: Viewer, *, source: str = "", after: str | None = None, limit: int = PAGE, now: datetime | None = None
) -> QueuePage:
    """Return a page of queues: those with the most dead jobs first, then by failure rate, then by name.

    The order uses live numbers, so a queue that changes between two pages may be listed twice or skipped.
    """
    now = now or datetime.now(UTC)
    limit = max(1, min(limit, LARGEST_PAGE))
    found = rank_queues(viewer, now, source=source, after=after, limit=limit + 1)
    count = found[0].of if found else 0
    page = found[:limit]
    return QueuePage(_build_rows(viewer, page, now), page[-1].cursor if len(found) > limit else None, count)


def get_queue(viewer: Viewer, source: str, queue: str, now: datetime | None = None) -> QueueRow:
    """Return one queue as in the list; the values of an unknown queue are all unknown."""
    (row,) = _build_rows(viewer, [Ranked(source, queue, 0, 0, 1)], now or datetime.now(UTC))
    return row


def is_cursor(after: str) -> bool:
    """Return whether `queue_page` accepts it as a cursor, rather than starting at the first page."""
    return _parse_cursor(after) is not None


def rank_queues(
    viewer: Viewer,
    now: datetime,
    *,
    source: str = "",
    after: str | None = None,
    limit: int = PAGE,
    only_dead: bool = False,
) -> list[Ranked]:
    """Return the first queues of the ranking, in one statement; `of` is the number of all."""
    within = scopes.visible(viewer) & (Q(source=source) if source else Q())
    counts = FailureCount.objects.filter(within, count__gt=0)
    rows = counts.filter(state="dead").values("source", "queue").annotate(dead=Sum("count"), failed=Value(0))
    arms = [rows]
    failed = QueueCounter.objects.filter(within, step=MINUTE, at__gte=rates.window_start(now)).values("source", "queue")
    arms.append(failed.annotate(dead=Value(0), failed=Sum(rates.FAILED)))
    if not only_dead:
        retrying = counts.filter(state="retrying").values("source", "queue").distinct()
        arms.append(retrying.annotate(dead=Value(0), failed=Value(0)))
        sampled = _recent_samples(viewer, now).filter(within).values("source", "queue").distinct()
        arms.append(sampled.annotate(dead=Value(0), failed=Value(0)))
    try:
        compiled = [arm.order_by().query.sql_with_params() for arm in arms]
    except EmptyResultSet:  # the viewer has no role
        return []
    parameters = [value for _, values in compiled for value in values]
    ranked = (
        "SELECT source, queue, SUM(dead) AS dead, SUM(failed) AS failed FROM ("
        + " UNION ALL ".join(
            f"SELECT source, queue, dead, failed FROM ({sql}) AS arm{n}" for n, (sql, _) in enumerate(compiled)
        )
        + f") AS seen GROUP BY source, queue {'HAVING SUM(dead) > 0' if only_dead else ''}"
    )
    where, place = "", _parse_cursor(after)
    if place is not None:
        where = (
            "WHERE dead < %s OR (dead = %s AND (failed < %s OR (failed = %s AND "
            "(source > %s OR (source = %s AND queue > %s)))))"
        )
        dead, often, name, queue = place
        parameters += [dead, dead, often, often, name, name, queue]
    statement = (
        f"SELECT source, queue, dead, failed, n FROM (SELECT ranked.*, COUNT(*) OVER () AS n FROM ({ranked}) AS ranked) "
        f"AS counted {where} ORDER BY dead DESC, failed DESC, source, queue LIMIT {int(limit)}"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return [Ranked(s, q, int(d), int(f), int(n)) for s, q, d, f, n in cursor.fetchall()]


def _parse_cursor(after: str | None) -> tuple[int, int, str, str] | None:
    parts = (after or "").split("~", 3)
    if len(parts) < 4 or representable(parts[2] + parts[3]) != parts[2] + parts[3]:
        return None
    dead, failed = whole_number(parts[0]), whole_number(parts[1])
    return None if dead is None or failed is None else (dead, failed, parts[2], parts[3])


def _recent_samples(viewer: Viewer, now: datetime):
    """Return the samples of the last five minutes, or of the last day if sampling stopped."""
    taken = DepthSample.objects.filter(scopes.visible(viewer), step=10)
    recent = taken.filter(at__gte=now - timedelta(minutes=5))
    return recent if recent.exists() else taken.filter(at__gte=now - timedelta(days=1))


def _build_rows(viewer: Viewer, page: list[Ranked], now: datetime) -> list[QueueRow]:
    if not page:
        return []
    # May include a queue of the same name at another source of the page, which is not used below.
    these = Q(source__in={one.source for one in page}, queue__in={one.queue for one in page})
    samples = _latest_samples(_recent_samples(viewer, now).filter(these))
    states: dict[tuple[str, str], dict[str, int]] = {}
    counted = FailureCount.objects.filter(these, state__in=_OPEN, count__gt=0)
    for source, queue, state, n in counted.values_list("source", "queue", "state").annotate(n=Sum("count")):
        states.setdefault((source, queue), {})[state] = n
    found = {(rate.source, rate.queue): rate for rate in rates.queue_rates(viewer, now, these)}
    names = [(one.source, one.queue) for one in page]
    return [_build_row(name, samples.get(name), states.get(name, {}), found.get(name), now) for name in names]


def _latest_samples(samples) -> dict[tuple[str, str], DepthSample]:
    latest = set(samples.values_list("source", "queue").annotate(last=Max("at")))
    found = samples.filter(at__in={at for _, _, at in latest})
    return {(s.source, s.queue): s for s in found if (s.source, s.queue, s.at) in latest}


def _build_row(
    name: tuple[str, str], sample: DepthSample | None, states: dict[str, int], rate: rates.Rate | None, now: datetime
) -> QueueRow:
    dead = states.get("dead", 0)
    grade = durability.parse_grade(sample.durability if sample else "")
    oldest = sample.oldest_dead_at if sample and dead else None
    return QueueRow(
        source=name[0],
        queue=name[1],
        reachable=sample.is_reachable if sample else None,
        why=sample.why if sample else "",
        sampled_at=sample.at if sample else None,
        waiting=sample.waiting if sample else None,
        active=sample.active if sample else None,
        delayed=sample.delayed if sample else None,
        dead=dead,
        retrying=states.get("retrying", 0),
        source_dead=sample.source_dead if sample else None,
        oldest_dead_age_s=max(0, int((now - oldest).total_seconds())) if oldest else None,
        failed_per_minute=rate.failed if rate else 0.0,
        succeeded_per_minute=rate.succeeded if rate else 0.0,
        workers=sample.workers if sample else None,
        guarded_workers=sample.guarded_workers if sample else None,
        durability=grade.acks,
        fetch_window=grade.has_window,
        by_priority=dict(sample.by_priority) if sample else {},
    )
