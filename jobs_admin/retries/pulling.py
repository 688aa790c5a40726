"""Dead letters of the systems that keep them themselves: read and filed, a thread for each source, so that none waits for another.

What is read goes straight into the tables, and only then is the place remembered up to where it was read: whoever dies between
leaves nothing out, and what is read again changes nothing. The step `pull` of `watch`.
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
from jobs_admin.sources.base import Pulled, PulledSource, SourceError, Unread

log = logging.getLogger(__name__)

_LEASE = timedelta(seconds=30)
_ROUND_S = 2.0  # then the lease is taken anew
# Of one transaction: on SQLite nobody else writes meanwhile.
_FILED_AT_ONCE = 100  # reports
_BYTES_AT_ONCE = 2_000_000  # of their messages; one that is larger goes by itself
_LOOK_UP_S = 2.0  # of a long rest
_SAME_S = 0.001  # in which two reports without a number are the same attempt
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0


def step(name: str) -> bool:
    """Sees to it that each such source is read, by a thread of this process. Never finds more to do at once (False)."""
    for source in config.sources():
        thread = _threads.get(source)
        if _is_pulled(source) and (thread is None or not thread.is_alive()):
            _threads[source] = threading.Thread(target=_go_on, args=(source,), daemon=True, name=f"pull {source}")
            _threads[source].start()
    return False


def _is_pulled(source: str) -> bool:
    try:
        return config.is_pulled(source)
    except Exception:  # a defect of one adapter must not keep the others unread
        log.exception("Source %s cannot be read", source)
        return False


_threads: dict[str, threading.Thread] = {}


def _go_on(source: str) -> None:
    """Round after round; ends with its process, or where the source is taken out. One that hangs delays no other source, and its
    lease passes on.
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
        except (SourceError, Error) as error:  # the source, the database: away for now
            why = str(error) or type(error).__name__
        except Exception as error:  # one round must not end the others; it is shown
            why = f"{type(error).__name__}: {error}"
            if why != text:
                log.exception("Source %s: its dead letters cannot be read.", source)
        if why:
            if why != text:
                log.warning("Source %s: its dead letters are not read: %s", source, why)
            connections.close_all()  # the next round dials anew
            _note_failed(source, why)
            connections.close_all()
            wait_s = pauses.failed()
        text = why
        _rest(source, wait_s)


def _rest(source: str, wait_s: float) -> None:
    """Wait until it is read again, or a reschedule of its retries is requested."""
    ends = time.monotonic() + wait_s
    while (left_s := ends - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_UP_S))
        try:
            if left_s > _LOOK_UP_S and rescheduling.is_planned(source):
                return
        except Error:
            connections.close_all()


def pull(source: str, puller: str, now: datetime | None = None) -> bool:
    """One round: what is new is filed, and some of what is known is asked for again. True if there may be more at once.

    `puller` names the process: while one reads a source, no other does (False). Raises SourceError, and what the database raises:
    what was not filed then comes again.
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
        is_progress |= _file(pulled.reports) > 0 or pulled.after != cursor
        _set_aside(source, pulled.unread)
        if not _move_on(source, mine, pulled):
            return False
        cursor = pulled.after
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
    if not pulled.is_more and not pulled.failing:  # and its known jobs could be asked about
        mine.update(why_not_pulled="", not_pulled_since=None)
    return is_more


def _move_on(source: str, mine: QuerySet[Source], pulled: Pulled) -> bool:
    """The place, and what was counted up to it, together. Who lost the lease meanwhile has filed what it read, and must not move the
    other one's place."""
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
    return cast(PulledSource, config.adapter(source))  # asked only of those that `is_pulled`


def _file(reports: Sequence[Envelope]) -> int:
    """Return how many attempts are new."""
    new = 0
    part: list[Envelope] = []
    size = 0
    for one in reports:
        if part and (len(part) == _FILED_AT_ONCE or size + len(one.raw or b"") > _BYTES_AT_ONCE):
            new += _file_part(part)
            part, size = [], 0
        part.append(one)
        size += len(one.raw or b"")
    return new + (_file_part(part) if part else 0)


def _file_part(reports: Sequence[Envelope]) -> int:
    try:
        entries = [(_name(one), encode(one)) for one in _without_forged(lineages.assign_runs(_seen_jobs(reports)))]
    except Error:
        raise
    except Exception as error:  # one report of a page: those behind it are filed all the same
        if len(reports) > 1:
            return sum(_file_part([one]) for one in reports)
        (one,) = reports
        _set_aside(one.source, [Unread.from_error(one.queue, one.job_id, one.raw or b"", error)])
        return 0
    return ingest.file(entries, is_trusted=True).new_attempts


def _seen_jobs(reports: Sequence[Envelope]) -> list[Envelope]:
    """The reports, without those of workers whose guard reports the same; each with its attempt.

    Where a source could not say which attempt it was (0), it is the next one of a job that waits for a retry, or the first of an
    unknown job; of any other job the end is known.
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
            # The same report again, where those beside it could not be filed. Any other end would have changed the state.
            is_filed = one.kind == "retry" and failed_at is not None and abs(failed_at.timestamp() - one.at) < _SAME_S
            one = replace(one, attempt=attempts if is_filed else attempts + 1)
        state = FailureState.RETRYING if one.kind == "retry" else FailureState.DEAD
        known[one.source, representable(one.job_id)[:255]] = (state, one.attempt, None)
        found.append(one)
    return found


def _without_forged(reports: Sequence[Envelope]) -> list[Envelope]:
    """The reports, without those of events about jobs that a guard reported, where a guard has to sign.

    Whoever may publish to the broker may publish events: they say of such a job no more than an unsigned report might.
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


def _set_aside(source: str, unread: Sequence[Unread]) -> None:
    """Keep them raw among what could not be filed, each once."""
    for one in unread:
        name = "\0".join((source, one.queue, one.job_id)).encode("utf-8", "surrogatepass")
        entry = b"read-" + hashlib.sha256(name + b"\0" + one.raw).hexdigest()[:32].encode()
        ingest.set_aside((entry, {b"raw": one.raw}), f"{source}: {one.why}")


def _name(report: Envelope) -> bytes:
    """Return the name of a report that is stored raw: the same whenever it is read."""
    run = report.lineage.run if report.lineage else 1
    text = "\0".join((report.source, report.queue, report.job_id, str(run), str(report.attempt), report.kind))
    return b"pull-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()


def _lease(source: str, puller: str, now: datetime) -> bool:
    """Be the one that reads this source for a while."""
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
    """Return whether it was a process of this machine that has ended: a restarted watch need not wait for its lease."""
    host, _, pid = puller.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # it lives, and is somebody else's
    return False


def _note_failed(source: str, why: str) -> None:
    try:
        with transaction.atomic():
            rows = Source.objects.filter(name=source)
            rows.filter(not_pulled_since=None).update(not_pulled_since=timezone.now())
            rows.update(why_not_pulled=representable(why)[:2000])
    except Error as error:
        log.debug("That source %s is not read could not be noted: %s", source, error)  # a later round does
