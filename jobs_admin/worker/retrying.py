"""The wrapper around a task's function: what a policy decides over a failed attempt, where the error still is itself.

It runs in the process that runs the job, a pool's child. It asks the board which policy is in force, once for an attempt,
and makes no call to Redis for a job that no policy matches, nor for one that ends well under a policy without limits.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import wraps
from random import SystemRandom
from typing import Any

from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry

from jobs_admin.core import retry_after
from jobs_admin.core.matching import BUDGET, EXHAUSTED, Again, Dead, Ended, judge, names_of
from jobs_admin.core.policy import Policy
from jobs_admin.core.policy.shape import ESCALATE, REPLACE
from jobs_admin.worker import report
from jobs_admin.worker.at_start import MEMORY, Alone, AtStart, Job, Quarantine, RunAlone, Wait, format_records
from jobs_admin.worker.budget import GRANTED, Grant
from jobs_admin.worker.decision import (
    AGAIN,
    DEAD,
    QUARANTINE,
    WAIT,
    Decision,
    GuardRetry,
    GuardWait,
    Notes,
    Quarantined,
    RequestedRetry,
)
from jobs_admin.worker.next_message import WAITED
from jobs_admin.worker.policies import Chosen, InForce
from jobs_admin.worker.queues import handed_over
from jobs_admin.worker.report import Origin

# The wait that a server requests with an error: `Retry-After`. Read from plain attributes, otherwise by the error's
# own code, in a thread of ours.
# That code may take any time, and a job waits for it for 20 ms at most. One such thread exists in a process at a
# time: while it hangs no other error's code is run, so that an error that hangs costs one thread and not one a job.

LONGEST_WAIT_S = 0.02


def retry_after_s(error: BaseException) -> float | None:
    """Seconds from now that the server wants to be left alone; None where that is not said, or could not be found out."""
    wish = retry_after.find_wish(error) if retry_after.is_at_hand(error) else _others.find_wish_of(error)
    return None if wish is None else retry_after.seconds(wish, time.time())


class WishReader:
    """Run code of others that holds a wish; from any thread."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_logged = False

    def find_wish_of(self, error: BaseException) -> retry_after.Wish | None:
        """Return the error's wish; None too where its code takes too long, or code of an earlier error still runs."""
        if os.getpid() != self._pid:
            self._begin()  # forked: that thread and the lock are the parent's
        ends = time.monotonic() + LONGEST_WAIT_S
        if not self._lock.acquire(timeout=LONGEST_WAIT_S):
            return None
        try:
            if self._thread is not None and self._thread.is_alive():
                return None
            wishes: list[retry_after.Wish | None] = []
            self._thread = threading.Thread(
                target=lambda: wishes.append(retry_after.find_wish(error)), name="redrive-asking", daemon=True
            )
            self._thread.start()
            self._thread.join(max(0.0, ends - time.monotonic()))
            if self._thread.is_alive() and not wishes:
                self._hangs(error)
            return wishes[0] if wishes else None
        except RuntimeError:  # the process may have no more threads
            self._thread = None
            return None
        finally:
            self._lock.release()

    def _hangs(self, error: BaseException) -> None:
        if not self._is_logged:
            self._is_logged = True
            logger.warning(
                "Redrive does not wait for what a %s says of Retry-After: its code takes longer than %.0f ms. Until that has "
                "ended, no error's own code is asked in this process.",
                type.__getattribute__(type(error), "__qualname__"),
                LONGEST_WAIT_S * 1000,
            )


_others = WishReader()


# The system's, which has no state of ours: processes that were forked from one another draw different numbers, whoever
# forked them, and a task that calls `random.seed(1)` for its own work does not put the whole fleet in step. It is asked
# once for each failed attempt, so that it costs a microsecond more is nothing.
uniform = SystemRandom().random
"""A number from 0 up to, not including, 1. Safe after a fork, and in threads."""


EXPIRES = "expires"  # a reason: the next attempt would come when its message is of no more use
AROUND = "redrive_around"  # on a wrapper: what it stands around
_RUNNING = "_redrive_attempt"  # on a request: the version that its attempt runs under
_UTC = timezone.utc

logger = logging.getLogger("redrive.worker")

# Takes one retry of the policy's budget, or of this worker's share of it.
Spend = Callable[[Policy], Grant]


class Retrying:
    """Made in the main process before the pool is forked; its wrappers run wherever jobs run."""

    def __init__(self, origin: Origin, in_force: InForce, notes: Notes, at_start: AtStart, spend: Spend) -> None:
        self._origin = origin
        self._in_force = in_force
        self._notes = notes
        self._at_start = at_start
        self._spend = spend

    def wrap(self, task: Any) -> None:
        """Let the policy that matches decide over this task's failures. Other tasks, other apps stay as they are."""
        # Where a worker ran in this process before, what stood around the task for it makes way.
        retry, run = (getattr(one, AROUND, one) for one in (task.retry, task.run))
        task.retry, task.run = self._retry_of(task, retry), self._run_of(task, run)
        setattr(task.retry, AROUND, retry)
        setattr(task.run, AROUND, run)

    def _run_of(self, task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True  # here and below: error trackers (sentry-sdk) leave such frames out
            request = task.request
            chosen = self._choose(task, request)
            if chosen is None:
                return run(*args, **kwargs)
            if not chosen.is_enforced:
                return self._observed(chosen, request, run, args, kwargs)
            return self._enforced(chosen, request, run, args, kwargs)

        return wrapped

    def _choose(self, task: Any, request: Any) -> Chosen | None:
        """None too for a call that is no job: `task()`, `task.run()` inside another, `apply()`."""
        if request.called_directly or request.is_eager or _RUNNING in vars(request):
            return None
        try:
            queue = handed_over(request)
            if not report.may_be_retried(request, vars(request), self._origin):
                return None
            return self._in_force.choose(queue, task.name)
        except Exception:  # the border: a job is never held up by what decides over its failure
            logger.exception("Redrive could not tell which policy is in force; %s runs without one.", task.name)
            return None

    def _observed(
        self, chosen: Chosen, request: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        __tracebackhide__ = True
        setattr(request, _RUNNING, chosen)
        try:
            return run(*args, **kwargs)
        except (Ignore, Reject):
            raise
        except Retry as retry:
            # Celery has published its own retry. Where the policy would come instead of it, it would decide over this too.
            if chosen.policy.native == REPLACE and retry.exc is not None:
                self._note(chosen, request, retry.exc)
            raise
        except Exception as error:
            self._note(chosen, request, error)
            raise
        finally:
            vars(request).pop(_RUNNING, None)

    def _enforced(
        self, chosen: Chosen, request: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        __tracebackhide__ = True
        job = self._starts(chosen, request)
        setattr(request, _RUNNING, chosen)
        request._redrive_asked = None
        try:
            answer = run(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt):
            job = None  # the process ends: that is a crash, and the main process counts it
            raise
        except RequestedRetry as caught:
            requested = caught
        except (Ignore, Reject, Retry):
            raise
        except Exception as error:
            if isinstance(error, MemoryError):
                job = self._ran_out(chosen, job, error)
            again = self._build_retry(chosen, request, error)
            if again is None:
                raise
            raise again from error
        else:
            # Somebody may have caught what `self.retry()` raised. Celery would have published the retry all the same.
            requested = request._redrive_asked
            if requested is None:
                return answer
        finally:
            vars(request).pop(_RUNNING, None)
            if job is not None:
                self._at_start.ended(chosen.policy, job)
        # Out of the handler, so that what Celery reports is the error, and not that a retry was asked for.
        failed = requested.error or Retry("The task asked for it")
        again = self._build_retry(chosen, request, failed)
        if again is not None:
            raise again from failed
        raise requested.error or MaxRetriesExceededError(f"Can't retry {request.task}[{request.id}]")

    def _starts(self, chosen: Chosen, request: Any) -> Job | None:
        """Return whether the job may start, where its policy counts that; None where nothing has to be counted off at its end."""
        policy = chosen.policy
        if policy.poison is None and policy.concurrency is None and policy.rate_limit is None:
            return None
        try:
            job = Job.of_context(request, self._tenant(policy, request))
            answer = self._at_start.starting(policy, job)
        except Exception:  # the border: what cannot be counted holds up no job
            logger.exception("Redrive could not count the start of a job.")
            return None
        if isinstance(answer, Wait):
            raise GuardWait(Decision(WAIT, chosen.label, answer.why, answer.delay_s).text())
        if isinstance(answer, Alone):
            raise RunAlone(answer.deaths)
        if isinstance(answer, Quarantine):
            raise Quarantined(quarantined(chosen, answer).text())
        return job

    def _tenant(self, policy: Policy, request: Any) -> str:
        """ "" also where the policy does not count by it."""
        if policy.concurrency is None or policy.concurrency.key != "tenant":
            return ""
        return report.tenant_of(request.args, request.kwargs, self._origin.tenant_paths)

    def _ran_out(self, chosen: Chosen, job: Job | None, error: MemoryError) -> Job | None:
        """Celery's worker ends at a MemoryError: a job that causes them is a poison pill. What is left to be counted off."""
        if job is None or chosen.policy.poison is None:
            return job
        try:
            # Not by its `__str__`: that is a user's code, at a time when there is no memory.
            words = next((one for one in vars(BaseException)["args"].__get__(error) if type(one) is str), "")
            answer = self._at_start.crashed(chosen.policy, job, MEMORY, words)
        except Exception:  # the border: the error that the job ended with is the one that is told
            logger.exception("Redrive could not count a crash.")
            return None
        if answer is not None:
            raise Quarantined(quarantined(chosen, answer).text()) from error
        return None

    def _retry_of(self, task: Any, retry: Callable[..., Any]) -> Callable[..., Any]:
        """`self.retry`, which `autoretry_for` calls too."""

        @wraps(retry)
        def requested_retry(*given: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            values = {**dict(zip(_RETRY_PARAMETERS, given, strict=False)), **named}
            chosen = getattr(task.request, _RUNNING, None)
            # A retry with other arguments, on another queue, or after which the task goes on, is more than a retry.
            policy = None if chosen is None or not chosen.is_enforced else chosen.policy
            if policy is None or not policy.retries or policy.native != REPLACE or not _is_plain(values):
                return retry(*given, **named)
            error = values.get("exc") or sys.exc_info()[1]
            found = RequestedRetry(error if isinstance(error, BaseException) else None)
            task.request._redrive_asked = found
            raise found

        return requested_retry

    def _build_retry(self, chosen: Chosen, request: Any, error: BaseException) -> GuardRetry | None:
        """Return what is to be raised where the policy says again; None where the error itself is."""
        decision = self._note(chosen, request, error)
        if decision is None or decision.act != AGAIN:
            return None
        message = f"Retry in {decision.delay_s:.3g}s by {decision.policy}: {_name(error)}"
        return GuardRetry(message, error, decision.delay_s, decision.text())

    def _note(self, chosen: Chosen, request: Any, error: BaseException) -> Decision | None:
        """The decision over a failed attempt, left for the main process. None: all stays Celery's, because the policy leaves
        retries to the task, or no decision could be made.
        """
        if not chosen.policy.retries:
            return None
        try:
            decision = decide(
                chosen,
                attempt=report.attempt_number(request.retries),
                error_names=names_of(type(error)),
                retry_after_s=retry_after_s(error),
                waited_s=_waited_s(request),
                expires=request.expires,
                spend=self._spend,
            )
            if decision.act != AGAIN or decision.is_observed:  # else the retry itself tells
                self._notes.leave(str(request.id), report.attempt_number(request.retries), decision)
            return decision
        except Exception:
            logger.exception("Redrive could not decide by %s; what Celery does with this failure holds.", chosen.label)
            return None


# What Celery's own `retry` takes, in its order.
_RETRY_PARAMETERS = ("args", "kwargs", "exc", "throw", "eta", "countdown", "max_retries")


def _is_plain(values: dict[str, Any]) -> bool:
    return (
        values.keys() <= set(_RETRY_PARAMETERS)
        and values.get("args") is None
        and values.get("kwargs") is None
        and bool(values.get("throw", True))
    )


def decide(
    chosen: Chosen,
    *,
    attempt: int,
    error_names: tuple[str, ...],
    spend: Spend,
    retry_after_s: float | None = None,
    waited_s: float | None = None,
    expires: Any = None,
) -> Decision:
    """Return what becomes of a job whose attempt (from 1) failed so. Asked in a child, or in the main process where the child died."""
    policy, is_observed = chosen.policy, not chosen.is_enforced
    ended = Ended(attempt, error_names, retry_after_s, waited_s if attempt > 1 else None)
    # The budget is asked below: what expires before its retry spends none.
    verdict = judge(policy, ended, uniform, lambda: True)
    decision = Decision(AGAIN, chosen.label, max_attempts=policy.max_attempts, is_observed=is_observed)
    if isinstance(verdict, Dead):
        escalate = verdict.reason == EXHAUSTED and policy.exhausted == ESCALATE and not is_observed
        return replace(decision, act=DEAD, reason=verdict.reason, escalate=escalate)
    delay_s = verdict.delay_s
    if _expires_within(expires, delay_s):
        return replace(decision, act=DEAD, reason=EXPIRES)
    grant = GRANTED if policy.budget is None or is_observed else spend(policy)
    if not grant.is_granted:
        return replace(decision, act=DEAD, reason=BUDGET)
    delay_s = verdict.delay_s + grant.wait_s
    if grant.wait_s and _expires_within(expires, delay_s):
        return replace(decision, act=DEAD, reason=EXPIRES)
    keeps_wait = policy.backoff.kind == "decorrelated"
    return replace(decision, reason=_because(verdict, grant), delay_s=delay_s, keeps_wait=keeps_wait)


def _because(verdict: Again, grant: Grant) -> str:
    """Return why it waits so long, where that is not the policy's own curve."""
    reasons = []
    if verdict.wish_s is not None:
        reasons.append(f"asked to wait {verdict.wish_s:,.6g} s")
    if grant.is_of_share:
        turn = f", its turn came {grant.wait_s:,.3g} s later" if grant.wait_s else ""
        reasons.append(f"the budget could not be read: by this worker's share of it{turn}")
    return ", ".join(reasons)


def quarantined(chosen: Chosen, quarantine: Quarantine) -> Decision:
    most = chosen.policy.max_attempts if chosen.policy.retries else None
    return Decision(QUARANTINE, chosen.label, "poison", max_attempts=most, records=format_records(quarantine.crashes))


def _name(error: BaseException) -> str:
    return type(error).__qualname__  # its words are in the traceback; its `__str__` is a user's code


def _waited_s(request: Any) -> float | None:
    waited = request.get(WAITED)
    return float(waited) if isinstance(waited, int | float) and waited >= 0 else None


def _expires_within(expires: Any, seconds: float) -> bool:
    """Return whether a message's `expires` header comes first: Celery would drop the job without a word."""
    if not isinstance(expires, str):
        return False
    try:
        moment = datetime.fromisoformat(expires.replace("Z", "+00:00"))
    except ValueError:
        return False
    return (moment if moment.tzinfo else moment.replace(tzinfo=_UTC)).timestamp() <= time.time() + seconds
