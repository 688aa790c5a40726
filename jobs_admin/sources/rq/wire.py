"""RQ's keys in one Redis: queues, workers and versions, and jobs read within bounds.

Keys of RQ 1.16, 2.12 and 3.0, measured: `rq:queues`, a set of queue keys; `rq:queue:Q`, a list; `rq:failed:Q`,
`rq:scheduled:Q`, `rq:wip:Q`, `rq:deferred:Q`, sorted sets; `rq:job:ID`, a hash; `rq:results:ID`, a stream; `rq:workers`
and `rq:workers:Q`, sets of the keys of worker hashes.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from jobs_admin.sources.base import Ref, SourceRefused
from jobs_admin.sources.one_redis import NOT_WRITTEN, SENDING, LossMark, OneRedis, count, job_member
from jobs_admin.sources.rq.job_hash import DEFAULT_FAILURE_TTL, RAW_BYTES, Job, Result, text_of

_HERE = Path(__file__).parent
_QUEUES_FOR_S = 1.0
_QUEUES = 1_000  # maximum that is read
_LISTED = 20_000  # maximum of queues listed by RQ
_WORKERS = 2_000
_READ_BYTES = 8_000_000  # of jobs per call
_JOBS_AT_ONCE = 200
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_KNOWN = ((1, 16), (4, 0))  # minimum, and exclusive maximum
_STATE_BYTES = 65_536  # per field of a state
_EXPIRING = 500  # failed jobs per check
NOTED_S = 30 * 86_400.0  # lifetime of the time at which a failure was last seen
_OF_A_STATE = (
    b"status", b"origin", b"created_at", b"enqueued_at", b"started_at", b"ended_at", b"failure_ttl", b"retries_left", b"number_of_retries",
    b"redrive",
)  # fmt: skip
_DEPTHS = (("llen", "queue"), ("zcard", "wip"), ("zcard", "scheduled"), ("zcard", "deferred"), ("zcard", "failed"))


class Wire(OneRedis):
    """One Redis with RQ's keys under one prefix."""

    def __init__(self, source: str, url: str, prefix: str, queues: Sequence[str], store_prefix: str) -> None:
        super().__init__(source, url, "RQ", queues, store_prefix)
        self.prefix = prefix
        self._found: tuple[float, list[str]] | None = None
        self.mark = LossMark(self.client, self.own_key("mark"))
        self._scripts = {
            name: self.client.register_script((_HERE / f"{name}.lua").read_text())
            for name in ("read", "locate", "remove")
        }
        self._send = self.client.register_script(SENDING + (_HERE / "send.lua").read_text())

    def key(self, kind: str, of: str) -> str:
        return f"{self.prefix}:{kind}:{of}"

    def own_key(self, name: str) -> str:
        return f"{self.store_prefix}:{{{self.source}}}:rq:{name}"

    # Queues and workers

    def queues(self) -> list[str]:
        """Return the configured queues, else all that RQ lists, by name."""
        if self._named:
            return self._named
        if self._found is None or time.monotonic() >= self._found[0]:
            head = f"{self.prefix}:queue:"
            listed = self._members("queues", _LISTED)
            names = sorted(key.removeprefix(head) for key in listed if key.startswith(head) and key != head)
            self.unread = max(0, len(names) - _QUEUES)
            self._found = (time.monotonic() + _QUEUES_FOR_S, names[:_QUEUES])
        return self._found[1]

    def counts(self, queues: Sequence[str]) -> dict[str, list[int | None]]:
        """Return the jobs of each queue: waiting, running, scheduled, deferred, failed.

        None: the key has another type.
        """
        pipe = self.client.pipeline(transaction=False)
        for queue in queues:
            for command, kind in _DEPTHS:
                getattr(pipe, command)(self.key(kind, queue))
        answers = iter(self.answers(pipe))
        return {queue: [count(next(answers)) for _ in _DEPTHS] for queue in queues}

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        return dict(zip(queues, self.lengths([self.key("queue", queue) for queue in queues]), strict=True))

    def workers(self) -> dict[str, set[str]]:
        """Return the names of live workers of each queue: RQ lets the others expire."""
        names = self._living_workers("queues", "death")
        found: dict[str, set[str]] = {}
        for name, (queues, death) in names.items():
            for queue in text_of(queues).split(",") if queues and not death else ():
                found.setdefault(queue, set()).add(name)
        return found

    def unknown_versions(self) -> list[str]:
        """Return the RQ versions of its workers that are unknown here."""
        versions = {text_of(version or b"") for (version,) in self._living_workers("version").values()}
        return sorted(version[:40] for version in versions if version and not _is_known(version))

    def _living_workers(self, *fields: str) -> dict[str, list[bytes | None]]:
        head = f"{self.prefix}:worker:"
        members = self._members("workers", _WORKERS)
        pipe = self.client.pipeline(transaction=False)
        for key in members:
            pipe.hmget(key, "birth", *fields)
        answers = self.answers(pipe) if members else []
        return {
            key.removeprefix(head)[:200]: values[1:]
            for key, values in zip(members, answers, strict=True)
            if isinstance(values, list) and values[0]  # otherwise expired, but still in the set
        }

    def _members(self, name: str, most: int) -> list[str]:
        found = self.client.sscan_iter(f"{self.prefix}:{name}", count=1_000)
        return list(dict.fromkeys(text_of(key) for key in islice(found, most)))

    # Jobs

    def jobs(self, queue: str, ids: Iterable[str]) -> Iterator[Job]:
        """Read these jobs, each in one step, in calls of a few megabytes."""
        rest = list(dict.fromkeys(ids))
        while rest:
            arguments: list[Any] = [self.prefix, queue, RAW_BYTES, _READ_BYTES, *rest[:_JOBS_AT_ONCE]]
            answers = self._scripts["read"](args=arguments)
            for job_id, answer in zip(rest, answers, strict=False):
                yield _job(queue, job_id, answer)
            rest = rest[max(1, len(answers)) :]

    def locate(
        self, queue: str, ids: Sequence[str], names: Sequence[bytes] = _OF_A_STATE, most: int = _STATE_BYTES
    ) -> Iterator[Job]:
        """Yield these jobs with the fields `names`, each of at most `most` bytes, and without their results."""
        arguments: list[Any] = [self.prefix, queue, most, len(names), *names, *ids]
        for job_id, answer in zip(ids, self._scripts["locate"](args=arguments) if ids else [], strict=True):
            kind, failed, due_at, values = answer
            if kind not in (b"hash", b"none"):
                continue  # its key is not a job's: nothing is known of it
            fields = {name: value for name, value in zip(names, values, strict=True) if value}
            yield Job(queue, job_id, text_of(kind), 0, _score(failed), _score(due_at), fields)

    def send(self, replay: str, arguments: Sequence[Any]) -> list[int]:
        answers: list[int] = self._send(keys=[self.ledger(replay)], args=list(arguments))
        return answers

    def remove(self, queue: str, jobs: Sequence[tuple[str, str]]) -> list[int]:
        targets = [part for job in jobs for part in job]
        answers: list[int] = self._scripts["remove"](args=[self.prefix, queue, RAW_BYTES, *targets])
        return answers

    # Failures with their own `failure_ttl` (RQ stores others for a year): when RQ drops them, and when they were last
    # seen failed. Without this, a dropped job may have run in between.

    def note_seen(self, jobs: Iterable[Job]) -> None:
        """Record that these failed jobs were seen now, and when RQ drops them."""
        own = [job for job in jobs if job.is_dead and (job.number("failure_ttl") or 0) > 0]
        if not own:
            return
        now, pipe = time.time(), self.client.pipeline(transaction=False)
        for name, scores in (
            ("expiry", {job_member(job.queue, job.id): job.expires_at for job in own}),
            ("seen", {job_member(job.queue, job.id): now for job in own}),
        ):
            pipe.zadd(self.own_key(name), scores)
            pipe.zremrangebyscore(self.own_key(name), 0, now - NOTED_S)
        with contextlib.suppress(*NOT_WRITTEN):
            pipe.execute()

    def expiring(self, within_s: float) -> dict[str, list[str]]:
        """Return the failed jobs that RQ drops within this time, next first: ids by queue."""
        now = time.time()
        found: Any = self.client.zrange(
            self.own_key("expiry"), now, now + within_s, byscore=True, offset=0, num=_EXPIRING
        )  # fmt: skip
        by_queue: dict[str, list[str]] = {}
        for member in found:
            queue, _, job_id = text_of(member).partition("\n")
            by_queue.setdefault(queue, []).append(job_id)
        return by_queue

    def seen_at(self, jobs: Sequence[tuple[str, str]]) -> list[float | None]:
        found = self.client.zmscore(self.own_key("seen"), [job_member(*job) for job in jobs])
        return [None if score is None else float(score) for score in found]

    def expires_at(self, jobs: Sequence[Ref]) -> dict[Ref, float]:
        scores = self.client.zmscore(self.own_key("expiry"), [job_member(job.queue, job.job_id) for job in jobs])
        return {
            job: (job.at or 0.0) + DEFAULT_FAILURE_TTL if score is None else float(score)
            for job, score in zip(jobs, scores, strict=True)
        }

    # Write access

    def why_read_only(self) -> str:
        """Return why nothing is changed; "" if changes are possible."""
        if versions := self.unknown_versions():
            return f"Workers of RQ {', '.join(versions)[:200]} run here, and only 1.16, 2 and 3 are known."
        key = self.own_key("may-write")
        pipe: Any = self.client.pipeline()  # the commands of sending and removing
        pipe.rpush(key, "1").lpush(key, "1").persist(key).expire(key, 60).delete(key)
        pipe.hset(key, "1", "1").hdel(key, "1").sadd(key, "1").delete(key)
        pipe.zadd(key, {"1": 1}).zrem(key, "1")
        return self.why_no_writing(key) or self.why_no_sending(pipe)

    def refuse_read_only(self) -> None:
        """Raise SourceRefused if nothing may be changed."""
        if why := self.call(self.why_read_only):
            raise SourceRefused(f"{why} Nothing was changed.")


def _is_known(version: str) -> bool:
    found = _VERSION.match(version)
    return found is not None and _KNOWN[0] <= (int(found[1]), int(found[2])) < _KNOWN[1]


def _job(queue: str, job_id: str, answer: Sequence[Any]) -> Job:
    kind, size, failed, scheduled, fields, results = answer
    found = [
        Result(text_of(entry), text_of(kind_of), text_of(worker), error) for entry, kind_of, worker, error in results
    ]
    return Job(
        queue, job_id, text_of(kind), int(size), _score(failed), _score(scheduled),
        dict(zip(fields[::2], fields[1::2], strict=True)), found,
    )  # fmt: skip


def _score(value: bytes) -> float | None:
    try:
        score = float(value)
    except ValueError:
        return None
    return score if abs(score) < 1e12 else 1e12  # RQ writes an infinite score for failures stored forever
