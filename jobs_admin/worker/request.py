"""Celery's request, with the guard told before the message is acknowledged. Runs in the worker's main process only."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from celery.worker.request import Request

from jobs_admin.worker.guard import Guard


class NotARequest(TypeError):
    """A task names a request class that is not one of Celery's. Nothing was changed."""


class GuardedRequest:
    """Mixed in front of whatever request class a task uses; each call goes on to that class unchanged."""

    redrive: Guard

    def __init_subclass__(cls, **options: Any) -> None:
        # Celery derives one class a task, whose `on_success` calls none of its bases: it is wrapped where it is made.
        super().__init_subclass__(**options)
        made = cls.__dict__.get("on_success")
        if made is not None:
            cls.on_success = _telling(made)  # type: ignore[attr-defined]

    def on_accepted(self, *args: Any, **options: Any) -> Any:
        self.redrive.job_started(self)
        return super().on_accepted(*args, **options)  # type: ignore[misc]

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> Any:
        self.redrive.job_failed(self, exc_info)
        return super().on_failure(exc_info, *args, **options)  # type: ignore[misc]

    def on_timeout(self, soft: bool, timeout: float | None) -> Any:
        if not soft:
            self.redrive.job_timed_out(self, timeout)
        return super().on_timeout(soft, timeout)  # type: ignore[misc]


def _telling(on_success: Any) -> Any:
    @wraps(on_success)
    def told(self: Any, failed__retval__runtime: Any, **options: Any) -> Any:
        # A job that failed arrives here too, and goes on to `on_failure`.
        if not failed__retval__runtime[0]:
            self.redrive.job_succeeded(self, failed__retval__runtime[2])
        return on_success(self, failed__retval__runtime, **options)

    return told


@cache
def guarded(base: type, guard: Guard) -> type:
    """`base` with the guard in front. Raises NotARequest where that cannot work."""
    if issubclass(base, GuardedRequest):
        return base
    if not issubclass(base, Request):
        raise NotARequest(f"{base!r} is not a celery.worker.request.Request")
    return type("GuardedRequest", (GuardedRequest, base), {"redrive": guard, "__module__": __name__})
