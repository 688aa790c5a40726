"""List of guarded workers: what each is, counted and reported last, what it has in hand, and what a gone one took with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import redis
from django.db.models import Count, Q

from jobs_admin import config
from jobs_admin.core import untrusted
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
JOBS_LISTED = 5  # of each worker
# A worker reports what it likes: so many policies of one, by name.
MOST_POLICIES, MOST_REFUSED = 500, 20
_COUNTED = ("started", "succeeded", "failed", "retried")
_SEPARATOR = "/"  # no name of a source has it


@dataclass(frozen=True, slots=True)
class FetchedJob:
    """A job that a worker fetched and has not finished."""

    job_id: str
    task: str
    queue: str


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker by its latest heartbeat. Counts are since its start, of all its queues."""

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
    spooled: int  # reports on its disk
    dropped: int  # reports that were lost
    memory: int | None = None  # resident bytes of its processes; None: gone, or not reported
    policies: dict[str, int] = field(default_factory=dict)  # name -> version that it runs
    refused: dict[str, str] = field(default_factory=dict)  # name -> why it cannot use the version in force
    in_hand: int | None = 0  # None: not known, as the store does not answer
    jobs: tuple[FetchedJob, ...] = ()  # the first JOBS_LISTED in hand
    left: stranded.Stranded | None = None  # what a gone worker took with it


@dataclass(frozen=True, slots=True)
class WorkerPage:
    rows: list[WorkerRow]
    next: str | None
    live: int  # of all pages
    gone: int
    is_reachable: bool  # False: the store does not answer, so jobs in hand, memory and policies are not known


def is_cursor(text: str) -> bool:
    return _SEPARATOR in text and representable(text) == text and len(text) <= 400


def worker_page(
    viewer: Viewer, now: datetime, *, after: str = "", limit: int = PAGE, is_gone: bool | None = None
) -> WorkerPage:
    """Return the workers heard within LISTED_FOR, by source and name; with `is_gone` only those gone, or only live ones.

    `after` is the `next` of the page before. A fixed number of queries; a broker is read only where `sample` found jobs
    of gone workers.
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
    facts = _StoreFacts(viewer, {one.source for one in workers}, now)
    following = f"{workers[-1].source}{_SEPARATOR}{workers[-1].name}" if len(found) > limit else None
    gone = numbers["all"] - numbers["live"]
    return WorkerPage(list(map(facts.build_row, workers)), following, numbers["live"], gone, facts.is_reachable)


class _StoreFacts:
    """The facts that only the store has of the workers of some sources; nothing where it does not answer."""

    def __init__(self, viewer: Viewer, sources: set[str], now: datetime) -> None:
        self.is_reachable = True
        self._reports: dict[worker_store.Named, heartbeats.WorkerReport] = {}
        self._in_hand: dict[worker_store.Named, dict[str, Any]] = {}
        try:
            self._reports = {(one.source, one.name): one for one in heartbeats.worker_reports(now, sources=sources)}
            texts = worker_store.fields(config.store(), "in-hand", sources)
            self._in_hand = {named: untrusted.read_object(text) for named, text in texts.items()}
        except (redis.RedisError, config.BadConfiguration):
            self.is_reachable = False
        self._hidden = _find_hidden_policies(viewer, self._reports.values())
        gone = stranded.find_reported(sources) if self.is_reachable else {}
        self._left = {(one.source, one.boot): one for some in gone.values() for one in some}

    def build_row(self, worker: Any) -> WorkerRow:
        """`worker` is a Worker with `is_alive`."""
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
        )

    def _read_named(self, by_policy: dict[str, Any], most: int) -> dict[str, Any]:
        """Return the first of what a worker reports by policy, without what is no name of one, or of a hidden one."""
        names = (name for name in sorted(by_policy) if is_name(name) and name not in self._hidden)
        return {name: by_policy[name] for name in islice(names, most)}


def _find_hidden_policies(viewer: Viewer, reports: Iterable[heartbeats.WorkerReport]) -> set[str]:
    """Return the published policies that the viewer may not see, if a worker refuses any: one that it cannot read may be
    for another source.
    """
    if viewer.sources() is None or not any(one.refused for one in reports):
        return set()
    published = PolicyVersion.objects.filter(is_published=True).values_list("name", "match_source")
    return {name for name, source in published if not viewer.sees_any_of(source)}


def _read_jobs(jobs: object) -> Iterator[FetchedJob]:
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, list) and len(job) == 5:
            yield FetchedJob(*(untrusted.text(part, 255) for part in job[1:4]))
