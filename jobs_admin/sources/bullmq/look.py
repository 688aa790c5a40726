"""What became of jobs that were dead, waited or were sent: by where they lie now, or by what the events still tell of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs_admin.sources.base import JobChanges, Ref
from jobs_admin.sources.bullmq.jobs import Heard, Jobs, moment
from jobs_admin.sources.bullmq.wire import Told, Wire

_BYTES = 16_000_000  # of jobs in one answer
_SAME_MOMENT_S = 0.002  # a time that was rounded on its way
_CLOCKS_DIFFER_S = 5.0
_KNOWN = 50_000  # jobs of whose events it is known what was read
_KNOWN_OF_ONE = 20  # events
_DEAD = frozenset({"dead", "quarantined"})


@dataclass(frozen=True, slots=True)
class _Now:
    """Where a job lies: `failed`, `delayed`, `completed`, `waiting` (or runs), or "" where it is not there at all."""

    state: str
    score: float = 0.0
    made_at: float = 0.0  # seconds since 1970


def look(wire: Wire, jobs: Jobs, asked: Sequence[Ref]) -> JobChanges:
    """See `base.PulledSource`."""
    by_queue: dict[str, list[Ref]] = defaultdict(list)
    for ref in asked:
        by_queue[ref.queue].append(ref)
    looked = JobChanges()
    since = jobs.whole_since()
    for queue, refs in by_queue.items():
        _look(wire, jobs, queue, refs, since, looked)
    return looked


def _look(wire: Wire, jobs: Jobs, queue: str, refs: Sequence[Ref], since: int | None, looked: JobChanges) -> None:
    now = _now(wire, queue, [ref.job_id for ref in refs])
    tell: dict[str, Sequence[Told]] = {}
    absent: list[Ref] = []
    for ref in refs:
        if (job := now.get(ref.job_id)) is None:
            continue
        if not job.state:
            absent.append(ref)
        elif ref.state != "replaying" and _is_another(job, ref):
            continue  # this queue's data was lost, and it counts anew
        elif job.state == "failed" and _is_news(moment(job.score), ref):
            tell[ref.job_id] = ()
        elif job.state == "delayed":
            if ref.state == "retrying":
                looked.due[ref] = job.score / 4096 / 1000
            tell[ref.job_id] = ()
        elif job.state == "completed" and ref.state not in _DEAD:
            tell[ref.job_id] = ()
        elif ref.state in _DEAD and job.state != "failed":
            ran = "and ran well" if job.state == "completed" else "and waits or runs"
            looked.gone[ref] = f"someone replayed it in BullMQ, {ran}"
    if absent:
        _look_for(wire, jobs, queue, absent, since, tell, looked)
    if tell:
        held = sum(len(one.raw or b"") for one in looked.reports)
        for report in jobs.reports(queue, tell, completed=_retrying(refs)):
            looked.reports.append(report)
            held += len(report.raw or b"")
            if held > _BYTES:
                break  # the others are told when they are asked for again


def _is_another(job: _Now, ref: Ref) -> bool:
    """Return whether this job was made after the known one failed. One made at the very same moment is the known one: the desk's
    clock, by which a failure is never later than its arrival, may be behind its maker's."""
    if ref.made_at is not None and abs(job.made_at - ref.made_at) <= _SAME_MOMENT_S:
        return False
    return ref.at is not None and job.made_at > ref.at


def _look_for(
    wire: Wire,
    jobs: Jobs,
    queue: str,
    absent: Sequence[Ref],
    since: int | None,
    tell: dict[str, Sequence[Told]],
    looked: JobChanges,
) -> None:
    """Of those that are not there: only what an event tells is known. What was trimmed, flushed or lost has none."""
    if since is None:
        return
    events = _heard(wire, jobs, queue, [ref.job_id for ref in absent], since)
    copies = jobs.dead.standing(absent)
    for ref in absent:
        if copies.get(ref) and ref.state in _DEAD:
            continue  # it lies in a dead-letter queue, whoever took it out of its own
        told = _since(events.get(ref.job_id, ()), ref, since)
        if not told and (act := jobs.acts.get((queue, ref.job_id))):
            told = _since([act], ref, since)
        if ref.was_removed:
            told = [one for one in told if one.event != "removed"]  # it was taken out here, after a discard
        ends = [one for one in told if one.event != "retries-exhausted"]  # which only says more of a failure
        last = ends[-1].event if ends else ""
        if last == "removed":
            looked.gone[ref] = "someone removed it in BullMQ"
        elif ref.state in _DEAD and last in {"waiting", "active", "completed"}:
            looked.gone[ref] = "someone replayed it in BullMQ, and it ran"
        elif last in {"completed", "failed"} and not _is_known(ends[-1], ref):
            tell[ref.job_id] = told
        elif copies.get(ref) is False and ref.state in _DEAD and not ref.was_removed:
            looked.gone[ref] = "someone removed it from the dead-letter queue in BullMQ"


def _heard(wire: Wire, jobs: Jobs, queue: str, ids: Sequence[str], since: int) -> Mapping[str, Sequence[Told]]:
    """What the events tell of these since then. Of those that were asked for before only what came after that is read."""
    begins: dict[str, list[str]] = defaultdict(list)
    for job_id in ids:
        known = jobs.heard.get((queue, job_id))
        begins[known.begin if known and known.since == since else str(since)].append(job_id)
    found: dict[str, Sequence[Told]] = {}
    for begin, mine in begins.items():
        news, further = wire.events_from(queue, mine, begin)
        for job_id in mine:
            known = jobs.heard.pop((queue, job_id), None)
            before = known.told if known and begin != str(since) else ()
            found[job_id] = (*before, *news.get(job_id, ()))[-_KNOWN_OF_ONE:]
            jobs.heard[queue, job_id] = Heard(since, further, tuple(found[job_id]))
    while len(jobs.heard) > _KNOWN:
        jobs.heard.popitem(last=False)
    return found


def _since(told: Sequence[Told], ref: Ref, since: int) -> list[Told]:
    """Those after the end that is known of it, and after which nothing was lost."""
    after = max(since, (ref.at or 0) * 1000 + 1)
    return [one for one in told if one.ms > after]


def _is_known(last: Told, ref: Ref) -> bool:
    """Whether this is the failure that is known already: it bears the time of its worker, the event that of the server."""
    return ref.state in _DEAD and ref.at is not None and abs(last.ms / 1000 - ref.at) < _CLOCKS_DIFFER_S


def _is_news(at: float | None, ref: Ref) -> bool:
    return ref.state not in _DEAD or ref.at is None or (at or 0.0) > ref.at + _SAME_MOMENT_S


def _retrying(refs: Sequence[Ref]) -> frozenset[str]:
    """Ids of those whose good end is told although we did not send them: they waited for a retry."""
    return frozenset(ref.job_id for ref in refs if ref.state == "retrying")


def _now(wire: Wire, queue: str, ids: Sequence[str]) -> Mapping[str, _Now]:
    """Of those of which it can be told."""
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
        told = {state: next(answers) for state in states}
        scores = {state: score for state, score in told.items() if isinstance(score, float)}
        made, is_there = next(answers), next(answers)
        made_at = int(made) / 1000 if isinstance(made, bytes) and made.isdigit() and len(made) < 16 else 0.0
        if any(isinstance(score, Exception) for score in told.values()):
            continue  # a set that is none: nobody can tell where the job lies
        if not is_there:
            found[job_id] = _Now("")
        else:
            state, score = next(iter(scores.items()), ("waiting", 0.0))
            found[job_id] = _Now(state, score, made_at)
    return found
