"""Scheduling of a job's next attempt before its delivery is acknowledged, and moving due jobs to their queues.

For the worker's main process, the only one that has the message. A job waits a second or two at most for the delayed
jobs' Redis. If that does not answer, it is not called for one second, then two, four and five while it stays silent: a
job to be scheduled meanwhile is dead, and its report gives the reason. A job is never left to a Celery countdown, which
would wait in a worker's memory.
"""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import redis

from jobs_admin.core.reconnect_delay import ReconnectDelay
from jobs_admin.worker import report
from jobs_admin.worker.broker import BrokerAway, NotPublished, Publisher, Unpublishable
from jobs_admin.worker.decision import AGAIN, Decision
from jobs_admin.worker.delays import LEASE_S, Delays, Head, Hold, Promoted, TooManyWait
from jobs_admin.worker.next_message import HOLD, HOLD_FAILED, HOLD_SINCE, NotCelerys, next_message
from jobs_admin.worker.report import Origin

SCHEDULE_SECONDS = 0.5  # each for connecting and for a call: the same broker blocks Celery as long
BREAKER_FIRST_SECONDS = 1.0  # one slow answer is no outage, and jobs to be scheduled meanwhile are dead
BREAKER_SECONDS = 5.0
LAST_RANK = 256  # in a release: last
IDLE_SECONDS = 1.0  # delay until another worker's due job is noticed if that worker dies
_KEY = "_redrive_idempotency_key"  # request attribute
_LEAST_PAUSE = 0.02
_SPREAD = 0.2  # seconds, so that workers do not all ask for one job at once

logger = logging.getLogger("redrive.worker")


class NotScheduled(Exception):
    """The job could not be scheduled. The message gives the reason."""


class NotNow(NotScheduled):
    """The same job can be scheduled later."""


class NoRoom(NotNow):
    """The limit of delayed jobs is reached."""


class Unanswered(NotNow):
    """No answer: the job may be scheduled nevertheless."""


@dataclass(slots=True)
class _Closing:
    """State of a Redis that did not answer: no calls until `until`."""

    until: float = 0.0  # monotonic
    unanswered: int = 0  # consecutive calls without an answer


class Later:
    """Scheduler of one worker. Jobs call `hold` in any thread; `run` has its own thread."""

    def __init__(self, origin: Origin, delays: Delays, own: Delays, publisher: Publisher | None) -> None:
        """`delays`: for jobs, with short timeouts. `own`: the same Redis, for the thread.

        `publisher`: for a broker other than that Redis.
        """
        self._origin = origin
        self._delays = delays
        self._own = own
        self._publisher = publisher
        # Two, so that an outage during which thousands of jobs are put on hold does not block retries of other jobs.
        self._closings = {False: _Closing(), True: _Closing()}
        self._sooner = threading.Event()
        self._stopped = threading.Event()
        self._looks_at = 0.0  # monotonic: next check of the thread
        self._is_logged = False
        self._pauses = ReconnectDelay(IDLE_SECONDS, BREAKER_SECONDS, least_s=IDLE_SECONDS / 2)

    def hold(self, request: Any, decision: Decision, *, is_paused: bool = False) -> None:
        """Schedule the job durably, or put it on hold if the decision names a breaker. Raises NotScheduled.

        `is_paused`: see `Delays.schedule`.
        """
        attempt = report.attempt_of(request) + (decision.act == AGAIN)
        waited_s = decision.delay_s if decision.keeps_wait else None
        try:
            hold, failed = self._hold_of(request, decision) if decision.breaker else (None, 0)
            headers = None if hold is None else (hold.breaker, hold.since_ms, failed)
            message = next_message(report.raw_message(request.message), attempt - 1, waited_s, headers)
            head = replace(self._head(request, decision, attempt), mark=_mark(request.message.body))
            if is_paused and self._publisher is not None:
                head = replace(head, idempotency_key=_idempotency_key(request))
        except NotCelerys as error:
            raise NotScheduled(str(error)) from error
        closing = self._closings[is_paused or hold is not None]
        if time.monotonic() < closing.until:
            raise NotNow("the place where retries wait did not answer just before")
        try:
            self._delays.schedule(head, message, decision.delay_s, is_paused=is_paused, hold=hold)
        except TooManyWait as error:
            raise NoRoom(str(error)) from error
        except (redis.RedisError, OSError, ValueError) as error:
            closing.until = time.monotonic() + closed_for(closing.unanswered)
            closing.unanswered += 1
            raise Unanswered(f"the place where retries wait did not take it ({type(error).__name__})") from error
        closing.unanswered = 0
        if time.monotonic() + decision.delay_s < self._looks_at:
            self._sooner.set()

    def count(self) -> int | None:
        """Return the number of the source's delayed jobs; None without an answer."""
        try:
            return self._delays.count()
        except (redis.RedisError, OSError):
            return None

    def _hold_of(self, request: Any, decision: Decision) -> tuple[Hold, int]:
        """Return the hold of a job, and how often it failed after a release."""
        headers = request.request_dict
        is_known = headers.get(HOLD) == decision.breaker
        since, failed = (headers.get(name) if is_known else None for name in (HOLD_SINCE, HOLD_FAILED))
        priority = request.message.properties.get("priority")
        rank = min(255, max(0, priority)) if isinstance(priority, int) else 0
        hold = Hold(
            decision.breaker,
            since if isinstance(since, int) else round(time.time() * 1000),
            report.tenant_of(request.args, request.kwargs, self._origin.tenant_paths),
            rank if self._publisher is None else 255 - rank,  # on Redis only, the lowest number is the most urgent
        )
        failed = (failed if isinstance(failed, int) else 0) + bool(decision.read_evidence().get("is_released"))
        # A job that failed after a release comes last: otherwise the most urgent broken job would be the only probe
        # ever.
        return replace(hold, rank=LAST_RANK) if failed else hold, failed

    def _head(self, request: Any, decision: Decision, attempt: int) -> Head:
        queue = report.known_queue(request, self._origin)
        if not queue:
            raise NotScheduled("which queue it came from is not known")
        head = Head(str(request.id), attempt, str(request.type), queue, decision.policy)
        if self._publisher is not None:
            return head
        channel = request.message.channel
        prefix = getattr(channel, "global_keyprefix", "") or ""
        priority = channel._get_message_priority({"properties": request.message.properties}, reverse=False)
        late = not request.acknowledged and getattr(channel, "ack_emulation", True)
        return Head(
            head.job_id,
            attempt,
            head.task,
            queue,
            decision.policy,
            list=prefix + channel._q_for_pri(queue, priority),
            tag=str(request.message.delivery_tag) if late else None,
            unacked=prefix + channel.unacked_key if late else None,
            unacked_index=prefix + channel.unacked_index_key if late else None,
        )

    # Moving due jobs

    def hurry(self) -> None:
        """Move newly due jobs at once."""
        self._sooner.set()

    def start(self) -> None:
        threading.Thread(target=self.run, name="redrive-promoter", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._sooner.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            wait_s = self._round()
            self._looks_at = time.monotonic() + wait_s
            self._sooner.wait(wait_s)
            self._sooner.clear()

    def _round(self) -> float:
        """Move one batch. Return the seconds until the next check."""
        try:
            promoted = promote(self._own, self._publisher)
        except (redis.RedisError, OSError) as error:
            return self._failed(repr(error))
        except Exception:  # the thread must survive any error: without it, retries wait for another worker
            logger.exception("Redrive's promoter failed; it goes on.")
            return IDLE_SECONDS
        if promoted.failed and not promoted.jobs:
            return self._failed(promoted.failed)
        self._pauses.succeeded()
        if promoted.failed:
            logger.warning("Redrive could not bring back what waits to be retried (%s); it tries on.", promoted.failed)
        if self._is_logged and promoted.jobs:
            self._is_logged = False
            logger.info("Redrive brings back again what waits to be retried.")
        next_s = IDLE_SECONDS if promoted.next_s is None else min(IDLE_SECONDS, promoted.next_s)
        return max(_LEAST_PAUSE, next_s) + (0.0 if promoted.jobs else random.uniform(0, _SPREAD))

    def _failed(self, why: str) -> float:
        if not self._is_logged:
            self._is_logged = True
            logger.warning("Redrive cannot bring back what waits to be retried (%s); it tries on.", why)
        return self._pauses.failed()


def closed_for(failed: int) -> float:
    """Return the seconds without calls after `failed` earlier consecutive calls without an answer.

    Not randomised: Redis can take a call of every worker at once, and a longer pause costs jobs.
    """
    return float(min(BREAKER_SECONDS, BREAKER_FIRST_SECONDS * 2 ** min(failed, 10)))


def _idempotency_key(request: Any) -> str:
    """Return a key that is the same for each call about one delivery, and another for a second delivery."""
    key: str = getattr(request, _KEY, "") or uuid4().hex
    setattr(request, _KEY, key)
    return key


def _mark(body: Any) -> str:
    """Return a hash that is the same for a second delivery of a job, and differs for other arguments under the same
    id.
    """
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    return hashlib.sha256(bytes(body or b"")).hexdigest()[:12]


def promote(delays: Delays, publisher: Publisher | None, late_by_s: float = 0.0) -> Promoted:
    """Move one batch of due jobs to their queues. Raises redis.RedisError or OSError."""
    if publisher is None:
        return delays.promote(late_by_s)
    claimed, next_s = delays.claim(late_by_s=late_by_s)
    ends = time.monotonic() + LEASE_S / 2  # before another worker may claim them
    went, failed = 0, ""
    for at, job in enumerate(claimed):
        if time.monotonic() > ends:
            delays.give_back(claimed[at:])
            break
        try:
            publisher.publish(job.head.queue, job.message)
        except Unpublishable as error:
            failed = f"job {job.head.job_id}: {error}"  # retried when the claim expires; blocks no other job
        except NotPublished as error:
            failed = str(error)
            # A job that the broker may have is retried when the claim expires, the others at once.
            delays.give_back(claimed[at + (not isinstance(error, BrokerAway)) :])
            break
        else:
            # One at a time: if the broker is lost here, only this job is published again.
            delays.finish([job])
            went += 1
    return Promoted(went, next_s, failed)
