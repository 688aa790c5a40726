"""Ingest: streams -> failures, attempts, groups, counters. An entry is removed from its stream only after the commit.

Each source has a stream, which determines the source of its reports. Streams are read in turn, so that a flood of one
source delays the reports of others by at most one batch.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import redis
from django.db import DataError, Error, IntegrityError, OperationalError, transaction
from django.utils import timezone

from jobs_admin import config, trust
from jobs_admin.core import keys
from jobs_admin.core.envelope import Unreadable
from jobs_admin.core.fingerprint import Rules
from jobs_admin.core.stream import weight, with_counted
from jobs_admin.db import grouping_rules
from jobs_admin.db.turns import lock_writers, turn
from jobs_admin.fleet import worker_store
from jobs_admin.ingest import filing, suspects
from jobs_admin.ingest.lost_jobs import reconcile
from jobs_admin.ingest.report import NotOurs, Report, parse_report
from jobs_admin.trust import Cause, ReportRefused, Trust, admission
from jobs_admin.trust.admission import RefusedEntry

__all__ = ["Filed", "file", "reconcile", "set_aside", "step"]

log = logging.getLogger(__name__)

GROUP = "ingest"
_BATCH = 500
_BYTES_AT_ONCE = 8 * 2**20  # read in one step of the store, which blocks its other clients
# Target duration of a transaction: others wait for it on SQLite, and never for over 200 ms.
_TRANSACTION_S = 0.1
_MOST_STACKS = 10_000
# Entries that a process claimed and did not finish within this time can be claimed by another process.
_ABANDONED_S = 30
_FORGOTTEN_S = 86_400
# Entries that can be neither filed nor stored stay in their stream, assigned to this consumer, and are retried with the
# abandoned ones. A stream with this many of them is not read further.
_LEFT = "unfiled"
_MOST_LEFT = 200
_FAILURES = 3  # failed writes of a batch after which its reports are retried in halves

# PostgreSQL's error codes for a transaction that failed because of another one: a deadlock, a serialization failure, or
# a referenced row that was pruned meanwhile.
_CONFLICTS = {"40P01", "40001", "23503"}

_TAKE_SCRIPT = (Path(__file__).parent / "ingest_take.lua").read_text()
_ACKNOWLEDGE_SCRIPT = with_counted((Path(__file__).parent / "ingest_done.lua").read_text())


class Entry(NamedTuple):
    """An unparsed report."""

    entry_id: bytes
    fields: dict[bytes, bytes]
    source: str = ""  # the source of its stream; "" if the report itself names its source

    @property
    def name(self) -> str:
        """Name unique among the entries of all streams; at most 104 characters."""
        entry_id = self.entry_id.decode("ascii", "replace")[:40]
        return f"{self.source}/{entry_id}" if self.source else entry_id

    @classmethod
    def of_name(cls, name: str, fields: dict[bytes, bytes]) -> Entry:
        source, _, entry_id = name.rpartition("/")
        return cls(entry_id.encode(), fields, source)


@dataclass(frozen=True, slots=True)
class Filed:
    new_failures: int = 0
    new_attempts: int = 0
    unfiled: int = 0
    known_unfiled: int = 0  # already stored as unfiled before
    left: frozenset[str] = frozenset()  # names of entries that are neither filed nor stored

    def __add__(self, other: Filed) -> Filed:
        return Filed(
            self.new_failures + other.new_failures,
            self.new_attempts + other.new_attempts,
            self.unfiled + other.unfiled,
            self.known_unfiled + other.known_unfiled,
            self.left | other.left,
        )


_EntryReport = tuple[Report, Entry]


@dataclass(frozen=True, slots=True)
class _Batch:
    reports: list[_EntryReport] = field(default_factory=list)
    unread: list[tuple[Entry, str]] = field(default_factory=list)  # with the reason
    refused: list[tuple[Entry, ReportRefused]] = field(default_factory=list)


@dataclass(slots=True)
class _Reading:
    """State of this process between batches."""

    claimed_at: float = -1e9  # by the monotonic clock
    # One at first, so that a process that ran out of memory is not followed by another.
    count: int = 1
    turn: int = 0  # index of the first stream to read
    finished: set[str] = field(default_factory=set)  # consumers without unacknowledged entries
    most: int = _BATCH  # number of reports that can be written within a transaction's target duration
    left: Counter[str] = field(default_factory=Counter)  # source -> entries left in its stream, as last counted
    stacks: set[str] = field(default_factory=set)  # hashes of stacks already read
    failed: Counter[str] = field(default_factory=Counter)  # entry -> consecutive failed batches that contained it


_reading = _Reading()


def step(consumer: str, now: datetime | None = None, *, wait_s: float = 0.1) -> bool:
    """Read one batch from the streams and file it. Return True if there was one.

    `consumer` names the process, and its successor if it dies: entries that the process left are filed first. Waits up
    to `wait_s` for the first entry. Raises the errors of Redis or the database if they are unreachable; then nothing is
    acknowledged, and the same entries are read again.
    """
    store = config.store()
    entries = _next_entries(store, consumer, wait_s)
    if not entries:
        return False
    is_again = consumer not in _reading.finished
    _reading.finished.discard(consumer)
    with_fields = [entry for entry in entries if entry.fields]
    now = now or timezone.now()
    # Read outside of the protected part, so that an unreachable database does not make entries suspect.
    rules, trusted = grouping_rules.current(), trust.current()
    filed = _file_batches(
        suspects.read_entries(
            store, consumer, with_fields, lambda some: _parse_entries(some, now, rules, trusted), _excluded_batch
        ),
        now,
    )
    _acknowledge(store, [entry for entry in entries if entry.name not in filed.left])
    _leave(store, [entry for entry in entries if entry.name in filed.left])
    if not is_again:  # otherwise more may remain: a process reads a single entry at first, its predecessor a full batch
        _reading.finished.add(consumer)
    return True


def streams(store: redis.Redis) -> dict[str, str]:
    """Return the streams of reports: key -> source, "" for the stream that guards of the previous version share."""
    return {keys.failures(source): source for source in worker_store.all_sources(store)} | {keys.shared("failures"): ""}


def _leave(store: redis.Redis, entries: Sequence[Entry]) -> None:
    """Leave entries in their streams, assigned to a separate consumer."""
    if not entries:
        return
    pipeline = store.pipeline(transaction=False)
    for entry in entries:
        pipeline.xclaim(_stream_of(entry.source), GROUP, _LEFT, 0, [entry.entry_id], justid=True)
        _reading.left[entry.source] += 1
    pipeline.execute()


def _stream_of(source: str) -> str:
    return keys.failures(source) if source else keys.shared("failures")


def _acknowledge(store: redis.Redis, entries: Sequence[Entry]) -> None:
    """Remove entries from their streams. Entries that another process has already removed are not subtracted again."""
    by_source: dict[str, list[Any]] = {}
    for entry in entries:
        by_source.setdefault(entry.source, [GROUP]).extend((entry.entry_id, weight(entry.fields)))
    done, pipeline = store.register_script(_ACKNOWLEDGE_SCRIPT), store.pipeline(transaction=False)
    for source, arguments in by_source.items():
        stream = _stream_of(source)
        count = keys.failures_bytes(source) if source else keys.shared("failures:bytes")
        done(keys=[stream, count], args=arguments, client=pipeline)
    pipeline.execute()


def _next_entries(store: redis.Redis, consumer: str, wait_s: float) -> list[Entry]:
    among = streams(store)
    if consumer not in _reading.finished:
        # A failed batch, or one that a killed process of this name had claimed.
        if again := _read_streams(store, among, consumer, "0"):
            return again
        _reading.finished.add(consumer)
    if time.monotonic() - _reading.claimed_at > _ABANDONED_S:
        if _claim_abandoned(store, among, consumer):
            _reading.left.clear()  # the claimed entries include these
            _reading.finished.discard(consumer)
            return _read_streams(store, among, consumer, "0")
        _reading.claimed_at = time.monotonic()
        _forget_consumers(store, among)
    among = {stream: source for stream, source in among.items() if _reading.left[source] < _MOST_LEFT}
    if not among:
        time.sleep(wait_s)
        return []
    if new := _read_streams(store, among, consumer, ">"):
        return new
    _wait_for_entry(store, among, wait_s)
    return _read_streams(store, among, consumer, ">")


def _read_streams(store: redis.Redis, among: dict[str, str], consumer: str, which: str) -> list[Entry]:
    """Return entries of these streams in turn, limited in number and bytes.

    `which`: `>` for new ones, `0` for claimed ones.
    """
    names = list(among)
    first = _reading.turn % len(names)
    names = names[first:] + names[:first]
    _reading.turn += 1  # each stream gets a turn, even if a batch has fewer entries than there are streams
    arguments = [GROUP, consumer, which, _reading.count, _BYTES_AT_ONCE]
    answer: Any = store.register_script(_TAKE_SCRIPT)(keys=names, args=arguments)
    if answer:
        _reading.count = _reading.most
    return [
        Entry(entry_id, dict(zip(fields[::2], fields[1::2], strict=True)), among[names[stream - 1]])
        for stream, entry_id, fields in answer
    ]


def _wait_for_entry(store: redis.Redis, among: dict[str, str], wait_s: float) -> None:
    """Wait until an entry is written to one of the streams, at most `wait_s`."""
    try:
        # BLOCK 0 would wait forever.
        store.xread(dict.fromkeys(among, "$"), count=1, block=max(1, round(wait_s * 1000)))
    except redis.ResponseError:  # one of the keys is not a stream
        time.sleep(wait_s)


def _claim_abandoned(store: redis.Redis, among: Iterable[str], consumer: str) -> bool:
    """Claim entries that another process claimed and did not finish, because it died or hangs.

    Return whether there were any.
    """
    pipeline = store.pipeline(transaction=False)
    for stream in among:
        pipeline.xautoclaim(stream, GROUP, consumer, _ABANDONED_S * 1000, "0-0", count=_reading.most, justid=True)
    return any(answer for answer in _pipeline_answers(pipeline) if answer)


def _forget_consumers(store: redis.Redis, among: dict[str, str]) -> None:
    """Delete consumers of processes that ended long ago and have no entries. Count the entries that are left."""
    pipeline = store.pipeline(transaction=False)
    names = list(among)
    for stream in names:
        pipeline.xinfo_consumers(stream, GROUP)
    for stream, consumers in zip(names, _pipeline_answers(pipeline), strict=True):
        _reading.left[among[stream]] = 0  # also if the stream or its group is gone
        for known in consumers or ():
            if known["name"] == _LEFT.encode():
                _reading.left[among[stream]] = known["pending"]
            if known["pending"] == 0 and known["idle"] > _FORGOTTEN_S * 1000:
                store.xgroup_delconsumer(stream, GROUP, known["name"])


def _pipeline_answers(pipeline: Any) -> list[Any]:
    """Return the answers; None for a stream that does not exist, has no group, or is another type."""
    return [
        None if isinstance(answer, redis.ResponseError) else answer for answer in pipeline.execute(raise_on_error=False)
    ]


def file(entries: Iterable[tuple[Any, ...]], now: datetime | None = None, *, is_trusted: bool = False) -> Filed:
    """File the entries: (id, fields, and the source of their stream if there is one).

    An entry that cannot be filed is stored raw as Unfiled, with the reason. If there is no room for it, its name is in
    `Filed.left`, and it has to stay in its stream.

    `is_trusted`: the desk itself read the entries in their source, or an operator accepted them; no signature is
    needed. Idempotent. Raises OperationalError if the database is unreachable; some entries may be filed by then, and
    it is safe to file all of them again.
    """
    now = now or timezone.now()
    trusted = None if is_trusted else trust.current()
    return _file_batches(
        [_parse_entries([Entry(*entry) for entry in entries], now, grouping_rules.current(), trusted)], now
    )


def set_aside(entry: tuple[Any, ...], why: str, now: datetime | None = None) -> bool:
    """Store an unreadable entry raw with the reason, once for all attempts. Return False if there is no room."""
    return not _store_raw(Entry(*entry), why, now or timezone.now()).left


def _parse_entries(entries: Sequence[Entry], now: datetime, rules: Rules, trusted: Trust | None) -> _Batch:
    """Parse the entries. Reads neither database nor store: the result depends on the entries alone."""
    batch = _Batch()
    # Encrypted before the transaction: on SQLite all other writers wait for its end.
    seal = config.payload_keys().encrypt
    if len(_reading.stacks) > _MOST_STACKS:
        _reading.stacks.clear()
    for entry in entries:
        try:
            report = parse_report(
                entry.entry_id, entry.fields, now, seal, rules, _reading.stacks, entry.source, trusted
            )
            batch.reports.append((report, entry))
            _reading.stacks.add(report.stack_sha256)
        except ReportRefused as refused:
            batch.refused.append((entry, refused))
        except (NotOurs, Unreadable) as error:
            batch.unread.append((entry, str(error)))
        except Exception as error:
            # One item of a loop: whatever an entry does to the parser, the entries after it must be filed. It is stored
            # raw and counted like others; the traceback is logged, because this is a bug in the parser.
            log.exception("Reading a report (%s) failed.", entry.name)
            batch.unread.append((entry, f"reading it failed: {type(error).__name__}: {error}"))
    return batch


def _excluded_batch(entry: Entry, why: str) -> _Batch:
    return _Batch(unread=[(entry, why)])


def _file_batches(batches: Iterable[_Batch], now: datetime) -> Filed:
    filed, reports = Filed(), []
    for batch in _admit_sources(list(batches), now):
        reports += batch.reports
        unread = [_unfiled_entry(*one) for one in batch.unread]
        filed += _store_refused([*unread, *(_refused_entry(*one) for one in batch.refused)], now)
    return filed + _file_reports(reports, now)


def _admit_sources(batches: list[_Batch], now: datetime) -> list[_Batch]:
    """Return the batches, after parsing again the entries of unknown sources that are accepted automatically."""
    unknown = {refused.source for batch in batches for _, refused in batch.refused if refused.cause == Cause.UNKNOWN}
    accepted = admission.accept_first(unknown, now) if unknown else set()
    if not accepted:
        return batches
    again = [entry for batch in batches for entry, refused in batch.refused if refused.source in accepted]
    for batch in batches:
        batch.refused[:] = [one for one in batch.refused if one[1].source not in accepted]
    return [*batches, _parse_entries(again, now, grouping_rules.current(), trust.current())]


def _refused_entry(entry: Entry, refused: ReportRefused) -> RefusedEntry:
    return RefusedEntry(entry.name, refused.source, refused.cause, str(refused), entry.fields)


def _store_refused(refused: Sequence[RefusedEntry], now: datetime) -> Filed:
    """Store refused entries. If that fails although the database answers, halve them down to single entries.

    A single entry that cannot be stored is given up, so that it delays no other.
    """
    if not refused:
        return Filed()
    try:
        return _filed_of(admission.store(refused, now))
    except Exception as error:
        if isinstance(error, Error | redis.RedisError | OSError) and not _is_refusal(error):
            raise
        if len(refused) == 1:
            log.exception("A report (%s) that is not filed could not be stored.", refused[0].entry_id)
            return _filed_of(admission.drop(refused[0], now))
    half = len(refused) // 2
    return _store_refused(refused[:half], now) + _store_refused(refused[half:], now)


def _filed_of(stored: admission.Stored) -> Filed:
    return Filed(unfiled=stored.new, known_unfiled=stored.known, left=stored.left)


def _file_reports(reports: Sequence[_EntryReport], now: datetime) -> Filed:
    """Write the reports in one transaction.

    If the database refuses a row, or writing fails three times for another reason, halve them down to single reports. A
    single report that cannot be written is stored raw.
    """
    if not reports:
        return Filed()
    try:
        written = _write_reports([report for report, _ in reports], now)
        if _reading.failed:
            for _, entry in reports:
                _reading.failed.pop(entry.name, None)
        return Filed(written.failures, written.attempts)
    except Exception as error:
        is_refusal = _is_refusal(error)
        if not is_refusal and not _has_failed_often(reports, error):
            raise
        if len(reports) == 1:
            _, entry = reports[0]
            if is_refusal:
                return _store_raw(entry, f"the database refused it: {error}", now)
            log.exception("Writing a report (%s) failed.", entry.name)
            return _store_raw(entry, f"writing it failed: {type(error).__name__}: {error}", now)
    half = len(reports) // 2
    return _file_reports(reports[:half], now) + _file_reports(reports[half:], now)


def _has_failed_often(reports: Sequence[_EntryReport], error: Exception) -> bool:
    """Return whether one of them was in `_FAILURES` failed batches, excluding failures caused by a server."""
    if isinstance(error, Error | redis.RedisError | OSError):
        return False  # unreachable: not caused by the reports
    _reading.failed.update(entry.name for _, entry in reports)
    return max(_reading.failed[entry.name] for _, entry in reports) >= _FAILURES


def _write_reports(reports: list[Report], now: datetime) -> filing.Written:
    for tries_left in (2, 1, 0):
        try:
            with turn():
                with transaction.atomic():
                    lock_writers()
                    began = time.monotonic()
                    written = filing.write(reports, now)
                _reading.most = _next_batch_size(len(reports), time.monotonic() - began)
                return written
        except (OperationalError, IntegrityError) as error:
            # PostgreSQL ended this transaction because of another one: nothing was written.
            if not tries_left or _sqlstate(error) not in _CONFLICTS:
                raise


def _next_batch_size(count: int, took_s: float) -> int:
    """Return the number of reports that would have been written within a transaction's target duration."""
    return int(min(_BATCH, max(1, _BATCH // 10, count * _TRANSACTION_S / max(took_s, 1e-6))))


def _sqlstate(error: Exception) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""


def _is_refusal(error: Exception) -> bool:
    """Return whether the database refused a value, as opposed to being unreachable."""
    if isinstance(error, OperationalError):
        # PostgreSQL: class 54 is "program limit exceeded" (a value too large for an index).
        return _sqlstate(error).startswith("54")
    return isinstance(error, DataError | IntegrityError | ValueError | OverflowError) or "bind" in str(error).lower()


def _store_raw(entry: Entry, why: str, now: datetime) -> Filed:
    return _store_refused([_unfiled_entry(entry, why)], now)


def _unfiled_entry(entry: Entry, why: str) -> RefusedEntry:
    return RefusedEntry(entry.name, entry.source, Cause.UNFILED, why, entry.fields)
