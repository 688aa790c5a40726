"""Changes of jobs that were dead, waiting or sent: by their current place, or by their remaining events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs_admin.sources.base import JobChanges, Ref
from jobs_admin.sources.bullmq.jobs import Jobs, ReadEvents, moment
from jobs_admin.sources.bullmq.wire import JobEvent, Wire

_BYTES = 16_000_000  # of jobs per answer
_SAME_MOMENT_S = 0.002  # tolerance for rounded times
_CLOCKS_DIFFER_S = 5.0
_KNOWN = 50_000  # jobs whose events are cached
_KNOWN_OF_ONE = 20  # events per job
_DEAD = frozenset({"dead", "quarantined"})
_ENDED = "no longer in Bull: it ended and was removed (by removeOnComplete if it succeeded, by removeOnFail if not), or someone removed it"


@dataclass(frozen=True, slots=True)
class _Location:
    """Place of a job: `failed`, `delayed`, `completed`, `waiting` (or running), or "" if it does not exist."""

    state: str
    score: float = 0.0
    made_at: float = 0.0  # Unix seconds


def find_changes(wire: Wire, jobs: Jobs, requested: Sequence[Ref]) -> JobChanges:
    """See `base.PulledSource`."""
    by_queue: dict[str, list[Ref]] = defaultdict(list)
    for ref in requested:
        by_queue[ref.queue].append(ref)
    changes = JobChanges()
    since = jobs.complete_since()
    for queue, refs in by_queue.items():
        _check_queue(wire, jobs, queue, refs, since, changes)
    return changes


def _check_queue(
    wire: Wire, jobs: Jobs, queue: str, refs: Sequence[Ref], since: int | None, changes: JobChanges
) -> None:
    now = _locate(wire, queue, [ref.job_id for ref in refs])
    to_report: dict[str, Sequence[JobEvent]] = {}
    absent: list[Ref] = []
    for ref in refs:
        if (job := now.get(ref.job_id)) is None:
            continue
        if not job.state:
            absent.append(ref)
        elif ref.state != "replaying" and _is_another(job, ref):
            continue  # the queue's data was lost, and its ids start again
        elif job.state == "failed" and _is_news(moment(job.score), ref):
            to_report[ref.job_id] = ()
        elif job.state == "delayed":
            if ref.state == "retrying":
                changes.due[ref] = job.score / 4096 / 1000
            to_report[ref.job_id] = ()
        elif job.state == "completed" and ref.state not in _DEAD:
            to_report[ref.job_id] = ()
        elif ref.state in _DEAD and job.state != "failed":
            ran = "and ran well" if job.state == "completed" else "and waits or runs"
            changes.gone[ref] = f"someone replayed it in {wire.system}, {ran}"
    if absent:
        _check_absent(wire, jobs, queue, absent, since, to_report, changes)
    if to_report:
        size = sum(len(one.raw or b"") for one in changes.reports)
        for report in jobs.reports(queue, to_report, completed=_retrying_ids(refs)):
            changes.reports.append(report)
            size += len(report.raw or b"")
            if size > _BYTES:
                break  # the others are reported at the next check


def _is_another(job: _Location, ref: Ref) -> bool:
    """Return whether this job was created after the known one failed.

    One created at exactly the same time is the known one: the desk's clock limits failure times to their arrival, and
    may be behind the producer's.
    """
    if ref.made_at is not None and abs(job.made_at - ref.made_at) <= _SAME_MOMENT_S:
        return False
    return ref.at is not None and job.made_at > ref.at


def _check_absent(
    wire: Wire,
    jobs: Jobs,
    queue: str,
    absent: Sequence[Ref],
    since: int | None,
    to_report: dict[str, Sequence[JobEvent]],
    changes: JobChanges,
) -> None:
    """Find the changes of absent jobs, which only events prove. Trimmed, flushed or lost data has none."""
    if since is None:
        return
    if not wire.has_events:
        changes.gone.update(dict.fromkeys(jobs.find_ended(queue, absent), _ENDED))
        return
    events = _read_events(wire, jobs, queue, [ref.job_id for ref in absent], since)
    copies = jobs.dead.still_present(absent)
    for ref in absent:
        if copies.get(ref) and ref.state in _DEAD:
            continue  # it is in a dead-letter queue, whoever removed it from its own
        later = _events_since(events.get(ref.job_id, ()), ref, since)
        if not later and (act := jobs.acts.get((queue, ref.job_id))):
            later = _events_since([act], ref, since)
        if ref.was_removed:
            later = [one for one in later if one.event != "removed"]  # removed by Redrive after a discard
        ends = [one for one in later if one.event != "retries-exhausted"]  # which only follows a failure
        last = ends[-1].event if ends else ""
        if last == "removed":
            changes.gone[ref] = "removed in BullMQ, outside Redrive"
        elif ref.state in _DEAD and last in {"waiting", "active", "completed"}:
            changes.gone[ref] = "replayed in BullMQ, outside Redrive, and ran"
        elif last in {"completed", "failed"} and not _is_known(ends[-1], ref):
            to_report[ref.job_id] = later
        elif copies.get(ref) is False and ref.state in _DEAD and not ref.was_removed:
            changes.gone[ref] = "removed from the dead-letter queue in BullMQ, outside Redrive"


def _read_events(
    wire: Wire, jobs: Jobs, queue: str, ids: Sequence[str], since: int
) -> Mapping[str, Sequence[JobEvent]]:
    """Return the events of these jobs since then. For jobs checked before, only later ones are read."""
    begins: dict[str, list[str]] = defaultdict(list)
    for job_id in ids:
        known = jobs.read_events.get((queue, job_id))
        begins[known.begin if known and known.since == since else str(since)].append(job_id)
    found: dict[str, Sequence[JobEvent]] = {}
    for begin, mine in begins.items():
        news, further = wire.events_from(queue, mine, begin)
        for job_id in mine:
            known = jobs.read_events.pop((queue, job_id), None)
            before = known.events if known and begin != str(since) else ()
            found[job_id] = (*before, *news.get(job_id, ()))[-_KNOWN_OF_ONE:]
            jobs.read_events[queue, job_id] = ReadEvents(since, further, tuple(found[job_id]))
    while len(jobs.read_events) > _KNOWN:
        jobs.read_events.popitem(last=False)
    return found


def _events_since(events: Sequence[JobEvent], ref: Ref, since: int) -> list[JobEvent]:
    """Return the events after the known end of the job, and after the last loss of data."""
    after = max(since, (ref.at or 0) * 1000 + 1)
    return [one for one in events if one.ms > after]


def _is_known(last: JobEvent, ref: Ref) -> bool:
    """Return whether this failure is the known one, whose time is by its worker's clock, the event's by the
    server's.
    """
    return ref.state in _DEAD and ref.at is not None and abs(last.ms / 1000 - ref.at) < _CLOCKS_DIFFER_S


def _is_news(at: float | None, ref: Ref) -> bool:
    return ref.state not in _DEAD or ref.at is None or (at or 0.0) > ref.at + _SAME_MOMENT_S


def _retrying_ids(refs: Sequence[Ref]) -> frozenset[str]:
    """Return the ids of jobs whose success is reported although we did not send them: they waited for a retry."""
    return frozenset(ref.job_id for ref in refs if ref.state == "retrying")


def _locate(wire: Wire, queue: str, ids: Sequence[str]) -> Mapping[str, _Location]:
    """Return the places of the jobs that can be found."""
    states = ("failed", "delayed", "completed")
    pipe = wire.client.pipeline(transaction=False)
    for job_id in ids:
        for state in states:
            pipe.zscore(wire.key(queue, state), job_id)
        pipe.hget(wire.key(queue, job_id), "timestamp")
        pipe.exists(wire.key(queue, job_id))
    answers = iter(wire.answers(pipe))
    found = {}
    for job_id in ids:
        scored = {state: next(answers) for state in states}
        scores = {state: score for state, score in scored.items() if isinstance(score, float)}
        made, is_there = next(answers), next(answers)
        made_at = int(made) / 1000 if isinstance(made, bytes) and made.isdigit() and len(made) < 16 else 0.0
        if any(isinstance(score, Exception) for score in scored.values()):
            continue  # a key of another type: the job's place is unknown
        if not is_there:
            found[job_id] = _Location("")
        else:
            state, score = next(iter(scores.items()), ("waiting", 0.0))
            found[job_id] = _Location(state, score, made_at)
    return found
