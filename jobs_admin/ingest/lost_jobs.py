"""State changes by time alone: overdue retries are lost, new groups become ongoing, mutes end."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import redis
from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.db import audit, counters, step_progress
from jobs_admin.db.counters import Counted
from jobs_admin.db.turns import lock_writers
from jobs_admin.fleet import worker_store
from jobs_admin.fleet.worker_store import Named
from jobs_admin.ingest import group_sightings
from jobs_admin.models import Attempt, Failure, Group
from jobs_admin.models.access import ENGINE
from jobs_admin.models.failure import Caveat, FailureState
from jobs_admin.models.group import GroupState
from jobs_admin.worker.store import LEDGER_STORED_DAYS, STREAM_BYTES, with_report

# If the store is unreachable or hangs, every worker appears silent until it has reconnected and sent a heartbeat: ten
# seconds. A silent worker is checked again after this time, without a long gap between checks.
CONFIRM_SILENCE_S = 12.0
LONGEST_GAP_S = 40.0
_FILED_AT_ONCE = 500
_FILED_BYTES_AT_ONCE = 4 * 1024**2
_LONGEST_NAME = 80
# Errors that affect every client; all others are caused by what a source wrote to its own keys.
_REFUSED_TO_ALL = (
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.NoPermissionError,
)
WORKER_REASON = "worker "  # prefix of the reason of failures filed here

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Silence:
    sign: float | None
    since: float  # by the monotonic clock
    last: float


@dataclass
class Reaper:
    """Checks for dead workers; remembers silent ones between checks. `now` is monotonic, in seconds."""

    _silent: dict[Named, _Silence] = field(default_factory=dict)
    _unusable: set[str] = field(default_factory=set)  # sources whose keys had an unexpected type at the last check

    def check(self, store: redis.Redis, now: float) -> bool:
        """File the jobs that dead workers stored.

        Return True if more can be filed immediately. Raises redis.RedisError.
        """
        is_more = False
        found: dict[Named, _Silence] = {}
        unusable: set[str] = set()
        for place in worker_store.boots_with_jobs(store, worker_store.all_sources(store)):
            try:
                is_more |= self._check_boot(store, place, now, found)
            except _REFUSED_TO_ALL:
                raise
            except redis.ResponseError as error:
                source, _ = place
                if source not in self._unusable | unusable:
                    log.warning("Source %s: lost jobs that it kept cannot be filed, others are: %s", source, error)
                unusable.add(source)
        self._unusable = unusable
        self._silent = found
        return is_more

    def _check_boot(self, store: redis.Redis, place: Named, now: float, found: dict[Named, _Silence]) -> bool:
        """File the stored jobs of one dead worker, or add a silent one to `found`. Return True if it has more."""
        source, boot = place
        if not boot.isalnum():
            return False
        sign, is_gone, name, stream_bytes = _read_last_sign(store, source, boot)
        if sign is not None and _store_time_ms(store) - sign <= keys.SILENT_MS:
            return False
        silence = found[place] = self._update_silence(place, sign, now)
        if not is_gone and now - silence.since < CONFIRM_SILENCE_S:
            return False
        is_more = _file_stored_jobs(store, source, boot, sign, _worker_reason(name, sign, is_gone), stream_bytes)
        step_progress.report()
        return is_more

    def _update_silence(self, place: Named, sign: float | None, now: float) -> _Silence:
        before = self._silent.get(place)
        if before is None or before.sign != sign or now - before.last > LONGEST_GAP_S:
            return _Silence(sign, now, now)
        return _Silence(sign, before.since, now)


_reaper = Reaper()


def file_jobs_of_dead_workers(now: float) -> bool:
    """File the jobs of dead workers, as part of the step `reconcile` of `watch`."""
    return _reaper.check(config.store(), now)


def _read_last_sign(store: redis.Redis, source: str, boot: str) -> tuple[float | None, bool, str, int]:
    """Return the last heartbeat of a worker (ms since 1970, the store's clock; None: never, or too long ago).

    Also whether it shut down cleanly, its name, and its configured limit for the size of the stream in bytes.
    """
    pipeline = store.pipeline(transaction=False)
    pipeline.zscore(keys.boots(source), boot)
    pipeline.hmget(keys.boot(source, boot), ["gone", "worker", "stream"])
    sign, (gone, name, stream) = pipeline.execute()
    answer = untrusted.integer(stream)
    stream_bytes = STREAM_BYTES if answer is None else answer
    return sign, gone is not None, (name or boot.encode()).decode("utf-8", "replace"), stream_bytes


def _store_time_ms(store: redis.Redis) -> float:
    seconds, micros = store.time()
    return seconds * 1000 + micros / 1000


def _worker_reason(name: str, sign: float | None, is_gone: bool) -> str:
    worker = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    at = ""
    if sign is not None:
        # A worker that shuts down cleanly is listed as silent immediately (`worker/beat.lua`).
        moment = untrusted.moment((sign + keys.SILENT_MS) / 1000 if is_gone else sign / 1000)
        at = f" {'at' if is_gone else 'soon after'} {moment:%Y-%m-%d %H:%M:%S} UTC" if moment else ""
    return f"{WORKER_REASON}{worker} stopped{at}; the job had been acknowledged, so the broker will not redeliver it"


def _file_stored_jobs(
    store: redis.Redis, source: str, boot: str, sign: float | None, why: str, stream_bytes: int
) -> bool:
    jobs_key = keys.kept(source, boot)
    answer: Any = store.eval(
        _reaping_script(),
        6,
        *(keys.kept_boots(source), jobs_key, keys.boots(source), keys.failures(source), keys.failures_bytes(source)),
        keys.shared("kept"),
        *(f"{source}/{boot}", boot, "" if sign is None else repr(sign), keys.SILENT_MS),
        *(json.dumps(why), _FILED_AT_ONCE, _FILED_BYTES_AT_ONCE, LEDGER_STORED_DAYS * 86_400_000, stream_bytes),
    )
    filed, is_more = map(int, answer)
    if filed:
        log.warning("Source %s: %d jobs are lost: %s.", source, filed, why)
    return bool(is_more)


@cache
def _reaping_script() -> str:
    return with_report((Path(__file__).parent / "reaping.lua").read_text())


# Celery's default: how long Redis hides a fetched message, and so how late a legitimate retry may be.
_VISIBILITY_TIMEOUT_S = 3600
_MARGIN_S = 60
_AT_ONCE = 500
RETRY_REASON = "The retry did not report"  # prefix of the reason of failures filed here


# Extra time for jobs in a queue or a spool. Limited, because a busy queue is never empty.
_BACKLOG_PATIENCE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Delays:
    """Possible delays of a retry, or of its report (`awaiting.py`)."""

    is_blind: bool = False  # any source may have unfiled reports, or the store is unreachable: nothing is filed as lost
    late: frozenset[str] = frozenset()  # sources with reports waiting to be filed
    # source -> visibility timeout of its workers, in seconds; counts if it is longer than the desk's own setting
    timeouts_s: Mapping[str, float] = field(default_factory=dict)
    spooling: frozenset[str] = frozenset()  # sources whose workers have undelivered reports
    backlogged: frozenset[tuple[str, str]] = frozenset()  # (source, queue) in which the retry may be waiting


def reconcile(now: datetime, delays: Delays = Delays()) -> bool:
    """File overdue retries as lost, age new groups, end mutes. Return True if there may be more to do immediately."""
    lost = 0 if delays.is_blind else file_overdue_retries(now, delays)
    Group.objects.filter(state=GroupState.NEW, first_seen__lt=now - group_sightings.NEW_FOR).update(
        state=GroupState.ONGOING, state_since=now
    )
    end_mutes(now)
    return lost >= _AT_ONCE


def end_mutes(now: datetime) -> int:
    """Move groups whose mute is past its time, or its count of failed attempts, to `ongoing`. Return their number."""
    over = Q(muted_until__lte=now) | Q(muted_until_count__lte=F("count"))
    ended = 0
    for group in Group.objects.filter(over, state=GroupState.MUTED).order_by("pk")[:_AT_ONCE]:
        is_time = group.muted_until is not None and group.muted_until <= now
        with transaction.atomic():
            # Checked again in the update: an operator may have extended the mute meanwhile.
            still = Group.objects.filter(over, pk=group.pk, state=GroupState.MUTED)
            ended_by = "time" if is_time else "count"
            over_now = {"state": GroupState.ONGOING.value, "state_since": now, "mute_ended": ended_by}
            cleared = {"state_by": "", "muted_until": None, "muted_until_count": None}
            if not still.update(**over_now, **cleared):
                continue
            why = "The mute has expired." if is_time else "The mute limit was reached."
            before = {"state": GroupState.MUTED.value, "state_by": group.state_by, "muted_until": group.muted_until}
            audit.record(
                ENGINE,
                "group.change",
                f"group:{group.name}",
                reason=why,
                before=before | {"muted_until_count": group.muted_until_count},
                after=over_now,
            )
            ended += 1
        step_progress.report()
    return ended


def file_overdue_retries(now: datetime, delays: Delays) -> int:
    """Move jobs `retrying` past due time, visibility timeout and a minute to `dead`, kind `lost`.

    Return their number.
    """
    found = 0
    late = Failure.objects.filter(state=FailureState.RETRYING, due_at__lt=now - timedelta(seconds=_MARGIN_S))
    for source in sorted(set(late.values_list("source", flat=True).distinct())):
        if config.keeps_dead(source) or source in delays.late:
            continue  # the source itself reports on its retries; or the reports of these may be waiting
        timeout_s = max(_visibility_timeout_s(source), delays.timeouts_s.get(source, 0.0))
        latest = now - timedelta(seconds=timeout_s + _MARGIN_S)
        rows = Failure.objects.filter(source=source, state=FailureState.RETRYING, due_at__lt=latest)
        # The result backend is queried for retries that only events reported.
        rows = rows.alias(seen=F("caveats").bitand(Caveat.SEEN)).filter(Q(caveats=None) | Q(seen=0))
        if source in delays.spooling:
            rows = rows.filter(due_at__lt=latest - _BACKLOG_PATIENCE)
        elif queues := [queue for of, queue in delays.backlogged if of == source]:
            rows = rows.filter(~Q(queue__in=queues) | Q(due_at__lt=latest - _BACKLOG_PATIENCE))
        with transaction.atomic():
            lock_writers()
            found += _file_as_lost(rows, timeout_s, now)
        step_progress.report()
    return found


def _visibility_timeout_s(source: str) -> float:
    known = config.sources().get(source)
    given = known.options.get("visibility_timeout") if known else None
    return float(given) if isinstance(given, int | float) and given > 0 else _VISIBILITY_TIMEOUT_S


def _file_as_lost(overdue: QuerySet[Failure], timeout_s: float, now: datetime) -> int:
    rows = lock_failures(overdue)
    mark_lost(rows, f"{RETRY_REASON} within {timeout_s + _MARGIN_S:.0f} s of its due time", now)
    return len(rows)


def lock_failures(rows: QuerySet[Failure]) -> list[Failure]:
    """Return some of these failures with the fields that `mark_lost` needs, locked where supported.

    Inside a transaction.
    """
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(of=("self",), no_key=True, skip_locked=True)
    only = ("pk", "source", "queue", "task", "run", "attempts", "job_id", "group_id", "due_at")
    return list(rows.order_by("pk").only(*only)[:_AT_ONCE])


def mark_lost(failures: Sequence[Failure], why: str, now: datetime) -> None:
    """Mark failures as dead, kind `lost`: the awaited attempt will not come. Inside a transaction."""
    if not failures:
        return
    attempts = [
        Attempt(
            failure=f, run=f.run, attempt=f.attempts + 1, kind="lost", job_id=f.job_id, group_id=f.group_id,
            reason=why, ended_at=now, received_at=now,
        )
        for f in failures
    ]  # fmt: skip
    Attempt.objects.bulk_create(attempts)
    for f in failures:
        f.state, f.kind, f.reason, f.attempts, f.due_at = FailureState.DEAD, "lost", why, f.attempts + 1, None
    Failure.objects.bulk_update(failures, ["state", "kind", "reason", "attempts", "due_at"])
    counters.add_lost_counts([(f.group_id, f.source, f.queue) for f in failures], now)
    lost = Counter((f.source, f.queue, f.task) for f in failures)
    counters.add_totals(
        {Counted(counters.FAILURES, *place, counters.error_label("", "lost")): n for place, n in lost.items()}
        | {Counted(counters.DIED, *place): n for place, n in lost.items()}
    )
