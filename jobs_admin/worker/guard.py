"""The guard of one worker: decides what is reported, and never lets a report break or hold up a job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from celery.worker.state import task_ready

from jobs_admin.core.envelope import Envelope
from jobs_admin.worker import report
from jobs_admin.worker.acting import Acting, Ending, is_waiting
from jobs_admin.worker.decision import WAIT, Decision
from jobs_admin.worker.gate import Gate
from jobs_admin.worker.ledger import Ledger
from jobs_admin.worker.once import Once
from jobs_admin.worker.outcome import Outcome, expired, hard_limit, has_succeeded, outcome_of
from jobs_admin.worker.pausing import Pausing
from jobs_admin.worker.queues import Place, hand_over, place_of
from jobs_admin.worker.report import Origin
from jobs_admin.worker.store import Store
from jobs_admin.worker.unread import UNKNOWN_FORMAT, message_envelope

_ENDING = "_redrive_ending"  # on a request: how it ended, once that is known
_KIND = "_redrive_kind"  # on a request: of what is still to be told

logger = logging.getLogger("redrive.worker")


# Outcomes of a worker's jobs, per queue, counted in memory: no call for a job that went well.

# The heartbeat tells them all, every five seconds; and where a queue is only guessed, its name may be anything.
MOST_QUEUES = 500
OTHERS = "(others)"


@dataclass(slots=True)
class QueueCount:
    """Since this worker started."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    busy_s: float = 0.0
    late_ack: set[bool] = field(default_factory=set)  # how its jobs were acknowledged


class Counts:
    """Cumulative, so that a heartbeat which gets lost loses nothing. Of `MOST_QUEUES` queues; the others are counted as one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # thread pools end jobs in many threads
        self._queues: dict[str, QueueCount] = {}

    def started(self, queue: str, *, late_ack: bool) -> None:
        with self._lock:
            count = self._count_of(queue)
            count.started += 1
            count.late_ack.add(late_ack)

    def put_off(self, queue: str) -> None:
        """Take back a job that was counted as started and did not begin: it waits, or makes way, and starts again
        later.
        """
        with self._lock:
            self._count_of(queue).started -= 1

    def ended(self, queue: str, outcome: str, duration: float | None) -> None:
        """`outcome`: succeeded, failed, retried, or "" for one that is none of them (ignored, terminated)."""
        with self._lock:
            count = self._count_of(queue)
            count.busy_s += duration or 0.0
            if outcome == "succeeded":
                count.succeeded += 1
            elif outcome == "failed":
                count.failed += 1
            elif outcome == "retried":
                count.retried += 1

    def snapshot(self) -> dict[str, dict[str, float]]:
        with self._lock:
            counts = {queue: asdict(count) for queue, count in self._queues.items()}
        for count in counts.values():
            count["busy_s"] = round(count["busy_s"], 3)
            del count["late_ack"]
        return counts

    def late_ack(self, queue: str, configured: set[bool]) -> bool | None:
        """Return whether the jobs of a queue are acknowledged late; None where they differ.

        Known from those that ran; `configured` is what the app's tasks say, for a queue on which none did.
        """
        with self._lock:
            counted = self._queues.get(queue)
            seen = counted.late_ack if counted and counted.late_ack else configured
            return next(iter(seen)) if len(seen) == 1 else None

    def _count_of(self, queue: str) -> QueueCount:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues.setdefault(queue if len(self._queues) < MOST_QUEUES else OTHERS, QueueCount())
        return found


class Guard:
    """Called by the requests of a worker's main process. No method raises."""

    def __init__(self, origin: Origin, store: Store, gate: Gate | None = None) -> None:
        self.origin = origin
        self.store = store
        self.gate = gate or Gate(lambda seconds, act: None)  # before the pool
        self.once: Once | None = None
        self.acting: Acting | None = None  # None: whatever is published, no policy decides in this worker
        self.ledger: Ledger | None = None  # None as well
        self.pausing: Pausing | None = None
        self.is_silenced = False  # by `manage.py off`
        self.counts = Counts()
        self.unplaced = 0  # jobs that no policy decided over, because their queue was not known
        self.broken = 0  # reports that could not be made whole, for an error of ours

    def may_start(self, request: Any, *, for_good: bool = False) -> bool:
        """Return whether no pause keeps the job from starting; `for_good`: it starts now. If one does, the job is on its way back."""
        if self.pausing is None:
            return True
        try:
            return self.pausing.starts(request) if for_good else self.pausing.may_start(request)
        except Exception as error:
            self._note(error)
            return True

    def is_repeated(self, request: Any) -> bool:
        """Return whether the job was begun by another copy of its message, and is not to be run."""
        try:
            if self.once is None or "redrive" not in request.request_dict or self.is_silenced:
                return False
            return self.once.is_repeated(request)
        except Exception as error:
            self._note(error)
            return False

    def hand_over(self, request: Any) -> None:
        """Pass the job's origin to the process that runs it; before it goes to the pool."""
        if self.acting is None:
            return  # nobody asks there
        try:
            place = place_of(request, self.origin.queues)
            hand_over(request, place)
            if not place.is_sure and not self.is_silenced and self.acting.concerns(request):
                self._note_unplaced(request, place)
        except Exception as error:
            self._note(error)

    def _note_unplaced(self, request: Any, place: Place) -> None:
        self.unplaced += 1
        if self.unplaced == 1:
            logger.warning(
                "Redrive does not know for sure which queue a job of %.200r came from (routing key %.200r; most likely %.200r). "
                "No policy decides over such a job: its retries are Celery's.",
                str(request.type),
                str(request.delivery_info.get("routing_key")),
                place.name,
            )

    def job_started(self, request: Any) -> None:
        """Before Celery acknowledges a message early."""
        try:
            self.counts.started(report.queue_of(request, self.origin), late_ack=bool(request.task.acks_late))
            if self.ledger is not None and not self.is_silenced:
                self.ledger.begins(request)
        except Exception as error:
            self._note(error)

    def job_put_off(self, request: Any) -> None:
        """Take back a start that was counted: the job makes way for others, and starts again."""
        try:
            self.counts.put_off(report.queue_of(request, self.origin))
        except Exception as error:
            self._note(error)

    def job_failed(self, request: Any, exc_info: Any) -> tuple[Any, dict[str, Any]]:
        """Before Celery acknowledges the message: what is durable here is forgotten there only afterwards.

        Answers the end that Celery is to be given, and with which options.
        """
        # The pool tells of some ends twice: a hard limit as an error and as a time-out.
        ended: Ending | None = getattr(request, _ENDING, None)
        if ended is None:
            ended = self._end(request, exc_info)
            self._let_go(request)
        return ended.exc_info, ended.options

    def job_timed_out(self, request: Any, seconds: float | None) -> bool:
        """Return whether Celery is to be notified: not of a job that waits for its next attempt."""
        ended: Ending | None = getattr(request, _ENDING, None)
        if ended is None:
            try:
                ended = Ending(hard_limit(seconds), None, None)
                setattr(request, _ENDING, ended)
                self._report(request, ended.outcome, None)
            except Exception as error:
                self._report_least(request, error)
            self._let_go(request)
        return ended is None or not ended.is_delayed

    def job_succeeded(self, request: Any, duration: float | None) -> None:
        try:
            self.counts.ended(report.queue_of(request, self.origin), "succeeded", duration)
            is_news = not self.is_silenced and _follows_trouble(request)
            if is_news:
                entry = self.origin.entry(report.success(request, self.origin, duration))
                self.store.write(entry, may_lag=self._may_lag(request))
            if self.ledger is not None and self.ledger.keeps(request):
                success = None if is_news else report.success(request, self.origin, duration)
                self.ledger.ended(request, success)
        except Exception as error:
            self._note(error)

    def job_expired(self, request: Any) -> None:
        """Before Celery acknowledges a job that was to run by a time that has passed. It never ran."""

        def build() -> Envelope:
            return report.failure(request, expired(request), self.origin, None)

        self.message_ended(lambda: report.queue_of(request, self.origin), build)

    def refuses(self, request: Any, why: str) -> bool:
        """Return whether a request that would end the worker ends here: reported, and rejected. Switched off, all is as
        without us.
        """
        if self.is_silenced:
            return False
        self._report_misshapen(request, why)
        task_ready(request)
        request.reject(requeue=False)
        return True

    def job_rejected(self, request: Any) -> None:
        """Before a message is given up for good: one that was reported as ended, or else one that was never begun."""
        if request.time_start is None and getattr(request, _ENDING, None) is None:
            self._report_misshapen(request, "The time that it is to run at cannot be reckoned with.")

    def _report_misshapen(self, request: Any, why: str) -> None:
        def build() -> Envelope:
            message, worker = request.message, str(request.hostname)
            return message_envelope(message, "unknown_format", UNKNOWN_FORMAT, why, self.origin, worker)

        setattr(request, _ENDING, Ending(None, None, None))
        self.message_ended(lambda: report.queue_of(request, self.origin), build)

    def message_ended(self, queue: Callable[[], str], build: Callable[[], Envelope]) -> None:
        """Report a message that ends without having begun to run, before Celery acknowledges or rejects it."""
        try:
            self.counts.ended(queue(), "failed", None)
            if not self.is_silenced:
                self.store.write(self.origin.entry(build()))
        except Exception as error:
            self._note(error)

    def _end(self, request: Any, exc_info: Any) -> Ending:
        ended = Ending(None, None, exc_info)
        try:
            if has_succeeded(request, exc_info):
                setattr(request, _ENDING, ended)
                self.job_succeeded(request, _seconds_of(request))
                return ended
            if self.acting is None:
                ended = Ending(outcome_of(request, exc_info), None, exc_info)
            else:
                ended = self._acted(self.acting, request, exc_info)
            setattr(request, _ENDING, ended)
            self._report(request, ended.outcome, ended.decision)
        except Exception as error:
            self._report_least(request, error)
        return self._done_after(ended, request, exc_info) if ended.then is not None else ended

    def _done_after(self, ended: Ending, request: Any, exc_info: Any) -> Ending:
        """Do what was to be done once the end was reported; where that fails, report how the attempt ended instead."""
        try:
            instead = ended.then and ended.then()
        except Exception as error:
            instead = self._not_acted(request, exc_info, error)
        try:
            if instead is not None:
                setattr(request, _ENDING, instead)
                self._report(request, instead.outcome, instead.decision, is_counted=True)
                return instead
        except Exception as error:
            self._report_least(request, error)
        try:
            if instead is None and ended.afterwards is not None:
                ended.afterwards()
        except Exception as error:  # Celery's own bookkeeping, and hooks of the task
            self._note(error)
        return instead or ended

    def _may_lag(self, request: Any) -> bool:
        """Return whether the report may lag: a job that was acknowledged early cannot be saved by waiting, unless it is
        kept until its report is durable.
        """
        return bool(request.acknowledged) and not self._keeps(request)

    def _keeps(self, request: Any) -> bool:
        return self.ledger is not None and self.ledger.keeps(request)

    def _let_go(self, request: Any) -> None:
        """Let the store forget the job: all reports and acts about its end are durable.

        But where a worker that ends cold cancelled it: Celery calls that a retry, and publishes none.
        """
        try:
            if self.ledger is not None and not getattr(request, "_already_cancelled", False):
                self.ledger.ended(request)
        except Exception as error:
            self._note(error)

    def _acted(self, acting: Acting, request: Any, exc_info: Any) -> Ending:
        try:
            return acting.ending(request, exc_info)
        except Exception as error:
            return self._not_acted(request, exc_info, error)

    def _not_acted(self, request: Any, exc_info: Any, error: Exception) -> Ending:
        self._note(error)
        if self.acting is not None and is_waiting(exc_info):  # and waits nowhere
            return self.acting.given_up(request, exc_info, f"an error of Redrive's ({type(error).__name__})")
        return Ending(outcome_of(request, exc_info), None, exc_info)

    def _report(
        self, request: Any, outcome: Outcome | None, decision: Decision | None, *, is_counted: bool = False
    ) -> None:
        setattr(request, _KIND, outcome.kind if outcome else None)
        duration = _seconds_of(request)
        queue = report.queue_of(request, self.origin)
        if outcome is None:
            if decision is not None and decision.act == WAIT:
                self.counts.put_off(queue)
            else:
                self.counts.ended(queue, "", duration)
            return
        if not is_counted:
            self.counts.ended(queue, outcome.counts_as, duration)
        if not self.is_silenced:
            entry = self.origin.entry(report.failure(request, outcome, self.origin, duration, decision))
            setattr(request, _KIND, None)  # now it is the store's to keep
            self.store.write(entry, may_lag=self._may_lag(request))

    def _report_least(self, request: Any, error: Exception) -> None:
        """Report a job whose report could not be made, if only by its name: it must not just vanish."""
        self._note(error)
        try:
            kind = getattr(request, _KIND, "exception")
            if kind is not None and not self.is_silenced:
                setattr(request, _KIND, None)
                self.store.write(self.origin.entry(report.least(request, kind, self.origin)))
        except Exception as again:  # the same border; this job is counted already
            logger.debug("Redrive could not even name a job.", exc_info=again)

    def _note(self, error: Exception) -> None:
        """A report must never break a job: this is the border where everything is caught, counted and said."""
        self.broken += 1
        if self.broken == 1 or self.broken % 1000 == 0:
            logger.error(
                "Redrive could not report a job (%d so far); the job itself is not touched.",
                self.broken,
                exc_info=error,
            )


def _seconds_of(request: Any) -> float | None:
    return None if request.time_start is None else max(0.0, time.time() - request.time_start)


def _follows_trouble(request: Any) -> bool:
    """Return whether a success is news: it ends a retry, a replay, or a run whose worker was lost."""
    return (
        report.attempt_of(request) > 1
        or report.lineage_of(request) is not None
        or bool(request.delivery_info.get("redelivered"))
    )
