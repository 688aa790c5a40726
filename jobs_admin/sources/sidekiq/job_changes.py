"""Changes of dead and retrying jobs by others. Sidekiq stores no success."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs_admin.sources.base import JobChanges, Ref
from jobs_admin.sources.one_redis import CLOCKS_DIFFER_S, job_member, now_ms
from jobs_admin.sources.sidekiq.message import is_jid
from jobs_admin.sources.sidekiq.retries import Retries
from jobs_admin.sources.sidekiq.wire import DeadSet, Wire

_DEAD = frozenset(("dead", "quarantined"))
_GONE = "build_retry or deleted outside Redrive"
_RAN = "no longer in Sidekiq: it succeeded, someone deleted it, or it was lost with its process"


def find_changes(wire: Wire, retries: Retries, requested: Sequence[Ref]) -> JobChanges:
    """See `base.PulledSource`."""
    changes = JobChanges()
    known = [one for one in requested if one.queue and is_jid(one.job_id)]
    _check_dead(wire, [one for one in known if one.state in _DEAD], changes)
    _check_retrying(wire, retries, [one for one in known if one.state == "retrying"], changes)
    return changes


def _check_dead(wire: Wire, refs: Sequence[Ref], changes: JobChanges) -> None:
    if not refs:
        return
    died = wire.latest_deaths([job_member(one.queue, one.job_id) for one in refs])
    known = [(ref, at) for ref, at in zip(refs, died, strict=True) if at is not None]
    dead = wire.find("dead", [(at, ref.job_id) for ref, at in known])
    is_evidence = _evidence(wire, dead)
    for (ref, at), answer in zip(known, dead.answers, strict=True):
        if answer == 0 and not ref.was_removed and is_evidence(at):
            changes.gone[ref] = _GONE


def _evidence(wire: Wire, dead: DeadSet) -> Callable[[float], bool]:
    """Return the test whether someone removed an absent job, by its recorded time of death. A death that is recorded in
    the same Redis was not lost.
    """
    dropped_before = wire.dropped_before(dead)
    latest = now_ms(wire.client) / 1000 - wire.dead_timeout_s + CLOCKS_DIFFER_S
    return lambda at: at > dropped_before and at > latest


def why_not_absent(wire: Wire, deaths: Sequence[tuple[float | None, float | None]]) -> list[str]:
    """Return why jobs are not restored if they are absent; "" for one that may be, because all data was lost after it
    died. `deaths`: of each the recorded time of death, and that of its failure.
    """
    is_evidence = _evidence(wire, wire.find("dead", []))
    lost = wire.mark.lost_at() / 1000
    after = max(wire.oldest_known_death(), now_ms(wire.client) / 1000 - wire.dead_timeout_s)
    found = []
    for died, failed_at in deaths:
        if died is not None:
            found.append("removed" if is_evidence(died) else "unseen")
        else:
            found.append("" if failed_at is not None and after <= failed_at < lost else "unseen")
    return found


def _check_retrying(wire: Wire, retries: Retries, refs: Sequence[Ref], changes: JobChanges) -> None:
    since = wire.mark.complete_since()
    known = [(ref, retries.due[ref.job_id]) for ref in refs if ref.job_id in retries.due]
    waiting = wire.find("retry", [(at, ref.job_id) for ref, at in known]).answers if known else []
    missed = {ref.job_id: ref for ref in refs if ref.job_id not in retries.due and not retries.is_first_round}
    for (ref, at), answer in zip(known, waiting, strict=True):
        if answer == 1:
            changes.due[ref] = at
        elif answer == 0:
            missed[ref.job_id] = ref
    lossless = {job: ref for job, ref in missed.items() if since is not None and since <= (ref.at or 0.0) * 1000}
    for job in retries.note_missed({job: ref.queue for job, ref in lossless.items()}) if lossless else ():
        changes.gone[lossless[job]] = _RAN
