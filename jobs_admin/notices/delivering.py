"""Delivery of due notices, at least once: the step `deliver` of watch.

A delivery is claimed by a conditional update before its request is sent. A crash in between leaves a claim that
expires; then it is sent again with the same id, and a receiver accepts each id once.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F, Q

from jobs_admin import config
from jobs_admin.core.text import representable
from jobs_admin.core.web_address import Allowed, BadAddress
from jobs_admin.db import audit
from jobs_admin.models import Channel, Delivery, Notice
from jobs_admin.models.access import ENGINE
from jobs_admin.models.notice import ALERT_FIRING, SLACK_ANSWER, DeliveryState
from jobs_admin.notices import formats, heartbeat, mail, posting, sealing
from jobs_admin.notices.changing import MOST_CHANNELS
from jobs_admin.notices.posting import Answer, Fate, Verdict, judge
from jobs_admin.notices.routing import route

log = logging.getLogger(__name__)

# Longer than any try takes: no other process sends it meanwhile.
_CLAIMED = timedelta(seconds=30)
_CLAIMED_MAIL = timedelta(seconds=120)  # a mail server has its own time limit for each command
_SET_BACK = timedelta(minutes=1)  # a time further in the future was written before a clock was set back
_LONGEST_WAIT = timedelta(seconds=1.2 * max(posting.LONGEST_RETRY_AFTER_S, *posting.WAITS_S))
_SET_RIGHT_EVERY = timedelta(minutes=1)
_WAIT_S = 0.1  # for a response, in a round with nothing else to do
_READ_AT_ONCE = 100
_LOGGED_TRIES = 20
_OPEN = (DeliveryState.WAITING, DeliveryState.SENDING)
_HEARTBEAT = 0  # the lane of the heartbeat, which is not a channel


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A delivery that is being sent; None: the heartbeat."""

    delivery: Delivery | None
    request: str = ""


class Lanes:
    """Threads that send requests: one request at a time per key, at most `most` keys concurrently.

    A request that hangs delays only its own key. The threads access no table: results are returned to their owner.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy: set[int] = set()
        self._ended: queue.SimpleQueue[tuple[int, _InFlight, Answer | Exception]] = queue.SimpleQueue()
        self._given_back: list[tuple[_InFlight, Answer | Exception]] = []
        self.pid = os.getpid()  # threads do not survive a fork

    @property
    def busy(self) -> frozenset[int]:
        return frozenset(self._busy)

    @property
    def has_room(self) -> bool:
        return len(self._busy) < self._most

    def start(self, key: int, about: _InFlight, call: Callable[[], Answer]) -> None:
        assert key not in self._busy

        def run() -> None:
            try:
                answer: Answer | Exception = call()
            except Exception as error:  # one request must not stop the others; the error is returned as its result
                log.exception("A question of lane %s failed.", key)
                answer = error
            self._ended.put((key, about, answer))

        self._busy.add(key)
        try:
            threading.Thread(target=run, name=f"lane {key}", daemon=True).start()
        except RuntimeError as error:  # no thread could be started
            self._ended.put((key, about, error))

    def give_back(self, these: list[tuple[_InFlight, Answer | Exception]]) -> None:
        """Return results that could not be recorded now: the next `ended` returns them first."""
        self._given_back += these

    def ended(self, wait_s: float = 0.0) -> list[tuple[_InFlight, Answer | Exception]]:
        """Return the results since the last call.

        Without any, wait up to `wait_s` for the first of the calls in flight.
        """
        found, self._given_back = self._given_back, []
        while True:
            try:
                may_wait = wait_s > 0 and not found and bool(self._busy)
                key, about, answer = self._ended.get(block=may_wait, timeout=wait_s if may_wait else None)
            except queue.Empty:
                return found
            self._busy.discard(key)
            found.append((about, answer))


_lanes: list[Lanes] = []
_set_right_at: list[datetime] = []  # per process


def is_due() -> bool:
    """Return whether a notice is unrouted, a delivery has not ended, or a heartbeat is configured."""
    if config.heartbeat_url():
        return True
    return Notice.objects.filter(routed_at=None).exists() or Delivery.objects.filter(state__in=_OPEN).exists()


def deliver(now: datetime) -> bool:
    """Run a round: create deliveries of notices, start due ones, record answers.

    Return True while a request is in flight. Each channel is called in its own thread, and waits are a moment at most.
    """
    lanes = _own_lanes()
    _correct_ahead(now)
    is_busy = _record_all(lanes, now)
    is_busy = route(now) or is_busy
    is_busy = _begin_all(lanes, now) or is_busy
    if heartbeat.is_due(now) and _HEARTBEAT not in lanes.busy:
        lanes.start(_HEARTBEAT, _InFlight(None), heartbeat.asker())
    if not is_busy and lanes.busy:
        is_busy = _record_all(lanes, now, _WAIT_S)
    return is_busy or bool(lanes.busy - {_HEARTBEAT})


def _own_lanes() -> Lanes:
    if not _lanes or _lanes[0].pid != os.getpid():
        _lanes[:] = [Lanes(MOST_CHANNELS + 1)]
    return _lanes[0]


# -- what is due --------------------------------------------------------------------------------------------------


def _begin_all(lanes: Lanes, now: datetime) -> bool:
    """Start one delivery of each channel that has a due one and none in flight. Return whether any was started."""
    began = False
    passed = set(lanes.busy)
    while lanes.has_room and (due := _due(now, passed)):
        allowed = config.webhook_allow()
        for one in due:
            if one.channel_id in passed or not lanes.has_room:
                continue
            passed.add(one.channel_id)  # in order: a channel's next delivery waits for this one
            if _is_over(one, now) or not _claim(one, now):
                began = True
                continue
            about, call = _build_call(one, now, allowed)
            lanes.start(one.channel_id, about, call)
            began = True
    return began


def _due(now: datetime, passed: set[int]) -> list[Delivery]:
    """Return due deliveries. While one is being sent, `next_try_at` is the end of its claim."""
    sending = Delivery.objects.filter(state=DeliveryState.SENDING, next_try_at__gt=now)
    busy = passed | set(sending.values_list("channel_id", flat=True))  # by another process
    due = Delivery.objects.filter(state__in=_OPEN, next_try_at__lte=now).exclude(channel_id__in=busy)
    return list(due.select_related("notice", "channel").order_by("next_try_at", "pk")[:_READ_AT_ONCE])


def _correct_ahead(now: datetime) -> None:
    """Correct times after the clock was set back: no delivery waits for a distant time, no claim lasts too long."""
    if _set_right_at and timedelta() <= now - _set_right_at[0] < _SET_RIGHT_EVERY:
        return
    _set_right_at[:] = [now]
    later = now + _SET_BACK
    lost = Q(state=DeliveryState.SENDING, next_try_at__gt=later + max(_CLAIMED, _CLAIMED_MAIL))
    never_tried = Q(tried_at=None, next_try_at__gt=later)
    ahead = Q(next_try_at__gt=now + _LONGEST_WAIT) | Q(tried_at__gt=later, next_try_at__gt=now) | never_tried
    Delivery.objects.filter(lost | (Q(state=DeliveryState.WAITING) & ahead)).update(next_try_at=now)


def _is_over(one: Delivery, now: datetime) -> bool:
    """Park a delivery that is obsolete. Return whether it was."""
    why = ""
    if one.channel.disabled_at is not None and one.notice.type != "ping":
        why = f"The channel is disabled: {one.channel.why_disabled}"
    elif one.notice.type == ALERT_FIRING and one.notice.alert_id and one.channel.kind != "webhook" and one.tries:
        # A pager would reopen a resolved incident. Webhooks get all notices, with their times.
        later = Delivery.objects.filter(
            channel_id=one.channel_id,
            notice__alert_id=one.notice.alert_id,
            notice_id__gt=one.notice_id,
            state=DeliveryState.DELIVERED,
        )
        why = "A later notice of the same alert was already delivered." if later.exists() else ""
    if not why:
        return False
    claim = Delivery.objects.filter(pk=one.pk, state=one.state, next_try_at=one.next_try_at)
    claim.update(state=DeliveryState.PARKED, error=why[:300], next_try_at=None)
    return True


def _claim(one: Delivery, now: datetime) -> bool:
    """Claim the delivery for a time. Return whether this process may send it."""
    until = now + (_CLAIMED_MAIL if one.channel.kind == "email" else _CLAIMED)
    claim = Delivery.objects.filter(pk=one.pk, state=one.state, next_try_at=one.next_try_at)
    claimed = claim.update(state=DeliveryState.SENDING, next_try_at=until, tries=F("tries") + 1, tried_at=now)
    one.tries, one.next_try_at, one.tried_at = one.tries + 1, until, now
    return bool(claimed)


def _build_call(one: Delivery, now: datetime, allowed: Allowed) -> tuple[_InFlight, Callable[[], Answer]]:
    try:
        if one.channel.kind == "email":
            message = mail.build_mail(one.notice, one.channel)
            return _InFlight(one, f"{message.subject}\n\n{message.body}"), mail.sender(message)
        request = formats.request(one.notice, one.channel, now)
    except (sealing.CannotOpen, BadAddress, ValueError) as error:
        answer = Answer(None, error=representable(str(error))[:300])
        return _InFlight(one), lambda: answer
    except Exception as error:  # one that cannot be built delays no other: it is retried, then parked
        log.exception("Delivery %s could not be written.", one.pk)
        answer = _unexpected("build the request", error)
        return _InFlight(one), lambda: answer
    return _InFlight(one, request.logged), lambda: posting.send(request, allowed)


# -- results ------------------------------------------------------------------------------------------------------


def _record_all(lanes: Lanes, now: datetime, wait_s: float = 0.0) -> bool:
    ended = lanes.ended(wait_s)
    for n, (about, answer) in enumerate(ended):
        if isinstance(answer, Exception):
            answer = _unexpected("ask", answer)
        if about.delivery is None:
            heartbeat.ended(answer)
            continue
        try:
            _record_or_fail(about.delivery, about.request, answer, now)
        except (OperationalError, InterfaceError):
            lanes.give_back(ended[n:])  # the database is busy or unreachable: the results are not lost
            raise
    return bool(ended)


def _record_or_fail(one: Delivery, request: str, answer: Answer, now: datetime) -> None:
    try:
        _record(one, request, answer, now)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        log.exception("What came back for delivery %s could not be recorded.", one.pk)
        has_arrived = answer.status is not None and 200 <= answer.status < 300
        recorded = (
            Answer(answer.status, took_ms=answer.took_ms) if has_arrived else _unexpected("record the response", error)
        )
        _record(one, "", recorded, now)


def _unexpected(what: str, error: Exception) -> Answer:
    return Answer(None, error=f"Redrive could not {what}: {type(error).__name__}. See the log.")


def _record(one: Delivery, request: str, answer: Answer, now: datetime) -> None:
    """Record the result if the claim is still ours; a process that took it over records its own try.

    A success is recorded in any case.
    """
    # The address of an answer expires: that it is gone says nothing about the channel.
    is_answer = one.notice.type == SLACK_ANSWER
    kind = "" if is_answer else one.channel.kind
    only_once = is_answer or one.notice.type == "ping"
    verdict = judge(kind, answer, one.tries, now, random.random, only_once=only_once)
    tried = {
        "at": (one.tried_at or now).isoformat(),
        "status": answer.status,
        "error": verdict.error,
        "took_ms": answer.took_ms,
    }
    columns = {
        "state": {Fate.DELIVERED: DeliveryState.DELIVERED, Fate.AGAIN: DeliveryState.WAITING}.get(
            verdict.fate, DeliveryState.PARKED
        ),
        "next_try_at": verdict.next_try_at,
        "request": representable(request),
        "status": answer.status,
        "answer": answer.text,
        "error": verdict.error[:300],
        "took_ms": answer.took_ms,
        "log": [*one.log, tried][-_LOGGED_TRIES:],
    }
    if verdict.fate is Fate.DELIVERED:
        columns["delivered_at"] = now
    with transaction.atomic():
        claim = Delivery.objects.filter(pk=one.pk, state=DeliveryState.SENDING, next_try_at=one.next_try_at)
        recorded = claim.update(**columns)
        if not recorded and verdict.fate is Fate.DELIVERED:
            recorded = Delivery.objects.filter(pk=one.pk).exclude(state=DeliveryState.DELIVERED).update(**columns)
        if recorded and not is_answer:
            _update_channel(one.channel, verdict, now)


def _update_channel(channel: Channel, verdict: Verdict, now: datetime) -> None:
    claim = Channel.objects.filter(pk=channel.pk)
    if verdict.fate is Fate.DELIVERED:
        claim.exclude(failures=0).update(failures=0)
        return
    claim.update(failures=F("failures") + 1)
    if verdict.fate is not Fate.DISABLED:
        return
    if claim.filter(disabled_at=None).update(disabled_at=now, why_disabled=verdict.error[:300]):
        waiting = Delivery.objects.filter(channel=channel, state=DeliveryState.WAITING).exclude(notice__type="ping")
        why = f"The channel was disabled: {verdict.error}"[:300]
        waiting.update(state=DeliveryState.PARKED, error=why, next_try_at=None)
        after = {"name": channel.name, "disabled": True}
        audit.record(ENGINE, "channel.disable", f"channel:{channel.pk}", reason=verdict.error, after=after)
