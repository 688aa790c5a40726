"""List of guarded workers: counters, last report, jobs in hand, and jobs stranded by workers that are gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import redis
from django.db.models import Count, Q

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.core.policy import is_name
from jobs_admin.core.text import representable
from jobs_admin.fleet import heartbeats, stranded, worker_store
from jobs_admin.models import PolicyVersion, Worker
from jobs_admin.models.access import Viewer
from jobs_admin.models.source import ALIVE_S
from jobs_admin.search.scope import visible

PAGE = 100
LARGEST_PAGE = 500
LISTED_FOR = timedelta(hours=24)  # since the last heartbeat
JOBS_LISTED = 5  # per worker
# Limits on what one worker reports: policies by name, and refused policies.
MOST_POLICIES, MOST_REFUSED = 500, 20
_COUNTED = ("started", "succeeded", "failed", "retried")
_SEPARATOR = "/"  # not allowed in a source's name


@dataclass(frozen=True, slots=True)
class FetchedJob:
    """Job that a worker has fetched and not finished."""

    job_id: str
    task: str
    queue: str


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """Worker as of its latest heartbeat. Counts are since its start, over all its queues."""

    source: str
    worker: str
    boot: str
    host: str
    release: str
    guard: str
    celery: str
    pool: str
    concurrency: int | None
    queues: list[str]
    seen_at: datetime
    is_alive: bool
    mode: str  # off, capture, observe, enforce
    started: int
    succeeded: int
    failed: int
    retried: int
    spooled: int  # reports in its spool on disk
    dropped: int  # lost reports
    memory: int | None = None  # resident bytes of its processes; None: the worker is gone, or did not report it
    policies: dict[str, int] = field(default_factory=dict)  # name -> version in use
    refused: dict[str, str] = field(default_factory=dict)  # name -> why it cannot use the version in force
    in_hand: int | None = 0  # None: unknown, because the store does not answer
    jobs: tuple[FetchedJob, ...] = ()  # the first JOBS_LISTED in hand
    left: stranded.Stranded | None = None  # jobs stranded by a worker that is gone
    has_stopped: bool = False  # the worker is gone and ended in order, with no job running


@dataclass(frozen=True, slots=True)
class WorkerPage:
    rows: list[WorkerRow]
    next: str | None
    live: int  # live workers on all pages
    gone: int
    is_reachable: bool  # False: the store does not answer, so jobs in hand, memory and policies are unknown


def is_cursor(text: str) -> bool:
    return _SEPARATOR in text and representable(text) == text and len(text) <= 400


def worker_page(
    viewer: Viewer, now: datetime, *, after: str = "", limit: int = PAGE, is_gone: bool | None = None
) -> WorkerPage:
    """Return the workers with a heartbeat within LISTED_FOR, by source and name.

    `is_gone` selects only workers that are gone (True) or live (False). `after` is the `next` of the previous page. The
    number of queries is fixed; the broker is read only if `sample` found jobs of workers that are gone.
    """
    since = now - timedelta(seconds=ALIVE_S)
    listed = Worker.objects.filter(visible(viewer), seen_at__gte=now - LISTED_FOR)
    live = listed.filter(seen_at__gte=since)
    numbers = listed.aggregate(all=Count("pk"), live=Count("pk", filter=Q(seen_at__gte=since)))
    rows = (listed if is_gone is None else listed.filter(seen_at__lt=since) if is_gone else live).order_by(
        "source", "name"
    )
    if after:
        source, _, name = after.partition(_SEPARATOR)
        rows = rows.filter(Q(source__gt=source) | Q(source=source, name__gt=name))
    found = list(rows.annotate(is_alive=Q(seen_at__gte=since))[: limit + 1])
    workers = found[:limit]
    facts = _StoreFacts(viewer, workers, now)
    following = f"{workers[-1].source}{_SEPARATOR}{workers[-1].name}" if len(found) > limit else None
    gone = numbers["all"] - numbers["live"]
    return WorkerPage(list(map(facts.build_row, workers)), following, numbers["live"], gone, facts.is_reachable)


class _StoreFacts:
    """Facts about the workers of some sources that only the store has; empty if it does not answer."""

    def __init__(self, viewer: Viewer, workers: list[Any], now: datetime) -> None:
        sources = {one.source for one in workers}
        self.is_reachable = True
        self._stopped: set[tuple[str, str]] = set()
        self._reports: dict[worker_store.Named, heartbeats.WorkerReport] = {}
        self._in_hand: dict[worker_store.Named, dict[str, Any]] = {}
        try:
            self._reports = {(one.source, one.name): one for one in heartbeats.worker_reports(now, sources=sources)}
            texts = worker_store.fields(config.store(), "in-hand", sources)
            self._in_hand = {named: untrusted.read_object(text) for named, text in texts.items()}
            self._stopped = _find_stopped([one for one in workers if not one.is_alive])
        except (redis.RedisError, config.BadConfiguration):
            self.is_reachable = False
        self._hidden = _find_hidden_policies(viewer, self._reports.values())
        gone = stranded.find_reported(sources) if self.is_reachable else {}
        self._left = {(one.source, one.boot): one for some in gone.values() for one in some}

    def build_row(self, worker: Any) -> WorkerRow:
        """Return the row of `worker`, a Worker annotated with `is_alive`."""
        report = self._reports.get((worker.source, worker.name)) if worker.is_alive else None
        life = worker.source, worker.boot
        fetched = self._in_hand.get(life, {}) if worker.is_alive else {}
        jobs = list(_read_jobs(fetched.get("jobs")))
        sums = {column: int(sum(n.get(column, 0) for n in worker.counted.values())) for column in _COUNTED}
        more = max(0, int(untrusted.number(fetched.get("more")) or 0))
        same = ("source", "boot", "host", "release", "guard", "celery", "pool", "concurrency", "seen_at")
        return WorkerRow(
            **{name: getattr(worker, name) for name in (*same, "is_alive", "mode", "spooled", "dropped")},
            **sums,
            worker=worker.name,
            queues=[queue for queue in worker.queues if queue],
            memory=report.memory if report else None,
            policies=self._read_named(report.policies, MOST_POLICIES) if report else {},
            refused=self._read_named(report.refused, MOST_REFUSED) if report else {},
            in_hand=len(jobs) + more if self.is_reachable else None,
            jobs=tuple(jobs[:JOBS_LISTED]),
            left=None if worker.is_alive else self._left.get(life),
            has_stopped=life in self._stopped,
        )

    def _read_named(self, by_policy: dict[str, Any], most: int) -> dict[str, Any]:
        """Return the first entries of a report by policy, without invalid names and hidden policies."""
        names = (name for name in sorted(by_policy) if is_name(name) and name not in self._hidden)
        return {name: by_policy[name] for name in islice(names, most)}


def _find_stopped(gone: list[Any]) -> set[tuple[str, str]]:
    """Return the (source, boot) of workers that reported their end. Raises redis.RedisError."""
    lives = [(one.source, one.boot) for one in gone if one.boot.isalnum()]
    pipeline = config.store().pipeline(transaction=False)
    for source, boot in lives:
        pipeline.hget(keys.boot(source, boot), "gone")
    return {life for life, has_ended in zip(lives, pipeline.execute(), strict=True) if has_ended}


def _find_hidden_policies(viewer: Viewer, reports: Iterable[heartbeats.WorkerReport]) -> set[str]:
    """Return the published policies that the viewer may not see, if a worker refuses any.

    A policy that a worker cannot read may belong to another source.
    """
    if viewer.sources() is None or not any(one.refused for one in reports):
        return set()
    published = PolicyVersion.objects.filter(is_published=True).values_list("name", "match_source")
    return {name for name, source in published if not viewer.sees_any_of(source)}


def _read_jobs(jobs: object) -> Iterator[FetchedJob]:
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, list) and len(job) == 5:
            yield FetchedJob(*(untrusted.text(part, 255) for part in job[1:4]))
