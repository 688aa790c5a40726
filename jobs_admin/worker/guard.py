"""Guard of one worker: decides what to report, and never lets a report break or block a job."""

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
from jobs_admin.worker.breakers import Breakers
from jobs_admin.worker.decision import WAIT, Decision
from jobs_admin.worker.gate import Gate
from jobs_admin.worker.ledger import Ledger
from jobs_admin.worker.next_message import HOLD
from jobs_admin.worker.once import Once
from jobs_admin.worker.outcome import Outcome, expired, hard_limit, has_succeeded, outcome_of
from jobs_admin.worker.pausing import PENDING, Pausing
from jobs_admin.worker.queues import Place, hand_over, place_of
from jobs_admin.worker.report import Origin
from jobs_admin.worker.store import Store
from jobs_admin.worker.unread import UNKNOWN_FORMAT, message_envelope

_ENDING = "_redrive_ending"  # request attribute: its ending, once known
_KIND = "_redrive_kind"  # request attribute: kind of the report not yet written

logger = logging.getLogger("redrive.worker")


# Outcomes of a worker's jobs per queue, counted in memory: a successful job costs no call.

# Limit of reported queues: the heartbeat sends all every 5 s, and a guessed queue name may be anything.
MOST_QUEUES = 500
OTHERS = "(others)"


@dataclass(slots=True)
class QueueCount:
    """Counts of one queue since this worker started."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    busy_s: float = 0.0
    late_ack: set[bool] = field(default_factory=set)  # acknowledgement modes of its jobs


class Counts:
    """Cumulative counts: a lost heartbeat loses nothing. At most `MOST_QUEUES` queues; the rest share one count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # thread pools end jobs in many threads
        self._queues: dict[str, QueueCount] = {}

    def started(self, queue: str, *, late_ack: bool) -> None:
        with self._lock:
            count = self._count_of(queue)
            count.started += 1
            count.late_ack.add(late_ack)

    def put_off(self, queue: str) -> None:
        """Uncount a job that was counted as started but did not start: it waits or makes way, and starts later."""
        with self._lock:
            self._count_of(queue).started -= 1

    def ended(self, queue: str, outcome: str, duration: float | None) -> None:
        """Count an ended job. `outcome`: succeeded, failed, retried, or "" (ignored, terminated)."""
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
        """Return whether a queue's jobs are acknowledged late; None if they differ.

        Based on jobs that ran; for a queue without any, on `configured`, the settings of the app's tasks.
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
    """Hooks for the requests of a worker's main process. No method raises."""

    def __init__(self, origin: Origin, store: Store, gate: Gate | None = None) -> None:
        self.origin = origin
        self.store = store
        self.gate = gate or Gate(lambda seconds, act: None)  # in front of the pool
        self.once: Once | None = None
        self.acting: Acting | None = None  # None: no policy decides in this worker, whatever is published
        self.ledger: Ledger | None = None  # None: same
        self.pausing: Pausing | None = None
        self.breakers: Breakers | None = None  # None: same
        self.is_silenced = False  # by `manage.py off`
        self.counts = Counts()
        self.unplaced = 0  # jobs without a policy decision because their queue was unknown
        self.broken = 0  # reports that were incomplete because of an error of ours

    def may_start(self, request: Any, *, for_good: bool = False) -> bool:
        """Return whether no pause blocks the job. If one does, the job is being returned.

        `for_good`: the job starts now.
        """
        if self.pausing is None:
            return True
        try:
            return self.pausing.starts(request) if for_good else self.pausing.may_start(request)
        except Exception as error:
            self._note(error)
            return True

    def is_repeated(self, request: Any) -> bool:
        """Return whether another copy of the message has started this job, so this one must not run."""
        try:
            if self.once is None or "redrive" not in request.request_dict or self.is_silenced:
                return False
            is_repeated = self.once.is_repeated(request)
            if is_repeated:
                self._note_unused(request)
            return is_repeated
        except Exception as error:
            self._note(error)
            return False

    def hand_over(self, request: Any) -> None:
        """Pass the job's origin to the process that runs it, before the job goes to the pool."""
        if self.acting is None:
            return  # no policy reads it there
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
        """Record a start, before Celery acknowledges an early-ack message."""
        try:
            self.counts.started(report.queue_of(request, self.origin), late_ack=bool(request.task.acks_late))
            if self.ledger is not None and not self.is_silenced:
                self.ledger.begins(request)
        except Exception as error:
            self._note(error)

    def job_put_off(self, request: Any) -> None:
        """Uncount a start: the job makes way for others and starts again later."""
        try:
            self.counts.put_off(report.queue_of(request, self.origin))
        except Exception as error:
            self._note(error)

    def job_failed(self, request: Any, exc_info: Any) -> tuple[Any, dict[str, Any]]:
        """Report a failure before Celery acknowledges the message: the broker forgets only what is durable here.

        Return the error info for Celery, and its options.
        """
        # The pool reports some endings twice: a hard limit as an error and as a timeout.
        ended: Ending | None = getattr(request, _ENDING, None)
        if ended is None:
            ended = self._end(request, exc_info)
            if getattr(request, PENDING, None) is None:
                self.let_go(request)
        return ended.exc_info, ended.options

    def end_pending(self) -> None:
        """Settle pending jobs when the worker ends: acknowledged early and not yet put on hold, they exist only in its
        memory.
        """
        for request, decision in self.pausing.pending_requests() if self.pausing is not None else ():
            try:
                ended = self.acting.end_pending(request, decision) if self.acting is not None else None
                if ended is not None:
                    self._report(request, ended.outcome, ended.decision, is_counted=True)
                self.let_go(request)
            except Exception as error:
                self._report_least(request, error)

    def job_timed_out(self, request: Any, seconds: float | None) -> bool:
        """Return whether Celery must be notified: not for a job that waits for its next attempt."""
        ended: Ending | None = getattr(request, _ENDING, None)
        if ended is None:
            try:
                ended = Ending(hard_limit(seconds), None, None)
                setattr(request, _ENDING, ended)
                self._report(request, ended.outcome, None)
            except Exception as error:
                self._report_least(request, error)
            self.let_go(request)
        return ended is None or not ended.is_delayed

    def job_succeeded(self, request: Any, duration: float | None) -> None:
        try:
            if self.breakers is not None:
                self.breakers.note_success(request, duration)
        except Exception as error:
            self._note(error)
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
        """Report an expired job, which never ran, before Celery acknowledges it."""

        self._note_unused(request)

        def build() -> Envelope:
            return report.failure(request, expired(request), self.origin, None)

        self.message_ended(lambda: report.queue_of(request, self.origin), build)

    def refuses(self, request: Any, why: str) -> bool:
        """Return whether a request that would end the worker was reported and rejected.

        When switched off, change nothing.
        """
        if self.is_silenced:
            return False
        self._note_unused(request)
        self._report_misshapen(request, why)
        task_ready(request)
        request.reject(requeue=False)
        return True

    def _note_unused(self, request: Any) -> None:
        """Notify the breaker that a job ended without an outcome, if it was released from hold."""
        try:
            if self.breakers is not None:
                self.breakers.note_unused(request)
        except Exception as error:
            self._note(error)

    def job_rejected(self, request: Any) -> None:
        """Report a message before it is rejected for good, unless its ending was reported or it started."""
        if request.time_start is None and getattr(request, _ENDING, None) is None:
            self._report_misshapen(request, "The time that it is to run at cannot be reckoned with.")

    def _report_misshapen(self, request: Any, why: str) -> None:
        def build() -> Envelope:
            message, worker = request.message, str(request.hostname)
            return message_envelope(message, "unknown_format", UNKNOWN_FORMAT, why, self.origin, worker)

        setattr(request, _ENDING, Ending(None, None, None))
        self.message_ended(lambda: report.queue_of(request, self.origin), build)

    def message_ended(self, queue: Callable[[], str], build: Callable[[], Envelope]) -> None:
        """Report a message that ends without having started, before Celery acknowledges or rejects it."""
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
        """Run the action that follows the report. If it fails, report the attempt's new ending instead."""
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
        except Exception as error:  # Celery's bookkeeping and the task's hooks
            self._note(error)
        return instead or ended

    def _may_lag(self, request: Any) -> bool:
        """Return whether the report may lag: waiting cannot save a job acknowledged early, unless the ledger stores it
        until its report is durable.
        """
        return bool(request.acknowledged) and not self._keeps(request)

    def _keeps(self, request: Any) -> bool:
        return self.ledger is not None and self.ledger.keeps(request)

    def let_go(self, request: Any) -> None:
        """Remove the job from the ledger: all reports and actions about its end are durable.

        Except for a job cancelled by a cold shutdown: Celery calls that a retry but publishes none.
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
            setattr(request, _KIND, None)  # now the store is responsible for it
            self.store.write(entry, may_lag=self._may_lag(request))

    def _report_least(self, request: Any, error: Exception) -> None:
        """Report a job whose report failed, if only by name: it must not vanish."""
        self._note(error)
        try:
            kind = getattr(request, _KIND, "exception")
            if kind is not None and not self.is_silenced:
                setattr(request, _KIND, None)
                self.store.write(self.origin.entry(report.least(request, kind, self.origin)))
        except Exception as again:  # same boundary; the error is already counted
            logger.debug("Redrive could not even name a job.", exc_info=again)

    def _note(self, error: Exception) -> None:
        """Count and log an error. Reports must never break a job, so every exception ends here."""
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
    """Return whether a success must be reported: it ends a retry, a replay, a hold, or a run whose worker was lost."""
    return (
        report.attempt_of(request) > 1
        or report.lineage_of(request) is not None
        or HOLD in request.request_dict
        or bool(request.delivery_info.get("redelivered"))
    )
