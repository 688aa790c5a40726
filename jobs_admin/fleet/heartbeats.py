"""Heartbeats of workers, every five seconds -> Worker rows and the counters of their queues."""

from __future__ import annotations

import heapq
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import redis
from django.db import connection, transaction
from django.db.models import Count

from jobs_admin import config, trust
from jobs_admin.core import keys, untrusted
from jobs_admin.core.envelope import is_payload_key_id
from jobs_admin.db import counters, statements, step_progress, turns
from jobs_admin.db.counters import Counted
from jobs_admin.fleet import worker_store
from jobs_admin.fleet.worker_store import Named
from jobs_admin.models import DepthSample, QueueCounter, Worker
from jobs_admin.models.counter import HOUR
from jobs_admin.models.source import ALIVE_S
from jobs_admin.trust import admission

log = logging.getLogger(__name__)

_FORGOTTEN_AFTER = timedelta(hours=1)

# Limits, because workers can write any number of values under their source's keys.
MOST_OF_SOURCE = 1_000  # the latest heartbeats
MOST_COUNTED = 100  # queues of one heartbeat
MOST_ROWS = 2_000  # stored workers of a source, the latest ones
MOST_QUEUES = 2_000  # queues of a source that are counted within an hour, in the order of their first count
_HEARTBEATS_AT_ONCE = 100  # per transaction
_QUEUES_AT_ONCE = 500  # counted queues, per transaction

# `failed` and `retried` arrive with each attempt through the stream; counting them here too would double them.
_COUNTED = ("started", "succeeded", "busy_s")
_PAUSED = {
    "queue": "queues",
    "task": "tasks",
    "tenant": "tenants",
    "dependency": "dependencies",
}  # keys in a heartbeat
_REPORTED = (*_COUNTED, "failed", "retried")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    source: str
    name: str
    boot: str
    reported_at: float  # by the worker's clock: only distinguishes heartbeats
    seen_at: datetime  # by ours, at its latest new heartbeat
    values: dict[str, Any]
    counts: dict[str, dict[str, float]]  # queue -> cumulative since boot
    tasks: frozenset[str] | None = None  # without Celery's own; None: an older worker, or one with too many tasks

    @property
    def queues(self) -> list[str]:
        named = self.values.get("queues")
        return [_text(q, 200) for q in named[:500]] if isinstance(named, list) else []

    @property
    def broker(self) -> str:
        """Return kombu's name for the type of its broker; "" if unknown."""
        return _text(self.values.get("broker"), 20)

    @property
    def late_ack(self) -> dict[str, bool | None]:
        late_ack = self.values.get("late_ack")
        return (
            {_text(q, 200): v if isinstance(v, bool) else None for q, v in late_ack.items()}
            if isinstance(late_ack, dict)
            else {}
        )


def count_heartbeats(now: datetime) -> list[Heartbeat]:
    """Add the jobs since the workers' last heartbeats to the counters, exactly once; return the live workers.

    Numbers are cumulative since the worker's boot, and the counted ones are in its row, which is locked: only the
    difference is added. A heartbeat that is lost or read twice changes nothing. Each source is counted separately,
    those with few workers first, in small transactions.
    """
    store = config.store()
    raw = worker_store.fields(store, "workers", worker_store.all_sources(store), all_shared=True)
    heard, forget = [], []
    for named, text in raw.items():
        heartbeat = _parse_heartbeat(*named, text, now)
        if heartbeat is None:
            continue
        heard.append(heartbeat)
        if now - heartbeat.seen_at > _FORGOTTEN_AFTER:
            forget.append(named)
    for gone in _last_heard.keys() - {(one.source, one.name) for one in heard}:
        del _last_heard[gone]
    heard = _limit(_from_known_sources(heard, now), now)
    for some in _slices(heard):
        with turns.turn(), transaction.atomic():
            _count_slice(some, now)
        step_progress.report()
    _forget_oldest({one.source for one in heard})
    if forget:  # they are counted by now
        worker_store.forget_fields(store, "workers", forget)
    alive = [h for h in heard if (now - h.seen_at).total_seconds() <= ALIVE_S]
    names = _task_names((h.source, _digest(h.values)) for h in alive)
    return [replace(h, tasks=names.get((h.source, _digest(h.values)))) for h in alive]


def _from_known_sources(heard: list[Heartbeat], now: datetime) -> list[Heartbeat]:
    """Remove heartbeats of unknown sources: they are not signed, so a source has to be accepted first."""
    unknown = {one.source for one in heard} - trust.current().sources.keys()
    if unknown:
        unknown -= admission.accept_first(unknown, now)
    return [one for one in heard if one.source not in unknown]


# Sources beyond their limit, and what is excluded: logged when it starts.
_excluded: dict[str, frozenset[str]] = {}


def _limit(heard: list[Heartbeat], now: datetime) -> list[Heartbeat]:
    """Limit the heartbeats of each source, and their queues; grouped by source, the source with the fewest first."""
    of_source: dict[str, list[Heartbeat]] = defaultdict(list)
    for one in heard:
        of_source[one.source].append(one)
    more: dict[str, Counter[str]] = defaultdict(Counter)
    for source, theirs in of_source.items():
        if len(theirs) > MOST_OF_SOURCE:
            more[source]["heartbeats"] = len(theirs) - MOST_OF_SOURCE
            theirs = of_source[source] = heapq.nlargest(MOST_OF_SOURCE, theirs, key=lambda one: (one.seen_at, one.name))
        for one in theirs:
            if len(one.counts) > MOST_COUNTED:
                more[source]["counts of queues"] += len(one.counts) - MOST_COUNTED
                for queue in sorted(one.counts)[MOST_COUNTED:]:
                    del one.counts[queue]
        if beyond := _excess_queues(source, theirs, now):
            more[source]["queues"] = len(beyond)
            for one in theirs:
                for queue in one.counts.keys() & beyond:
                    del one.counts[queue]
    for source, left_out in more.items():
        for what in left_out.keys() - _excluded.get(source, frozenset()):
            log.warning(
                "%d %s of source %s are left out: at most %d heartbeats of a source are read, %d queues of each, and %d queues of "
                "the source within an hour.",
                left_out[what], what, source, MOST_OF_SOURCE, MOST_COUNTED, MOST_QUEUES,
            )  # fmt: skip
    _excluded.clear()
    _excluded.update({source: frozenset(left_out) for source, left_out in more.items()})
    return [one for theirs in sorted(of_source.values(), key=len) for one in theirs]


# The queues of each source counted within an hour by all processes, as of when this process last found a new queue.
_counted_queues: dict[str, tuple[datetime, set[str]]] = {}


def _excess_queues(source: str, theirs: list[Heartbeat], now: datetime) -> set[str]:
    """Return the queues that are not counted: beyond MOST_QUEUES of the source within this hour."""
    named = {queue for one in theirs for queue in one.counts}
    hour = now.replace(minute=0, second=0, microsecond=0)
    since, counted = _counted_queues.get(source, (None, set()))
    if since != hour or not named <= counted:
        rows = QueueCounter.objects.filter(source=source, step=HOUR, at=hour)
        counted = set(rows.values_list("queue", flat=True))
    new = sorted(named - counted)
    fitting = new[: max(0, MOST_QUEUES - len(counted))]
    _counted_queues[source] = hour, counted.union(fitting)
    return set(new[len(fitting) :])


_full: set[str] = set()  # sources at the limit of rows


def _forget_oldest(sources: set[str]) -> None:
    """Delete rows of workers beyond MOST_ROWS of a source, those with the oldest heartbeats."""
    of_source = Worker.objects.filter(source__in=sources).order_by().values_list("source").annotate(n=Count("pk"))
    rows = dict(of_source)
    _full.intersection_update(source for source, count in rows.items() if count >= MOST_ROWS)
    for source in sorted(source for source, count in rows.items() if count > MOST_ROWS):
        if source not in _full:
            log.warning("Source %s has more than %d workers: those heard longest ago are forgotten.", source, MOST_ROWS)
            _full.add(source)
        latest = Worker.objects.filter(source=source).order_by("-seen_at", "-pk")
        while some := list(latest.values_list("pk", flat=True)[MOST_ROWS : MOST_ROWS + _HEARTBEATS_AT_ONCE]):
            with turns.turn(), transaction.atomic():
                Worker.objects.filter(pk__in=some).delete()
            step_progress.report()


def _slices(heard: list[Heartbeat]) -> Iterator[list[Heartbeat]]:
    """Yield heartbeats of one source in batches for one transaction."""
    some: list[Heartbeat] = []
    queues = 0
    for one in heard:
        is_full = len(some) == _HEARTBEATS_AT_ONCE or queues + len(one.counts) > _QUEUES_AT_ONCE
        if some and (is_full or one.source != some[0].source):
            yield some
            some, queues = [], 0
        some.append(one)
        queues += len(one.counts)
    if some:
        yield some


# -- live workers, for planning -----------------------------------------------------------------------------------


def known_tasks(
    source: str, now: datetime | None = None, samples: Sequence[SampledWorkers] | None = None
) -> set[str] | None:
    """Return the tasks that at least one live worker of the source has registered, without Celery's own (`celery.…`).

    `samples`: its `latest_samples`, if already read. None if unknown: no worker is alive, one is unguarded, too old, or
    has too many tasks; or the store does not answer.
    """
    alive = [name for name, _ in _alive(source, now)]
    if not alive:
        return None
    samples = latest_samples(source, now) if samples is None else samples
    if any(s.workers is None or s.workers > (s.guarded_workers or 0) for s in samples):
        return None
    try:
        texts = worker_store.fields(config.store(), "workers", [source])
        digests = [(source, _digest(untrusted.read_object(texts.get((source, name))))) for name in alive]
        names = _task_names(digests)
    except redis.RedisError:
        return None
    reported = [names.get(digest) for digest in digests]
    return None if None in reported else {task for tasks in reported for task in tasks or ()}


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A live worker, and the policies and replays of its latest heartbeat."""

    source: str
    name: str
    queues: list[str]
    mode: str  # its highest allowed mode: off, capture, observe, enforce
    policies: dict[str, int]  # name -> version that it runs
    refused: dict[str, str]  # name -> why it cannot use the version in force, and continues with the previous one
    uncounted: int = 0  # jobs that it started although a policy counts them, because the store did not answer
    overrun: int = (
        # Jobs still running after their place under a limit was given to another, because it had not answered for 30 s.
        0
    )
    shared_out: int = 0  # retries from its own share of a budget, because the store did not answer
    unkept: int = 0  # jobs that a policy wanted stored while they run, and that were not
    unplaced: int = 0  # jobs without a deciding policy, because their queue was uncertain
    repeated: int = 0  # second copies of replayed jobs that it did not run
    unasked: int = 0  # replayed jobs that it started without the store's answer whether they are such copies
    tasks: frozenset[str] | None = None  # only on request; None: unknown
    guard: str = ""  # its version
    store_user: str = ""  # its user in the store; "" if unknown
    seals_for: str | None = None  # id of the payload key that it encrypts with; "" for none, None: an older guard
    spooled: int = 0  # reports on its disk
    key: str = ""  # id of the key that signs its reports; "" for none
    pauses: tuple[str, ...] | None = None  # what can be paused in it: queue, task; None: an older guard
    paused: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by kind
    unpausable: frozenset[str] = (
        frozenset()
    )  # paused queues that it still consumes, because they would be deleted without a consumer
    memory: int | None = None  # resident bytes of its processes, summed; None if not reported
    breakers: frozenset[str] = frozenset()  # breakers that it obeys
    can_narrow: bool = False  # a breaker to a host and a task; False: an older guard


def worker_reports(
    now: datetime | None = None, *, with_tasks: bool = False, sources: Collection[str] | None = None
) -> list[WorkerReport]:
    """Return the live workers by name, as of now rather than of the last `sample`. Raises redis.RedisError.

    `sources`: only theirs; None: of all.
    """
    since = (now or datetime.now(UTC)) - timedelta(seconds=ALIVE_S)
    rows = Worker.objects.filter(seen_at__gte=since)
    if sources is not None:
        rows = rows.filter(source__in=sources)
    alive = list(rows.order_by("source", "name").values_list("source", "name"))
    # Read even if no row is recent: after a long outage of the store, live workers look dead.
    texts = worker_store.fields(config.store(), "workers", {source for source, _ in alive})
    values = [untrusted.read_object(texts.get(named)) for named in alive]
    names = (
        _task_names((source, _digest(one)) for (source, _), one in zip(alive, values, strict=True))
        if with_tasks
        else {}
    )
    return [_build_report(source, name, one, names) for (source, name), one in zip(alive, values, strict=True)]


def _build_report(source: str, name: str, values: dict[str, Any], names: dict[Named, frozenset[str]]) -> WorkerReport:
    policies, refused, queues = values.get("policies"), values.get("refused"), values.get("queues")
    seals_for, pauses = values.get("seals_for"), values.get("pauses")
    paused = values["paused"] if isinstance(values.get("paused"), dict) else {}
    return WorkerReport(
        source,
        name,
        [_text(queue, 200) for queue in queues[:500]] if isinstance(queues, list) else [],
        _text(values.get("mode"), 10),
        {_text(n, 100): int(_number(v)) for n, v in policies.items()} if isinstance(policies, dict) else {},
        {_text(n, 100): _text(why, 300) for n, why in refused.items()} if isinstance(refused, dict) else {},
        int(_number(values.get("uncounted"))),
        int(_number(values.get("overrun"))),
        int(_number(values.get("shared_out"))),
        int(_number(values.get("unkept"))),
        int(_number(values.get("unplaced"))),
        int(_number(values.get("repeated"))),
        int(_number(values.get("unasked"))),
        names.get((source, _digest(values))),
        _text(values.get("guard"), 20),
        _text(values.get("store_user"), 100),
        seals_for if seals_for == "" or is_payload_key_id(seals_for) else None,
        int(_number(values.get("spooled"))),
        _text(values.get("key"), 12),
        tuple(_text(one, 10) for one in pauses[:10]) if isinstance(pauses, list) else None,
        {kind: _names(paused.get(name)) for kind, name in _PAUSED.items()},
        _names(values.get("unpausable")),
        int(_number(values["memory"])) if values.get("memory") is not None else None,
        _names(values.get("breakers")),
        isinstance(values.get("narrows"), list),
    )


def _names(value: object) -> frozenset[str]:
    return frozenset(_text(one, 255) for one in value[:500]) if isinstance(value, list) else frozenset()


def workers_on_shared_keys(now: datetime) -> list[Named]:
    """Return the live workers whose guard writes to the keys that all sources share, as in the previous version.

    Alive by the worker's own clock. Raises redis.RedisError.
    """
    found = []
    for place, text in worker_store.shared_fields(config.store(), "workers").items():
        source, _, name = place.decode("utf-8", "replace").partition("/")
        at = untrusted.moment(untrusted.read_object(text).get("at"))
        if name and keys.valid_source(source) and at is not None and abs((now - at).total_seconds()) <= ALIVE_S:
            found.append((source, _text(name, 255)))
    return sorted(found)


def partly_guarded_queues(source: str, samples: Iterable[SampledWorkers]) -> list[tuple[str, int, int]]:
    """Return (queue, guarded workers, workers) of queues that unguarded workers consume, by its `latest_samples`.

    None for a source that stores its dead letters, where it does not matter.
    """
    if config.keeps_dead(source):
        return []
    seen = [(s.queue, s.guarded_workers or 0, s.workers or 0) for s in samples]
    return sorted(one for one in seen if one[2] > one[1])


def unguarded_workers(source: str, now: datetime | None = None) -> dict[str, int | None]:
    """Return queue -> unguarded workers that consume it, by the last sample; None if the broker does not know."""
    return {
        s.queue: None if s.workers is None else max(0, s.workers - (s.guarded_workers or 0))
        for s in latest_samples(source, now)
    }


_SAMPLED_WITHIN = timedelta(minutes=5)


def _alive(source: str, now: datetime | None) -> list[tuple[str, list[str]]]:
    since = (now or datetime.now(UTC)) - timedelta(seconds=ALIVE_S)
    return list(Worker.objects.filter(source=source, seen_at__gte=since).values_list("name", "queues"))


class SampledWorkers(NamedTuple):
    """Workers that consume a queue, by its sample."""

    queue: str
    workers: int | None
    guarded_workers: int | None


def latest_samples(source: str, now: datetime | None) -> list[SampledWorkers]:
    """Return the last sample of the source's queues."""
    since = connection.ops.adapt_datetimefield_value((now or datetime.now(UTC)) - _SAMPLED_WITHIN)
    table = DepthSample._meta.db_table
    latest = f"SELECT at FROM {table} WHERE source = %s AND step = 10 AND at >= %s ORDER BY at DESC LIMIT 1"
    found = statements.fetch_rows(
        f"SELECT queue, workers, guarded_workers FROM {table} WHERE source = %s AND step = 10 AND at = ({latest})",
        [source, source, since],
    )
    return list(map(SampledWorkers._make, found))


def _digest(values: dict[str, Any]) -> str:
    digest = values.get("tasks")
    return digest if isinstance(digest, str) and _IS_DIGEST.match(digest) else ""


_IS_DIGEST = re.compile(r"[0-9a-f]{32}\Z")  # it becomes a part of a key
_MOST_TASKS = 2_000

# By source and digest, which identifies the content, so that it is read only once. By source, because another one may
# have written other content under the same digest.
_known_task_names: dict[Named, frozenset[str]] = {}


def _task_names(digests: Iterable[Named]) -> dict[Named, frozenset[str]]:
    """Return (source, digest) -> names of tasks, for those in the store."""
    wanted = {named for named in digests if named[1]}
    for named, text in worker_store.texts(config.store(), "tasks", wanted - _known_task_names.keys()).items():
        names = untrusted.read(text)
        if isinstance(names, list):
            _known_task_names[named] = frozenset(_text(name, 500) for name in names[:_MOST_TASKS])
    if len(_known_task_names) > 100:  # releases of many weeks
        for named in _known_task_names.keys() - wanted:
            del _known_task_names[named]
    return {named: _known_task_names[named] for named in wanted & _known_task_names.keys()}


# -- folding ------------------------------------------------------------------------------------------------------


# The latest heartbeat of each worker and when it was first read. A worker's clock may be wrong, but a change of the
# heartbeat is certain.
_last_heard: dict[tuple[str, str], tuple[str, float, datetime]] = {}


def _seen_at(source: str, name: str, boot: str, reported_at: float, now: datetime) -> datetime:
    known = _last_heard.get((source, name))
    if known is None:  # this process has just started: the worker's clock is the best information
        seen = min(datetime.fromtimestamp(reported_at, UTC), now)
    else:
        seen = known[2] if known[:2] == (boot, reported_at) else now
    _last_heard[source, name] = boot, reported_at, seen
    return seen


def _count_slice(heard: list[Heartbeat], now: datetime) -> None:
    """Count some heartbeats of one source, in the caller's transaction."""
    heard = sorted(heard, key=lambda h: h.name)
    Worker.objects.bulk_create(
        [Worker(source=h.source, name=h.name, boot="", seen_at=h.seen_at) for h in heard], ignore_conflicts=True
    )
    rows = Worker.objects.filter(source=heard[0].source, name__in={h.name for h in heard}).order_by("name")
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(no_key=True)
    known = {w.name: w for w in rows}
    minute = now.replace(second=0, microsecond=0)
    added: dict[tuple[str, str, datetime], dict[str, float]] = defaultdict(lambda: dict.fromkeys(_REPORTED, 0))
    changed = []
    for h in heard:
        worker = known[h.name]
        is_same = worker.boot == h.boot
        for queue, counts in h.counts.items():
            before = worker.counted.get(queue, {}) if is_same else {}
            for column in _REPORTED:
                more = counts.get(column, 0) - before.get(column, 0)
                if more > 0:
                    added[h.source, queue, minute][column] += more
                else:  # another process has counted a newer heartbeat meanwhile
                    counts[column] = before.get(column, 0)
        _describe(worker, h, now)
        changed.append(worker)
    # Not `bulk_update`: its time per worker grows with the number of workers.
    statements.update(
        Worker, _DESCRIBED, [(*(_database_value(one, column) for column in _DESCRIBED), one.pk) for one in changed]
    )
    counters.add_queue_counts({place: {column: n[column] for column in _COUNTED} for place, n in added.items()})
    found: dict[Counted, float] = defaultdict(float)
    for (source, queue, _), n in added.items():
        found[Counted(counters.COMPLETED, source, queue)] += n["succeeded"]
        found[Counted(counters.BUSY_S, source, queue)] += n["busy_s"]
        found[Counted(counters.ENDED, source, queue)] += n["succeeded"] + n["failed"] + n["retried"]
    counters.add_totals(found)


_DESCRIBED = [
    "boot", "seen_at", "host", "release", "celery", "guard", "mode", "pool", "concurrency", "queues", "counted",
    "spooled", "dropped", "overrun", "overrun_at", "shared_out", "shared_out_at",
]  # fmt: skip


def _database_value(worker: Worker, column: str) -> Any:
    value = getattr(worker, column)
    if column in ("queues", "counted"):
        return Worker._meta.get_field(column).get_db_prep_save(value, connection)
    return value


_GROWING = ("overrun", "shared_out")


def _describe(worker: Worker, h: Heartbeat, now: datetime) -> None:
    values = h.values
    for column in _GROWING:
        count = int(_number(values.get(column)))
        if count > (getattr(worker, column) if worker.boot == h.boot else 0):
            setattr(worker, f"{column}_at", now)
        setattr(worker, column, count)
    worker.boot, worker.seen_at, worker.counted, worker.queues = h.boot, h.seen_at, h.counts, h.queues
    worker.host, worker.release = _text(values.get("host"), 255), _text(values.get("release"), 100)
    worker.celery, worker.guard = _text(values.get("celery"), 20), _text(values.get("guard"), 20)
    worker.mode, worker.pool = _text(values.get("mode"), 10), _text(values.get("pool"), 20)
    concurrency = values.get("concurrency")
    worker.concurrency = int(_number(concurrency)) if concurrency is not None else None
    worker.spooled, worker.dropped = int(_number(values.get("spooled"))), int(_number(values.get("dropped")))


def _parse_heartbeat(source: str, name: str, text: bytes, now: datetime) -> Heartbeat | None:
    """Return the heartbeat; None if it is unreadable (of a later version, or of other software)."""
    values, name = untrusted.read_object(text), _text(name, 255)
    boot, at = _text(values.get("boot"), 32), untrusted.moment(values.get("at"))
    if at is None or not name:
        return None
    reported_at = at.timestamp()
    counts = values.get("counts") if isinstance(values.get("counts"), dict) else {}
    return Heartbeat(
        source,
        name,
        boot,
        reported_at,
        _seen_at(source, name, boot, reported_at, now),
        values,
        {
            _text(queue, 200): {column: _number(n.get(column)) for column in _REPORTED}
            for queue, n in counts.items()
            if isinstance(n, dict)
        },
    )


def _text(value: Any, most: int) -> str:
    return untrusted.text(value, most)


def _number(value: Any) -> float:
    return min(max(untrusted.number(value) or 0, 0), 2**31 - 1)
