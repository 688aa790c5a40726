"""Samples of the queues' depths: every ten seconds, for every source within its own deadline.

Once a minute, samples also include the workers of the queues, the retry options of queued jobs, and settings of the
sources and of Redrive's own store that lose jobs.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import redis
from django.db import transaction
from django.db.models import Min, Sum

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.lint.options import FoundOptions
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.fleet import configurations, durability, heartbeats, stranded, uncaptured
from jobs_admin.fleet.heartbeats import Heartbeat
from jobs_admin.models import DepthSample, Failure, FailureCount, QueueCounter, Source
from jobs_admin.models.access import ENGINE
from jobs_admin.models.failure import FailureState
from jobs_admin.queues import liveness
from jobs_admin.sources import connect
from jobs_admin.sources.base import Depth, Finding, OptionsSource, SourceError, SourceRefused
from jobs_admin.sources.base import Source as Adapter

log = logging.getLogger(__name__)

STEP_S = 10
_PATIENCE_S = 8.0
_FROZEN_S = 60.0  # the process was suspended: its samples are not of the time that they are dated to
_REMOVED_AFTER = timedelta(minutes=1)  # since it was last sampled
_CHECK_PATIENCE_S = 1.5  # after that, the next sample collects the result of a running check
_CHECK_EVERY = timedelta(minutes=1)
_STORE_FINDINGS_S = 300  # how long findings about the store stay valid without a new check


def sample(now: datetime) -> bool:
    """Sample every configured source and write the result; an unreachable source also gets a sample.

    Several processes may run concurrently: a queue has one sample for each ten seconds. Always returns False, because
    there is never more to do immediately.
    """
    at = datetime.fromtimestamp(now.timestamp() // STEP_S * STEP_S, UTC)
    began = time.monotonic()
    probes = _probe_sources(now)
    alive = heartbeats.count_heartbeats(now)
    uncaptured.record_counts(now)
    for name, probe in probes.items():
        _save_source(name, probe, now)
    _mark_removed_sources(now)
    _audit_guard_switch()
    rows = [row for name, probe in probes.items() for row in _build_samples(name, probe, alive, at)]
    if time.monotonic() - began < _FROZEN_S:
        DepthSample.objects.bulk_create(rows, ignore_conflicts=True)
    _check_store(now)
    return False


# -- probes -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Check:
    """A source's answers to the checks of every minute."""

    findings: list[Finding]
    workers: dict[str, set[str]] | None  # queue -> its consumers; None: unknown
    options: FoundOptions | None = None  # None: jobs of this system have no retry options


@dataclass(slots=True)
class Probe:
    """Answer of a source. `why` is the reason for a missing one."""

    why: str = ""
    is_refused: bool = False  # it answers, and cannot be used as it is configured
    depths: list[Depth] = field(default_factory=list)
    closer: Check | None = None  # None: not due, or not answered yet


# Running probes, by source: one that hangs is not started a second time.
_running_probes: dict[str, threading.Thread] = {}
_running_checks: dict[str, threading.Thread] = {}
_finished_checks: dict[str, Check] = {}  # finished, and not collected yet
_checked_at: dict[str, datetime] = {}
_NEVER = datetime.min.replace(tzinfo=UTC)
# Consumers of each queue without a guard at the last check of its source, valid until the next one. Guarded workers are
# known by their heartbeats; one that has ended since is not a worker, and must not count as unguarded.
_unguarded: dict[str, dict[str, set[str]] | None] = {}


def _probe_sources(now: datetime) -> dict[str, Probe]:
    """Probe all sources concurrently. A source that has not answered by the deadline is unreachable."""
    answers: dict[str, Probe] = {}
    threads = {}
    for name in config.sources():
        if _is_alive(_running_probes.get(name)):
            continue
        is_due = now - _checked_at.get(name, _NEVER) >= _CHECK_EVERY
        closer = is_due and not _is_alive(_running_checks.get(name))
        thread = threading.Thread(target=_probe_source, args=(name, closer, answers), daemon=True, name=f"look {name}")
        threads[name] = _running_probes[name] = thread
        thread.start()
    _wait_for(threads.values(), _PATIENCE_S)
    _wait_for(list(_running_checks.values()), min(_PATIENCE_S, _CHECK_PATIENCE_S))
    found = {}
    for name in config.sources():
        probe = answers.get(name)
        if probe is None:
            probe = Probe(why=f"no answer within {_PATIENCE_S:.0f} s")
        probe.closer = _finished_checks.pop(name, None)
        if probe.closer is not None:
            _checked_at[name] = now
        found[name] = probe
    return found


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()


def _wait_for(threads: Iterable[threading.Thread], within_s: float) -> None:
    ends = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))


def _probe_source(name: str, closer: bool, answers: dict[str, Probe]) -> None:
    """Probe one source in a thread of its own, which accesses no table."""
    try:
        source = config.adapter(name)
        probe = Probe(depths=source.depths())
        if closer:
            thread = threading.Thread(target=_check_source, args=(name, source), daemon=True, name=f"closer {name}")
            _running_checks[name] = thread
            thread.start()
    except SourceError as error:
        probe = Probe(why=str(error) or type(error).__name__, is_refused=isinstance(error, SourceRefused))
    except Exception as error:  # a bug in one adapter must not stop the sampling of others
        log.exception("Source %s could not be sampled", name)
        probe = Probe(why=f"{type(error).__name__}: {error}")
    answers[name] = probe


def _check_source(name: str, source: Adapter) -> None:
    """Check a source separately from its depths, which do not wait for it: workers have a second to answer."""
    try:
        findings, workers = source.findings(), source.workers()
        _finished_checks[name] = Check(findings, workers, _find_options(name, source))
    except SourceError as error:  # the next sample of its depths reports it
        log.info("Source %s did not report its settings: %s", name, error)
    except Exception:  # a bug in one adapter must not stop the sampling of others
        log.exception("Source %s could not be checked closer", name)


def _find_options(name: str, source: Adapter) -> FoundOptions | None:
    """Return the retry options of the source's jobs; None if unknown, which leaves its other answers valid."""
    if not source.can.options:
        return None
    try:
        return cast(OptionsSource, source).found_options()
    except SourceError as error:
        log.info("Source %s did not report how its jobs are retried: %s", name, error)
    except Exception:
        log.exception("How the jobs of source %s are retried could not be checked", name)
    return None


def _save_source(name: str, probe: Probe, now: datetime) -> None:
    configured = config.sources()[name]
    why = representable(probe.why)[:2000]
    row, _ = Source.objects.get_or_create(name=name, defaults={"backend": configured.backend, "is_configured": True})
    changes: dict[str, Any] = {
        "backend": configured.backend,
        "is_configured": True,
        "is_reachable": not why,
        "why_unreachable": why,
        "sampled_at": now,
    }
    if row.is_reachable != (not why):
        changes["changed_at"] = now
        if why:
            log.warning("Source %s cannot be %s: %s", name, "used" if probe.is_refused else "reached", why)
        elif row.is_reachable is False:
            log.info("Source %s is reachable again.", name)
    found = row.findings if probe.closer is None else [asdict(finding) for finding in probe.closer.findings]
    changes["findings"] = _stranded_findings(name, row.findings) + [
        one for one in found if one.get("id") != stranded.FINDING
    ]
    if probe.closer is not None and probe.closer.options is not None:
        configurations.store_options(probe.closer.options)
    Source.objects.filter(name=name).update(**changes)


def _stranded_findings(name: str, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return findings about dead workers; the previous ones if the store or a broker does not answer."""
    try:
        return [asdict(finding) for finding in stranded.findings(name)]
    except (redis.RedisError, SourceError) as error:
        log.info("What dead workers of %s had in hand is not known: %s", name, error)
        return [one for one in before if one.get("id") == stranded.FINDING]


def _mark_removed_sources(now: datetime) -> None:
    """Mark sources that are no longer configured.

    During a configuration change, another process may still have one configured; it was then sampled a moment ago.
    """
    gone = Source.objects.filter(is_configured=True).exclude(name__in=config.sources())
    for name in gone.filter(sampled_at__lt=now - _REMOVED_AFTER).values_list("name", flat=True):
        if gone.filter(name=name, sampled_at__lt=now - _REMOVED_AFTER).update(is_configured=False):
            log.warning("Source %s is not configured any more: its queues are no longer sampled.", name)


def _audit_guard_switch() -> None:
    """Record in the audit that the guard was switched directly in the store, because the audit has its off periods."""
    try:
        found = (config.store().get(keys.switch()) or b"on").decode("utf-8", "replace")
    except (redis.RedisError, config.BadConfiguration):
        return  # unknown
    switch = found if found in ("off", "drain") else "on"
    if switch == liveness.recorded_guard_switch():
        return
    with transaction.atomic():
        before = liveness.recorded_guard_switch()  # the command also records a switch in a transaction
        if before != switch:
            reason = "Switched directly in the store, not by a command. Noticed by watch."
            audit.record(ENGINE, f"guard.{switch}", "guard", before=before, after=switch, reason=reason)


def store_finding(found: Finding) -> Finding:
    """Return an adapter's finding about a broker in terms of Redrive's store, in which reports wait, not jobs."""
    text = (
        found.text.replace("The broker", "Redrive's store")
        .replace("loses every waiting job", "loses the reports that are not filed yet")
        .replace("throws jobs away", "throws reports away")
        .replace("Jobs may be among them", "Reports may be among them")
    )
    return replace(found, text=text)


def _check_store(now: datetime) -> None:
    """Store once a minute the findings that endanger reports in Redrive's own store, which is all that they concern."""
    if now - _checked_at.get("", _NEVER) < _CHECK_EVERY:
        return
    store = connect("store", "celery", config.setting("REDIS_URL"))
    try:
        found = [asdict(store_finding(finding)) for finding in store.findings()]
    except SourceError as error:  # liveness.find_stale reports that it does not answer
        log.warning("Redrive's store could not be checked: %s", error)
        return
    finally:
        store.close()
    config.store().set(keys.store_findings(), json.dumps(found), ex=_STORE_FINDINGS_S)
    _checked_at[""] = now


# -- the rows ---------------------------------------------------------------------------------------------------


def _build_samples(name: str, probe: Probe, alive: Iterable[Heartbeat], at: datetime) -> list[DepthSample]:
    mine = [h for h in alive if h.source == name]
    depths = {representable(depth.queue)[:200]: depth for depth in probe.depths}
    dead = _dead_jobs(name)
    rates = _rates(name, at)
    if probe.closer is not None:
        consumers, guarded = probe.closer.workers, {h.name for h in mine}
        _unguarded[name] = None if consumers is None else {queue: names - guarded for queue, names in consumers.items()}
    if probe.why:
        _unguarded[name] = None
    unguarded = _unguarded.get(name)
    queues = depths.keys() | dead.keys() | rates.keys() | {queue for h in mine for queue in h.queues}
    if probe.why:
        # The queues of the last answer: an unreachable queue is not gone.
        last = DepthSample.objects.filter(source=name, at__gte=at - timedelta(hours=1)).order_by()
        queues |= set(last.values_list("queue", flat=True).distinct())
    rows = []
    for queue in sorted(queues - {""}):
        depth = depths.get(queue, Depth(queue))
        guards = [h for h in mine if queue in h.queues]
        succeeded, failed = rates.get(queue, (0.0, 0.0))
        rows.append(
            DepthSample(
                source=name,
                queue=queue,
                at=at,
                step=STEP_S,
                is_reachable=not probe.why,
                why=representable(probe.why)[:300],
                waiting=depth.waiting,
                active=depth.active,
                delayed=depth.delayed,
                source_dead=depth.source_dead,
                by_priority=depth.by_priority,
                dead=dead.get(queue, (0, None))[0],
                oldest_dead_at=dead.get(queue, (0, None))[1],
                succeeded_per_min=succeeded,
                failed_per_min=failed,
                workers=_count_workers(name, unguarded, queue, {h.name for h in guards}),
                guarded_workers=len(guards),
                durability=durability.grade_code(queue, guards),
            )
        )
    return rows


def _count_workers(source: str, seen: dict[str, set[str]] | None, queue: str, guards: set[str]) -> int | None:
    """Return the number of workers of a queue, guarded ones included.

    In the middle of a long job, a guarded worker sends heartbeats but may not answer its broker in time.
    """
    if seen is None:
        return None
    names = seen.get(queue, set())
    if config.keeps_dead(source):  # BullMQ identifies its workers by connections, the guard by processes
        return max(len(names), len(guards))
    return len(names | guards)


def _dead_jobs(name: str) -> dict[str, tuple[int, datetime | None]]:
    """Return the dead jobs of each queue, and the time of the oldest."""
    counts = FailureCount.objects.filter(source=name, state=FailureState.DEAD).values("queue").annotate(n=Sum("count"))
    found = {row["queue"]: row["n"] for row in counts}
    since = _oldest_dead(name, sum(found.values()))
    return {queue: (n, since.get(queue) if n else None) for queue, n in found.items()}


# Finding the oldest reads every dead row (1 s at a million): with many, once a minute is enough.
_MANY = 20_000
_oldest: dict[str, tuple[float, dict[str, datetime]]] = {}


def _oldest_dead(name: str, dead: int) -> dict[str, datetime]:
    """Return the time of the oldest dead job of each queue."""
    read_at, known = _oldest.get(name, (float("-inf"), {}))
    if dead > _MANY and time.monotonic() - read_at < 60:
        return known
    rows = Failure.objects.filter(source=name, state=FailureState.DEAD).values("queue").annotate(at=Min("failed_at"))
    found = {row["queue"]: row["at"] for row in rows} if dead else {}
    _oldest[name] = time.monotonic(), found
    return found


def _rates(name: str, at: datetime) -> dict[str, tuple[float, float]]:
    """Return succeeded and failed jobs per minute of each queue, over the last two complete minutes."""
    until = at.replace(second=0, microsecond=0)
    rows = QueueCounter.objects.filter(source=name, step=60, at__gte=until - timedelta(minutes=2), at__lt=until)
    totals = rows.values("queue").annotate(ran=Sum("succeeded"), fell=Sum("failed"))
    return {row["queue"]: (row["ran"] / 2, row["fell"] / 2) for row in totals}
