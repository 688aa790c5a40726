"""Celery's request, with the guard notified before the message is acknowledged. Only in the worker's main process."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from celery.exceptions import Reject, TaskRevokedError
from celery.worker import state
from celery.worker.request import Request

from jobs_admin.worker.consuming import limits_fault
from jobs_admin.worker.gate import wants_to_be_alone
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.outcome import with_error

_NO_LIMITS = ((None, None), [None, None])  # as Celery writes them, and as parsed from a message


class NotARequest(TypeError):
    """A task names a request class that is not Celery's. Nothing was changed."""


class GuardedRequest:
    """Mixin in front of a task's request class; each call continues to that class unchanged."""

    redrive: Guard
    redrive_base: type  # the task's request class
    _redrive_was_revoked = False
    _redrive_away = False  # returned to its queue because of a pause
    _redrive_begun = False
    _redrive_pending = None  # decision of a job that has run and is to be put on hold as soon as possible
    _redrive_starts_here = False  # pool without processes: whether the job may start is decided when it does

    def __init_subclass__(cls, **options: Any) -> None:
        # Wrap methods of the class that Celery generates per task, which do not call their base class.
        super().__init_subclass__(**options)
        for name, wrapped in (("on_success", _reporting), ("execute_using_pool", _gated)):
            made = cls.__dict__.get(name)
            if made is not None:
                setattr(cls, name, wrapped(made))

    def on_accepted(self, *args: Any, **options: Any) -> Any:
        if self._redrive_starts_here and not self.redrive.may_start(self, for_good=True):
            self.redrive.gate.release(self)
            raise TaskRevokedError(self.id)  # type: ignore[attr-defined]
        self.redrive.job_started(self)
        return super().on_accepted(*args, **options)  # type: ignore[misc]

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> Any:
        if wants_to_be_alone(exc_info):
            self.redrive.job_put_off(self)
            if self.redrive.gate.takes_back(self, exc_info):
                return None
            # The gate does not know it, so it cannot wait there. Celery would acknowledge it; reject it to the broker
            # instead.
            exc_info = with_error(exc_info, Reject("it is to run alone, and was not known to run", requeue=True))
            return super().on_failure(exc_info, *args, **options)  # type: ignore[misc]
        exc_info, more = self.redrive.job_failed(self, exc_info)
        if self._redrive_pending is not None:  # acknowledged once it is on hold
            self.redrive.gate.release(self)
            return None
        try:
            return super().on_failure(exc_info, *args, **{**options, **more})  # type: ignore[misc]
        finally:
            self.redrive.gate.release(self)

    def on_timeout(self, soft: bool, timeout: float | None) -> Any:
        if soft:
            return super().on_timeout(soft, timeout)  # type: ignore[misc]
        try:
            # Not for a job that waits for its next attempt: its failure was already reported.
            if self.redrive.job_timed_out(self, timeout):
                return super().on_timeout(soft, timeout)  # type: ignore[misc]
            return None
        finally:
            self.redrive.gate.release(self)

    def reject(self, requeue: bool = False) -> Any:
        # Report a rejected job. Celery also rejects jobs whose ETA it cannot use, which then never run.
        if not requeue and not self.acknowledged:  # type: ignore[attr-defined]
            self.redrive.job_rejected(self)
        return super().reject(requeue)  # type: ignore[misc]

    def maybe_expire(self) -> Any:
        # Note whether the job was revoked before: Celery adds expired jobs to the revoked ones, which operators revoke.
        self._redrive_was_revoked = self.id in state.revoked  # type: ignore[attr-defined]
        return super().maybe_expire()  # type: ignore[misc]

    def _announce_revoked(self, reason: Any, terminated: Any, signum: Any, expired: Any) -> Any:
        """Report an expired job before Celery acknowledges it.

        Celery also calls this when an operator revokes a job.
        """
        if expired and not self._redrive_was_revoked:
            self.redrive.job_expired(self)
        return super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]


def _reporting(on_success: Any) -> Any:
    @wraps(on_success)
    def report_success(self: Any, failed__retval__runtime: Any, **options: Any) -> Any:
        # A failed job also arrives here, and continues to `on_failure`.
        if failed__retval__runtime[0]:
            return on_success(self, failed__retval__runtime, **options)
        self.redrive.job_succeeded(self, failed__retval__runtime[2])
        try:
            return on_success(self, failed__retval__runtime, **options)
        finally:
            self.redrive.gate.release(self)

    return report_success


def _gated(execute_using_pool: Any) -> Any:
    @wraps(execute_using_pool)
    def gated(self: Any, pool: Any, **options: Any) -> Any:
        gate = self.redrive.gate
        if not self.redrive.may_start(self):
            raise TaskRevokedError(self.id)
        if self.redrive.is_repeated(self):
            # As Celery drops a job that must not run, but without an event: the first copy has the same id.
            state.task_ready(self)
            self.acknowledge()
            raise TaskRevokedError(self.id)
        self.redrive.hand_over(self)

        self._redrive_starts_here = not getattr(pool, "uses_semaphore", False)

        def go() -> Any:
            try:
                if not self.redrive.may_start(self, for_good=not self._redrive_starts_here):
                    raise TaskRevokedError(self.id)
                if self.time_limits not in _NO_LIMITS:
                    why = limits_fault(self.time_limits, bool(getattr(pool, "uses_semaphore", False)))
                    if why and self.redrive.refuses(self, why):
                        # As Celery reports a job that must not run: its pool slot is freed.
                        raise TaskRevokedError(why)
                return execute_using_pool(self, pool, **options)
            except BaseException:  # revoked, or the pool is gone: the job did not start
                gate.release(self)
                raise

        return go() if gate.enters(self, go) else None

    return gated


@cache
def guarded(base: type, guard: Guard) -> type:
    """Return a class with the guard in front of `base`. Raises NotARequest if that cannot work."""
    if issubclass(base, GuardedRequest):
        base = base.redrive_base  # from an earlier worker in this process
    if not issubclass(base, Request):
        raise NotARequest(f"{base!r} is not a celery.worker.request.Request")
    return type(
        "GuardedRequest", (GuardedRequest, base), {"redrive": guard, "redrive_base": base, "__module__": __name__}
    )
