"""Reports of jobs by id: from a job's hash, the set or list that contains it, and our own records."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from jobs_admin.core import keys, untrusted
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.sources.base import Ref, SourceError, Unread
from jobs_admin.sources.bullmq import job_hash as bullmq_job_hash
from jobs_admin.sources.bullmq.carried import find_carried
from jobs_admin.sources.bullmq.dead_letters import Copy, DeadLetterQueues, added_at
from jobs_admin.sources.bullmq.wire import JobEvent, Wire, text

_ACTS = {"removed": "it was removed", "waiting": "it was brought back"}  # events of operators' actions
_KNOWN_ACTS = 100_000
_RECORDED_S = 7 * 86400
_SAVED_AT_ONCE = 100
_LAST_MS = 8.64e15  # maximum time of a JavaScript Date
_KNOWN_SAVED = 20_000
SAVED_BYTES = 8_000_000  # per answer


@dataclass(frozen=True, slots=True)
class ReadEvents:
    """Events of a job read since a time (ms), and the position of the next ones."""

    since: int
    begin: str
    events: tuple[JobEvent, ...]


class Jobs:
    """Jobs of one source. `dead`: its dead-letter queues."""

    def __init__(self, wire: Wire, dead: DeadLetterQueues, tenant_paths: Sequence[str] = ()) -> None:
        self._wire = wire
        self.dead = dead
        self._tenant_paths = tuple(tenant_paths)
        self.acts: OrderedDict[tuple[str, str], JobEvent] = OrderedDict()  # operators' actions on jobs, from events
        self.read_events: OrderedDict[tuple[str, str], ReadEvents] = OrderedDict()  # of absent jobs (`job_changes.py`)
        self.unread: list[Unread] = []  # jobs that could not be reported, until they are passed on
        self._saved_from = 0  # number of saved jobs to skip
        self._saved: OrderedDict[tuple[str, str], None] = (
            OrderedDict()
        )  # jobs reported from their hashes, not by events

    # Loss of data

    def is_complete(self, after: str) -> bool:
        """Return whether everything read up to the cursor `after` may still exist; if not, record the loss."""
        mark = keys.whole_since(self._wire.source, self._wire.store_prefix)
        if not after:
            self._wire.note(lambda: self._wire.client.set(mark, "0", nx=True))
            return True
        if self._wire.client.exists(mark):
            return True
        self._wire.note(lambda: self._wire.client.set(mark, str(self._wire.now_ms()), nx=True))
        if not self._wire.client.exists(mark):
            return True  # a read-only user has no mark: nothing counts as gone, and nothing is read twice
        self.acts.clear()
        return False

    def complete_since(self) -> int | None:
        """Return the time (ms) since which no data was lost; 0: none ever was. None: a loss was just found."""
        mark = self._wire.client.get(keys.whole_since(self._wire.source, self._wire.store_prefix))
        return untrusted.integer(mark)

    # Reports

    def remember_acts(self, queue: str, events: Sequence[JobEvent]) -> None:
        """Remember operators' actions."""
        for one in events:
            if one.event in _ACTS:
                self.acts[queue, one.job_id] = one
                self.acts.move_to_end((queue, one.job_id))
        while len(self.acts) > _KNOWN_ACTS:
            self.acts.popitem(last=False)

    def page(self, queue: str, state: str, start: int, count: int) -> list[tuple[str, float]]:
        """Return ids and scores of jobs in a list (0) or sorted set, in order; [] for a key of another type."""
        key = self._wire.key(queue, state)
        pipe = self._wire.client.pipeline(transaction=False)
        if state in {"wait", "paused"}:
            pipe.lrange(key, start, start + count - 1)
        else:
            pipe.zrange(key, start, start + count - 1, withscores=True)
        (page,) = pipe.execute(raise_on_error=False)
        if not isinstance(page, list):
            return []
        return [(text(one[0]), one[1]) if isinstance(one, tuple | list) else (text(one), 0.0) for one in page]

    def reports(
        self, queue: str, jobs: Mapping[str, Sequence[JobEvent]], completed: Container[str] = frozenset()
    ) -> Iterator[Envelope]:
        """Yield reports of jobs that are dead, wait for a retry, or succeeded after we sent them: from their hashes,
        else their events.

        `completed`: ids of jobs whose success is reported although we did not send them.
        """
        for _, found in self.each(queue, jobs, completed):
            yield from found

    def each(
        self, queue: str, jobs: Mapping[str, Sequence[JobEvent]], completed: Container[str] = frozenset()
    ) -> Iterator[tuple[str, list[Envelope]]]:
        """Yield reports job by job, by requested id: the caller may stop before all are read."""
        version = self._wire.versions().get(queue)
        major = (version.major if version else None) or 0
        there = list(jobs)
        states = self._states(queue, there)
        children = _children_of(self._wire, queue, there)
        for job_id, fields, size in self._wire.jobs(queue, there):
            try:
                reports = self._reports(
                    queue,
                    job_id,
                    fields,
                    size,
                    major,
                    states[job_id],
                    children.get(job_id),
                    jobs[job_id],
                    job_id in completed,
                )
            except (redis.RedisError, SourceError):
                raise
            except Exception as error:  # one job of a page: the others are still read
                raw = bullmq_job_hash.pack(bullmq_job_hash.Message(major, queue, job_id, fields))
                self.unread.append(Unread.from_error(queue, job_id, raw, error))
                reports = []
            yield job_id, reports

    def take_unread(self) -> list[Unread]:
        """Return the jobs that could not be reported since the previous call."""
        taken = [*self.unread, *self.dead.unread]
        self.unread, self.dead.unread = [], []
        return taken

    def _reports(
        self,
        queue: str,
        job_id: str,
        fields: dict[bytes, bytes],
        size: int,
        major: int,
        place: tuple[str, float],
        children: dict[str, Any] | None,
        events: Sequence[JobEvent],
        is_success_reported: bool,
    ) -> list[Envelope]:
        """Return the reports of one job. `place`: the set that contains it, and its score there."""
        lineage, before = sent_with(fields.get(b"redrive"))
        state, score = place
        details: dict[str, Any] = {
            "lineage": lineage,
            "before": before,
            "size": size if b"data" not in fields and size else None,
            "tenant_paths": self._tenant_paths,
            "flow": children,
        }
        if fields and self.dead.is_configured(queue) and (one := find_carried(fields.get(b"data", b""))) is not None:
            if state == "failed":  # its worker failed too: report the contained job as dead
                return self.dead.build_reports(queue, [Copy(job_id, added_at(fields), one)], major)
        elif state == "failed" and fields:
            return [self._report(queue, job_id, fields, major, at=moment(score), **details)]
        elif state == "delayed" and fields.get(b"failedReason") is not None:
            due_at = score / 4096 / 1000
            at = _retried_at(fields, due_at)
            report = self._report(queue, job_id, fields, major, kind="retry", due_at=due_at, at=at, **details)
            self._note_retry(queue, job_id, report)
            return [report]
        elif state == "completed" and (lineage is not None or is_success_reported):
            return [self._report(queue, job_id, fields, major, kind="success", at=moment(score), **details)]
        elif not fields:
            return list(self._by_events(queue, job_id, events, is_success_reported))
        return []

    def saved_reports(self) -> tuple[list[tuple[tuple[str, str], Envelope]], bool]:
        """Return reports of jobs that BullMQ removed, or will remove (`removeOnFail`), and that a worker with the Node
        agent saved.

        ((queue, id), report) pairs of some megabytes in total; and whether there are more.
        """
        client, place = self._wire.client, keys.bullmq_kept(self._wire.source, self._wire.store_prefix)
        waiting, has_more = saved_waiting(client, place, self._saved_from, _SAVED_AT_ONCE)
        for job in waiting:
            self._saved[job] = None
        while len(self._saved) > _KNOWN_SAVED:
            self._saved.popitem(last=False)
        pipe = client.pipeline(transaction=False)
        for queue, job_id in waiting:
            pipe.exists(self._wire.key(queue, job_id))
            pipe.zscore(self._wire.key(queue, "failed"), job_id)
        answers = pipe.execute(raise_on_error=False)
        there = zip(waiting, answers[::2], answers[1::2], strict=True)
        # The others have not failed yet.
        ended = {job: failed_at for job, is_there, failed_at in there if is_there != 1 or isinstance(failed_at, float)}
        if not ended:  # those that did not fail must not block others
            self._saved_from = self._saved_from + _SAVED_AT_ONCE if has_more else 0
            return [], False
        some = list(ended)[: saved_fitting(client, place, list(ended), SAVED_BYTES)]
        versions = self._wire.versions()
        found = []
        for job, fields in zip(some, saved_fields(client, place, some), strict=True):
            failed_at = ended[job]
            version = versions.get(job[0])
            lineage, before = sent_with(fields.get(b"redrive"))
            details: dict[str, Any] = {"lineage": lineage, "before": before, "tenant_paths": self._tenant_paths}
            if isinstance(failed_at, float):  # saved before it ended
                details["at"] = moment(failed_at)
            found.append((job, self._report(*job, fields, (version.major if version else None) or 0, **details)))
        return found, len(some) < len(ended)

    def forget_saved(self, jobs: Sequence[tuple[str, str]]) -> None:
        if jobs:
            forget_saved(self._wire.client, keys.bullmq_kept(self._wire.source, self._wire.store_prefix), jobs)

    def _report(self, queue: str, job_id: str, fields: Mapping[bytes, bytes], major: int, **details: Any) -> Envelope:
        return bullmq_job_hash.build_report(self._wire.source, queue, job_id, fields, major, **details)

    def _by_events(
        self, queue: str, job_id: str, events: Sequence[JobEvent], is_success_reported: bool
    ) -> Iterator[Envelope]:
        """Yield the report of a job without any data: it failed or succeeded, and was removed in the same step
        (`removeOnFail: true`).
        """
        ends = [one for one in events if one.event in {"failed", "completed"}]
        if not ends:
            return
        last = ends[-1]
        lineage, before = sent_with(self._wire.client.get(self._wire.sent_key(queue) + job_id))
        counts = [
            n for one in events if one.event == "retries-exhausted" and (n := untrusted.integer(one.more)) is not None
        ]
        attempt = max(1, min(counts[-1], 10_000) - before[0]) if counts else 1
        if last.event == "failed" and (queue, job_id) in self._saved:
            return
        if last.event == "failed":
            yield bullmq_job_hash.build_dropped_report(
                self._wire.source, queue, job_id, last.more, last.ms / 1000, attempt=attempt, lineage=lineage
            )
        elif lineage is not None or is_success_reported:
            yield Envelope(
                source=self._wire.source,
                queue=lineage.queue if lineage else queue,
                task="",
                job_id=job_id,
                kind="success",
                attempt=self._reported_attempts(queue, job_id, lineage) + 1,
                at=last.ms / 1000,
                lineage=lineage,
            )

    def find_ended(self, queue: str, absent: Sequence[Ref]) -> list[Ref]:
        """Return absent jobs that were sent or waited for a retry, by our own records in the same Redis.

        A Redis that is older than the sending, or empty, lacks the record: such jobs are lost, and did not end.
        """
        pipe = self._wire.client.pipeline(transaction=False)
        for ref in absent:
            pipe.get(self._wire.sent_key(queue) + ref.job_id)
        records = self._wire.answers(pipe)
        lineages = [sent_with(record)[0] if isinstance(record, bytes) else None for record in records]
        for ref, lineage in zip(absent, lineages, strict=True):
            pipe.exists(self._attempts(queue, ref.job_id, lineage))
        retried = self._wire.answers(pipe)
        return [
            ref
            for ref, lineage, was_retried in zip(absent, lineages, retried, strict=True)
            if (ref.state == "replaying" and lineage) or (ref.state == "retrying" and was_retried == 1)
        ]

    def _reported_attempts(self, queue: str, job_id: str, lineage: Lineage | None) -> int:
        """Return the number of reported attempts of this run; the attempt that ends it comes after them."""
        count = self._wire.client.get(self._attempts(queue, job_id, lineage))
        return int(count) if count is not None and count.isdigit() and len(count) < 6 else 0

    def _note_retry(self, queue: str, job_id: str, report: Envelope) -> None:
        """Record the attempt's number: if the job succeeds and is removed at once, nothing else has it."""
        name = self._attempts(queue, job_id, report.lineage)
        self._wire.note(lambda: self._wire.client.set(name, report.attempt, ex=_RECORDED_S))

    def _attempts(self, queue: str, job_id: str, lineage: Lineage | None) -> str:
        return f"{self._wire.sent_key(queue)}{job_id}:{lineage.run if lineage else 1}:attempts"

    def _states(self, queue: str, ids: Sequence[str]) -> dict[str, tuple[str, float]]:
        """Return each job's state (`failed`, `delayed` or `completed`) and its score there, or "" and 0."""
        states = ("failed", "delayed", "completed")
        pipe = self._wire.client.pipeline(transaction=False)
        for job_id in ids:
            for state in states:
                pipe.zscore(self._wire.key(queue, state), job_id)
        scores = iter(pipe.execute(raise_on_error=False))
        found = {}
        for job_id in ids:
            here = [(state, score) for state in states if isinstance(score := next(scores), float)]
            found[job_id] = here[0] if here else ("", 0.0)
        return found


def sent_with(record: bytes | str | None) -> tuple[Lineage | None, tuple[int, int]]:
    """Return the lineage that a job was sent with, and its executions and stack traces before (`send.lua`)."""
    try:
        record_fields = json.loads(record) if record else None
        if not isinstance(record_fields, dict):
            return None, (0, 0)
        return Lineage.from_header(record_fields.get("lineage")), (
            int(record_fields["made"]),
            int(record_fields["stacks"]),
        )
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return None, (0, 0)


def moment(score: float) -> float | None:
    """Return a score in ms as Unix seconds; None if no worker's clock can have produced it."""
    return score / 1000 if 0 < score < _LAST_MS else None


def _retried_at(fields: Mapping[bytes, bytes], due_at: float) -> float:
    """Return the end of the attempt before the delay: BullMQ stores the delay and its end."""
    try:
        return due_at - float(fields.get(b"delay") or 0) / 1000
    except ValueError:
        return due_at


_NAMED = 20  # children named per kind; the rest are counted
# Keys beside a job's hash, in 5.81 and 6.7 (4.18 has the first two), with the states of its children. `failed`:
# failures that the parent may ignore; `unsuccessful`: those it may not.
_KINDS = (
    ("dependencies", "wait or run"),
    ("processed", "ran well"),
    ("failed", "failed"),
    ("unsuccessful", "failed for good"),
)


def _children_of(wire: Wire, queue: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the children of jobs that have any: their number by kind, and some of them (`queue:id`).

    One round trip for jobs without children.
    """
    pipe = wire.client.pipeline(transaction=False)
    for job_id in ids:
        pipe.exists(*(f"{wire.key(queue, job_id)}:{kind}" for kind, _ in _KINDS))
    parents = [
        job_id for job_id, n in zip(ids, pipe.execute(raise_on_error=False), strict=True) if isinstance(n, int) and n
    ]
    return {job_id: children for job_id in parents if (children := _read_children(wire, f"{wire.key(queue, job_id)}:"))}


def _read_children(wire: Wire, base: str) -> dict[str, Any]:
    reads: dict[str, tuple[Any, Any]] = {
        "dependencies": (wire.client.scard, wire.client.sscan),
        "processed": (wire.client.hlen, wire.client.hscan),
        "failed": (wire.client.hlen, wire.client.hscan),
        "unsuccessful": (wire.client.zcard, wire.client.zscan),
    }
    children: dict[str, Any] = {}
    for kind, word in _KINDS:
        count, scan = reads[kind]
        with contextlib.suppress(redis.ResponseError):  # a key of another type
            if n := count(base + kind):
                _, some = scan(base + kind, count=_NAMED)
                keys = [one[0] if isinstance(one, tuple) else one for one in list(some)[:_NAMED]]
                children[word] = {"count": n, "some": [_brief(text(key), wire.prefix) for key in keys]}
    return {"children": children} if children else {}


def _brief(key: str, prefix: str) -> str:
    """Return `queue:id` for a job's key."""
    return key.removeprefix(f"{prefix}:")[:300]


# Jobs saved by a worker with the Node agent before BullMQ removed them (`removeOnFail`), until they are filed here.
# `place`: the source's `keys.bullmq_kept`. A worker saves a job before BullMQ moves it, so it may still be running.

_FORGET = """
-- KEYS: all that are kept, how many bytes these are, one that is kept. ARGV: its name
local bytes = tonumber(redis.call('HGET', KEYS[3], 'keptBytes') or '0')
if redis.call('ZREM', KEYS[1], ARGV[1]) == 1 and redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('DECRBY', KEYS[2], bytes)
end
redis.call('DEL', KEYS[3])
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[2])
end
return 1
"""

Job = tuple[str, str]  # queue, id


def saved_waiting(client: redis.Redis, place: str, start: int, most: int) -> tuple[list[Job], bool]:
    """Return saved jobs, oldest first, skipping `start`, and whether more may follow. Raises redis.RedisError.

    Of `most` names read, invalid ones (not UTF-8, without queue or id) are omitted.
    """
    names: Any = client.zrange(place, start, start + most - 1)
    found = [name.partition(":") for name in map(_name_of_saved, names) if name]
    return [(queue, job_id) for queue, _, job_id in found if queue and job_id], len(names) == most


def saved_fields(client: redis.Redis, place: str, jobs: Sequence[Job]) -> list[dict[bytes, bytes]]:
    """Return the original hash of each job; {} if it is not saved. Raises redis.RedisError."""
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        pipe.hgetall(_saved_key(place, job))
    answers = pipe.execute(raise_on_error=False)
    return [answer if isinstance(answer, dict) else {} for answer in answers]


def saved_fitting(client: redis.Redis, place: str, jobs: Sequence[Job], most: int) -> int:
    """Return the number of jobs, from the first, with at most `most` bytes in total; at least one.

    Raises redis.RedisError.
    """
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        pipe.hget(_saved_key(place, job), "keptBytes")
    sizes = [
        untrusted.integer(size) or 0 if isinstance(size, bytes) else 0 for size in pipe.execute(raise_on_error=False)
    ]
    return max(1, bisect.bisect_right(list(itertools.accumulate(sizes)), most))


def forget_saved(client: redis.Redis, place: str, jobs: Iterable[Job]) -> None:
    """Delete filed jobs. Raises redis.RedisError; may be repeated."""
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        pipe.eval(_FORGET, 3, place, f"{place}-bytes", _saved_key(place, job), _saved_name(job))
    pipe.execute()


def _saved_name(job: Job) -> str:
    return ":".join(job)


def _saved_key(place: str, job: Job) -> str:
    return f"{place}:{_saved_name(job)}"


def _name_of_saved(member: bytes | str) -> str:
    try:
        return member.decode() if isinstance(member, bytes) else member
    except UnicodeDecodeError:
        return ""
