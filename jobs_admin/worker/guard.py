"""The guard of one worker: decides what is reported, and never lets a report break or hold up a job."""

from __future__ import annotations

import logging
import time
from typing import Any

from jobs_admin.core import envelope
from jobs_admin.worker import report
from jobs_admin.worker.acting import Acting, Ending, looks_like_waiting
from jobs_admin.worker.counts import Counts
from jobs_admin.worker.decision import WAIT, Decision
from jobs_admin.worker.gate import Gate
from jobs_admin.worker.outcome import Outcome, hard_limit, outcome_of, ran_well
from jobs_admin.worker.report import Origin
from jobs_admin.worker.store import Store

_ENDING = "_redrive_ending"  # on a request: how it ended, once that is known
_KIND = "_redrive_kind"  # on a request: of what is still to be told

logger = logging.getLogger("redrive.worker")


class Guard:
    """Called by the requests of a worker's main process. No method raises."""

    def __init__(self, origin: Origin, store: Store, gate: Gate | None = None) -> None:
        self.origin = origin
        self.store = store
        self.gate = gate or Gate(lambda seconds, act: None)  # before the pool
        self.acting: Acting | None = None  # None: whatever is published, no policy decides in this worker
        self.is_silenced = False  # by `manage.py off`
        self.counts = Counts()
        self.broken = 0  # reports that could not be made whole, for an error of ours

    def job_started(self, request: Any) -> None:
        try:
            self.counts.started(report.queue_of(request, self.origin), late_ack=bool(request.task.acks_late))
        except Exception as error:
            self._note(error)

    def job_put_off(self, request: Any) -> None:
        """What was told as started makes way for others, and starts again."""
        try:
            self.counts.put_off(report.queue_of(request, self.origin))
        except Exception as error:
            self._note(error)

    def job_failed(self, request: Any, exc_info: Any) -> tuple[Any, dict[str, Any]]:
        """Before Celery acknowledges the message: what is durable here is forgotten there only afterwards.

        Answers what Celery is to be told of this end, and with which options.
        """
        # The pool tells of some ends twice: a hard limit as an error and as a time-out.
        ended: Ending = getattr(request, _ENDING, None) or self._end(request, exc_info)
        return ended.exc_info, ended.options

    def job_timed_out(self, request: Any, seconds: float | None) -> bool:
        """Whether Celery is to be told: not of a job that waits for its next attempt."""
        ended: Ending | None = getattr(request, _ENDING, None)
        if ended is None:
            try:
                ended = Ending(hard_limit(seconds), None, None)
                setattr(request, _ENDING, ended)
                self._report(request, ended.outcome, None)
            except Exception as error:
                self._tell_least(request, error)
        return ended is None or not ended.is_held

    def job_succeeded(self, request: Any, duration: float | None) -> None:
        try:
            self.counts.ended(report.queue_of(request, self.origin), "succeeded", duration)
            if not self.is_silenced and _follows_trouble(request):
                self.store.write(envelope.encode(report.success(request, self.origin, duration)))
        except Exception as error:
            self._note(error)

    def _end(self, request: Any, exc_info: Any) -> Ending:
        ended = Ending(None, None, exc_info)
        try:
            if ran_well(request, exc_info):
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
            self._tell_least(request, error)
        try:
            if ended.afterwards is not None:
                ended.afterwards()
        except Exception as error:  # Celery's own bookkeeping, and hooks of the task
            self._note(error)
        return ended

    def _acted(self, acting: Acting, request: Any, exc_info: Any) -> Ending:
        try:
            return acting.ending(request, exc_info)
        except Exception as error:
            self._note(error)
            if looks_like_waiting(exc_info):  # and waits nowhere
                return acting.given_up(request, exc_info, f"an error of Redrive's ({type(error).__name__})")
            return Ending(outcome_of(request, exc_info), None, exc_info)

    def _report(self, request: Any, outcome: Outcome | None, decision: Decision | None) -> None:
        setattr(request, _KIND, outcome.kind if outcome else None)
        duration = _seconds_of(request)
        queue = report.queue_of(request, self.origin)
        if outcome is None:
            if decision is not None and decision.act == WAIT:
                self.counts.put_off(queue)
            else:
                self.counts.ended(queue, "", duration)
            return
        self.counts.ended(queue, outcome.counts_as, duration)
        if not self.is_silenced:
            entry = envelope.encode(report.failure(request, outcome, self.origin, duration, decision))
            setattr(request, _KIND, None)  # now it is the store's to keep
            self.store.write(entry)

    def _tell_least(self, request: Any, error: Exception) -> None:
        """A job whose report could not be made is told all the same, if only by its name: it must not just vanish."""
        self._note(error)
        try:
            kind = getattr(request, _KIND, "exception")
            if kind is not None and not self.is_silenced:
                setattr(request, _KIND, None)
                self.store.write(envelope.encode(report.least(request, kind, self.origin)))
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
    """Whether a success is news: it ends a retry, a replay, or a run whose worker was lost."""
    return (
        report.attempt_of(request) > 1
        or report.lineage_of(request) is not None
        or bool(request.delivery_info.get("redelivered"))
    )
