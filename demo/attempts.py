"""One attempt of a demo job, really made in this process: its error, its traceback, the message it came in.

For the played history: every traceback in it was raised by the code that it shows, and every raw message was
written by Celery's own producer, so that a replay of it works.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from random import Random
from types import FrameType
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.pool import soft_timeout_sighandler
from celery.exceptions import Retry, SoftTimeLimitExceeded
from kombu.utils.json import dumps

from demo import wire
from demo.orders import Job, Mishap
from demo.partner import Partner
from demo.reporting import read_month
from demo.shop import QUEUES, app
from jobs_admin.core.display import shown_message, shown_trace

# Who is to time out here does so soon: two seconds each would be dull. All others have time, however busy the machine is.
IMPATIENCE_S, PATIENCE_S = 0.15, 30.0
_LATE_S = 10.0  # when a slow partner would answer: nobody waits for it


@dataclass(frozen=True, slots=True)
class Attempt:
    """The end of one attempt, redacted as by a worker."""

    kind: str
    error_type: str
    message: str
    trace: str
    wait_s: float | None  # until Celery makes the next; None: there is no next
    kwargs: dict[str, Any]

    def redacted(self, kwargs: dict[str, Any]) -> Attempt:
        """The same attempt at another job of its kind: what the text quotes of the arguments is that job's."""
        message, trace = self.message, self.trace
        for old, new in _differences(self.kwargs, kwargs):
            message, trace = message.replace(old, new), trace.replace(old, new)
        return Attempt(self.kind, self.error_type, message, trace, self.wait_s, kwargs)


def _differences(old: Any, new: Any) -> Iterator[tuple[str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old.keys() & new.keys():
            yield from _differences(old[name], new[name])
    elif isinstance(old, str | int) and old != new and len(str(old)) > 3:
        yield str(old), str(new)


class Stage:
    """The shop in this process, without a worker: a broker in memory and a partner of its own."""

    def __init__(self, partner: Partner, public_url: str) -> None:
        self._partner = partner
        self._public_url = public_url
        self._connection = app.connection_for_write("memory://localhost")
        self._producer = app.amqp.Producer(self._connection, auto_declare=False)
        for queue in app.conf.task_queues:
            queue(self._connection.default_channel).declare()

    def attempt(self, mishap: Mishap, random: Random, retries: int) -> Attempt:
        """Make one attempt at a job that fails so, after `retries` attempts before it."""
        job = mishap.job(random)
        self._partner.change(mishap.mode, delay_s=_LATE_S, limit=0.5)
        if mishap.mode == "rate_limit":
            self._partner.temper.exhaust(time.monotonic())
        elif mishap.mode == "outage":
            self._partner.temper.cut_next(mishap.raises != "HTTPStatusError")
        with wire.waiting(IMPATIENCE_S) if mishap.raises == "ReadTimeout" else nullcontext():
            ended, trace = self._traced(job, retries, soft_limit=mishap.raises == "SoftTimeLimitExceeded")
        if ended is None:
            raise RuntimeError(f"{mishap.name}: the job succeeded, which this mishap does not")
        wait_s = None
        kind = "soft_limit" if isinstance(ended, SoftTimeLimitExceeded) else "exception"
        if isinstance(ended, Retry):
            # Retry carries a copy that can be pickled, maybe of a base class; its context is the error itself.
            kind, wait_s, ended = "retry", float(ended.when or 0), ended.__context__ or ended.exc
        error_type = type(ended).__qualname__
        if type(ended).__module__ != "builtins":
            error_type = f"{type(ended).__module__}.{error_type}"
        here = self._partner.url
        message = shown_message(str(ended).replace(here, self._public_url)).text
        trace = shown_trace(trace.replace(here, self._public_url)).text
        return Attempt(kind, error_type, message, trace, wait_s, job.kwargs)

    def _traced(self, job: Job, retries: int, *, soft_limit: bool) -> tuple[Exception | None, str]:
        task = app.tasks[job.task]
        task.push_request(id="0", retries=retries, called_directly=False, delivery_info={}, kwargs=job.kwargs, args=())
        try:
            with _alarm() if soft_limit else nullcontext():
                task.run(**job.kwargs)
        except Retry as retry:
            # Told as the error that caused it, as the guard in a worker does.
            error = retry.__context__ or retry
            return retry, ExceptionInfo((type(error), error, error.__traceback__)).traceback
        except Exception as error:
            # Without our own frame: it begins where a worker's traceback leaves Celery.
            below_ours = error.__traceback__.tb_next if error.__traceback__ else None
            return error, ExceptionInfo((type(error), error, below_ours)).traceback
        finally:
            task.pop_request()
            self._drain()
        return None, ""

    def message(self, job: Job, job_id: str, retries: int) -> bytes:
        """The job as Celery puts it on a Redis list, byte for byte."""
        task = app.tasks[job.task]
        task.apply_async(kwargs=job.kwargs, task_id=job_id, retries=retries, producer=self._producer)
        (found,) = self._drain()
        return dumps(found).encode()

    def _drain(self) -> list[dict[str, Any]]:
        channel, found = self._connection.default_channel, []
        for name in QUEUES:
            while channel._size(name):
                found.append(channel._get(name))
        return found


@contextmanager
def _alarm() -> Iterator[None]:
    """The soft time limit runs out where the job spends its time: what a worker's pool does to its child then."""

    def in_the_job(number: int, frame: FrameType | None) -> None:
        # On a busy machine the moment may come before the job has begun to read: then a little later.
        if frame is not None and frame.f_code is read_month.__code__:
            soft_timeout_sighandler(number, frame)

    handler = signal.signal(signal.SIGALRM, in_the_job)
    timer = signal.setitimer(signal.ITIMER_REAL, 0.05, 0.01)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def stage(public_url: str) -> Iterator[Stage]:
    """A stage for the time of the block. For a process of its own: the shop's app has no other broker afterwards."""
    # Celery lets the environment overrule the app, and a retry on this stage must not reach a real queue.
    os.environ.pop("CELERY_BROKER_URL", None)
    app.conf.update(broker_url="memory://localhost", broker_transport_options={})
    app.loader.import_default_modules()
    partner = Partner().serve_in_thread()
    try:
        with wire.calling(partner.url, patience_s=PATIENCE_S):
            yield Stage(partner, public_url)
    finally:
        partner.shutdown()
        partner.server_close()
