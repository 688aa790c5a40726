"""Wrapper around a task's function: applies a policy to a failed attempt, where the original error is available.

It runs in the process that runs the job, a pool's child. It reads the policy in force from the board once per attempt.
Redis is not called for a job that no policy matches, nor for a success under a policy without limits.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry

from jobs_admin.core import retry_after, transient
from jobs_admin.core.matching import names_of
from jobs_admin.core.outage import MOST_ERROR
from jobs_admin.core.outcomes import clip
from jobs_admin.core.policy import Policy
from jobs_admin.core.policy.shape import REPLACE
from jobs_admin.core.redaction import redact_text
from jobs_admin.worker import report
from jobs_admin.worker.at_start import MEMORY, Alone, AtStart, Job, Quarantine, RunAlone, Wait
from jobs_admin.worker.breakers import HELD
from jobs_admin.worker.deciding import Spend, decide, quarantined
from jobs_admin.worker.decision import (
    AGAIN,
    LEFT,
    WAIT,
    Decision,
    GuardRetry,
    GuardWait,
    Notes,
    Quarantined,
    RequestedRetry,
)
from jobs_admin.worker.next_message import HOLD, HOLD_FAILED, HOLD_SINCE, TICKET, WAITED
from jobs_admin.worker.open_breakers import OpenBreakers
from jobs_admin.worker.policies import Chosen, InForce
from jobs_admin.worker.queues import handed_over
from jobs_admin.worker.report import Origin

# The delay that a server requests in an error: `Retry-After`. Read from plain attributes, otherwise by running the
# error's own code in a thread of ours.
# That code may take any time; a job waits 20 ms at most. A process has one such thread: while it hangs, no other
# error's code is run, so a hanging error costs one thread, not one per job.

LONGEST_WAIT_S = 0.02


def retry_after_s(error: BaseException) -> float | None:
    """Return the requested delay in seconds from now; None if there is none or it could not be read."""
    wish = retry_after.find_wish(error) if retry_after.is_at_hand(error) else _others.find_wish_of(error)
    return None if wish is None else retry_after.seconds(wish, time.time())


class WishReader:
    """Runner of other code that returns a wish, for any thread."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_logged = False

    def find_wish_of(self, error: BaseException) -> retry_after.Wish | None:
        """Return the error's wish; None if its code takes too long or an earlier error's code still runs."""
        if os.getpid() != self._pid:
            self._begin()  # forked: thread and lock are the parent's
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
        except RuntimeError:  # the process may start no more threads
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


AROUND = "redrive_around"  # attribute of a wrapper: the wrapped function
_RUNNING = "_redrive_attempt"  # request attribute: the policy version of its attempt
_HOLD = "_redrive_hold"  # request attribute: hold headers of its message

logger = logging.getLogger("redrive.worker")


class Retrying:
    """Wrappers for tasks. Created in the main process before the pool forks; run where jobs run."""

    def __init__(
        self,
        origin: Origin,
        in_force: InForce,
        notes: Notes,
        at_start: AtStart,
        spend: Spend,
        open_breakers: OpenBreakers,
    ) -> None:
        self._open_breakers = open_breakers
        self._origin = origin
        self._in_force = in_force
        self._notes = notes
        self._at_start = at_start
        self._spend = spend

    def wrap(self, task: Any) -> None:
        """Apply the matching policy to this task's failures. Other tasks and apps stay unchanged."""
        # Replaces the wrapper of an earlier worker in this process.
        retry, run = (getattr(one, AROUND, one) for one in (task.retry, task.run))
        task.retry, task.run = self._retry_of(task, retry), self._run_of(task, run)
        setattr(task.retry, AROUND, retry)
        setattr(task.run, AROUND, run)

    def _run_of(self, task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True  # here and below: error trackers (sentry-sdk) skip such frames
            request = task.request
            chosen = self._choose(task, request)
            if chosen is None:
                return run(*args, **kwargs)
            if not chosen.is_enforced:
                return self._observed(chosen, request, run, args, kwargs)
            return self._enforced(chosen, request, run, args, kwargs)

        return wrapped

    def _choose(self, task: Any, request: Any) -> Chosen | None:
        """Return the job's policy; None also for a call that is no job: `task()`, `task.run()` inside another,
        `apply()`.
        """
        if request.called_directly or request.is_eager or _RUNNING in vars(request):
            return None
        try:
            queue, is_first = handed_over(request)
            if not report.may_be_retried(request, self._origin, is_first=is_first):
                return None
            return self._in_force.choose(queue, task.name)
        except Exception:  # an error while choosing a policy must never block a job
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
            # Celery has published its own retry. A policy that replaces it would decide about this failure too.
            if chosen.policy.native == REPLACE and retry.exc is not None:
                self._note(chosen, request, retry.exc, self._find_evidence(chosen, request, retry.exc))
            else:
                self._note_evidence(chosen, request, self._find_evidence(chosen, request, retry))
            raise
        except Exception as error:
            self._note(chosen, request, error, self._find_evidence(chosen, request, error))
            raise
        finally:
            vars(request).pop(_RUNNING, None)

    def _enforced(
        self, chosen: Chosen, request: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        __tracebackhide__ = True
        job = self._starts(chosen, request)
        setattr(request, _RUNNING, chosen)
        setattr(request, _HOLD, _take_hold(request) if chosen.policy.breaker else {})
        request._redrive_asked = None
        try:
            answer = run(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt):
            job = None  # the process ends: a crash, which the main process counts
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
            # The task may have caught the exception of `self.retry()`. Celery would have published the retry anyway.
            requested = request._redrive_asked
            if requested is None:
                return answer
        finally:
            vars(request).pop(_RUNNING, None)
            if job is not None:
                self._at_start.ended(chosen.policy, job)
        # Outside the handler, so that Celery reports the error, not the request for a retry.
        failed = requested.error or Retry("The task asked for it")
        again = requested.wait or self._build_retry(chosen, request, failed)
        if again is not None:
            raise again from failed
        raise requested.error or MaxRetriesExceededError(f"Can't retry {request.task}[{request.id}]")

    def _starts(self, chosen: Chosen, request: Any) -> Job | None:
        """Count the start if the policy does.

        Return the job to count off at its end; None if there is nothing to count off.

        Raises GuardWait, RunAlone or Quarantined if it may not start.
        """
        policy = chosen.policy
        if policy.poison is None and policy.concurrency is None and policy.rate_limit is None:
            return None
        try:
            job = Job.of_context(request, self._tenant(policy, request))
            answer = self._at_start.starting(policy, job)
        except Exception:  # a failed count must not block a job
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
        """Return the job's tenant; "" if the policy does not count by it."""
        if policy.concurrency is None or policy.concurrency.key != "tenant":
            return ""
        return report.tenant_of(request.args, request.kwargs, self._origin.tenant_paths)

    def _ran_out(self, chosen: Chosen, job: Job | None, error: MemoryError) -> Job | None:
        """Count a crash: Celery's worker ends at a MemoryError, so a job that causes them is a poison pill.

        Return the job to count off.
        """
        if job is None or chosen.policy.poison is None:
            return job
        try:
            # Not `__str__`: that runs user code, and there is no memory left.
            words = next((one for one in vars(BaseException)["args"].__get__(error) if type(one) is str), "")
            answer = self._at_start.crashed(chosen.policy, job, MEMORY, words)
        except Exception:  # report the job's own error
            logger.exception("Redrive could not count a crash.")
            return None
        if answer is not None:
            raise Quarantined(quarantined(chosen, answer).text()) from error
        return None

    def _retry_of(self, task: Any, retry: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of `self.retry`, which `autoretry_for` also calls."""

        @wraps(retry)
        def requested_retry(*given: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            values = {**dict(zip(_RETRY_PARAMETERS, given, strict=False)), **named}
            chosen = getattr(task.request, _RUNNING, None)
            # A retry with other arguments, on another queue, or without raising is more than a retry.
            policy = None if chosen is None or not chosen.is_enforced else chosen.policy
            error = values.get("exc") or sys.exc_info()[1]
            error = error if isinstance(error, BaseException) else None
            if chosen is None or policy is None:
                return retry(*given, **named)
            if not _is_plain(values):
                self._note_evidence(chosen, task.request, self._find_evidence(chosen, task.request, error))
                return retry(*given, **named)
            found = RequestedRetry(error)
            if not policy.retries or policy.native != REPLACE:
                evidence = self._find_evidence(chosen, task.request, error)
                found.wait = self._wait_of(chosen, task.request, evidence)
                if found.wait is None:
                    self._note_evidence(chosen, task.request, evidence)
                    return retry(*given, **named)
            task.request._redrive_asked = found
            raise found

        return requested_retry

    # Evidence that a dependency is unavailable

    def _find_evidence(self, chosen: Chosen, request: Any, error: BaseException | None) -> str:
        """Return the evidence in an error for the policy's breaker; "" without evidence or breaker."""
        if chosen.policy.breaker is None or error is None:
            return ""
        try:
            found = transient.find_evidence(error, time.time(), chosen.policy)
            if found is None:
                is_answer = TICKET in getattr(request, _HOLD, {}) and transient.is_answer(error)
                return json.dumps({"is_answer": True}) if is_answer else ""
            words = next((one for one in vars(BaseException)["args"].__get__(error) if type(one) is str), "")
            text = clip(redact_text(f"{_name(error)}: {words[:1_000]}")[0], MOST_ERROR)
            return json.dumps({"kind": found.kind, "wish_s": found.wish_s, "error": text})
        except Exception:  # report the job's own error
            logger.exception("Redrive could not tell whether an error is evidence for a breaker.")
            return ""

    def _wait_of(self, chosen: Chosen, request: Any, evidence: str) -> GuardWait | None:
        """Return the exception that puts the job on hold without spending an attempt; None if it is not put on hold."""
        if "kind" not in evidence:
            return None
        try:
            hold = getattr(request, _HOLD, {})
            paths = self._origin.tenant_paths
            tenant = lambda: report.tenant_of(request.args, request.kwargs, paths)  # noqa: E731
            if not self._open_breakers.puts_aside(chosen, hold, str(request.task), tenant):
                return None
            name = chosen.policy.breaker_name or ""
            evidence = json.dumps({**json.loads(evidence), "is_released": TICKET in hold})
            return GuardWait(Decision(WAIT, chosen.label, HELD, breaker=name, evidence=evidence).text())
        except Exception:
            logger.exception("Redrive could not tell whether a breaker is open.")
            return None

    def _note_evidence(self, chosen: Chosen, request: Any, evidence: str) -> None:
        """Leave the evidence for the main process, if the task itself retries."""
        if evidence:
            decision = Decision(LEFT, chosen.label, evidence=evidence)
            self._notes.leave(str(request.id), report.attempt_number(request.retries), decision)

    def _build_retry(self, chosen: Chosen, request: Any, error: BaseException) -> GuardRetry | GuardWait | None:
        """Return the exception for a hold or a retry; None to raise the job's own error."""
        evidence = self._find_evidence(chosen, request, error)
        if (wait := self._wait_of(chosen, request, evidence)) is not None:
            return wait
        decision = self._note(chosen, request, error, evidence)
        if decision is None or decision.act != AGAIN:
            return None
        message = f"Retry in {decision.delay_s:.3g}s by {decision.policy}: {_name(error)}"
        return GuardRetry(message, error, decision.delay_s, decision.text())

    def _note(self, chosen: Chosen, request: Any, error: BaseException, evidence: str) -> Decision | None:
        """Leave the decision about a failed attempt for the main process, and return it.

        None: Celery's own behaviour applies, because the policy leaves retries to the task or no decision could be
        made.
        """
        if not chosen.policy.retries:
            self._note_evidence(chosen, request, evidence)
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
            decision = replace(decision, evidence=evidence)
            if decision.act != AGAIN or decision.is_observed:  # otherwise the retry exception carries it
                self._notes.leave(str(request.id), report.attempt_number(request.retries), decision)
            return decision
        except Exception:
            logger.exception("Redrive could not decide by %s; what Celery does with this failure holds.", chosen.label)
            return None


# Parameters of Celery's `retry`, in order.
_RETRY_PARAMETERS = ("args", "kwargs", "exc", "throw", "eta", "countdown", "max_retries")


def _is_plain(values: dict[str, Any]) -> bool:
    return (
        values.keys() <= set(_RETRY_PARAMETERS)
        and values.get("args") is None
        and values.get("kwargs") is None
        and bool(values.get("throw", True))
    )


def _name(error: BaseException) -> str:
    return type(error).__qualname__  # its message is in the traceback; `__str__` is user code


def _take_hold(request: Any) -> dict[str, Any]:
    """Return the hold headers, and remove all but the breaker: Celery would copy them to a retry's message."""
    found = {name: request.get(name) for name in (HOLD, HOLD_SINCE, HOLD_FAILED, TICKET)}
    if isinstance(request.headers, dict):
        for name in (HOLD_SINCE, HOLD_FAILED, TICKET):
            request.headers.pop(name, None)
    for name in (HOLD_SINCE, HOLD_FAILED, TICKET):
        vars(request).pop(name, None)
    return {name: value for name, value in found.items() if value is not None}


def _waited_s(request: Any) -> float | None:
    waited = request.get(WAITED)
    return float(waited) if isinstance(waited, int | float) and waited >= 0 else None
