"""Gives a job to the place where it waits for its next attempt, before its delivery is acknowledged; and brings it back.

For the worker's main process, which alone holds the message. A job waits for that place for a second or two at most. Then no
other asks it for a second, and while it goes on not answering for two, four, five: a job that should wait meanwhile is dead, and its
report says so. It is never left to a Celery countdown, which would hold it in a worker's memory.
"""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
from dataclasses import replace
from typing import Any

import redis

from jobs_admin.core.reconnect_delay import ReconnectDelay
from jobs_admin.worker import report
from jobs_admin.worker.broker import BrokerAway, NotPublished, Publisher, Unpublishable
from jobs_admin.worker.decision import AGAIN, Decision
from jobs_admin.worker.delays import LEASE_S, Delays, Head, Promoted, TooManyWait
from jobs_admin.worker.next_message import NotCelerys, next_message
from jobs_admin.worker.report import Origin

SCHEDULE_SECONDS = 0.5  # for each of connecting and asking: the same broker holds Celery up as long
BREAKER_FIRST_SECONDS = 1.0  # one slow answer is no outage, and whatever should wait meanwhile is dead
BREAKER_SECONDS = 5.0
IDLE_SECONDS = 1.0  # until somebody else's job is noticed, should its worker die
_LEAST_PAUSE = 0.02
_SPREAD = 0.2  # seconds: so that not all workers ask for one job at the same moment

logger = logging.getLogger("redrive.worker")


class NotScheduled(Exception):
    """The job could not be put aside. The text says why."""


class Unanswered(NotScheduled):
    """No answer came: the job may wait all the same."""


class Later:
    """`hold` is called for jobs, in any thread; `run` by a thread of its own."""

    def __init__(self, origin: Origin, delays: Delays, own: Delays, publisher: Publisher | None) -> None:
        """`delays` for jobs, with short time-outs; `own` is the same place for the thread. `publisher`: where the place is
        not the broker itself."""
        self._origin = origin
        self._delays = delays
        self._own = own
        self._publisher = publisher
        self._closed_until = 0.0  # monotonic
        self._unanswered = 0  # times in a row that nobody answered
        self._sooner = threading.Event()
        self._stopped = threading.Event()
        self._looks_at = 0.0  # monotonic: when the thread looks again
        self._is_logged = False
        self._pauses = ReconnectDelay(IDLE_SECONDS, BREAKER_SECONDS, least_s=IDLE_SECONDS / 2)

    def hold(self, request: Any, decision: Decision, *, is_paused: bool = False) -> None:
        """The job waits, durable, when this returns. Raises NotScheduled. `is_paused`: see `Delays.schedule`."""
        attempt = report.attempt_of(request) + (decision.act == AGAIN)
        waited_s = decision.delay_s if decision.keeps_wait else None
        try:
            message = next_message(report.raw_message(request.message), attempt - 1, waited_s)
            head = replace(self._head(request, decision, attempt), mark=_mark(request.message.body))
        except NotCelerys as error:
            raise NotScheduled(str(error)) from error
        if time.monotonic() < self._closed_until:
            raise NotScheduled("the place where retries wait did not answer just before")
        try:
            self._delays.schedule(head, message, decision.delay_s, is_paused=is_paused)
        except TooManyWait as error:
            raise NotScheduled(str(error)) from error
        except (redis.RedisError, OSError, ValueError) as error:
            self._closed_until = time.monotonic() + closed_for(self._unanswered)
            self._unanswered += 1
            raise Unanswered(f"the place where retries wait did not take it ({type(error).__name__})") from error
        self._unanswered = 0
        if time.monotonic() + decision.delay_s < self._looks_at:
            self._sooner.set()

    def count(self) -> int | None:
        """Return how many jobs of the source wait; None where no answer comes."""
        try:
            return self._delays.count()
        except (redis.RedisError, OSError):
            return None

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

    # Bringing back

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
        """One batch; answers the seconds until the next look."""
        try:
            promoted = promote(self._own, self._publisher)
        except (redis.RedisError, OSError) as error:
            return self._failed(repr(error))
        except Exception:  # this thread must outlive everything: without it retries wait for another worker
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
    """Seconds for which the place is not called, after it did not answer `failed` times in a row before this one. No
    draw: Redis takes a call of every worker at once, and what is drawn longer costs jobs.
    """
    return float(min(BREAKER_SECONDS, BREAKER_FIRST_SECONDS * 2 ** min(failed, 10)))


def _mark(body: Any) -> str:
    """The same for a second delivery of a job, another one for other arguments under the same id."""
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    return hashlib.sha256(bytes(body or b"")).hexdigest()[:12]


def promote(delays: Delays, publisher: Publisher | None, late_by_s: float = 0.0) -> Promoted:
    """One batch of what is due, on its queues. Raises redis.RedisError or OSError."""
    if publisher is None:
        return delays.promote(late_by_s)
    claimed, next_s = delays.claim(late_by_s=late_by_s)
    ends = time.monotonic() + LEASE_S / 2  # later than that somebody else may have them
    went, failed = 0, ""
    for at, job in enumerate(claimed):
        if time.monotonic() > ends:
            delays.give_back(claimed[at:])
            break
        try:
            publisher.publish(job.head.queue, job.message)
        except Unpublishable as error:
            failed = f"job {job.head.job_id}: {error}"  # it comes again when the claim ends, and holds up no other
        except NotPublished as error:
            failed = str(error)
            # What the broker may have comes again when the claim ends, the others at once.
            delays.give_back(claimed[at + (not isinstance(error, BrokerAway)) :])
            break
        else:
            # One by one: were the broker lost here, this one would be published again, and no other.
            delays.finish([job])
            went += 1
    return Promoted(went, next_s, failed)
