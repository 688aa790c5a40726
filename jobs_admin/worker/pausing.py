"""Pauses and holds in one worker: jobs of a paused queue, task, tenant or dependency, or of an open breaker, do not
start here and spend no attempt.

A paused queue is not consumed, and jobs fetched from it that have not started are returned to it. A job of another
pause or an open breaker waits with the delayed jobs, durable before it is acknowledged, and is checked again when it
returns. The worker knows when each pause ends, so pauses need no desk; while the store is unavailable, the last known
pauses stay in force until their end.

The broker is only called in the consumer's own thread. Whether a job may start is decided where it would start.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
from celery.worker import state

from jobs_admin.core import keys, pauses
from jobs_admin.core.pauses import Pauses
from jobs_admin.worker.breakers import HELD, Breakers
from jobs_admin.worker.decision import WAIT, Decision
from jobs_admin.worker.later import Later, NoRoom, NotScheduled, Unanswered
from jobs_admin.worker.next_message import HOLD, TICKET
from jobs_admin.worker.policies import keep_last_good, load_last_good
from jobs_admin.worker.queues import Queues, is_first_protocol, place_of
from jobs_admin.worker.raw_message import Popped

QUEUE, TASK, TENANT, DEPENDENCY = "queue", "task", "tenant", "dependency"
# Seconds until a job of a paused task is checked again: longer with more such jobs, so that a source checks 200/s.
RECHECK_S, LONGEST_RECHECK_S, RECHECKED_PER_S = 5.0, 600.0, 200
COUNT_EVERY_S = 5.0
# After this time a call into the consumer's thread counts as lost: if one callback raises, the hub drops its batch.
CALL_LOST_S = 2.0
_LAST_GOOD = "pauses.json"
# Request attributes: must not start here; can no longer be taken back; may already be delayed because no answer came.
_AWAY, _BEGUN, _UNANSWERED = "_redrive_away", "_redrive_begun", "_redrive_unanswered"
# Request attribute: decision of a job that has run and that its breaker will put on hold.
PENDING = "_redrive_pending"

# Returns an element to the head of its list, byte for byte, if this delivery is the broker's latest of it. Kombu would
# append it.
_GIVE_BACK = """
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('RPUSH', KEYS[3], ARGV[2])
return 1
"""

logger = logging.getLogger("redrive.worker")


class Pausing:
    """Pauses of one worker.

    Called by the heartbeat (`obey`, `check`), requests (`starts`) and the consumer (`connected`).
    """

    def __init__(
        self,
        consumer: Any,
        queues: Queues,
        source: str,
        directory: Path,
        later: Later | None,
        breakers: Breakers | None = None,
    ) -> None:
        """`later`: None if no job can be put on hold, so no task can be paused.

        `breakers`: None if no policy has one.
        """
        self._breakers = breakers
        if breakers is not None:
            breakers.on_opened, breakers.start_in_hand = self._soon, self.release
        self._consumer = consumer
        self._queues = queues
        self._key = keys.pauses(source)
        self._directory = directory
        self._later = later
        self._lock = threading.Lock()  # guards `_in_force` and the marks on requests
        self._published = Pauses()
        self._in_force = Pauses()
        self._temporary: list[str] = []  # paused queues that are still consumed
        self._congested: set[str] = set()  # queues not consumed because their jobs cannot be put on hold
        self._in_hand = 0  # such jobs of this connection; as many more may be fetched
        self._away: list[Any] = []  # requests still to be returned
        self._released: list[Any] = []  # requests that were to be put on hold and start instead
        self._stopped: set[str] = set()  # queues that this worker would consume
        self._called_until = 0.0  # monotonic
        self._is_logged = False
        self._waiting, self._counted_at = 0, float("-inf")
        # drops the request of a job that has run, once it is on hold
        self.forget: Callable[[Any], None] = lambda request: None
        self.is_readable = True  # False: the store's user may not read the pauses

    @property
    def abilities(self) -> list[str]:
        """Kinds of pauses that this worker can obey.

        A pool that receives more jobs than it has processes would start them later.
        """
        if getattr(self._consumer.pool, "uses_semaphore", False) and self._consumer.hub is None:
            return []
        if self._later is None:
            return [QUEUE]
        more = [] if self._breakers is None else [*([TENANT] if self._breakers.knows_tenants else []), DEPENDENCY]
        return [QUEUE, TASK, *more]

    def describe(self) -> dict[str, Any]:
        """Return what can be paused here and what is paused, for the heartbeat."""
        now = self._in_force
        listed = {name: sorted(ends) for name, ends in now.as_dict().items()}
        return {
            "pauses": self.abilities if self.is_readable else [],
            "paused": listed,
            "unpausable": self._temporary,
            "breakers": self._breakers.describe() if self._breakers is not None and self._holds else [],
            "narrows": ["host", "task"],  # scopes of a partly open breaker, besides tenants
            "congested": sorted(self._congested),
        }

    @property
    def _holds(self) -> bool:
        """Return whether jobs of an open breaker can be put on hold here."""
        return self._breakers is not None and TASK in self.abilities

    # In the heartbeat's thread

    def restore(self, answer: bytes | None) -> None:
        """Load the store's pauses; if it does not answer or lost its data, those on this worker's disk."""
        found = load_last_good(self._directory, _LAST_GOOD)
        on_disk = (pauses.parse(json.dumps(found[0])) if found else None) or Pauses()
        published = pauses.parse(answer, on_disk)
        if published is None:
            self._published = on_disk
        elif published != on_disk:
            self._keep(published)
        else:
            self._published = published
        self._apply(is_silenced=False)

    def read(self, pipeline: redis.client.Pipeline) -> None:
        pipeline.get(self._key)

    def obey(self, answer: Any) -> None:
        """Apply the store's pauses. A store without the key has lost its data: that resumes nothing."""
        self.is_readable = not isinstance(answer, redis.ResponseError)
        published = pauses.parse(answer, self._published) if isinstance(answer, bytes) else None
        if published is not None and published != self._published:
            self._keep(published)

    def _keep(self, published: Pauses) -> None:
        self._published = published
        try:
            keep_last_good(self._directory, [published.as_dict()], _LAST_GOOD)
        except OSError as error:
            logger.warning("Redrive cannot keep its pauses in %s (%s).", self._directory, error.strerror)

    def check(self, *, is_silenced: bool) -> bool:
        """Start and end pauses by the current time. Return whether something changed. Needs no store."""
        is_changed = self._apply(is_silenced=is_silenced)
        consuming = getattr(self._consumer.task_consumer, "consuming_from", lambda queue: False)
        if (
            is_changed
            or self._away
            or self._released
            or any(map(consuming, self._in_force.queues))
            or not self._stopped <= self._barred()
        ):
            self._soon()
        return is_changed

    def _apply(self, *, is_silenced: bool) -> bool:
        now_ms = time.time() * 1000
        abilities = [] if is_silenced else self.abilities
        found = self._published.at(now_ms).limit_to(abilities)
        temporary = self._temporary_queues()
        self._temporary = sorted(found.queues.keys() & temporary)
        found = replace(found, queues={queue: end for queue, end in found.queues.items() if queue not in temporary})
        with self._lock:
            if found == self._in_force:
                return False
            before, self._in_force = self._in_force, found
        for what, old, new in (
            (QUEUE, before.queues, found.queues),
            (TASK, before.tasks, found.tasks),
            (TENANT, before.tenants, found.tenants),
            (DEPENDENCY, before.dependencies, found.dependencies),
        ):
            for name in sorted(new.keys() - old.keys()):
                logger.warning("Redrive paused the %s %.200s.", what, name)
            for name in sorted(old.keys() - new.keys()):
                logger.warning("Redrive resumed the %s %.200s.", what, name)
        return True

    def _temporary_queues(self) -> set[str]:
        """Return the queues that the broker deletes, with their jobs, when the last consumer leaves: they are still
        consumed.
        """
        known = list(self._consumer.app.amqp.queues.consume_from.values())
        return {one.name for one in known if _is_temporary(one)}

    # Where a job would start

    def starts(self, request: Any) -> bool:
        """Return whether the job may start. If so, it can no longer be taken back; if not, it is being returned."""
        with self._lock:
            if self._may_start(request):
                setattr(request, _BEGUN, True)
                return True
        self._take(request)
        return False

    def may_start(self, request: Any) -> bool:
        """Return the same for a job that can still be taken back."""
        with self._lock:
            if self._may_start(request):
                return True
        self._take(request)
        self._collect()  # includes jobs behind it: otherwise each would be released within the call for the one before
        return False

    def _may_start(self, request: Any) -> bool:
        """Return whether a job may start. Needs the lock.

        A job that started once (and waits to run alone) or is acknowledged cannot go back.
        """
        if getattr(request, _AWAY, False):
            return False
        return getattr(request, _BEGUN, False) or request.acknowledged or not self._covers(request, may_probe=True)

    def keep(self, request: Any, decision: Decision) -> bool:
        """Put a job that has run on hold as soon as possible. Return False if no job can be put on hold."""
        if not self._holds:
            return False
        setattr(request, PENDING, decision)
        self._take(request)
        return True

    def pending_requests(self) -> list[tuple[Any, Decision]]:
        """Return requests that have run and are not yet on hold, with their decisions, if the broker no longer has
        them.
        """
        with self._lock:
            away = [(one, getattr(one, PENDING, None)) for one in self._away if one.acknowledged]
        return [(one, decision) for one, decision in away if decision is not None]

    def release(self, breaker: str, most: int, ticket: str) -> int:
        """Start jobs in hand that could not be put on hold: their queue is not consumed, so no other job can be a
        probe.
        """
        with self._lock:
            found = [
                one
                for one in self._away
                if not one.acknowledged
                and getattr(one, PENDING, None) is None
                and not getattr(one, _UNANSWERED, False)
                and self._breaker_of(one) == breaker
            ][:most]
            for one in found:
                self._away.remove(one)
                one.request_dict.update({HOLD: breaker, TICKET: ticket})
                self._released.append(one)
        if found:
            self._soon()
        return len(found)

    def _start_released(self) -> None:
        with self._lock:
            released, self._released = self._released, []
            for one in released:
                setattr(one, _AWAY, False)
        for one in released:
            if self._is_of_this_connection(one) or _is_of_list(one):
                state.task_reserved(one)
                self._consumer.on_task_request(one)

    def _take(self, request: Any) -> None:
        with self._lock:
            if getattr(request, _AWAY, False):
                return
            setattr(request, _AWAY, True)
            self._away.append(request)
        state.task_ready(request)
        self._soon()

    def _covers(self, request: Any, *, may_probe: bool = False) -> bool:
        """Return whether a pause or breaker covers the job. Needs the lock.

        `may_probe`: it may start as the probe of a host on hold.
        """
        now_ms = time.time() * 1000
        if self._in_force.queues:
            place = place_of(request, self._queues)
            end = self._in_force.queues.get(place.name) if place.is_sure else None
            if end is not None and (not end or now_ms < end):
                return True
        return self._is_part_paused(request, now_ms) or bool(self._breaker_of(request, may_probe=may_probe))

    def _breaker_of(self, request: Any, *, may_probe: bool = False) -> str:
        """Return the breaker that blocks a job; "" if none does, or if the job cannot be put on hold."""
        if self._breakers is None or not self._breakers.is_holding or not self._holds:
            return ""
        return self._breakers.breaker_of(request, may_probe=may_probe) if self._can_be_put_aside(request) else ""

    def _is_part_paused(self, request: Any, now_ms: float) -> bool:
        """Return whether the job's task, tenant or dependency is paused and the job can be put on hold."""
        found = self._in_force
        if not found.is_aside:
            return False
        ends = [found.tasks.get(str(request.type))]
        if self._breakers is not None and found.tenants:
            ends.append(found.tenants.get(self._breakers.tenant_of(request)))
        if self._breakers is not None and found.dependencies:
            ends.append(found.dependencies.get(self._breakers.dependency_of(request)))
        is_paused = any(end is not None and (not end or now_ms < end) for end in ends)
        return is_paused and self._can_be_put_aside(request)

    def _can_be_put_aside(self, request: Any) -> bool:
        """Return False for messages of Celery's protocol 1 and for messages of an unknown queue, such as broadcasts."""
        return not is_first_protocol(request.message) and place_of(request, self._queues).is_sure

    # In the consumer's thread

    def connected(self) -> None:
        """Reset after each connection to the broker, before its first message."""
        self._stopped.clear()
        self._in_hand, self._called_until = 0, 0.0
        self._consume_less()
        if self._away or self._released:
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
        for act in (
            self._start_released,
            self._consume_less,
            self._collect,
            self._send_away,
            self._consume_less,
            self._consume_more,
        ):
            try:
                act()
            except Exception:  # must not end the consumer's loop; the heartbeat tries again
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
            self._queues.remember()  # remember the consumer tags of messages that are still to be handled
            consumer.cancel_by_queue(queue)
            self._stopped.add(queue)

    def _consume_more(self) -> None:
        consumer = self._consumer.task_consumer
        wanted = self._consumer.app.amqp.queues.consume_from
        for queue in self._stopped - self._barred():
            # Unless remote control removed or restored the queue meanwhile.
            if queue in wanted and not consumer.consuming_from(queue):
                if getattr(self._consumer, "qos_global", None) is False and hasattr(
                    consumer.channel, "basic_publish_confirm"
                ):
                    # RabbitMQ gives each new consumer the prefetch count set last, which includes jobs with an ETA.
                    consumer.qos(prefetch_count=self._consumer.initial_prefetch_count, apply_global=False)
                consumer.add_queue(wanted[queue])
                consumer.consume()
            self._stopped.discard(queue)

    def _collect(self) -> None:
        """Take back jobs that were fetched and have not started."""
        if (
            not self._in_force.queues
            and not self._in_force.is_aside
            and not (self._breakers and self._breakers.is_holding)
        ):
            return
        for request in list(state.reserved_requests):
            with self._lock:
                is_waiting = not getattr(request, _BEGUN, True) and self._covers(request)
            if is_waiting:
                self._take(request)
        places = getattr(self._consumer.controller, "semaphore", None)
        if places is not None:
            # Stop waiting for a pool slot: each would take one, return it, and so call the next.
            waiting = [one for one in places._waiting if not getattr(next(iter(one[1]), None), _AWAY, False)]
            places._waiting.clear()
            places._waiting.extend(waiting)

    def _send_away(self) -> None:
        with self._lock:
            away, self._away = self._away, []
        try:
            for request in self._in_order(away):
                try:
                    self._send(request)
                except self._consumer.connection_errors:
                    raise
                except Exception:  # the jobs behind it must still be sent
                    if not self._is_logged:
                        self._is_logged = True
                        logger.exception("Redrive could not put a job aside or give it back; it tries again.")
        finally:
            unsent = [one for one in away if not one.acknowledged or getattr(one, PENDING, None) is not None]
            with self._lock:
                self._away = [*unsent, *self._away]
        # Jobs that could not be put on hold stay in hand: returned, they would be redelivered at once, until a quorum
        # queue drops them.
        self._congested = {place_of(one, self._queues).name for one in unsent}
        # For a queue that is still consumed, the prefetch count is not raised.
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
        """Return the latest first if each goes to the head of its list; else the oldest first."""
        delivered = getattr(getattr(self._consumer.task_consumer.channel, "qos", None), "_delivered", None) or ()
        places = {tag: number for number, tag in enumerate(delivered)}

        def place(request: Any) -> int:
            tag = request.message.delivery_tag
            return tag if isinstance(tag, int) else places.get(tag, -1)

        is_list = bool(away) and isinstance(getattr(away[0].message, "_raw", None), Popped)
        return sorted(away, key=place, reverse=is_list)

    def _send(self, request: Any) -> None:
        """Put a request on hold or return it to its queue. Acknowledges it in both cases."""
        if getattr(request, PENDING, None) is not None:
            is_back = not request.acknowledged and not self._is_of_this_connection(request) and not _is_of_list(request)
            if is_back or self._put_aside(request):  # from a lost RabbitMQ connection: the broker has it again
                setattr(request, PENDING, None)
                request.acknowledged = True
                self.forget(request)
            return
        if request.acknowledged:
            return
        is_on_redis = _is_of_list(request)
        is_current = self._is_of_this_connection(request)
        if not is_current and not is_on_redis:
            pass  # from a lost connection: the broker has it again
        elif getattr(request, _UNANSWERED, False):
            # It may already be delayed. Returned as well, it would exist twice.
            if not self._put_aside(request):
                return
        elif not is_current or self._is_barred(request) or not self._waits_aside(request):
            self._give_back(request.message)
        elif not self._put_aside(request):
            return
        request.acknowledged = True

    def _waits_aside(self, request: Any) -> bool:
        return self._is_part_paused(request, time.time() * 1000) or bool(self._breaker_of(request))

    def _is_barred(self, request: Any) -> bool:
        queue = place_of(request, self._queues).name
        return queue in self._in_force.queues and queue not in self._temporary_queues()

    def _put_aside(self, request: Any) -> bool:
        """Return whether the job is delayed durably and acknowledged. Safe to repeat: it is delayed once."""
        assert self._later is not None
        decision = getattr(request, PENDING, None)
        breaker = (
            decision.breaker
            if decision
            else ""
            if self._is_part_paused(request, time.time() * 1000)
            else self._breaker_of(request)
        )
        if decision is not None:
            pass
        elif breaker and self._breakers is not None:
            decision = Decision(WAIT, "", HELD, self._breakers.recheck_s(request), breaker=breaker)
        else:
            delay_s = min(max(RECHECK_S, self._count_waiting() / RECHECKED_PER_S), LONGEST_RECHECK_S)
            decision = Decision(WAIT, "", "paused", delay_s * random.uniform(0.8, 1.2))
        try:
            self._later.hold(request, decision, is_paused=True)
        except NotScheduled as error:
            if isinstance(error, Unanswered):
                setattr(request, _UNANSWERED, True)
            if isinstance(error, NoRoom) and breaker and self._breakers is not None:
                self._breakers.note_bound(breaker)
            queue = place_of(request, self._queues).name
            if queue not in self._congested:
                self._congested.add(queue)
                logger.warning(
                    "Redrive cannot put jobs aside that may not start (%s): %.200s is not consumed.", error, queue
                )
            return False
        if self._breakers is not None and not getattr(request, PENDING, None):
            self._breakers.note_unused(request)  # it was released too late, or something else blocks it
        if self._is_of_this_connection(request) and not request.acknowledged:
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
            except redis.ResponseError:  # a broker user without permission for scripts
                message.reject_log_error(logger, self._consumer.connection_errors, requeue=True)
                return
        message._state = "REQUEUED"
        message.channel.qos._quick_ack(message.delivery_tag)


def _is_of_list(request: Any) -> bool:
    return isinstance(getattr(request.message, "_raw", None), Popped)


def _is_temporary(queue: Any) -> bool:
    arguments = getattr(queue, "queue_arguments", None) or {}
    return bool(queue.auto_delete or queue.exclusive or queue.expires or "x-expires" in arguments)


def pausing_of(
    consumer: Any,
    queues: Queues,
    source: str,
    directory: Path,
    later: Later | None,
    breakers: Breakers | None,
    connect: Callable[[], Any],
) -> Pausing:
    """Return the worker's current pauses, before its first message."""
    made = Pausing(consumer, queues, source, directory, later, breakers)
    try:
        with connect() as connection:
            made.restore(connection.get(keys.pauses(source)))
    except redis.ResponseError:
        made.is_readable = False
    except (redis.RedisError, OSError):
        made.restore(None)
    return made
