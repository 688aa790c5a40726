"""Pauses by hand in one worker: jobs of a paused queue or task do not start here, and no attempt is counted.

A paused queue is not consumed, and what was fetched from it and has not started goes back to it. A job of a paused task
waits where retries wait, durable before it is acknowledged, and is checked again when it comes back. The worker knows when
each pause ends, so pauses need no desk; while the store is away, those last read hold until their end.

The broker is only called in the consumer's own thread. Whether a job may start is decided where it would start.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from celery.worker import state

from jobs_admin.core import keys, pauses
from jobs_admin.core.pauses import Pauses
from jobs_admin.worker.decision import WAIT, Decision
from jobs_admin.worker.later import Later, NotScheduled, Unanswered
from jobs_admin.worker.policies import keep_last_good, load_last_good
from jobs_admin.worker.queues import Queues, place_of
from jobs_admin.worker.raw_message import Popped

QUEUE, TASK = "queue", "task"
# Seconds until a job of a paused task is checked again: longer the more of them wait, so that a source checks 200 a second.
RECHECK_S, LONGEST_RECHECK_S, RECHECKED_PER_S = 5.0, 600.0, 200
COUNT_EVERY_S = 5.0
# After which a call into the consumer's thread counts as dropped: the hub drops a batch of which one raised.
CALL_LOST_S = 2.0
_LAST_GOOD = "pauses.json"
# On a request: must not start here; may not be taken back any more; may wait already, for no answer came.
_AWAY, _BEGUN, _UNANSWERED = "_redrive_away", "_redrive_begun", "_redrive_unanswered"

# At the head of its list, byte for byte, if this delivery is the broker's latest of it. Kombu would put it at the end.
_GIVE_BACK = """
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('RPUSH', KEYS[3], ARGV[2])
return 1
"""

logger = logging.getLogger("redrive.worker")


class Pausing:
    """`obey` and `check` are the heartbeat's, `starts` the requests', `connected` the consumer's."""

    def __init__(self, consumer: Any, queues: Queues, source: str, directory: Path, later: Later | None) -> None:
        """`later`: None where no job can be put aside, so that no task can be paused."""
        self._consumer = consumer
        self._queues = queues
        self._key = keys.pauses(source)
        self._directory = directory
        self._later = later
        self._lock = threading.Lock()  # of what is in force, and of the marks on requests
        self._published = Pauses()
        self._in_force = Pauses()
        self._temporary: list[str] = []  # paused queues that are consumed on
        self._congested: set[str] = set()  # queues not consumed, for jobs of them cannot be put aside
        self._in_hand = 0  # of this connection: those jobs, for which as many more may be fetched
        self._away: list[Any] = []  # requests that are still to go back
        self._stopped: set[str] = set()  # queues that this worker would consume
        self._called_until = 0.0  # monotonic
        self._is_logged = False
        self._waiting, self._counted_at = 0, float("-inf")
        self.is_readable = True  # False: the store's user may not read the pauses

    @property
    def abilities(self) -> list[str]:
        """Kinds of pauses that this worker can obey. A pool that is handed more jobs than it has processes would start them later."""
        if getattr(self._consumer.pool, "uses_semaphore", False) and self._consumer.hub is None:
            return []
        return [QUEUE] if self._later is None else [QUEUE, TASK]

    def describe(self) -> dict[str, Any]:
        """For the heartbeat: what can be paused here, and what is."""
        now = self._in_force
        listed = {"queues": sorted(now.queues), "tasks": sorted(now.tasks)}
        return {"pauses": self.abilities if self.is_readable else [], "paused": listed, "unpausable": self._temporary}

    # In the heartbeat's thread

    def restore(self, answer: bytes | None) -> None:
        """Begin with what the store says; where it does not answer, or lost its memory, with what this worker's disk says."""
        found = load_last_good(self._directory, _LAST_GOOD)
        on_disk = Pauses(**found[0]) if found and found[0].keys() == {"queues", "tasks"} else Pauses()
        published = pauses.parse(answer)
        if published is None:
            self._published = pauses.parse(on_disk.render()) or Pauses()
        elif published != on_disk:
            self._keep(published)
        else:
            self._published = published
        self._apply(is_silenced=False)

    def read(self, pipeline: redis.client.Pipeline) -> None:
        pipeline.get(self._key)

    def obey(self, answer: Any) -> None:
        """Take what the store says. A store without the key has lost its memory: that resumes nothing."""
        self.is_readable = not isinstance(answer, redis.ResponseError)
        published = pauses.parse(answer) if isinstance(answer, bytes) else None
        if published is not None and published != self._published:
            self._keep(published)

    def _keep(self, published: Pauses) -> None:
        self._published = published
        try:
            document = {"queues": dict(published.queues), "tasks": dict(published.tasks)}
            keep_last_good(self._directory, [document], _LAST_GOOD)
        except OSError as error:
            logger.warning("Redrive cannot keep its pauses in %s (%s).", self._directory, error.strerror)

    def check(self, *, is_silenced: bool) -> bool:
        """Begin and end what has to by now. Return whether something changed. Needs no store."""
        is_changed = self._apply(is_silenced=is_silenced)
        consuming = getattr(self._consumer.task_consumer, "consuming_from", lambda queue: False)
        if (
            is_changed
            or self._away
            or any(map(consuming, self._in_force.queues))
            or not self._stopped <= self._barred()
        ):
            self._soon()
        return is_changed

    def _apply(self, *, is_silenced: bool) -> bool:
        now_ms = time.time() * 1000
        found = Pauses() if is_silenced or not self.abilities else self._published.at(now_ms)
        temporary = self._temporary_queues()
        self._temporary = sorted(found.queues.keys() & temporary)
        queues = {queue: end for queue, end in found.queues.items() if queue not in temporary}
        found = Pauses(queues, {} if self._later is None else found.tasks)
        with self._lock:
            if found == self._in_force:
                return False
            before, self._in_force = self._in_force, found
        for what, old, new in ((QUEUE, before.queues, found.queues), (TASK, before.tasks, found.tasks)):
            for name in sorted(new.keys() - old.keys()):
                logger.warning("Redrive paused the %s %.200s.", what, name)
            for name in sorted(old.keys() - new.keys()):
                logger.warning("Redrive resumed the %s %.200s.", what, name)
        return True

    def _temporary_queues(self) -> set[str]:
        """Queues that the broker deletes, with all jobs, when their last consumer leaves: those are consumed on."""
        known = list(self._consumer.app.amqp.queues.consume_from.values())
        return {one.name for one in known if _is_temporary(one)}

    # Where a job would start

    def starts(self, request: Any) -> bool:
        """Return whether the job may start, for good: it is not taken back any more. If not, it is on its way back."""
        with self._lock:
            if self._may_start(request):
                setattr(request, _BEGUN, True)
                return True
        self._take(request)
        return False

    def may_start(self, request: Any) -> bool:
        """The same, of a job that may still be taken back."""
        with self._lock:
            if self._may_start(request):
                return True
        self._take(request)
        self._collect()  # those behind it too: else each would be let go of within the call for the one before
        return False

    def _may_start(self, request: Any) -> bool:
        """Under the lock. What began once, or is acknowledged, cannot go back: a job that waits to run alone."""
        if getattr(request, _AWAY, False):
            return False
        return getattr(request, _BEGUN, False) or request.acknowledged or not self._covers(request)

    def _take(self, request: Any) -> None:
        with self._lock:
            if getattr(request, _AWAY, False):
                return
            setattr(request, _AWAY, True)
            self._away.append(request)
        state.task_ready(request)
        self._soon()

    def _covers(self, request: Any) -> bool:
        """Under the lock."""
        now_ms = time.time() * 1000
        if self._in_force.queues:
            place = place_of(request, self._queues)
            end = self._in_force.queues.get(place.name) if place.is_sure else None
            if end is not None and (not end or now_ms < end):
                return True
        return self._is_task_paused(request, now_ms)

    def _is_task_paused(self, request: Any, now_ms: float) -> bool:
        """Never of what cannot be put aside: a message of Celery's first protocol, and one whose queue is not known, as of a broadcast."""
        end = self._in_force.tasks.get(str(request.type)) if self._in_force.tasks else None
        if end is None or (end and end <= now_ms):
            return False
        is_second = isinstance(request.message.headers, dict) and bool(request.message.headers.get("task"))
        return is_second and place_of(request, self._queues).is_sure

    # In the consumer's thread

    def connected(self) -> None:
        """After each connection to the broker, before the first message of it."""
        self._stopped.clear()
        self._in_hand, self._called_until = 0, 0.0
        self._consume_less()
        if self._away:
            self._soon()

    def _soon(self) -> None:
        with self._lock:
            if time.monotonic() < self._called_until:
                return
            self._called_until = time.monotonic() + CALL_LOST_S
        self._consumer.call_soon(self._settle)

    def _settle(self) -> None:
        self._called_until = 0.0
        if self._consumer.task_consumer is None:
            return  # no connection: `connected` follows
        for act in (self._consume_less, self._collect, self._send_away, self._consume_less, self._consume_more):
            try:
                act()
            except Exception:  # the border: it must not end the consumer's loop; the heartbeat tries again
                if not self._is_logged:
                    self._is_logged = True
                    logger.exception("Redrive could not pause or resume as it was to; it tries on.")
                return
        self._is_logged = False

    def _barred(self) -> set[str]:
        return {*self._in_force.queues, *self._congested} - self._temporary_queues()

    def _consume_less(self) -> None:
        consumer = self._consumer.task_consumer
        for queue in self._barred() & {one.name for one in consumer.queues}:
            self._queues.remember()  # by their tags, the messages of this consumer that are still to be looked at
            consumer.cancel_by_queue(queue)
            self._stopped.add(queue)

    def _consume_more(self) -> None:
        consumer = self._consumer.task_consumer
        wanted = self._consumer.app.amqp.queues.consume_from
        for queue in self._stopped - self._barred():
            # Not one that remote control has taken away, or given back, meanwhile.
            if queue in wanted and not consumer.consuming_from(queue):
                if getattr(self._consumer, "qos_global", None) is False and hasattr(
                    consumer.channel, "basic_publish_confirm"
                ):
                    # RabbitMQ gives each new consumer the count that was set last, which counts jobs with an ETA too.
                    consumer.qos(prefetch_count=self._consumer.initial_prefetch_count, apply_global=False)
                consumer.add_queue(wanted[queue])
                consumer.consume()
            self._stopped.discard(queue)

    def _collect(self) -> None:
        """Take back what was fetched and has not begun."""
        if not self._in_force.queues and not self._in_force.tasks:
            return
        for request in list(state.reserved_requests):
            with self._lock:
                is_waiting = not getattr(request, _BEGUN, True) and self._covers(request)
            if is_waiting:
                self._take(request)
        places = getattr(self._consumer.controller, "semaphore", None)
        if places is not None:
            # They wait for a place in the pool no more: each would take one, give it back, and so call the next.
            waiting = [one for one in places._waiting if not getattr(next(iter(one[1]), None), _AWAY, False)]
            places._waiting.clear()
            places._waiting.extend(waiting)

    def _send_away(self) -> None:
        with self._lock:
            away, self._away = self._away, []
        try:
            for request in self._in_order(away):
                self._send(request)
        finally:
            unsent = [one for one in away if not one.acknowledged]
            with self._lock:
                self._away = [*unsent, *self._away]
        # What could not be put aside stays in hand: given back, it would come again at once, until a quorum queue drops it.
        self._congested = {place_of(one, self._queues).name for one in unsent}
        # Of a queue that is consumed on, no more is fetched than otherwise.
        left = self._congested - self._temporary_queues()
        in_hand = sum(self._is_of_this_connection(one) and place_of(one, self._queues).name in left for one in unsent)
        if in_hand > self._in_hand:
            self._consumer.qos.increment_eventually(in_hand - self._in_hand)
        elif in_hand < self._in_hand:
            self._consumer.qos.decrement_eventually(self._in_hand - in_hand)
        self._in_hand = in_hand

    def _is_of_this_connection(self, request: Any) -> bool:
        return request.message.channel is self._consumer.task_consumer.channel

    def _in_order(self, away: list[Any]) -> list[Any]:
        """The latest first where each goes to the head of its list; else the oldest first."""
        delivered = getattr(getattr(self._consumer.task_consumer.channel, "qos", None), "_delivered", None) or ()
        places = {tag: number for number, tag in enumerate(delivered)}

        def place(request: Any) -> int:
            tag = request.message.delivery_tag
            return tag if isinstance(tag, int) else places.get(tag, -1)

        is_list = bool(away) and isinstance(getattr(away[0].message, "_raw", None), Popped)
        return sorted(away, key=place, reverse=is_list)

    def _send(self, request: Any) -> None:
        """Put it aside or give it back, whichever it is for; acknowledged in either case."""
        if request.acknowledged:
            return
        is_on_redis = isinstance(getattr(request.message, "_raw", None), Popped)
        is_current = self._is_of_this_connection(request)
        if not is_current and not is_on_redis:
            pass  # of a connection that was lost: the broker has it again
        elif getattr(request, _UNANSWERED, False):
            # It may wait already. Given back, it would be there twice.
            if not self._put_aside(request):
                return
        elif not is_current or self._is_barred(request) or not self._is_task_paused(request, time.time() * 1000):
            self._give_back(request.message)
        elif not self._put_aside(request):
            return
        request.acknowledged = True

    def _is_barred(self, request: Any) -> bool:
        queue = place_of(request, self._queues).name
        return queue in self._in_force.queues and queue not in self._temporary_queues()

    def _put_aside(self, request: Any) -> bool:
        """Return whether it waits, durable, and is acknowledged. May be repeated: it waits once."""
        assert self._later is not None
        delay_s = min(max(RECHECK_S, self._count_waiting() / RECHECKED_PER_S), LONGEST_RECHECK_S)
        decision = Decision(WAIT, "", "paused", delay_s * random.uniform(0.8, 1.2))
        try:
            self._later.hold(request, decision, is_paused=True)
        except NotScheduled as error:
            if isinstance(error, Unanswered):
                setattr(request, _UNANSWERED, True)
            queue = place_of(request, self._queues).name
            if queue not in self._congested:
                self._congested.add(queue)
                logger.warning(
                    "Redrive cannot put jobs of a paused task aside (%s): %.200s is not consumed.", error, queue
                )
            return False
        if self._is_of_this_connection(request):
            request.message.ack_log_error(logger, self._consumer.connection_errors)
        return True

    def _count_waiting(self) -> int:
        if time.monotonic() - self._counted_at > COUNT_EVERY_S and self._later is not None:
            self._counted_at = time.monotonic()
            self._waiting = self._later.count() or self._waiting
        return self._waiting

    def _give_back(self, message: Any) -> None:
        payload = getattr(message, "_raw", None)
        channel = self._consumer.task_consumer.channel
        if not isinstance(payload, Popped) or not getattr(channel, "ack_emulation", False):
            message.reject_log_error(logger, self._consumer.connection_errors, requeue=True)
            return
        prefix = getattr(channel, "global_keyprefix", "") or ""
        level = channel._get_message_priority(payload, reverse=False)
        names = [
            prefix + one
            for one in (channel.unacked_key, channel.unacked_index_key, channel._q_for_pri(payload.queue, level))
        ]
        with channel.conn_or_acquire() as client:
            try:
                client.eval(_GIVE_BACK, len(names), *names, message.delivery_tag, payload.element)
            except redis.ResponseError:  # a user of the broker that may run no script
                message.reject_log_error(logger, self._consumer.connection_errors, requeue=True)
                return
        message._state = "REQUEUED"
        message.channel.qos._quick_ack(message.delivery_tag)


def _is_temporary(queue: Any) -> bool:
    arguments = getattr(queue, "queue_arguments", None) or {}
    return bool(queue.auto_delete or queue.exclusive or queue.expires or "x-expires" in arguments)


def pausing_of(
    consumer: Any, queues: Queues, source: str, directory: Path, later: Later | None, connect: Callable[[], Any]
) -> Pausing:
    """Return the worker's pauses as they are now, before its first message."""
    made = Pausing(consumer, queues, source, directory, later)
    try:
        with connect() as connection:
            made.restore(connection.get(keys.pauses(source)))
    except redis.ResponseError:
        made.is_readable = False
    except (redis.RedisError, OSError):
        made.restore(None)
    return made
