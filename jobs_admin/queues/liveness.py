"""Liveness of the desk itself: its `watch` processes, its store, and the settings that endanger it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.db.models import Max, Q, QuerySet

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.core.figures import clock
from jobs_admin.db import audit_anchor, audit_position
from jobs_admin.installation import COMMAND
from jobs_admin.models import AuditEvent, RefusedReports, Source
from jobs_admin.trust import Cause

_MOST_LISTED = 50  # findings, and alert rules that cannot be evaluated
_MOST_SWITCHED = 100
# The id of the first entry of each key; empty if there is none, or the key is not a stream.
_OLDEST = """
local found = {}
for at, stream in ipairs(KEYS) do
  local is_stream = redis.call('TYPE', stream).ok == 'stream'
  local first = is_stream and redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  found[at] = first and first[1] or ''
end
return found
"""
LATE_REPORT_S = 60.0  # reports may wait this long while `watch` is busy
# The writer chooses the ids of entries. An id outside of these limits is not the time of a report.
_LONGEST_LAG_S = 365 * 86_400.0
_AHEAD_S = 60.0  # ahead of the desk's clock
_IS_STEP = re.compile(r"[a-z_-]{1,20}\Z")
RECENTLY_REFUSED = timedelta(minutes=15)  # a source whose latest refused report is older is no longer reported
_NOT_BELIEVED = ("unsigned", "signature")  # causes (`trust.Cause`) for which reports of known sources are refused
LATE_AFTER_S = 30  # a step of `watch` ends a round every few seconds
# Largest age of a shown state, in seconds: the pages of many screens read it repeatedly.
STATE_CACHED_S = 1.0
_cached_state: list[tuple[float, DeskState]] = []


@dataclass(frozen=True, slots=True)
class Stale:
    """`watch`, or its store, is not alive: the screens may show old data."""

    text: str
    since: datetime | None  # None: never seen alive
    steps: tuple[str, ...] = ()  # the late ones
    next: str = f"Start `{COMMAND} watch`, or check its log. No data is lost in the meantime."


@dataclass(frozen=True, slots=True)
class DeskState:
    """State of the desk itself, from Redrive's own store."""

    stale: Stale | None
    # `on`, `off` (all workers send no reports), `drain` (they only record); also `on` if the store does not answer.
    guard: str
    findings: list[dict[str, str]]  # unsafe settings of the store


def forget() -> None:
    """Clear the cached state after a change."""
    _cached_state.clear()


def current_state(now: datetime | None = None) -> DeskState:
    """Return the state of the desk, read in one round trip; at most STATE_CACHED_S old."""
    at = time.monotonic()
    cached = _cached_state[-1] if _cached_state else None
    if cached is None or at - cached[0] > STATE_CACHED_S:
        cached = at, _read_store(now or datetime.now(UTC))
        _cached_state[:] = [cached]
    return cached[1]


def _read_store(now: datetime) -> DeskState:
    try:
        pipeline = config.store().pipeline(transaction=False)
        pipeline.hgetall(keys.steps()).get(keys.switch()).get(keys.store_findings())
        ended, switch, found = pipeline.execute()
    except (redis.RedisError, config.BadConfiguration):
        return DeskState(_unreachable_store(now), "on", [])
    return DeskState(
        _find_late(_parse_steps(ended), now), (switch or b"on").decode("utf-8", "replace"), _findings(found)
    )


def steps() -> dict[str, datetime]:
    """Return when each step of `watch` last ended a round, or a part of a long one.

    Raises redis.RedisError if the store does not answer.
    """
    return _parse_steps(config.store().hgetall(keys.steps()))


def _parse_steps(rounds: dict[bytes, bytes]) -> dict[str, datetime]:
    found = {}
    for raw, value in rounds.items():
        name, moment = raw.decode("utf-8", "replace"), _moment(value)
        if moment is not None and _IS_STEP.match(name):
            found[name] = moment
    return found


def failed_rounds(step: str) -> int:
    """Return the number of consecutive failed rounds of a step.

    Raises redis.RedisError if the store does not answer.
    """
    word = untrusted.read_object(config.store().hget(keys.steps(), step))
    return int(untrusted.number(word.get("failed_rounds")) or 0)


@dataclass(frozen=True, slots=True)
class Stall:
    """A reader, a sampling or a step without progress."""

    since: datetime
    why: str


def stalled_reader(source: Source, now: datetime) -> Stall | None:
    """Return why the dead jobs of a source are not read; None while its reader makes progress, or if it has none."""
    if source.why_not_pulled and source.not_pulled_since is not None:
        return Stall(source.not_pulled_since, source.why_not_pulled)
    try:
        if not config.is_pulled(source.name):
            return None
    except Exception as error:  # an adapter that cannot be created must not hide the other sources
        return Stall(source.first_seen, f"{type(error).__name__}: {error}")
    due = source.progress_due_at or source.first_seen
    return Stall(due, "The reader makes no progress.") if _is_late(due, now) else None


def stalled_sources(now: datetime) -> dict[str, Stall | None]:
    """Return why each configured source is not read or sampled, or why its reports are refused or not filed.

    None if they are, or if the source is unreachable, which is reported separately.
    """
    found: dict[str, Stall | None] = {}
    for source in Source.objects.filter(is_configured=True):
        sampled_at = source.sampled_at or source.first_seen
        if _is_late(sampled_at, now):
            found[source.name] = Stall(sampled_at, "The queues are not being sampled.")
        else:
            found[source.name] = None if source.is_reachable is False else stalled_reader(source, now)
    for refused in recently_refused(now):
        found[refused.source] = found.get(refused.source) or Stall(
            refused.first_at, f"Reports are refused and not filed. {refused.why}"
        )
    for left in _without_room(now).filter(source__in=Source.objects.values("name")):
        why = f"Reports that cannot be filed stay in their queue or stream: no more unfiled reports are stored. {left.why}"
        found[left.source] = found.get(left.source) or Stall(left.first_at, why)
    return found


def _without_room(now: datetime) -> QuerySet[RefusedReports]:
    return RefusedReports.objects.filter(cause=Cause.UNFILED, last_at__gte=now - RECENTLY_REFUSED)


def sources_without_room(now: datetime) -> set[str]:
    """Return the sources with unfiled reports that stay in their stream or queue.

    The age of their oldest report says nothing about ingest.
    """
    return set(_without_room(now).values_list("source", flat=True))


def recently_refused(now: datetime) -> QuerySet[RefusedReports]:
    """Return reports of known sources refused by their signature within RECENTLY_REFUSED."""
    of_known = Q(source__in=Source.objects.values("name"), cause__in=_NOT_BELIEVED)
    return RefusedReports.objects.filter(of_known, last_at__gte=now - RECENTLY_REFUSED)


def stalled_steps(now: datetime) -> dict[str, Stall | None]:
    """Return step of `watch` -> time of its last progress, for steps that have run; None while it makes progress.

    Raises redis.RedisError.
    """
    return {
        name: Stall(at, "The step makes no progress.") if _is_late(at, now) else None for name, at in steps().items()
    }


def stalled_audit() -> Stall | None:
    """Return why the audit's end cannot be verified, since the time of the anchored entry, or why it is not forwarded.

    None while both are well.

    Raises redis.RedisError.
    """
    finding = audit_anchor.end_finding()
    if finding is not None and finding.since is not None:
        return Stall(finding.since, finding.text)
    late = audit_position.finding()
    # Without the receiver and its answer, which only auditors see.
    is_late = late is not None and late.since is not None
    return Stall(late.since, "Audit entries are not forwarded. The page Audit has the reason.") if is_late else None


def _is_late(at: datetime, now: datetime) -> bool:
    return (now - at).total_seconds() > LATE_AFTER_S


def _moment(value: bytes) -> datetime | None:
    word = untrusted.read(value)
    return untrusted.moment(word.get("at") if isinstance(word, dict) else word)


def find_stale(now: datetime | None = None) -> Stale | None:
    """Return the late steps, or None if none is late."""
    now = now or datetime.now(UTC)
    try:
        return _find_late(steps(), now)
    except (redis.RedisError, config.BadConfiguration):
        return _unreachable_store(now)


def _find_late(ended: dict[str, datetime], now: datetime) -> Stale | None:
    late = {name: at for name, at in ended.items() if (now - at).total_seconds() > LATE_AFTER_S}
    if not ended:
        return Stale("Not watching: `watch` has not run yet.", None)
    if not late:
        return None
    since = min(late.values())
    moment = f"{clock(since, now)} UTC"
    if len(late) == len(ended):
        return Stale(f"Not watching since {moment}.", since, tuple(sorted(late)))
    return Stale(f"Not watching since {moment}: {', '.join(sorted(late))} is late.", since, tuple(sorted(late)))


def _unreachable_store(now: datetime) -> Stale:
    """Return the state of an unreachable store, since the last sample taken through it."""
    try:
        at = config.store().connection_pool.connection_kwargs
        where = f" ({at['host']}:{at.get('port', 6379)})" if "host" in at else f" ({at.get('path', '')})"
    except config.BadConfiguration:
        where = ""
    heard = Source.objects.aggregate(last=Max("sampled_at"))["last"]
    since = f" since {clock(heard, now)} UTC" if heard else ""
    return Stale(
        f"No answer from Redrive's own Redis{where}{since}: no new data.",
        heard,
        next="Check that Redis is running and that REDRIVE_REDIS_URL is correct. Workers keep their reports in the "
        "meantime.",
    )


def guard_switch() -> str:
    """Return `on`, `off` (`manage.py off` stops all workers' reports) or `drain` (they only record).

    Also `on` if the store does not answer.
    """
    try:
        return (config.store().get(keys.switch()) or b"on").decode("utf-8", "replace")
    except (redis.RedisError, config.BadConfiguration):
        return "on"


def recorded_guard_switch() -> str:
    """Return `on`, `off` or `drain`: the last state of the switch according to the audit."""
    turned = AuditEvent.objects.filter(object="guard", allowed=True).order_by("-pk")
    return turned.values_list("after", flat=True).first() or "on"


@dataclass(frozen=True, slots=True)
class GuardOff:
    """A period in which the guard was switched off, according to the audit."""

    since: datetime
    until: datetime | None  # None: it is off now


def guard_off_times(since: datetime) -> list[GuardOff]:
    """Return the periods after `since` with the guard off, oldest first; from the latest _MOST_SWITCHED switches."""
    turned = AuditEvent.objects.filter(object="guard", allowed=True).order_by("-pk").values_list("at", "after")
    found: list[GuardOff] = []
    began: datetime | None = None
    for at, to in reversed(turned[:_MOST_SWITCHED]):
        if to == "off":
            began = began or at
        elif began is not None:
            found.append(GuardOff(began, at))
            began = None
    if began is not None:
        found.append(GuardOff(began, None))
    return [one for one in found if one.until is None or one.until > since]


def ingest_lags_s(now: datetime | None = None) -> dict[str, float | None]:
    """Return the age in seconds of the oldest unfiled report of each known source.

    An age of 0: no report waits. None: the id of its entry is no plausible time, which only a worker of that source can
    write. The source "" is the stream that guards of the previous version share. Raises redis.RedisError.
    """
    now = now or datetime.now(UTC)
    names = sorted({*config.sources(), *Source.objects.values_list("name", flat=True)})
    streams = [*map(keys.failures, names), keys.shared("failures")]
    oldest: Any = config.store().register_script(_OLDEST)(keys=streams)  # filed entries are deleted from their stream
    return {name: _age_s(entry_id, now) for name, entry_id in zip([*names, ""], oldest, strict=True)}


def _age_s(entry_id: bytes, now: datetime) -> float | None:
    if not entry_id:
        return 0.0
    age = now.timestamp() - int(entry_id.partition(b"-")[0]) / 1000
    return max(0.0, age) if -_AHEAD_S <= age <= _LONGEST_LAG_S else None


def late_sources(now: datetime | None = None) -> dict[str, str]:
    """Return source -> sentence, for sources with a report that waits for more than LATE_REPORT_S or an unknown time.

    See `ingest_lags_s`. Raises redis.RedisError.
    """
    found = {}
    for source, lag in ingest_lags_s(now).items():
        whose = f"of {source}" if source else "of guards of an earlier version"
        if lag is None:
            found[source] = f"The oldest report {whose} has an ID that is not a valid time, so its age is unknown."
        elif lag > LATE_REPORT_S:
            found[source] = f"The oldest report {whose} has been waiting to be filed for {lag:.0f} s."
    return found


def late_streams(now: datetime, *, with_unknown: bool) -> set[str]:
    """Return the sources whose oldest report waits for more than LATE_REPORT_S; "" for the stream older guards share.

    `with_unknown`: also those whose oldest report has no valid time. Raises redis.RedisError.
    """
    late = {name for name, lag in ingest_lags_s(now).items() if (with_unknown if lag is None else lag > LATE_REPORT_S)}
    # Anyone who can write to the shared stream could otherwise stop every automation and the detection of lost jobs.
    return late - {""} if "" in sources_without_room(now) else late


def unjudged_rules() -> dict[str, str]:
    """Return the alert rules that `judge` could not evaluate in the last minute, and why. Raises redis.RedisError."""
    return untrusted.texts(untrusted.read_object(config.store().get(keys.unjudged_rules())), _MOST_LISTED)


def store_findings() -> list[dict[str, str]]:
    """Return the findings of `sample` about the store; none if it does not answer, which `find_stale` reports."""
    try:
        return _findings(config.store().get(keys.store_findings()))
    except (redis.RedisError, config.BadConfiguration):
        return []


def _findings(text: bytes | None) -> list[dict[str, str]]:
    found = [untrusted.texts(one, _MOST_LISTED) for one in untrusted.read_objects(text)[:_MOST_LISTED]]
    return [one for one in found if one.get("text")]
