"""Dead letters of systems that store them themselves: read and filed, in one thread per source.

Reports are filed in the tables first, and only then is the position updated: a crash in between loses nothing, and
reading reports again changes nothing. The step `pull` of `watch`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

from django.db import Error, connections, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from jobs_admin import config, ingest, trust
from jobs_admin.core.envelope import Envelope, encode
from jobs_admin.core.reconnect_delay import ReconnectDelay
from jobs_admin.core.text import representable
from jobs_admin.db import counters
from jobs_admin.ingest import lineages
from jobs_admin.models import Failure, Source, Worker
from jobs_admin.models.failure import Caveat, FailureState
from jobs_admin.models.source import ALIVE_S
from jobs_admin.retries import rechecking, rescheduling
from jobs_admin.sources.base import NO_ROOM, DivisibleSource, Pulled, PulledSource, SourceError, Unread
from jobs_admin.trust import admission

log = logging.getLogger(__name__)

_LEASE = timedelta(seconds=30)
_ROUND_S = 2.0  # then the lease is renewed
# Limits of one transaction: SQLite allows no other writer meanwhile.
_FILED_AT_ONCE = 100  # reports
_BYTES_AT_ONCE = 2_000_000  # of their messages; a larger message has its own transaction
_LOOK_UP_S = 2.0  # during a long wait
_SAME_S = 0.001  # two reports without a number within this time are the same attempt
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0


class NoRoom(Exception):
    """Reports of a source can neither be filed nor stored as unfiled: they stay there, and reading stops."""


def step(name: str) -> bool:
    """Ensure that a thread of this process reads each such source.

    Always returns False: there is never more to do immediately.
    """
    for source in config.sources():
        thread = _threads.get(source)
        if _is_pulled(source) and (thread is None or not thread.is_alive()):
            _threads[source] = threading.Thread(target=_go_on, args=(source,), daemon=True, name=f"pull {source}")
            _threads[source].start()
    return False


def _is_pulled(source: str) -> bool:
    try:
        return config.is_pulled(source)
    except Exception:  # a bug in one adapter must not keep others from being read
        log.exception("Source %s cannot be read", source)
        return False


_threads: dict[str, threading.Thread] = {}


def _go_on(source: str) -> None:
    """Repeat rounds until the process ends or the source is removed.

    A thread that hangs delays no other source, and its lease expires.
    """
    me = f"{socket.gethostname()}:{os.getpid()}"
    pauses = ReconnectDelay(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, least_s=_FIRST_PAUSE_S / 2)
    text = ""
    while config.is_pulled(source):
        why = ""
        wait_s = _FIRST_PAUSE_S
        try:
            is_more = pull(source, me)
            wait_s = 0.0 if is_more else _adapter(source).every_s
            pauses.succeeded()
        except (SourceError, NoRoom, Error) as error:  # the source or the database is unreachable for now
            why = str(error) or type(error).__name__
        except Exception as error:  # one round must not end the others; the error is shown
            why = f"{type(error).__name__}: {error}"
            if why != text:
                log.exception("Source %s: its dead letters cannot be read.", source)
        if why:
            if why != text:
                log.warning("Source %s: its dead letters are not read: %s", source, why)
            connections.close_all()  # the next round reconnects
            _note_failed(source, why)
            connections.close_all()
            wait_s = pauses.failed()
        text = why
        _rest(source, wait_s)


def _rest(source: str, wait_s: float) -> None:
    """Wait until the next round, or until a reschedule of the source's retries is requested."""
    ends = time.monotonic() + wait_s
    while (left_s := ends - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_UP_S))
        try:
            if left_s > _LOOK_UP_S and rescheduling.is_planned(source):
                return
        except Error:
            connections.close_all()


def pull(source: str, puller: str, now: datetime | None = None) -> bool:
    """Run one round: file new reports, and recheck some known jobs. Return True if there may be more to do immediately.

    `puller` names the process: while one reads a source, others return False. Raises SourceError, NoRoom, and errors of
    the database; reports that were not filed are then read again.
    """
    now = now or timezone.now()
    adapter = _adapter(source)
    if not _lease(source, puller, now):
        return False
    mine = Source.objects.filter(name=source, puller=puller)
    cursor = mine.values_list("cursor", flat=True)[0]
    ends = time.monotonic() + _ROUND_S
    is_progress = False
    while True:
        pulled = adapter.dead_letters(cursor)
        new, left = _file(pulled.reports)
        left |= {len(pulled.reports) + n for n in _set_aside(source, pulled.unread)}
        if left and adapter.can.follows:  # an event arrives once: if reading waited for these, all others would be lost
            admission.count_dropped(source, len(left))
            left = set()
        if left and not pulled.is_divisible:
            rechecking.recheck(source, adapter, _file)
            rescheduling.carry_out(source, adapter, now)
            raise NoRoom(NO_ROOM.format(len(left)))
        is_progress |= new > 0 or pulled.after != cursor
        if not _move_on(source, mine, pulled):
            return False
        cursor = pulled.after
        if left:
            cast(DivisibleSource, adapter).confirm_in_part(pulled, left)
        else:
            adapter.confirm_filed(pulled)
        if not pulled.is_more or time.monotonic() > ends:
            break
    if pulled.failing:
        _note_failed(source, "; ".join(f"{queue}: {why}" for queue, why in sorted(pulled.failing.items())))
    if not pulled.is_more:
        mine.update(progress_due_at=timezone.now() + timedelta(seconds=adapter.every_s))
        if not pulled.failing:
            mine.update(pulled_at=timezone.now())
    elif is_progress:
        mine.update(progress_due_at=timezone.now())
    rechecking.recheck(source, adapter, _file)
    is_more = rescheduling.carry_out(source, adapter, now) or pulled.is_more
    if not pulled.is_more and not pulled.failing:  # nothing new and no errors: recheck known jobs
        mine.update(why_not_pulled="", not_pulled_since=None)
    return is_more


def _move_on(source: str, mine: QuerySet[Source], pulled: Pulled) -> bool:
    """Store the position and the counts up to it, together.

    A process that lost the lease meanwhile has filed its reports, but must not move the position of the next one.
    """
    if pulled.after == mine.values_list("cursor", flat=True).first() and not pulled.ran:
        return True
    ran = {
        (source, representable(queue)[:200], datetime.fromtimestamp(60 * minute, UTC)): {"succeeded": n}
        for (queue, minute), n in pulled.ran.items()
    }
    with transaction.atomic():
        if not mine.update(cursor=pulled.after):
            return False
        if ran:
            counters.add_queue_counts(ran)
    return True


def _adapter(source: str) -> PulledSource:
    return cast(PulledSource, config.adapter(source))  # only called for sources with `is_pulled`


def _file(reports: Sequence[Envelope]) -> tuple[int, set[int]]:
    """Return the number of new attempts, and the positions of reports that can neither be filed nor stored."""
    new, left = 0, set()
    start, size = 0, 0
    for at, one in enumerate((*reports, None)):
        weight = len(one.raw or b"") if one is not None else 0
        if at > start and (one is None or at - start == _FILED_AT_ONCE or size + weight > _BYTES_AT_ONCE):
            new_here, left_here = _file_part(reports[start:at])
            new, left = new + new_here, left | {start + n for n in left_here}
            start, size = at, 0
        size += weight
    return new, left


def _file_part(reports: Sequence[Envelope]) -> tuple[int, set[int]]:
    try:
        sent = _without_forged(lineages.assign_runs(_seen_jobs(reports)))
        entries = [ingest.Entry(_name(one), encode(one), one.source) for one in sent]
    except Error:
        raise
    except Exception as error:  # one report of a page: those after it are filed nevertheless
        if len(reports) > 1:
            parts = [_file_part([one]) for one in reports]
            return sum(new for new, _ in parts), {n for n, (_, left) in enumerate(parts) if left}
        (one,) = reports
        return 0, _set_aside(one.source, [Unread.from_error(one.queue, one.job_id, one.raw or b"", error)])
    filed = ingest.file(entries, is_trusted=True)
    # Only reports of events, which are not read in pages, were removed above: the positions of all others are
    # unchanged.
    return filed.new_attempts, {n for n, entry in enumerate(entries) if entry.name in filed.left}


def _seen_jobs(reports: Sequence[Envelope]) -> list[Envelope]:
    """Return the reports with their attempt numbers, without those that a worker's guard also reports.

    If a source does not know the attempt (0), it is the next one of a job that waits for a retry, or the first of an
    unknown job; the end of any other job is known.
    """
    if not any(one.is_seen for one in reports):
        return list(reports)
    sources = {one.source for one in reports}
    alive = Worker.objects.filter(source__in=sources, seen_at__gte=timezone.now() - timedelta(seconds=ALIVE_S))
    guarded = set(alive.values_list("source", "name"))
    unsure = [representable(one.job_id)[:255] for one in reports if one.attempt == 0]
    rows = Failure.objects.filter(source__in=sources, job_id__in=unsure) if unsure else Failure.objects.none()
    columns = ("source", "job_id", "state", "attempts", "failed_at")
    known = {(row[0], row[1]): row[2:] for row in rows.values_list(*columns)}
    found = []
    for one in reports:
        if (one.source, one.worker) in guarded:
            continue
        if one.attempt == 0:
            state, attempts, failed_at = known.get((one.source, representable(one.job_id)[:255]), ("", 0, None))
            if state not in ("", FailureState.RETRYING):
                continue
            # The same report again, because those beside it could not be filed. Any other end would have changed the
            # state.
            is_filed = one.kind == "retry" and failed_at is not None and abs(failed_at.timestamp() - one.at) < _SAME_S
            one = replace(one, attempt=attempts if is_filed else attempts + 1)
        state = FailureState.RETRYING if one.kind == "retry" else FailureState.DEAD
        known[one.source, representable(one.job_id)[:255]] = (state, one.attempt, None)
        found.append(one)
    return found


def _without_forged(reports: Sequence[Envelope]) -> list[Envelope]:
    """Return the reports without those of events about jobs that a guard reported, if the guard has to sign.

    Anyone who can publish to the broker can publish events: for such a job they prove no more than an unsigned report.
    """
    trusted, now = trust.current(), timezone.now()
    closed = {one.source for one in reports if one.is_seen and trusted.why_not_unsigned(one.source, now)}
    if not closed:
        return list(reports)
    ids = [representable(one.job_id)[:255] for one in reports if one.source in closed]
    rows = Failure.objects.filter(source__in=closed, job_id__in=ids).values_list("source", "job_id", "caveats")
    guarded = {(source, job_id) for source, job_id, caveats in rows if not (caveats or 0) & Caveat.SEEN}
    return [
        one
        for one in reports
        if not (one.is_seen and one.source in closed)
        or (one.lineage is None and (one.source, representable(one.job_id)[:255]) not in guarded)
    ]


def _set_aside(source: str, unread: Sequence[Unread]) -> set[int]:
    """Store them raw as unfiled, each once. Return the positions of those for which there is no room."""
    left = set()
    for n, one in enumerate(unread):
        name = "\0".join((source, one.queue, one.job_id)).encode("utf-8", "surrogatepass")
        entry = b"read-" + hashlib.sha256(name + b"\0" + one.raw).hexdigest()[:32].encode()
        if not ingest.set_aside((entry, {b"raw": one.raw}, source), f"{source}: {one.why}"):
            left.add(n)
    return left


def _name(report: Envelope) -> bytes:
    """Return a stable name for a report that is stored raw. Without a job ID, it is derived from the message."""
    run = report.lineage.run if report.lineage else 1
    job = report.job_id or report.raw_sha256
    text = "\0".join((report.source, report.queue, job, str(run), str(report.attempt), report.kind))
    return b"pull-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()


def _lease(source: str, puller: str, now: datetime) -> bool:
    """Acquire or renew the lease on this source. Return whether this process has it."""
    Source.objects.get_or_create(
        name=source, defaults={"backend": config.sources()[source].backend, "is_configured": True}
    )
    holder = Source.objects.values_list("puller", flat=True).get(name=source)
    free = Q(puller_until__isnull=True) | Q(puller_until__lt=now)
    if holder == puller or _has_ended(holder):
        free |= Q(puller=holder)
    taken = Source.objects.filter(free, name=source)
    return bool(taken.update(puller=puller, puller_until=now + _LEASE))


def _has_ended(puller: str) -> bool:
    """Return whether it was an ended process of this machine: then a restarted `watch` need not wait for its lease."""
    host, _, pid = puller.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # it is alive, and belongs to another user
    return False


def _note_failed(source: str, why: str) -> None:
    try:
        with transaction.atomic():
            rows = Source.objects.filter(name=source)
            rows.filter(not_pulled_since=None).update(not_pulled_since=timezone.now())
            rows.update(why_not_pulled=representable(why)[:2000])
    except Error as error:
        log.debug("That source %s is not read could not be noted: %s", source, error)  # a later round records it
