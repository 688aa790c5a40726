"""From a job's id to what is told of it: its hash, the set or list that it lies in, and what we know of it ourselves."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from jobs_admin.core import keys, untrusted
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.sources.base import SourceError, Unread
from jobs_admin.sources.bullmq import kept as bullmq_kept
from jobs_admin.sources.bullmq import letters as bullmq_letters
from jobs_admin.sources.bullmq.carried import carried
from jobs_admin.sources.bullmq.dead_letters import Copy, DeadLetterQueues, made_of
from jobs_admin.sources.bullmq.flows import children_of
from jobs_admin.sources.bullmq.wire import Told, Wire, text

_ACTS = {"removed": "it was removed", "waiting": "it was brought back"}  # events of what a person does
_KNOWN_ACTS = 100_000
_KEPT_S = 7 * 86400
_KEPT_AT_ONCE = 100
_LAST_MS = 8.64e15  # the last moment that a Date of JavaScript can be
_KNOWN_KEPT = 20_000
KEPT_BYTES = 8_000_000  # of one answer


@dataclass(frozen=True, slots=True)
class Heard:
    """What was read of a job's events since a moment (ms), and from where on the next are to be read."""

    since: int
    begin: str
    told: tuple[Told, ...]


class Jobs:
    """Of one source. `dead`: its dead-letter queues."""

    def __init__(self, wire: Wire, dead: DeadLetterQueues, tenant_paths: Sequence[str] = ()) -> None:
        self._wire = wire
        self.dead = dead
        self._tenant_paths = tuple(tenant_paths)
        self.acts: OrderedDict[tuple[str, str], Told] = OrderedDict()  # what somebody did to a job, as events told
        self.heard: OrderedDict[tuple[str, str], Heard] = OrderedDict()  # of jobs that are not there (`look.py`)
        self.unread: list[Unread] = []  # jobs of which no report could be made, until they are handed on
        self._kept_from = 0  # how many of those that are kept are passed over
        self._was_kept: OrderedDict[tuple[str, str], None] = OrderedDict()  # jobs that are told of whole, not by events

    # Whether the data is what it was

    def is_whole(self, after: str) -> bool:
        """Whether all that was read up to the place `after` may still be there; noted where it is not."""
        mark = keys.whole_since(self._wire.source, self._wire.store_prefix)
        if not after:
            self._wire.note(lambda: self._wire.client.set(mark, "0", nx=True))
            return True
        if self._wire.client.exists(mark):
            return True
        self._wire.note(lambda: self._wire.client.set(mark, str(self._wire.now_ms()), nx=True))
        if not self._wire.client.exists(mark):
            return True  # who may only read has no mark: nothing is ever known to be gone, and nothing read twice
        self.acts.clear()
        return False

    def whole_since(self) -> int | None:
        """Since when (ms) nothing was lost; 0: as long as we know it. None: just now something was."""
        said = self._wire.client.get(keys.whole_since(self._wire.source, self._wire.store_prefix))
        return untrusted.whole(said)

    # What is told

    def notice(self, queue: str, told: Sequence[Told]) -> None:
        """Keeps in mind what somebody did."""
        for one in told:
            if one.event in _ACTS:
                self.acts[queue, one.job_id] = one
                self.acts.move_to_end((queue, one.job_id))
        while len(self.acts) > _KNOWN_ACTS:
            self.acts.popitem(last=False)

    def page(self, queue: str, state: str, start: int, count: int) -> list[tuple[str, float]]:
        """Ids and scores of jobs in a list (0) or sorted set, in its order; none where it is neither."""
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
        self, queue: str, jobs: Mapping[str, Sequence[Told]], completed: Container[str] = frozenset()
    ) -> Iterator[Envelope]:
        """Of those that are dead, wait for a retry, or were sent by us and ran well; by their hashes, or, of those that are not there
        any more, by their events. `completed`: ids of those whose good end is told although we did not send them.
        """
        for _, told in self.each(queue, jobs, completed):
            yield from told

    def each(
        self, queue: str, jobs: Mapping[str, Sequence[Told]], completed: Container[str] = frozenset()
    ) -> Iterator[tuple[str, list[Envelope]]]:
        """The same, job by job, by the ids that were asked for: whoever asks may end before all are read."""
        version = self._wire.versions().get(queue)
        major = (version.major if version else None) or 0
        there = list(jobs)
        states = self._states(queue, there)
        children = children_of(self._wire, queue, there)
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
            except Exception as error:  # one job of a page: those behind it are read all the same
                raw = bullmq_letters.pack(bullmq_letters.Message(major, queue, job_id, fields))
                self.unread.append(Unread.from_error(queue, job_id, raw, error))
                reports = []
            yield job_id, reports

    def take_unread(self) -> list[Unread]:
        """Return those of which no report could be made since the call before."""
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
        events: Sequence[Told],
        is_told_completed: bool,
    ) -> list[Envelope]:
        """Of one job. `place`: the set in which it is, and its score there."""
        lineage, before = sent_with(fields.get(b"redrive"))
        state, score = place
        told: dict[str, Any] = {
            "lineage": lineage,
            "before": before,
            "size": size if b"data" not in fields and size else None,
            "tenant_paths": self._tenant_paths,
            "flow": children,
        }
        if fields and self.dead.is_configured(queue) and (one := carried(fields.get(b"data", b""))) is not None:
            if state == "failed":  # whoever works on it failed too: it is dead as the job that it carries
                return self.dead.told(queue, [Copy(job_id, made_of(fields), one)], major)
        elif state == "failed" and fields:
            return [self._report(queue, job_id, fields, major, at=moment(score), **told)]
        elif state == "delayed" and fields.get(b"failedReason") is not None:
            due_at = score / 4096 / 1000
            at = _retried_at(fields, due_at)
            report = self._report(queue, job_id, fields, major, kind="retry", due_at=due_at, at=at, **told)
            self._note_retry(queue, job_id, report)
            return [report]
        elif state == "completed" and (lineage is not None or is_told_completed):
            return [self._report(queue, job_id, fields, major, kind="success", at=moment(score), **told)]
        elif not fields:
            return list(self._by_events(queue, job_id, events, is_told_completed))
        return []

    def kept(self) -> tuple[list[tuple[tuple[str, str], Envelope]], bool]:
        """Of jobs that BullMQ has forgotten, or will (`removeOnFail`), and that a worker with our piece kept: (queue, id) and report, of
        some megabytes together; and whether more are kept."""
        client, place = self._wire.client, keys.bullmq_kept(self._wire.source, self._wire.store_prefix)
        waiting = bullmq_kept.waiting(client, place, self._kept_from, _KEPT_AT_ONCE)
        if not waiting:
            self._kept_from = 0
            return [], False
        for job in waiting:
            self._was_kept[job] = None
        while len(self._was_kept) > _KNOWN_KEPT:
            self._was_kept.popitem(last=False)
        pipe = client.pipeline(transaction=False)
        for queue, job_id in waiting:
            pipe.exists(self._wire.key(queue, job_id))
            pipe.zscore(self._wire.key(queue, "failed"), job_id)
        answers = pipe.execute(raise_on_error=False)
        there = zip(waiting, answers[::2], answers[1::2], strict=True)
        # The others have not failed yet.
        ended = {job: failed_at for job, is_there, failed_at in there if is_there != 1 or isinstance(failed_at, float)}
        if not ended:  # those that did not fail after all stand in nobody's way
            self._kept_from = self._kept_from + _KEPT_AT_ONCE if len(waiting) == _KEPT_AT_ONCE else 0
            return [], False
        some = list(ended)[: bullmq_kept.fitting(client, place, list(ended), KEPT_BYTES)]
        versions = self._wire.versions()
        found = []
        for job, fields in zip(some, bullmq_kept.fields(client, place, some), strict=True):
            failed_at = ended[job]
            version = versions.get(job[0])
            lineage, before = sent_with(fields.get(b"redrive"))
            told: dict[str, Any] = {"lineage": lineage, "before": before, "tenant_paths": self._tenant_paths}
            if isinstance(failed_at, float):  # what was kept was read before it ended
                told["at"] = moment(failed_at)
            found.append((job, self._report(*job, fields, (version.major if version else None) or 0, **told)))
        return found, len(some) < len(ended)

    def forget_kept(self, jobs: Sequence[tuple[str, str]]) -> None:
        if jobs:
            bullmq_kept.forget(self._wire.client, keys.bullmq_kept(self._wire.source, self._wire.store_prefix), jobs)

    def _report(self, queue: str, job_id: str, fields: Mapping[bytes, bytes], major: int, **told: Any) -> Envelope:
        return bullmq_letters.report(self._wire.source, queue, job_id, fields, major, **told)

    def _by_events(self, queue: str, job_id: str, events: Sequence[Told], told_anyway: bool) -> Iterator[Envelope]:
        """A job of which nothing is left: it failed, or ran well, and was removed in the same step (`removeOnFail: true`)."""
        ends = [one for one in events if one.event in {"failed", "completed"}]
        if not ends:
            return
        last = ends[-1]
        lineage, before = sent_with(self._wire.client.get(self._wire.sent(queue) + job_id))
        counts = [
            n for one in events if one.event == "retries-exhausted" and (n := untrusted.whole(one.more)) is not None
        ]
        attempt = max(1, min(counts[-1], 10_000) - before[0]) if counts else 1
        if last.event == "failed" and (queue, job_id) in self._was_kept:
            return
        if last.event == "failed":
            yield bullmq_letters.dropped(
                self._wire.source, queue, job_id, last.more, last.ms / 1000, attempt=attempt, lineage=lineage
            )
        elif lineage is not None or told_anyway:
            yield Envelope(
                source=self._wire.source,
                queue=lineage.queue if lineage else queue,
                task="",
                job_id=job_id,
                kind="success",
                attempt=self._seen(queue, job_id, lineage) + 1,
                at=last.ms / 1000,
                lineage=lineage,
            )

    def _seen(self, queue: str, job_id: str, lineage: Lineage | None) -> int:
        """How many attempts of this run were told before: one that ends it comes after them."""
        said = self._wire.client.get(self._attempts(queue, job_id, lineage))
        return int(said) if said is not None and said.isdigit() and len(said) < 6 else 0

    def _note_retry(self, queue: str, job_id: str, report: Envelope) -> None:
        """Should the job run well and be removed at once, nothing else tells which attempt that was."""
        name = self._attempts(queue, job_id, report.lineage)
        self._wire.note(lambda: self._wire.client.set(name, report.attempt, ex=_KEPT_S))

    def _attempts(self, queue: str, job_id: str, lineage: Lineage | None) -> str:
        return f"{self._wire.sent(queue)}{job_id}:{lineage.run if lineage else 1}:attempts"

    def _states(self, queue: str, ids: Sequence[str]) -> dict[str, tuple[str, float]]:
        """Of each: `failed`, `delayed` or `completed` and its score there, or "" and 0."""
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
    """The lineage that a job was sent with, and its executions and stack traces before (`send.lua`)."""
    try:
        said = json.loads(record) if record else None
        if not isinstance(said, dict):
            return None, (0, 0)
        return Lineage.from_header(said.get("lineage")), (int(said["made"]), int(said["stacks"]))
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return None, (0, 0)


def moment(score: float) -> float | None:
    """Seconds since 1970 of a score in ms; None where no worker's clock can have said it."""
    return score / 1000 if 0 < score < _LAST_MS else None


def _retried_at(fields: Mapping[bytes, bytes], due_at: float) -> float:
    """When the attempt ended after which it waits: BullMQ keeps how long it waits, and until when."""
    try:
        return due_at - float(fields.get(b"delay") or 0) / 1000
    except ValueError:
        return due_at
