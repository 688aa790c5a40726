"""Celery without our guard: failures from its events and result backend, read only.

Events have no message, so these failures cannot be replayed. Depths come from the broker's adapter.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import redis

from jobs_admin.core import coverage as covered
from jobs_admin.core import keys, sentinel_url
from jobs_admin.core.coverage import UNKNOWN_QUEUE, Coverage, WorkerCoverage
from jobs_admin.core.envelope import Envelope
from jobs_admin.core.text import list_some
from jobs_admin.installation import COMMAND
from jobs_admin.sources.amqp import SCHEMES
from jobs_admin.sources.base import (
    Capabilities,
    Finding,
    JobChanges,
    Pulled,
    Ref,
    Rescheduled,
    SourceError,
    SourceSettings,
    SourceUnreachable,
    Unread,
)
from jobs_admin.sources.celery import events as celery_events
from jobs_admin.sources.celery.events import Events, Worker
from jobs_admin.sources.celery.listening import Listener, Messages, rabbitmq_messages, redis_messages
from jobs_admin.sources.celery.results import Result, Results
from jobs_admin.sources.celery.seen_reports import report_of_end, report_of_result

_MESSAGES_AT_ONCE = 1_000
_GAP_S = 2.0  # a longer time without reading is a gap
_CHECK_EVERY_S = 5.0
_SEARCH_EVERY_S = 1.0
_MOST_CHECKED = 500
_UNSEEN_S = 86_400.0  # a retry without news for longer is lost
_LATE_S = 60.0  # after its due time, when a retry is looked up in the result backend
_QUEUE_FOR_S = 60.0
_MOST_LEARNED = 20  # results of successes read at once, to learn the queues of their tasks

_MOST_TASKS = 2_000
_MOST_QUEUES = 5  # per task
_MOVED_S = 600.0  # a task not seen in a queue for this time has left it
_LEARN_EVERY_S = 60.0


class Followed:
    """A `sources.PulledSource` around the adapter of Celery's broker.

    Options: `result_backend`, `event_exchange`, `result_prefix`, and those of the broker.
    """

    every_s = 1.0

    def __init__(
        self,
        given: SourceSettings,
        broker: Any,
        open_messages: Callable[[str], Messages],
        body_of: Callable[[bytes], bytes | str],
    ) -> None:
        self.name = given.name
        self.can: Capabilities = replace(broker.can, follows=True, gives_back=False)
        self._broker = broker
        self._url, self._ssl = given.url, given.options.get("ssl") or False
        self._prefix = str(given.options.get("global_keyprefix", ""))
        self._is_amqp = given.url.partition("://")[0] in SCHEMES
        self._exchange = str(given.options.get("event_exchange", "celeryev"))
        self._open_messages, self._body_of = open_messages, body_of
        self._listener: Listener | None = None
        self._events = Events()
        self._task_queues = TaskQueues()
        self._results = _results(given)
        self._store, self._key = given.store, keys.coverage(given.name, given.store_prefix)
        self._guards = keys.workers(given.name, given.store_prefix)
        self._coverage: Coverage | None = None
        self._unfiled: Pulled | None = None
        self._checked_at = self._searched_at = 0.0
        self._only_queue = (float("inf"), given.queues[0]) if len(given.queues) == 1 else (0.0, UNKNOWN_QUEUE)

    def __getattr__(self, name: str) -> Any:
        """Return the broker adapter's attribute: depths, findings, and sending messages captured by the guard."""
        return getattr(self._broker, name)

    def workers(self) -> dict[str, set[str]] | None:
        """Return None: a query to workers would write to the broker."""
        return None

    def findings(self) -> list[Finding]:
        found = [] if self._is_amqp else list(self._broker.findings())  # RabbitMQ's findings publish a message
        if silent := self._find_silent():
            names = list_some([name[:60] for name in silent], 3)
            found.append(
                Finding(
                    "events-off",
                    "warning",
                    f"Workers that send no events of jobs: {names}. "
                    "Failures there are seen only if the result backend stores them.",
                    "Start workers with -E, or set worker_send_task_events = True. Or switch events on in running workers: "
                    f"{COMMAND} sources enable-events {self.name}",
                )
            )
        return found

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._broker.close()
        if self._results is not None:
            self._results.close()

    def switch_events(self, on: bool) -> None:
        """Instruct all workers to start or stop sending events. Raises SourceUnreachable."""
        from jobs_admin.sources.celery import workers as celery_workers

        options = {} if self._is_amqp else {"global_keyprefix": self._prefix, "max_retries": 1}
        celery_workers.switch_events(self._url, on, options, self._ssl)

    # -- reading

    def dead_letters(self, after: str) -> Pulled:
        """See `base.PulledSource`.

        The cursor has no effect: an event arrives once, so the same page is returned until it is filed.
        """
        if self._unfiled is not None:
            return self._unfiled
        now = time.time()
        coverage = self._follow(now)
        try:
            messages = self._listener.take(_MESSAGES_AT_ONCE) if self._listener else []
        except SourceUnreachable:
            self._listener = None
            raise
        for message in messages:
            try:
                body = self._body_of(message)
                if self._events.is_repeated(body):
                    continue
                for event in celery_events.from_json(body):
                    self._events.add(event, now)
                    coverage.heard_at = now
            except celery_events.UnreadableEvent:
                self._events.unreadable += 1
        self._count(coverage, now)
        ended = self._events.take_ended(now)
        stored = self._read_results([one.job_id for one in ended if one.kind != "success"])
        if self._results is not None:
            self._results.mark_known(one.job_id for one in ended if one.kind != "retry")
        reports, unread = [], []
        for one in ended:
            try:
                reports.append(report_of_end(self.name, self._queue, one, stored.get(one.job_id)))
            except Exception as error:  # the others are filed nevertheless
                unread.append(Unread.from_error(self._queue(""), one.job_id, one.error.encode(), error))
        is_more = self._listener is not None and self._listener.is_more
        if not is_more:
            reports += self._missed_failures(now)
        ran = self._count_successes(now)
        if self._listener is not None and self._listener.is_subscribed:
            coverage.at = min(now, self._listener.alive_at or now)
        self._unfiled = Pulled(reports, after, is_more, receipt=coverage.dump(), ran=ran, unread=unread)
        return self._unfiled

    def confirm_filed(self, pulled: Pulled) -> None:
        """Store what was seen so far, for the screens and for a process that continues."""
        self._unfiled = None
        if self._store is not None:
            try:
                self._store().set(self._key, pulled.receipt)
            except (redis.RedisError, OSError) as error:
                raise SourceUnreachable(f"Redrive's own Redis does not answer ({type(error).__name__}).") from error

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        """Return changes of retries: due times, endings in the result backend, and retries without news."""
        now = time.time()
        retrying = [job for job in jobs if job.state == "retrying"]
        if not retrying:
            return JobChanges()
        due = {
            job: at
            for job in retrying
            if (known := self._events.jobs.get(job.job_id)) and (at := known.due_at) is not None and at > now - _LATE_S
        }
        if now - self._checked_at < _CHECK_EVERY_S:
            return JobChanges(due=due)
        self._checked_at = now
        checked = [job for job in retrying if job not in due][:_MOST_CHECKED]
        stored = self._read_results([job.job_id for job in checked])
        reports = [
            report_of_result(self.name, self._queue, one)
            for one in stored.values()
            if one.status in ("SUCCESS", "FAILURE")
        ]
        gone = {
            job: "its outcome was not seen within a day"
            for job in checked
            if job.at is not None and now - job.at > _UNSEEN_S and job.job_id not in stored
        }
        return JobChanges(reports, gone, due)

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        return set()

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        return set()

    # -- coverage

    def _follow(self, now: float) -> Coverage:
        """Subscribe if needed, and record the interval that was not read."""
        coverage = self._coverage
        if coverage is None or self._listener is None:  # another process may have read meanwhile
            coverage = self._coverage = self._load_coverage() or Coverage(since=now)
        is_new = self._listener is None or not self._listener.is_subscribed
        if self._listener is None:
            where = getattr(self._broker, "_where", f"The broker of {self.name}")
            self._listener = Listener(self.name, lambda: self._open_messages(self._exchange), where)
            self._events.resume(
                {
                    name: Worker(one.pid, one.processed, one.at, one.executed, one.started, quiet_since=one.quiet_since)
                    for name, one in coverage.workers.items()
                }
            )
        if is_new and coverage.at and now - coverage.at > _GAP_S and not self._is_in_gap(coverage):
            coverage.add_gap(coverage.at, now)
        return coverage

    def _is_in_gap(self, coverage: Coverage) -> bool:
        return bool(coverage.gaps) and coverage.gaps[-1].start == coverage.at

    def _count(self, coverage: Coverage, now: float) -> None:
        events, minute = self._events, coverage.minute(now)
        minute.started += events.started
        minute.executed += events.executed
        minute.missed += events.missed
        if coverage.gaps:
            gap = coverage.gaps[-1]
            gap.missed += events.missed
            if gap.start == coverage.at:
                gap.end = now
        coverage.unreadable += events.unreadable
        events.started = events.executed = events.missed = events.unreadable = 0
        if self._listener is not None:
            coverage.dropped += self._listener.dropped
            if self._listener.dropped:
                events.note_missed()
            self._listener.dropped = 0
        for name, one in events.workers.items():
            if one.at:
                coverage.workers[name] = WorkerCoverage(
                    one.pid, one.processed, one.executed, one.started, one.at, one.quiet_since
                )
        for name in [name for name, one in coverage.workers.items() if now - one.at > 600]:
            del coverage.workers[name]

    def _load_coverage(self) -> Coverage | None:
        return covered.parse(self._read_store(lambda store: store.get(self._key)))

    def _find_silent(self) -> list[str]:
        """Return the workers whose failures neither events nor a guard report."""
        coverage = self._load_coverage()
        if coverage is None or not (silent := coverage.silent()):
            return []
        return covered.unguarded(silent, self._read_store(lambda store: store.hmget(self._guards, silent)), time.time())

    def _read_store(self, read: Callable[[redis.Redis], Any]) -> Any:
        """Return the answer; None without a store. Raises SourceUnreachable."""
        if self._store is None:
            return None
        try:
            return read(self._store())
        except (redis.RedisError, OSError) as error:
            raise SourceUnreachable(f"Redrive's own Redis does not answer ({type(error).__name__}).") from error

    # -- results

    def _read_results(self, job_ids: Sequence[str]) -> dict[str, Result]:
        """Return stored results, for facts missing in events; none if they cannot be read, which the coverage
        reports.
        """
        if self._results is None or not job_ids:
            return {}
        try:
            found = self._results.read(job_ids)
        except (SourceError, ValueError) as error:
            self._note_results(str(error))
            return {}
        self._learn_queues(found.values())
        return found

    def _missed_failures(self, now: float) -> list[Envelope]:
        if self._results is None or now - self._searched_at < _SEARCH_EVERY_S:
            return []
        self._searched_at = now
        try:
            found = self._results.find_failures(now)
        except (SourceError, ValueError) as error:
            self._note_results(str(error))
            return []
        self._note_results("read" if self._results.has_any else "empty")
        return [report_of_result(self.name, self._queue, one) for one in found]

    def _learn_queues(self, results: Iterable[Result]) -> None:
        now = time.time()
        for one in results:
            if one.task and one.queue:
                self._task_queues.add(one.task, one.queue, now)

    def _note_results(self, state: str) -> None:
        if self._coverage is not None:
            self._coverage.results = state

    # -- queues

    def _count_successes(self, now: float) -> dict[tuple[str, int], int]:
        """Return the jobs that succeeded since the previous call, by queue and minute since 1970."""
        succeeded, self._events.succeeded = self._events.succeeded, {}
        unknown = [(task, one) for (queue, task), one in succeeded.items() if task and not queue]
        wanted = [one.job_id for task, one in unknown if self._task_queues.is_to_be_learned(task, now)]
        self._read_results(wanted[:_MOST_LEARNED])
        ran: Counter[tuple[str, int]] = Counter()
        for (queue, task), one in succeeded.items():
            if task and queue:
                self._task_queues.add(task, queue, now)
            ran[queue or self._queue(task), int(now // 60)] += one.count
        return dict(ran)

    def _queue(self, task: str) -> str:
        """Return the queue of a job without a known one: that of its task, else the only queue."""
        if learned := self._task_queues.get(task, time.time()):
            return learned
        until, queue = self._only_queue
        if time.monotonic() > until:
            try:
                known = [depth.queue for depth in self._broker.depths()]
            except SourceError:
                known = []
            queue = known[0] if len(known) == 1 else UNKNOWN_QUEUE
            self._only_queue = (time.monotonic() + _QUEUE_FOR_S, queue)
        return queue


_RESULT_SCHEMES = ("redis", "rediss", "redis+socket", "unix", *sentinel_url.SCHEMES)


def _results(given: SourceSettings) -> Results | None:
    """Return the result backend to read: the configured one, else the broker's Redis; None for "none" and other
    systems.
    """
    url = str(given.options.get("result_backend") or given.url)
    if url == "none" or url.partition("://")[0] not in _RESULT_SCHEMES:
        return None
    return Results(given.name, url, str(given.options.get("result_prefix", "")))


def open_followed(given: SourceSettings, broker: Any) -> Followed:
    """Return the adapter for a source with `guard = false`. Opens no connection yet."""
    if given.url.partition("://")[0] in SCHEMES:
        ssl = given.options.get("ssl") or False
        return Followed(given, broker, lambda name: rabbitmq_messages(given.url, ssl, name), bytes)
    client = broker._client
    prefix = str(given.options.get("global_keyprefix", ""))
    db = client.connection_pool.connection_kwargs.get("db") or 0
    return Followed(
        given, broker, lambda name: redis_messages(client, f"{prefix}/{db}.{name}"), celery_events.body_of_kombu
    )


@dataclass(slots=True)
class TaskQueues:
    """Tasks and the queues in which they were seen, each with its latest time. `now`: Unix seconds."""

    _seen: OrderedDict[str, dict[str, float]] = field(default_factory=OrderedDict)
    _requested_at: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def add(self, task: str, queue: str, now: float) -> None:
        queues = self._seen.setdefault(task, {})
        queues[queue] = now
        if len(queues) > _MOST_QUEUES:
            del queues[min(queues, key=queues.__getitem__)]
        _bound(self._seen, task)

    def get(self, task: str, now: float) -> str:
        """Return the only queue of a task; "" if unknown or several."""
        queues = self._seen.get(task, {})
        latest = max(queues.values(), default=now)
        current = [queue for queue, at in queues.items() if latest - at < _MOVED_S]
        return current[0] if len(current) == 1 else ""

    def is_to_be_learned(self, task: str, now: float) -> bool:
        """Return whether a result of this task should be read; True at most once a minute."""
        if 0 <= now - self._requested_at.get(task, float("-inf")) < _LEARN_EVERY_S:
            return False
        self._requested_at[task] = now
        _bound(self._requested_at, task)
        return True


def _bound(among: OrderedDict[str, Any], task: str) -> None:
    among.move_to_end(task)
    if len(among) > _MOST_TASKS:
        among.popitem(last=False)
