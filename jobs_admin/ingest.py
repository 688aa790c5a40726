"""Stream -> failures, attempts, groups, counters. Nothing is taken off the stream before it is committed."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import redis
from django.db import DataError, Error, IntegrityError, OperationalError, connection, transaction
from django.utils import timezone

from jobs_admin import config, filing, rules_in_force, suspects
from jobs_admin.core import keys
from jobs_admin.core.envelope import Unreadable
from jobs_admin.core.fingerprint import Rules
from jobs_admin.core.stream import weight, with_counted
from jobs_admin.core.text import representable
from jobs_admin.models import Unfiled
from jobs_admin.reconcile import reconcile
from jobs_admin.report import NotOurs, Report, read
from jobs_admin.turns import turn

__all__ = ["Filed", "file", "reconcile", "set_aside", "step"]

log = logging.getLogger(__name__)

GROUP = "ingest"
_BATCH = 500
_BYTES_AT_ONCE = 32 * 2**20
# Of a transaction, more or less: others wait for it on SQLite, and never for over 200 ms (design.md, law 5).
_TRANSACTION_S = 0.1
_MOST_STACKS = 10_000
# An entry that a process took and did not finish for so long belongs to whoever asks next.
_ABANDONED_S = 30
_FORGOTTEN_S = 86_400
_FAILURES = 3  # of writing a batch, until its reports are tried in halves

# Names the lock under which reports are written (PostgreSQL's advisory locks are numbers).
_WRITE_LOCK = 0x7265_6472_6976_6501

_DONE = with_counted((Path(__file__).parent / "ingest_done.lua").read_text())

Entry = tuple[bytes, dict[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Filed:
    new_failures: int = 0
    new_attempts: int = 0
    unfiled: int = 0

    def __add__(self, other: Filed) -> Filed:
        return Filed(
            self.new_failures + other.new_failures,
            self.new_attempts + other.new_attempts,
            self.unfiled + other.unfiled,
        )


_Told = tuple[Report, dict[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class _Batch:
    reports: list[_Told] = field(default_factory=list)
    refused: list[tuple[bytes, dict[bytes, bytes], str]] = field(default_factory=list)  # with the reason


@dataclass(slots=True)
class _Reading:
    """What this process remembers between batches."""

    claimed_at: float = -1e9  # monotonic
    # One, until it is known how large they are: a process that ran out of memory must not be followed by the same.
    count: int = 1
    finished: set[str] = field(default_factory=set)  # consumers that took nothing which they did not acknowledge
    most: int = _BATCH  # as many as are written in the time that a transaction may last
    stacks: set[str] = field(default_factory=set)  # hashes of those that were read
    failed: Counter[bytes] = field(
        default_factory=Counter
    )  # entries -> batches with them that could not be written, in a row


_reading = _Reading()


def step(consumer: str, now: datetime | None = None, *, wait_s: float = 0.1) -> bool:
    """Read one batch from the stream and file it; True if there was something.

    `consumer` names the process, and the one that takes its place should it die: what that left is done first.
    Waits up to `wait_s` for the first entry. Raises what Redis or the database raise when they are away: nothing is
    acknowledged then, and the same entries come again.
    """
    store = config.store()
    entries = _take(store, consumer, wait_s)
    if not entries:
        return False
    is_again = consumer not in _reading.finished
    _reading.finished.discard(consumer)
    whole = [(entry_id, fields) for entry_id, fields in entries if fields]
    now = now or timezone.now()
    rules = rules_in_force.current()  # asked here: a database that is away makes no entry suspect
    _put(suspects.watched(store, consumer, whole, lambda some: _read(some, now, rules), _left_out), now)
    _done(store, entries)
    if not is_again:  # else there may be more of it: a process asks for one at first, and its forerunner took a batch
        _reading.finished.add(consumer)
    return True


def _done(store: redis.Redis, entries: Sequence[Entry]) -> None:
    """They leave the stream. What another process took over and was quicker with has left it already, and is counted off once."""
    said: list[Any] = [GROUP]
    for entry_id, fields in entries:
        said += [entry_id, weight(fields or {})]
    store.register_script(_DONE)(keys=[keys.failures(), keys.failures_bytes()], args=said)


def _take(store: redis.Redis, consumer: str, wait_s: float) -> list[Entry]:
    try:
        if consumer not in _reading.finished:
            # A batch that failed, or one that a process of this name took before it was killed.
            again: Any = store.xreadgroup(GROUP, consumer, {keys.failures(): "0"}, count=_reading.count)
            if again and again[0][1]:
                return _measured(list(again[0][1]))
            _reading.finished.add(consumer)
        if time.monotonic() - _reading.claimed_at > _ABANDONED_S:
            abandoned = _claim(store, consumer)
            if abandoned:
                return _measured(abandoned)
            _reading.claimed_at = time.monotonic()
            _forget_consumers(store)
        # BLOCK 0 would be for ever.
        answer: Any = store.xreadgroup(
            GROUP, consumer, {keys.failures(): ">"}, count=_reading.count, block=max(1, round(wait_s * 1000))
        )
    except redis.ResponseError as error:
        if not str(error).startswith("NOGROUP"):
            raise
        _make_group(store)  # the first time, or the store came back empty
        return []
    return _measured(answer[0][1]) if answer else []


def _measured(entries: list[Entry]) -> list[Entry]:
    """The same; the next batch is few large ones or many small ones, so that it stays within memory and time."""
    size = sum(len(value) for _, fields in entries for value in (fields or {}).values()) / len(entries)
    _reading.count = int(max(1, min(_reading.most, _BYTES_AT_ONCE // max(size, 1))))
    return entries


def _claim(store: redis.Redis, consumer: str) -> list[Entry]:
    """Entries that another process took and did not finish: it died, or hangs."""
    answer: Any = store.xautoclaim(keys.failures(), GROUP, consumer, _ABANDONED_S * 1000, "0-0", count=_reading.count)
    return [(entry_id, fields or {}) for entry_id, fields in answer[1] if entry_id is not None]


def _forget_consumers(store: redis.Redis) -> None:
    """Names of processes that ended long ago and hold nothing."""
    consumers: Any = store.xinfo_consumers(keys.failures(), GROUP)
    for known in consumers:
        if known["pending"] == 0 and known["idle"] > _FORGOTTEN_S * 1000:
            store.xgroup_delconsumer(keys.failures(), GROUP, known["name"])


def _make_group(store: redis.Redis) -> None:
    try:
        store.xgroup_create(keys.failures(), GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):  # another process was first
            raise


def file(entries: Sequence[Entry], now: datetime | None = None) -> Filed:
    """Put the entries into the tables, all of them: what cannot be filed is kept raw as Unfiled, with the reason.

    Idempotent. Raises OperationalError when the database is away; the entries before that are then filed or not, and
    giving all of them again is right.
    """
    now = now or timezone.now()
    return _put([_read(entries, now, rules_in_force.current())], now)


def set_aside(entry: Entry, why: str, now: datetime | None = None) -> None:
    """Keep an entry raw that cannot be read, with the reason; once, however often it is tried."""
    _keep_raw(*entry, why, now or timezone.now())


def _read(entries: Sequence[Entry], now: datetime, rules: Rules) -> _Batch:
    """What the entries say. Asks neither database nor store: how this ends depends on the entries alone."""
    batch = _Batch()
    # Encrypted here, before the transaction: on SQLite everybody else's writes wait for its end.
    seal = config.payload_keys().encrypt
    if len(_reading.stacks) > _MOST_STACKS:
        _reading.stacks.clear()
    for entry_id, fields in entries:
        try:
            report = read(entry_id, fields, now, seal, rules, _reading.stacks)
            batch.reports.append((report, fields))
            _reading.stacks.add(report.stack_sha256)
        except (NotOurs, Unreadable) as error:
            batch.refused.append((entry_id, fields, str(error)))
        except Exception as error:
            # One item of a loop: whatever an entry does to its reader, the entries behind it must land. It is
            # kept raw and counted there like the others; the trace is for us, since this is a fault of the reader.
            log.exception("Reading a report (%s) failed.", entry_id.decode("ascii", "replace"))
            batch.refused.append((entry_id, fields, f"reading it failed: {type(error).__name__}: {error}"))
    return batch


def _left_out(entry: Entry, why: str) -> _Batch:
    return _Batch(refused=[(*entry, why)])


def _put(batches: Iterable[_Batch], now: datetime) -> Filed:
    filed, reports = Filed(), []
    for batch in batches:
        reports += batch.reports
        for entry_id, fields, why in batch.refused:
            filed += _keep_raw(entry_id, fields, why, now)
    return filed + _file(reports, now)


def _file(reports: Sequence[_Told], now: datetime) -> Filed:
    """Write the reports in one transaction. Where the database refuses a row, or writing failed for another reason three
    times, halve them until the report stands alone: it is kept raw.
    """
    if not reports:
        return Filed()
    try:
        written = _write([report for report, _ in reports], now)
        if _reading.failed:
            for report, _ in reports:
                _reading.failed.pop(report.entry_id, None)
        return Filed(written.failures, written.attempts)
    except Exception as error:
        is_refusal = _is_refusal(error)
        if not is_refusal and not _failed_often(reports, error):
            raise
        if len(reports) == 1:
            report, fields = reports[0]
            if is_refusal:
                return _keep_raw(report.entry_id, fields, f"the database refused it: {error}", now)
            log.exception("Writing a report (%s) failed.", report.entry_id.decode("ascii", "replace"))
            return _keep_raw(report.entry_id, fields, f"writing it failed: {type(error).__name__}: {error}", now)
    half = len(reports) // 2
    return _file(reports[:half], now) + _file(reports[half:], now)


def _failed_often(reports: Sequence[_Told], error: Exception) -> bool:
    """Return whether one of them was in a batch that could not be written `_FAILURES` times, through no fault of a server."""
    if isinstance(error, Error | redis.RedisError | OSError):
        return False  # away: nothing is said about the reports
    _reading.failed.update(report.entry_id for report, _ in reports)
    return max(_reading.failed[report.entry_id] for report, _ in reports) >= _FAILURES


def _write(reports: list[Report], now: datetime) -> filing.Written:
    for tries_left in (2, 1, 0):
        try:
            with turn():
                with transaction.atomic():
                    _write_alone()
                    began = time.monotonic()
                    written = filing.write(reports, now)
                _reading.most = _fitting(len(reports), time.monotonic() - began)
                return written
        except OperationalError as error:
            # Two transactions locked each other out and PostgreSQL ended this one: nothing was written.
            if not tries_left or _sqlstate(error) not in {"40P01", "40001"}:
                raise


def _fitting(count: int, took_s: float) -> int:
    """As many reports as would have been written in the time that a transaction may last."""
    return int(min(_BATCH, max(_BATCH // 10, count * _TRANSACTION_S / max(took_s, 1e-6))))


def _write_alone() -> None:
    """One process writes reports at a time, until its transaction ends, as is so on SQLite anyway.

    Ids then rise in the order of commits: a replay's scope ("up to this id") can gain nothing afterwards, and a list has
    no late arrivals below its first row. What takes long, reading and encrypting, is done before.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_WRITE_LOCK])


def _sqlstate(error: Exception) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""


def _is_refusal(error: Exception) -> bool:
    """Whether the database answered no to a value, rather than not at all."""
    if isinstance(error, OperationalError):
        # PostgreSQL: class 54 is "program limit exceeded" (a value too large for an index).
        return _sqlstate(error).startswith("54")
    return isinstance(error, DataError | IntegrityError | ValueError | OverflowError) or "bind" in str(error).lower()


def _keep_raw(entry_id: bytes, fields: dict[bytes, bytes], why: str, now: datetime) -> Filed:
    whole = json.dumps({k.decode("latin-1"): base64.b64encode(v).decode() for k, v in fields.items()}).encode()
    _, is_new = Unfiled.objects.get_or_create(
        entry_id=entry_id.decode("ascii", "replace")[:40],
        defaults={
            "received_at": now,
            "why": representable(why)[:2000],
            "body": config.payload_keys().encrypt(whole),
            "size": sum(len(v) for v in fields.values()),
        },
    )
    if not is_new:  # it was tried again: what is said of it is what keeps it from being filed now
        Unfiled.objects.filter(entry_id=entry_id.decode("ascii", "replace")[:40]).update(why=representable(why)[:2000])
    if is_new:
        log.warning(
            "A report (%s) could not be filed and is kept raw: %s", entry_id.decode("ascii", "replace"), why[:300]
        )
    return Filed(unfiled=int(is_new))
