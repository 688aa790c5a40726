"""What is broken now, and is it getting worse: the overview's sentence and the numbers behind its pictures.

Everything here reads counters, samples and a bounded number of rows: it costs the same at any number of failures.
"Failures" of a rate or a picture are failed attempts, those that will be retried included.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import redis
from django.db.models import Count, Exists, F, Max, OuterRef, Q, Sum
from django.db.models.functions import Coalesce

from jobs_admin import config, failures, queues
from jobs_admin import scope as scopes
from jobs_admin.core import keys
from jobs_admin.core import query as language
from jobs_admin.counting import StepOf
from jobs_admin.groups import GroupRow
from jobs_admin.models import (
    Failure,
    FailureCount,
    Group,
    QueueCounter,
    Replay,
    ReplayItem,
    Source,
    Worker,
)
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import MINUTE, STEPS_OF_QUEUES
from jobs_admin.models.replay import ReplayState
from jobs_admin.models.source import ALIVE_S

RATE_OVER = timedelta(minutes=3)
BEFORE = timedelta(minutes=10)  # what the rate is compared with: the ten minutes before
LOUD_PER_MIN = 1.0
NEW_WITHIN = timedelta(minutes=30)
SAMPLE = 1_000
MOST_SOURCES = 50
MOST_QUEUES = 12  # of those with dead jobs
MOST_SERIES = 6  # queues told apart in the picture; the rest are one
MOST_LOUD = 100  # queues that are counted as failing
LATE_AFTER_S = 30  # a step of watch ends a round every few seconds
NOT_RUNNING = ("draft", "done", "stopped", "cancelled")


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is going on, in one sentence, and the search that shows it."""

    text: str
    tone: str  # calm, trouble, stale
    query: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Stale:
    """The watch, or the store it works on, is not alive: what the screens show may be old."""

    text: str
    since: datetime | None  # None: never seen alive
    steps: tuple[str, ...] = ()  # those that are late
    next: str = "Start `manage.py watch`, or look at its log; nothing is lost meanwhile."


@dataclass(frozen=True, slots=True)
class SourceRow:
    name: str
    backend: str
    is_configured: bool
    reachable: bool | None
    why: str
    changed_at: datetime | None
    sampled_at: datetime | None
    age_s: int | None  # of the last sample
    dead: int
    workers: int  # guarded ones whose heart beats
    findings: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers over time, one a step; `times` are the steps' beginnings, seconds since 1970."""

    step_s: int
    times: list[int]
    queues: dict[str, list[int]]  # "source/queue", or only "queue" where there is one source -> one number a step


@dataclass(frozen=True, slots=True)
class _Rate:
    source: str
    queue: str
    now: float  # failed attempts per minute
    before: float


def sentence(viewer: Viewer, now: datetime | None = None) -> Sentence:
    """One sentence for the person who was just woken up."""
    now = now or datetime.now(UTC)
    late = stale(now)
    if late is not None:
        return Sentence(late.text, "stale")
    rates = _rates(viewer, now)
    loudest = max(rates, key=lambda rate: rate.now, default=None)
    if loudest is not None and loudest.now >= LOUD_PER_MIN:
        return _trouble(viewer, loudest, len([r for r in rates if r.now >= LOUD_PER_MIN]), now)
    return _calm(viewer, now)


def _trouble(viewer: Viewer, rate: _Rate, loud: int, now: datetime) -> Sentence:
    parts = [f"{rate.queue}: {_number(rate.now)} failures/min"]
    if rate.before and rate.now / rate.before >= 1.5:
        parts.append(f"{_number(rate.now / rate.before)} × in 10 min")
    elif rate.before and rate.now / rate.before <= 0.67:
        parts.append("getting better")
    elif rate.before:
        parts.append("as in the 10 min before")
    else:
        parts.append("none in the 10 min before")
    new = _new_groups(viewer, rate, now)
    if new:
        how_many = "one group" if len(new) == 1 else f"{len(new)} groups"
        parts.append(f"{how_many} new since {min(new):%H:%M}")
    tenants, is_all = _tenants_hit(viewer, rate, now)
    if tenants:
        parts.append(f"{'' if is_all else 'at least '}{tenants} {'tenant' if tenants == 1 else 'tenants'}")
    if loud > 1:
        more = f"{MOST_LOUD} or more others fail" if loud > MOST_LOUD else f"{loud - 1} more queues fail"
        parts.append("1 more queue fails" if loud == 2 else more)
    query = language.qualifier("queue", rate.queue)
    return Sentence(", ".join(parts), "trouble", f"{query} since:{_iso(now - RATE_OVER - BEFORE)}")


def _calm(viewer: Viewer, now: datetime) -> Sentence:
    hour = _counters(viewer, now - timedelta(hours=1))
    lately = hour.values("queue").annotate(n=Sum(F("failed") + F("retried"))).filter(n__gt=0).order_by("-n")
    failed, waits = list(lately[:20]), _waiting_dead(viewer)
    if not failed and not waits and not FailureCount.objects.filter(scopes.visible(viewer), count__gt=0).exists():
        return Sentence("No job has failed yet.", "calm")
    if failed:
        total = sum(row["n"] for row in failed)
        times = "One attempt" if total == 1 else f"{total:,} attempts"
        where = f"in {failed[0]['queue']}" if len(failed) == 1 else f"most in {failed[0]['queue']}"
        said = f"{times} failed in the last hour, {where}; less than one a minute now."
    else:
        said = "Nothing has failed in the last hour."
    return Sentence(f"{said} {waits or 'No dead job waits.'}", "calm", "state:dead" if waits else "")


def _waiting_dead(viewer: Viewer) -> str:
    dead = _dead(viewer)
    if not dead:
        return ""
    oldest = (
        Failure.objects.filter(scopes.visible(viewer), state="dead").order_by("id").values_list("failed_at").first()
    )
    since = f" since {oldest[0]:%a %d %b %H:%M}" if oldest else ""
    return f"One dead job waits{since}." if dead == 1 else f"{dead:,} dead jobs wait{since}."


def _dead(viewer: Viewer) -> int:
    counted = FailureCount.objects.filter(scopes.visible(viewer), state="dead")
    return counted.aggregate(n=Sum("count"))["n"] or 0


def _rates(viewer: Viewer, now: datetime) -> list[_Rate]:
    """Failed attempts per minute of the loudest queues, over the last three minutes and over the ten before."""
    split = (now - RATE_OVER).replace(second=0, microsecond=0)
    minutes = (now - split).total_seconds() / 60
    failed = F("failed") + F("retried")
    rows = _counters(viewer, split - BEFORE).filter(at__lte=now).values_list("source", "queue")
    counted = rows.annotate(
        now=Coalesce(Sum(failed, filter=Q(at__gte=split)), 0), before=Coalesce(Sum(failed, filter=Q(at__lt=split)), 0)
    ).order_by("-now", "source", "queue")[: MOST_LOUD + 1]
    return [_Rate(s, q, (n or 0) / minutes, (b or 0) / (BEFORE.total_seconds() / 60)) for s, q, n, b in counted]


def _counters(viewer: Viewer, since: datetime, step: int = MINUTE):
    return QueueCounter.objects.filter(scopes.visible(viewer), step=step, at__gte=since)


def _new_groups(viewer: Viewer, rate: _Rate, now: datetime) -> list[datetime]:
    """When each group that is new, and has open failures in this queue, was first seen."""
    found = Group.objects.filter(first_seen__gte=now - NEW_WITHIN, last_seen__gte=now - NEW_WITHIN)
    first_seen = dict(found.values_list("pk", "first_seen")[:500])
    here = FailureCount.objects.filter(
        scopes.visible(viewer), source=rate.source, queue=rate.queue, group_id__in=list(first_seen), count__gt=0
    )
    return [first_seen[pk] for pk in here.values_list("group_id", flat=True).distinct()]


def _tenants_hit(viewer: Viewer, rate: _Rate, now: datetime) -> tuple[int, bool]:
    """How many tenants this queue's newest failures name, and whether all of the last minutes were looked at."""
    tenants: set[str] = set()
    is_all = True
    for state in ("dead", "retrying"):
        newest = Failure.objects.filter(source=rate.source, queue=rate.queue, state=state).order_by("-id")
        rows = list(newest.values_list("tenant", "failed_at")[:SAMPLE])
        recent = [tenant for tenant, at in rows if at >= now - RATE_OVER - BEFORE]
        tenants.update(tenant for tenant in recent if tenant)
        is_all = is_all and len(recent) < SAMPLE
    return len(tenants), is_all


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.5 else f"{value:.1f}".removesuffix(".0")


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- is anybody watching ----------------------------------------------------------------------------------------


def steps(now: datetime | None = None) -> dict[str, datetime]:
    """When each step of watch last ended a round. Raises redis.RedisError where the store does not answer."""
    found = {}
    for name, value in config.store().hgetall(keys.steps()).items():
        moment = _moment(value)
        if moment is not None:
            found[name.decode("utf-8", "replace")] = moment
    return found


def failed_rounds(step: str) -> int:
    """Rounds of a step that failed, in a row until now. Raises redis.RedisError where the store does not answer."""
    try:
        return int(json.loads(config.store().hget(keys.steps(), step) or b"{}").get("failed_rounds") or 0)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return 0


def _moment(value: bytes) -> datetime | None:
    try:
        read = json.loads(value)
        read = read.get("at") if isinstance(read, dict) else read
        return datetime.fromtimestamp(read, UTC) if isinstance(read, int | float) else datetime.fromisoformat(read)
    except (ValueError, TypeError, OverflowError, OSError):
        return None


def stale(now: datetime | None = None) -> Stale | None:
    """What is late, or None while everything is watched."""
    now = now or datetime.now(UTC)
    try:
        ended = steps(now)
    except (redis.RedisError, config.BadConfiguration):
        return _deaf()
    late = {name: at for name, at in ended.items() if (now - at).total_seconds() > LATE_AFTER_S}
    if not ended:
        return Stale("Nothing is watched: `manage.py watch` has not run yet.", None)
    if not late:
        return None
    since = min(late.values())
    when = f"{since:%H:%M}" if now - since < timedelta(hours=20) else f"{since:%a %d %b %H:%M}"
    if len(late) == len(ended):
        return Stale(f"Not watching since {when}.", since, tuple(sorted(late)))
    return Stale(f"Not watching since {when}: {', '.join(sorted(late))} is late.", since, tuple(sorted(late)))


def _deaf() -> Stale:
    """The store does not answer; what was last sampled through it tells since when."""
    try:
        at = config.store().connection_pool.connection_kwargs
        where = f" ({at['host']}:{at.get('port', 6379)})" if "host" in at else f" ({at.get('path', '')})"
    except config.BadConfiguration:
        where = ""
    heard = Source.objects.aggregate(last=Max("sampled_at"))["last"]
    since = f" since {heard:%H:%M}" if heard else ""
    return Stale(
        f"Redrive's own Redis{where} does not answer{since}: nothing new is seen.",
        heard,
        next="Look whether it runs and whether REDRIVE_REDIS_URL names it; workers keep their reports meanwhile.",
    )


def guard_is_off() -> bool:
    """Whether `manage.py off` silences all workers. Where the store does not answer, `stale` says so."""
    try:
        return config.store().get(keys.switch()) == b"off"
    except (redis.RedisError, config.BadConfiguration):
        return False


def ingest_lag_s(now: datetime | None = None) -> float:
    """Age in seconds of the oldest report that is not filed yet; 0 where none waits. Raises redis.RedisError."""
    now = now or datetime.now(UTC)
    oldest = config.store().xrange(keys.failures(), count=1)  # what is filed is deleted from the stream
    return max(0.0, now.timestamp() - int(oldest[0][0].split(b"-")[0]) / 1000) if oldest else 0.0


# --- sources -------------------------------------------------------------------------------------------------


def sources(viewer: Viewer, now: datetime | None = None) -> list[SourceRow]:
    """A line per source: whether it answers, since when, and how old its last sample is. Bounded: see `more_sources`."""
    now = now or datetime.now(UTC)
    allowed = viewer.sources()
    # A report can name a new source: those that somebody configured are never pushed out by it.
    found = Source.objects.order_by("-is_configured", "name")
    if allowed is not None:
        found = found.filter(name__in=allowed)
    found = list(found[:MOST_SOURCES])
    shown = {source.name for source in found}
    dead = dict(_counted_dead(viewer).filter(source__in=shown).values_list("source").annotate(n=Sum("count")))
    alive = Worker.objects.filter(source__in=shown, seen_at__gte=now - timedelta(seconds=ALIVE_S))
    workers = dict(alive.values_list("source").annotate(n=Count("pk")))
    return [
        SourceRow(
            name=source.name,
            backend=source.backend,
            is_configured=source.is_configured,
            reachable=source.is_reachable,
            why=source.why_unreachable,
            changed_at=source.changed_at,
            sampled_at=source.sampled_at,
            age_s=int((now - source.sampled_at).total_seconds()) if source.sampled_at else None,
            dead=dead.get(source.name, 0),
            workers=workers.get(source.name, 0),
            findings=list(source.findings),
        )
        for source in found
    ]


def more_sources(viewer: Viewer) -> int:
    """How many sources `sources` leaves out."""
    allowed = viewer.sources()
    found = Source.objects.all() if allowed is None else Source.objects.filter(name__in=allowed)
    return max(0, found.count() - MOST_SOURCES)


def findings(viewer: Viewer, rows: list[SourceRow] | None = None) -> list[dict[str, str]]:
    """Unsafe settings of the sources that the viewer sees, and of Redrive's own store: source, id, severity, text, fix.

    The worst first. `rows`: what `sources` gave, where that is known already.
    """
    rank = {"high": 0, "warning": 1, "info": 2}
    found = [{"source": "Redrive’s store", **finding} for finding in _of_the_store()]
    found += [
        {"source": row.name, **finding}
        for row in (sources(viewer) if rows is None else rows)
        for finding in row.findings
    ]
    return sorted(found, key=lambda finding: rank.get(finding.get("severity", ""), 3))


def _of_the_store() -> list[dict[str, str]]:
    """What `sample` found at the store; nothing where it does not answer, which `stale` says."""
    try:
        return json.loads(config.store().get(keys.store_findings()) or "[]")
    except (redis.RedisError, config.BadConfiguration):
        return []


# --- pictures ---------------------------------------------------------------------------------------------------


def _counted_dead(viewer: Viewer):
    return FailureCount.objects.filter(scopes.visible(viewer), state="dead", count__gt=0)


def dead_by_queue(
    viewer: Viewer, now: datetime | None = None, limit: int = MOST_QUEUES
) -> tuple[list[tuple[str, str, int]], int]:
    """(source, queue, dead jobs) of the fullest queues, then how many more have dead jobs."""
    worst = queues.worst(viewer, now or datetime.now(UTC), limit=limit, only_dead=True)
    return [(one.source, one.queue, one.dead) for one in worst], worst[0].of - len(worst) if worst else 0


def failures_over_time(viewer: Viewer, now: datetime | None = None, hours: int = 24) -> Series:
    """Failed attempts per queue, in at most 96 steps that end with the one that runs; all but the fullest as one."""
    now = now or datetime.now(UTC)
    step_s = max(60, hours * 3600 // 96 // 60 * 60)
    last = int(now.timestamp()) // step_s
    first = last - hours * 3600 // step_s + 1
    summed = max(step for step in STEPS_OF_QUEUES if step_s % step == 0)  # the fewest rows that tell the steps apart
    since = datetime.fromtimestamp(first * step_s, UTC)
    rows = _counters(viewer, since, summed).filter(at__lt=datetime.fromtimestamp((last + 1) * step_s, UTC))
    failed = Sum(F("failed") + F("retried"))
    by_queue = rows.values_list("source", "queue").annotate(n=failed).filter(n__gt=0)
    fullest = list(by_queue.order_by("-n", "source", "queue")[: MOST_SERIES + 1])
    others = 0
    if len(fullest) > MOST_SERIES:
        fullest = fullest[: MOST_SERIES - 1]
        others = by_queue.count() - len(fullest)
    rows = rows.annotate(place=StepOf("at", step_s))
    these = Q(source__in={s for s, _, _ in fullest}, queue__in={q for _, q, _ in fullest})
    kept = {(source, queue) for source, queue, _ in fullest}
    counted = [
        row
        for row in rows.filter(these).values_list("source", "queue", "place").annotate(n=failed)
        if (row[0], row[1]) in kept
    ]
    many = len({source for source, _ in kept}) > 1
    found: dict[str, list[int]] = {}
    for source, queue, place, n in counted:
        if first <= place <= last and n:
            line = found.setdefault(f"{source}/{queue}" if many else queue, [0] * (last - first + 1))
            line[place - first] += n
    series = dict(sorted(found.items(), key=lambda pair: (-sum(pair[1]), pair[0])))
    if others:
        every = dict(rows.values_list("place").annotate(n=failed))
        rest = [every.get(first + n, 0) for n in range(last - first + 1)]
        series[f"{others:,} others"] = [
            n - sum(y) for n, y in zip(rest, zip(*found.values(), strict=True), strict=True)
        ]
    return Series(step_s, [n * step_s for n in range(first, last + 1)], series)


def loudest_groups(viewer: Viewer, now: datetime | None = None, limit: int = 10) -> list[GroupRow]:
    """The groups that hold the most dead jobs; where none is dead, those seen last."""
    now = now or datetime.now(UTC)
    dead = failures.groups(viewer, order="dead", limit=limit, now=now).rows
    if any(row.dead for row in dead):
        return dead
    return failures.groups(viewer, order="last_seen", limit=limit, now=now).rows


def running_replays(viewer: Viewer, limit: int = 10) -> list[Replay]:
    """The replays that are not over, the newest first, with those of other sources left out."""
    open_ = [state for state in ReplayState.values if state not in NOT_RUNNING]
    found = Replay.objects.filter(state__in=open_).order_by("-id")
    allowed = viewer.sources()
    if allowed is not None:
        found = found.filter(Exists(ReplayItem.objects.filter(replay=OuterRef("pk"), failure__source__in=allowed)))
    return list(found[:limit])
