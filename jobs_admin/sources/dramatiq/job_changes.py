"""Changes of jobs that were dead or were sent."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from jobs_admin.core import untrusted
from jobs_admin.core.envelope import Lineage
from jobs_admin.sources.base import JobChanges, Ref
from jobs_admin.sources.dramatiq.absences import Absences
from jobs_admin.sources.dramatiq.delayed import Delayed, Retry
from jobs_admin.sources.dramatiq.reports import build_success
from jobs_admin.sources.dramatiq.wire import Wire
from jobs_admin.sources.one_redis import CLOCKS_DIFFER_S, is_evidence

_DEAD = frozenset(("dead", "quarantined"))
_RAN = "no longer in Dramatiq: it ran while Redrive was stopped, or someone removed it"
_GONE = "requeued or removed outside Redrive (or Dramatiq's dead_message_ttl is shorter than this source's)"


def find_changes(
    wire: Wire, delayed: Delayed, absences: Absences, requested: Sequence[Ref], ttl_s: float
) -> JobChanges:
    """See `base.PulledSource`."""
    dead: dict[str, list[Ref]] = defaultdict(list)
    sent: dict[str, list[Ref]] = defaultdict(list)
    retrying: dict[str, list[Ref]] = defaultdict(list)
    for ref in requested:
        if ref.state in _DEAD and ref.at is not None:
            dead[ref.queue].append(ref)
        elif ref.state == "replaying":
            sent[ref.queue].append(ref)
        elif ref.state == "retrying" and ref.at is not None:
            retrying[ref.queue].append(ref)
    changes = JobChanges()
    absences.begin()
    for queue, refs in dead.items():
        _check_dead(wire, queue, refs, ttl_s, changes)
    # In random order: the first queues may use up the pages of one check.
    for queue in random.sample(list(sent), len(sent)):
        _check_sent(wire, delayed, absences, queue, sent[queue], changes)
    for queue in random.sample(list(retrying), len(retrying)):
        _check_retrying(wire, delayed, absences, queue, retrying[queue], changes)
    return changes


def _check_dead(wire: Wire, queue: str, refs: Sequence[Ref], ttl_s: float, changes: JobChanges) -> None:
    since, now = wire.mark.complete_since(), wire.now()
    refs = random.sample(refs, len(refs))  # in random order: time may end before all are checked
    answers = wire.find_dead(queue, [(ref.job_id, death_ms(ref)) for ref in refs])
    for ref, answer in zip(refs, answers, strict=True):
        expires_at = (ref.at or 0.0) + ttl_s
        if answer == 0 and not ref.was_removed and is_evidence(since, ref.at or 0.0, expires_at, now):
            changes.gone[ref] = _GONE


def _check_sent(
    wire: Wire, delayed: Delayed, absences: Absences, queue: str, refs: Sequence[Ref], changes: JobChanges
) -> None:
    """Report the success of sent jobs without a message: Dramatiq keeps a message of every job that has not
    succeeded.
    """
    records = {
        job_id: untrusted.read_object(raw) for job_id, raw in wire.sent_records(queue, [r.job_id for r in refs]).items()
    }
    names = {job_id: untrusted.text(record.get("name"), 100) for job_id, record in records.items()}
    are_queued = wire.are_queued(queue, list(names.values())) if names else []
    left = {job_id for job_id, is_queued in zip(names, are_queued, strict=True) if not is_queued}
    if not left:
        return
    sent_at = {job_id: untrusted.number(records[job_id].get("at")) or 0.0 for job_id in left}
    since = wire.mark.complete_since()
    left = {job_id for job_id in left if since is not None and since <= sent_at[job_id] * 1000}
    if not left:
        return
    earliest = min(sent_at[job_id] for job_id in left) - CLOCKS_DIFFER_S
    now = wire.now()
    for job_id in absences.find(queue, {one: names[one] for one in left}, earliest * 1000, delayed):
        record = records[job_id]
        lineage, actor = Lineage.of_message(record.get("lineage"), job_id), untrusted.text(record.get("actor"), 500)
        if lineage is not None:
            changes.reports.append(build_success(wire.source, queue, job_id, actor, lineage, 1, now))


def _check_retrying(
    wire: Wire, delayed: Delayed, absences: Absences, queue: str, refs: Sequence[Ref], changes: JobChanges
) -> None:
    """Report retrying jobs without a message: they succeeded or were removed."""
    since = wire.mark.complete_since()
    left: dict[str, tuple[Ref, Retry | None]] = {}
    for ref in refs:
        has_left, last = delayed.find_left(queue, ref.job_id)
        if has_left and since is not None and since <= (ref.at or 0.0) * 1000:
            left[ref.job_id] = ref, last
    if not left:
        return
    earliest = min(ref.at or 0.0 for ref, _ in left.values()) - CLOCKS_DIFFER_S
    now = wire.now()
    marks = {job_id: str(ref.at) for job_id, (ref, _) in left.items()}
    for job_id in absences.find(queue, marks, earliest * 1000, delayed):
        ref, last = left[job_id]
        if last is None:
            changes.gone[ref] = _RAN
        else:
            success = build_success(wire.source, queue, job_id, last.actor, last.lineage, last.attempt + 1, now)
            changes.reports.append(success)


def death_ms(ref: Ref) -> float:
    return round((ref.at or 0.0) * 1000, 3)


def why_not_absent(since: int | None, died_at: float, expires_at: float, now: float) -> str:
    """Return why an absent dead letter is not restored; "" if it may be, because all data was lost after it died."""
    if is_evidence(since, died_at, expires_at, now):
        return "removed"
    return "" if since is None or since > died_at * 1000 else "unseen"
