"""What workers say of themselves every five seconds -> Worker rows and the counters of their queues."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.db import connection, transaction

from jobs_admin import config, counters, totals
from jobs_admin.core import keys, untrusted
from jobs_admin.models import DepthSample, Worker
from jobs_admin.models.source import ALIVE_S
from jobs_admin.totals import Counted

_FORGOTTEN_AFTER = timedelta(hours=1)

# `failed` and `retried` come with each attempt through the stream; counting them here too would double them.
_COUNTED = ("started", "succeeded", "busy_s")
_TOLD = (*_COUNTED, "failed", "retried")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    source: str
    name: str
    boot: str
    told_at: float  # by the worker's clock: only tells one heartbeat from the next
    seen_at: datetime  # by ours, when it last said something new
    said: dict[str, Any]
    counts: dict[str, dict[str, float]]  # queue -> cumulative since boot
    tasks: frozenset[str] | None = None  # without Celery's own; None: an older worker, or one that knows too many

    @property
    def queues(self) -> list[str]:
        named = self.said.get("queues")
        return [_text(q, 200) for q in named[:500]] if isinstance(named, list) else []

    @property
    def broker(self) -> str:
        """What kombu calls the kind of its broker; "" where it does not tell."""
        return _text(self.said.get("broker"), 20)

    @property
    def late_ack(self) -> dict[str, bool | None]:
        said = self.said.get("late_ack")
        return (
            {_text(q, 200): v if isinstance(v, bool) else None for q, v in said.items()}
            if isinstance(said, dict)
            else {}
        )


def fold(now: datetime) -> list[Heartbeat]:
    """Add what workers did since their last heartbeat to the counters, exactly once; answers who is alive.

    Numbers are cumulative since the worker's boot and what was counted stands in its row, locked meanwhile: only the
    difference is added. A heartbeat that is lost or read twice changes nothing.
    """
    store = config.store()
    raw: dict[bytes, bytes] = store.hgetall(keys.workers())
    heard, forget = [], []
    for field, text in raw.items():
        heartbeat = _read(text, now)
        if heartbeat is None:
            continue
        heard.append(heartbeat)
        if now - heartbeat.seen_at > _FORGOTTEN_AFTER:
            forget.append(field)
    if heard:
        with transaction.atomic():
            _count(heard, now)
    if forget:  # counted by now
        store.hdel(keys.workers(), *forget)
    alive = [h for h in heard if (now - h.seen_at).total_seconds() <= ALIVE_S]
    names = _names(_digest(h.said) for h in alive)
    return [replace(h, tasks=names.get(_digest(h.said))) for h in alive]


# -- who works, for those who plan --------------------------------------------------------------------------------


def known_tasks(source: str, now: datetime | None = None) -> set[str] | None:
    """The tasks that at least one live worker of the source knows, without Celery's own (`celery.…`: all know them).

    None where it cannot be told: nobody lives, somebody is not guarded, is of an older version, or knows too many; or
    our store does not answer.
    """
    alive = [name for name, _ in _alive(source, now)]
    samples = _latest_samples(source, now)
    if not alive or any(s.workers is None or s.workers > (s.guarded_workers or 0) for s in samples):
        return None
    try:
        said = config.store().hmget(keys.workers(), [f"{source}/{name}" for name in alive])
        digests = [_digest(untrusted.read_object(text)) for text in said]
        names = _names(digests)
    except redis.RedisError:
        return None
    told = [names.get(digest) for digest in digests]
    return None if None in told else {task for tasks in told for task in tasks or ()}


def live_workers(source: str, queue: str, now: datetime | None = None) -> int:
    """Guarded workers that consume the queue and beat within the last 30 s. Of others nobody knows so soon."""
    return sum(queue in queues for _, queues in _alive(source, now))


def guarded(source: str, queue: str, now: datetime | None = None) -> tuple[int, int | None]:
    """How many guarded workers consume the queue, and how many do in all; None where the source could not be asked.

    Those without a guard are asked for once a minute, so that one which just ended may still be counted.
    """
    live = live_workers(source, queue, now)
    sample = next((s for s in _latest_samples(source, now) if s.queue == queue), None)
    if sample is None or sample.workers is None:
        return live, None
    return live, live + max(0, sample.workers - (sample.guarded_workers or 0))


@dataclass(frozen=True, slots=True)
class Told:
    """A live worker, and what its latest heartbeat says of policies and replays."""

    source: str
    name: str
    queues: list[str]
    mode: str  # the most that it does: off, capture, observe, enforce
    policies: dict[str, int]  # name -> version that it runs
    refused: dict[str, str]  # name -> why it cannot use the version in force, and goes on with the one before
    uncounted: int = 0  # jobs that it started although a policy counts them: the store did not answer
    overrun: int = (
        0  # jobs that ran on while their place under a limit was given to another: it had not answered for 30 s
    )
    shared_out: int = 0  # retries by its own share of a budget: the store did not answer
    unkept: int = 0  # jobs that a policy wanted kept while they run, and that were not
    unplaced: int = 0  # jobs that no policy decided over, because it is not sure which queue they came from
    repeated: int = 0  # second copies of replayed jobs that it did not run
    unasked: int = 0  # replayed jobs that it started although the store did not say whether they are such a copy
    tasks: frozenset[str] | None = None  # only where they were asked for; None: not told
    guard: str = ""  # its version


def told(now: datetime | None = None, *, with_tasks: bool = False) -> list[Told]:
    """The workers that live, by name, as they are now: not as `sample` last found them. Raises redis.RedisError."""
    since = (now or datetime.now(UTC)) - timedelta(seconds=ALIVE_S)
    alive = list(Worker.objects.filter(seen_at__gte=since).order_by("source", "name").values_list("source", "name"))
    # Asked also where no row is young: a store that was away for long looks like workers that are.
    texts = config.store().hmget(keys.workers(), ["", *(f"{source}/{name}" for source, name in alive)])[1:]
    said = [untrusted.read_object(text) for text in texts]
    names = _names(map(_digest, said)) if with_tasks else {}
    return [_told(source, name, one, names) for (source, name), one in zip(alive, said, strict=True)]


def _told(source: str, name: str, said: dict[str, Any], names: dict[str, frozenset[str]]) -> Told:
    policies, refused, queues = said.get("policies"), said.get("refused"), said.get("queues")
    return Told(
        source,
        name,
        [_text(queue, 200) for queue in queues[:500]] if isinstance(queues, list) else [],
        _text(said.get("mode"), 10),
        {_text(n, 100): int(_number(v)) for n, v in policies.items()} if isinstance(policies, dict) else {},
        {_text(n, 100): _text(why, 300) for n, why in refused.items()} if isinstance(refused, dict) else {},
        int(_number(said.get("uncounted"))),
        int(_number(said.get("overrun"))),
        int(_number(said.get("shared_out"))),
        int(_number(said.get("unkept"))),
        int(_number(said.get("unplaced"))),
        int(_number(said.get("repeated"))),
        int(_number(said.get("unasked"))),
        names.get(_digest(said)),
        _text(said.get("guard"), 20),
    )


def partly_guarded(source: str, now: datetime | None = None) -> list[tuple[str, int, int]]:
    """(queue, guarded workers, workers) of the queues that somebody without a guard consumes, by the last look.

    None of a source that keeps its dead letters: there it matters to nobody.
    """
    if config.keeps_dead(source):
        return []
    seen = [(s.queue, s.guarded_workers or 0, s.workers or 0) for s in _latest_samples(source, now)]
    return sorted(one for one in seen if one[2] > one[1])


_SAMPLED_WITHIN = timedelta(minutes=5)


def _alive(source: str, now: datetime | None) -> list[tuple[str, list[str]]]:
    since = (now or datetime.now(UTC)) - timedelta(seconds=ALIVE_S)
    return list(Worker.objects.filter(source=source, seen_at__gte=since).values_list("name", "queues"))


def _latest_samples(source: str, now: datetime | None) -> list[DepthSample]:
    """The rows of the last look at the source's queues."""
    since = (now or datetime.now(UTC)) - _SAMPLED_WITHIN
    taken = DepthSample.objects.filter(source=source, step=10, at__gte=since)
    latest = taken.order_by("-at").values_list("at", flat=True).first()
    return list(taken.filter(at=latest)) if latest else []


def _digest(said: dict[str, Any]) -> str:
    digest = said.get("tasks")
    return digest if isinstance(digest, str) and _IS_DIGEST.match(digest) else ""


_IS_DIGEST = re.compile(r"[0-9a-f]{32}\Z")  # it becomes a part of a key
_MOST_TASKS = 2_000

# By digest, which names its content: what was read once is not read again.
_read_names: dict[str, frozenset[str]] = {}


def _names(digests: Iterable[str]) -> dict[str, frozenset[str]]:
    """Digest -> names of tasks, of those that the store has."""
    wanted = {digest for digest in digests if digest}
    unknown = sorted(wanted - _read_names.keys())
    for digest, text in zip(unknown, config.store().mget(map(keys.tasks, unknown)) if unknown else (), strict=True):
        named = untrusted.read(text)
        if isinstance(named, list):
            _read_names[digest] = frozenset(_text(name, 500) for name in named[:_MOST_TASKS])
    if len(_read_names) > 100:  # releases of many weeks
        for digest in _read_names.keys() - wanted:
            del _read_names[digest]
    return {digest: _read_names[digest] for digest in wanted & _read_names.keys()}


# -- folding ------------------------------------------------------------------------------------------------------


# What each worker last said and when we first read that. A worker's clock may be wrong; that its word changed is not.
_heard: dict[tuple[str, str], tuple[str, float, datetime]] = {}


def _seen(source: str, name: str, boot: str, told_at: float, now: datetime) -> datetime:
    known = _heard.get((source, name))
    if known is None:  # this process just began: there is nothing better yet than the worker's clock
        seen = min(datetime.fromtimestamp(told_at, UTC), now)
    else:
        seen = known[2] if known[:2] == (boot, told_at) else now
    _heard[source, name] = boot, told_at, seen
    return seen


def _count(heard: list[Heartbeat], now: datetime) -> None:
    heard = sorted(heard, key=lambda h: (h.source, h.name))
    Worker.objects.bulk_create(
        [Worker(source=h.source, name=h.name, boot="", seen_at=h.seen_at) for h in heard], ignore_conflicts=True
    )
    rows = Worker.objects.filter(source__in={h.source for h in heard}, name__in={h.name for h in heard})
    rows = rows.order_by("source", "name")
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(no_key=True)
    known = {(w.source, w.name): w for w in rows}
    minute = now.replace(second=0, microsecond=0)
    added: dict[tuple[str, str, datetime], dict[str, float]] = defaultdict(lambda: dict.fromkeys(_TOLD, 0))
    changed = []
    for h in heard:
        worker = known[h.source, h.name]
        is_same = worker.boot == h.boot
        for queue, counts in h.counts.items():
            before = worker.counted.get(queue, {}) if is_same else {}
            for column in _TOLD:
                more = counts.get(column, 0) - before.get(column, 0)
                if more > 0:
                    added[h.source, queue, minute][column] += more
                else:  # another process folded a newer heartbeat meanwhile
                    counts[column] = before.get(column, 0)
        _describe(worker, h, now)
        changed.append(worker)
    Worker.objects.bulk_update(changed, _DESCRIBED)
    counters.count_queues({place: {column: n[column] for column in _COUNTED} for place, n in added.items()})
    found: dict[Counted, float] = defaultdict(float)
    for (source, queue, _), n in added.items():
        found[Counted(totals.COMPLETED, source, queue)] += n["succeeded"]
        found[Counted(totals.BUSY_S, source, queue)] += n["busy_s"]
        found[Counted(totals.ENDED, source, queue)] += n["succeeded"] + n["failed"] + n["retried"]
    totals.add(found)


_DESCRIBED = [
    "boot", "seen_at", "host", "release", "celery", "guard", "mode", "pool", "concurrency", "queues", "counted",
    "spooled", "dropped", "overrun", "overrun_at", "shared_out", "shared_out_at",
]  # fmt: skip


_GROWING = ("overrun", "shared_out")


def _describe(worker: Worker, h: Heartbeat, now: datetime) -> None:
    said = h.said
    for column in _GROWING:
        count = int(_number(said.get(column)))
        if count > (getattr(worker, column) if worker.boot == h.boot else 0):
            setattr(worker, f"{column}_at", now)
        setattr(worker, column, count)
    worker.boot, worker.seen_at, worker.counted, worker.queues = h.boot, h.seen_at, h.counts, h.queues
    worker.host, worker.release = _text(said.get("host"), 255), _text(said.get("release"), 100)
    worker.celery, worker.guard = _text(said.get("celery"), 20), _text(said.get("guard"), 20)
    worker.mode, worker.pool = _text(said.get("mode"), 10), _text(said.get("pool"), 20)
    concurrency = said.get("concurrency")
    worker.concurrency = int(_number(concurrency)) if concurrency is not None else None
    worker.spooled, worker.dropped = int(_number(said.get("spooled"))), int(_number(said.get("dropped")))


def _read(text: bytes, now: datetime) -> Heartbeat | None:
    """The heartbeat, or None for one that cannot be read (of a later version, or not ours)."""
    said = untrusted.read_object(text)
    source, name = _text(said.get("source"), 63), _text(said.get("name"), 255)
    boot, at = _text(said.get("boot"), 32), untrusted.moment(said.get("at"))
    if at is None or not keys.valid_source(source) or not name:
        return None
    told_at = at.timestamp()
    counts = said.get("counts") if isinstance(said.get("counts"), dict) else {}
    return Heartbeat(
        source,
        name,
        boot,
        told_at,
        _seen(source, name, boot, told_at, now),
        said,
        {
            _text(queue, 200): {column: _number(n.get(column)) for column in _TOLD}
            for queue, n in counts.items()
            if isinstance(n, dict)
        },
    )


def _text(value: Any, most: int) -> str:
    return untrusted.text(value, most)


def _number(value: Any) -> float:
    return min(max(untrusted.number(value) or 0, 0), 2**31 - 1)
