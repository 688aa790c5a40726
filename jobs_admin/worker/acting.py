"""Actions of a worker's main process after a failed attempt under a policy: schedule the next attempt, or report a dead
letter.

The order ensures that a crash at any moment loses neither the job nor the report.
Late ack: write the report, schedule the job durably, then let Celery acknowledge. Until the job is scheduled, the
broker still has it and delivers it again. Releasing a scheduled job removes the old delivery, so a report that was not
written by then would never be.
Early ack: the broker no longer has the job, so it is scheduled first.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery import signals

from jobs_admin.core import matching
from jobs_admin.worker import report
from jobs_admin.worker.at_start import HARD_LIMIT, KILLED, KINDS_OF_CRASHES, AtStart, Job, Quarantine
from jobs_admin.worker.breakers import Breakers
from jobs_admin.worker.deciding import Spend, decide, quarantined
from jobs_admin.worker.decision import DEAD, LEFT, WAIT, Decision, GuardRetry, GuardWait, Notes, Quarantined
from jobs_admin.worker.later import Later, NotNow, NotScheduled
from jobs_admin.worker.next_message import WAITED
from jobs_admin.worker.outcome import Outcome, is_a, outcome_of, qualified, raised, with_error
from jobs_admin.worker.policies import Chosen, InForce
from jobs_admin.worker.queues import is_first_protocol
from jobs_admin.worker.report import Origin

logger = logging.getLogger("redrive.worker")

_EXC_INFO = "_redrive_exc_info"  # attribute of a pending request: the error info of its attempt
STORE = "store"  # reason: the job could not be scheduled for its next attempt

_KINDS = {qualified(SoftTimeLimitExceeded): "soft_limit", "MemoryError": "memory"}


class DeadLetter(Exception):
    """Stand-in for an error after which Celery would requeue the message forever, although the policy says dead."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an attempt."""

    outcome: Outcome | None  # to report; None: report nothing
    decision: Decision | None
    exc_info: Any  # error info for Celery's `on_failure`, with `options`
    options: dict[str, Any] = field(default_factory=dict)
    is_delayed: bool = False  # the job is scheduled: ignore later events of this delivery
    # Runs after the report is written. Returns another ending if it fails.
    then: Callable[[], Ending | None] | None = None
    afterwards: Callable[[], None] | None = None  # runs if `then` succeeds


class Acting:
    """Handler of failed attempts. Call `ending` once per request."""

    def __init__(
        self,
        origin: Origin,
        in_force: InForce,
        notes: Notes,
        later: Later,
        at_start: AtStart,
        spend: Spend,
        breakers: Breakers,
    ) -> None:
        self._origin = origin
        self._in_force = in_force
        self._notes = notes
        self._later = later
        self._at_start = at_start
        self._spend = spend
        self._breakers = breakers
        # Stores the request of a job that a breaker blocks until it can be put on hold. Returns whether it was stored.
        self.keep: Callable[[Any, Decision], bool] = lambda request, decision: False

    def ending(self, request: Any, exc_info: Any) -> Ending:
        ended = self._ending(request, exc_info)
        try:
            self._breakers.note_end(request, ended.decision)
        except Exception:  # the job may already be scheduled: this error must not make it dead too
            logger.exception("Redrive could not count the end of a job for its breaker.")
        return replace(ended, decision=None) if ended.decision and ended.decision.act == LEFT else ended

    def _ending(self, request: Any, exc_info: Any) -> Ending:
        error = raised(exc_info)
        outcome = outcome_of(request, exc_info)
        if is_waiting(exc_info):
            return self._hold(request, exc_info, outcome, Decision.from_text(error.decision))
        if is_a(error, Quarantined):
            return Ending(_crashed(outcome, error), Decision.from_text(error.decision), exc_info)
        if outcome is None:
            return Ending(None, None, exc_info)
        if is_a(error, WorkerLostError | TimeLimitExceeded | SystemExit):
            return self._after_a_crash(request, exc_info, error, outcome)
        return Ending(outcome, self._notes.take(str(request.id), report.attempt_of(request)), exc_info)

    def concerns(self, request: Any) -> bool:
        """Return whether a policy applies to jobs of this task in any queue."""
        return self._in_force.concerns(str(request.type))

    def given_up(self, request: Any, exc_info: Any, why: str) -> Ending:
        """Return the ending of a job that could not be scheduled: dead.

        The child reported a retry to Celery, so Celery is notified of a failure here.
        """
        error = raised(exc_info)
        outcome = outcome_of(request, exc_info) or Outcome("exception", qualified(type(error)), why, "")
        decision = Decision.from_text(getattr(error, "decision", "")) or Decision(DEAD, "")
        if evidence := str(decision.read_evidence().get("error", "")):
            name, _, words = evidence.partition(": ")
            outcome = replace(outcome, error_type=name, message=words)
        kind = _KINDS.get(outcome.error_type, "exception")
        return Ending(
            replace(outcome, kind=kind, due_at=None),
            replace(decision, act=DEAD, reason=f"{STORE}: {why}"),
            with_error(
                exc_info, getattr(error, "exc", None) or DeadLetter(f"{outcome.error_type}: {outcome.message}"[:500])
            ),
            {"return_ok": False},
        )

    def _hold(self, request: Any, exc_info: Any, outcome: Outcome | None, decision: Decision | None) -> Ending:
        if decision is None:
            return self.given_up(request, exc_info, "what was decided over it cannot be read")
        if decision.breaker:
            decision = replace(decision, delay_s=self._breakers.recheck_s(request))
        delayed = Ending(None if decision.act == WAIT else outcome, decision, exc_info, is_delayed=True)

        def hold() -> Ending | None:
            try:
                self._later.hold(request, decision)
            except NotScheduled as error:
                if decision.breaker and isinstance(error, NotNow) and self.keep(request, decision):
                    setattr(request, _EXC_INFO, exc_info)
                    return None
                return self.given_up(request, exc_info, str(error))
            return None

        if decision.act == WAIT or request.acknowledged:
            return hold() or delayed
        return replace(delayed, then=hold)

    def end_pending(self, request: Any, decision: Decision) -> Ending | None:
        """Put a pending job on hold, or report it dead. Return None if it is on hold, durably."""
        try:
            self._later.hold(request, decision)
        except NotScheduled as error:
            return self.given_up(request, getattr(request, _EXC_INFO, None), str(error))
        return None

    # After a crash: the child process made no decision

    def _after_a_crash(self, request: Any, exc_info: Any, error: BaseException, outcome: Outcome) -> Ending:
        chosen = None
        if report.may_be_retried(request, self._origin, is_first=is_first_protocol(request.message)):
            chosen = self._in_force.choose(report.known_queue(request, self._origin), str(request.type))
        if chosen is None:
            return Ending(outcome, None, exc_info)
        kind = "hard_limit" if is_a(error, TimeLimitExceeded) else "worker_lost"
        ended = replace(outcome, kind=kind, due_at=None)
        if chosen.is_enforced and (quarantine := self._count_crash(request, chosen, ended)):
            return Ending(ended, quarantined(chosen, quarantine), _for_good(request.task, exc_info, error))
        # Early ack: its author chose at most one execution.
        if request.acknowledged or not chosen.policy.retries:
            return Ending(outcome, None, exc_info)
        decision = self._decided(request, error, chosen)
        if decision.is_observed:
            return Ending(outcome, decision, exc_info)
        dead = Ending(ended, decision, _for_good(request.task, exc_info, error))
        if decision.act == DEAD:
            return dead
        retry = GuardRetry(f"Retry in {decision.delay_s:.3g}s by {chosen.label}: {outcome.error_type}", error)
        retry.when = decision.delay_s

        def hold() -> Ending | None:
            try:
                self._later.hold(request, decision)
            except NotScheduled as why:
                return replace(dead, decision=replace(decision, act=DEAD, reason=f"{STORE}: {why}"))
            return None

        return Ending(
            replace(outcome, kind="retry", due_at=time.time() + decision.delay_s),
            decision,
            with_error(exc_info, retry),
            is_delayed=True,
            then=hold,
            afterwards=lambda: _announce_retry(request, retry, exc_info),
        )

    def _count_crash(self, request: Any, chosen: Chosen, ended: Outcome) -> Quarantine | None:
        """Count the crash if the policy does, and release what the dead process held."""
        policy = chosen.policy
        if policy.poison is None and policy.concurrency is None:
            return None
        how = HARD_LIMIT if ended.kind == "hard_limit" else KILLED
        return self._at_start.crashed(policy, Job.of_request(request), how, ended.message, request.worker_pid or 0)

    def _decided(self, request: Any, error: BaseException, chosen: Chosen) -> Decision:
        headers = request.request_dict
        waited = headers.get(WAITED)
        return decide(
            chosen,
            attempt=report.attempt_of(request),
            error_names=matching.names_of(type(error)),
            waited_s=waited if isinstance(waited, int | float) else None,
            expires=headers.get("expires"),
            spend=self._spend,
        )


def _crashed(outcome: Outcome | None, error: Quarantined) -> Outcome | None:
    """Return the outcome of a job that was not started again: that of its last start, which no other process could
    report.
    """
    decision = Decision.from_text(error.decision)
    try:
        last = json.loads(decision.records)[-1] if decision else {}
    except (ValueError, IndexError):
        last = {}
    kind = KINDS_OF_CRASHES.get(str(last.get("how")), "worker_lost")
    return outcome and replace(outcome, kind=kind, message=str(error), trace="")


def is_waiting(exc_info: Any) -> bool:
    """Return whether the child reported to Celery that the job will run again, which only the guard can ensure."""
    return is_a(raised(exc_info), GuardRetry | GuardWait)


def _for_good(task: Any, exc_info: Any, error: BaseException) -> Any:
    """Return error info that ends the job even if Celery would requeue its message or publish a retry."""
    if is_a(error, TimeLimitExceeded):
        acks = getattr(task, "acks_on_timeout", getattr(task, "acks_on_failure_or_timeout", True))
        comes_back = task.acks_late and not acks
    else:
        comes_back = (task.acks_late and task.reject_on_worker_lost) or getattr(task, "retry_on_worker_lost", False)
    return with_error(exc_info, DeadLetter(f"{type(error).__name__}: {error}")) if comes_back else exc_info


def _announce_retry(request: Any, retry: GuardRetry, exc_info: Any) -> None:
    """Announce the retry as Celery's child process would; here the child has died.

    Same as `Request._retry_worker_lost` in Celery 5.7.
    """
    task, context = request.task, request._context
    if request.store_errors:
        task.backend.mark_as_retry(request.id, retry.exc, exc_info.traceback, request=context)
    task.request_stack.push(context)
    try:
        task.on_retry(retry.exc, request.id, request.args, request.kwargs, exc_info)
        signals.task_retry.send(task, request=context, reason=retry, einfo=exc_info)
    finally:
        task.request_stack.pop()
