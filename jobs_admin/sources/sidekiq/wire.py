"""Sidekiq's keys in one Redis, read within bounds.

Keys of Sidekiq 5 to 8: `queues` is a set of names, `queue:Q` a list of jobs, `retry` and `dead` are sorted sets of jobs
by due time and time of death (Unix seconds); `processes` is a set of names, each a hash, and the jobs that one runs are
in the hash `NAME:work` (before Sidekiq 7: `NAME:workers`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.exceptions import ResponseError

from jobs_admin.core import untrusted
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.ledger import LEDGER_S, SENT_MARK
from jobs_admin.sources.one_redis import NOT_WRITTEN, SENDING, LossMark, OneRedis, now_ms
from jobs_admin.sources.sidekiq.message import Job, storable

_HERE = Path(__file__).parent
_MOST = 1_000  # queues, and processes, that are read
RAW_BYTES = 15_000_000  # of a job that is stored completely
_PAGE_BYTES = 4_000_000
_FOUND_BYTES = 4_000_000  # that are read at once to find jobs
_COUNTED, _COUNTED_BYTES = 10_000, 32_000_000  # jobs of a set that are counted by queue
_COUNTED_AT_ONCE, _COUNTED_BYTES_AT_ONCE = 500, 2_000_000
_SEARCHED, _SEARCHED_AT_ONCE, _SEARCHED_BYTES = 20_000, 500, 2_000_000  # of a queue; bytes per call
_NEARLY_FULL = 0.9  # from which on the dead set may have dropped jobs between two samples
_LONGER_S = 90 * 86_400  # than Sidekiq stores dead jobs: their deaths stay known
_KNOWN_DEATHS = 200_000  # or ten times as many as Sidekiq stores
_SAMPLED_S = 60.0  # between two samples of the dead set; after longer, it may have been full meanwhile
_MAY_WRITE_S = 1.0  # for which an answer is not checked again
_MAJORS = range(5, 9)


@dataclass(frozen=True, slots=True)
class StoredJob:
    score: float
    size: int  # bytes
    job: Job

    def __hash__(self) -> int:
        return hash((self.score, self.job.raw))

    @property
    def is_complete(self) -> bool:
        return self.size == len(self.job.raw) <= RAW_BYTES


@dataclass(frozen=True, slots=True)
class DeadSet:
    """State of the dead set, with the answer for each requested job: 1 it is there, 0 not, 2 unknown."""

    size: int
    oldest: float | None
    answers: list[int]


class Wire(OneRedis):
    """One Redis with Sidekiq's keys in one namespace."""

    def __init__(
        self, source: str, url: str, namespace: str, queues: Sequence[str], store_prefix: str,
        dead_max_jobs: int, dead_timeout_s: float,
    ) -> None:  # fmt: skip
        super().__init__(source, url, "Sidekiq", queues, store_prefix)
        self._namespace = namespace
        self.dead_max_jobs, self.dead_timeout_s = dead_max_jobs, dead_timeout_s
        self._known_deaths, self._known_s = max(10 * dead_max_jobs, _KNOWN_DEATHS), int(dead_timeout_s + _LONGER_S)
        self.mark = LossMark(self.client, self._own_key("mark"))
        self._counted: dict[str, tuple[object, dict[str, int] | None]] = {}
        self._scripts = {
            name: self.client.register_script("".join((_HERE / f"{one}.lua").read_text() for one in parts))
            for name, *parts in (
                ("page", "page"),
                ("count", "count"),
                ("find", "jid", "find"),
                ("search", "jid", "search"),
            )
        }
        self._send = self.client.register_script(SENDING + (_HERE / "send.lua").read_text())
        self._may_write_until = 0.0
        self._sampled_at = float("-inf")

    def key(self, name: str) -> str:
        return f"{self._namespace}:{name}" if self._namespace else name

    def _own_key(self, name: str) -> str:
        return f"{self.store_prefix}:{{{self.source}}}:sidekiq:{name}"

    # Queues

    def queues(self) -> list[str]:
        """Return the configured queues, else those that Sidekiq lists."""
        if self._named:
            return self._named
        found: set[str] = set()
        cursor, key = 0, self.key("queues")
        while True:
            cursor, page = self.client.sscan(key, cursor, count=_MOST)
            found |= {name for one in page if (name := storable(_text(one)))}
            if not cursor or len(found) >= _MOST:
                break
        self.unread = max(0, int(self.client.scard(key)) - _MOST)
        return sorted(found)[:_MOST]

    def is_read(self, queue: str) -> bool:
        """Return whether jobs of this queue belong to this source. Those that name no queue belong to all."""
        return not self._named or not queue or queue in self._named

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        return dict(zip(queues, self.lengths([self.key(f"queue:{one}") for one in queues]), strict=True))

    def count_by_queue(self, of: str) -> dict[str, int] | None:
        """Count the jobs of the dead or retry set by queue; None if they are too many or too large to be counted."""
        key = self.key(of)
        pipe = self.client.pipeline(transaction=False)
        pipe.zcard(key)
        pipe.zrange(key, 0, 0, withscores=True)
        pipe.zrange(key, -1, -1, withscores=True)
        size, *ends = self.answers(pipe)
        if not isinstance(size, int):
            return None
        state = repr((size, ends))
        known = self._counted.get(of)
        if known is None or known[0] != state:
            self._counted[of] = known = state, self._count(key, size)
        return known[1]

    def _count(self, key: str, size: int) -> dict[str, int] | None:
        if size > _COUNTED:
            return None
        counts: dict[str, int] = {}
        at, left = 0, _COUNTED_BYTES
        while at >= 0:
            if left <= 0:
                return None
            at, read, *found = self._scripts["count"](args=[key, at, _COUNTED_AT_ONCE, _COUNTED_BYTES_AT_ONCE])
            left -= read
            for name, n in zip(found[::2], found[1::2], strict=True):
                queue = storable(_text(name))
                counts[queue] = counts.get(queue, 0) + n
        return counts

    # Jobs

    def page(self, of: str, least: float, read: int, most: int) -> tuple[list[StoredJob], bool]:
        """Read jobs of the dead or retry set from a score on, after `read` of them. Return whether there may be more."""
        arguments: list[Any] = [self.key(of), repr(least), read, most, _PAGE_BYTES, RAW_BYTES]
        is_more, *found = self._scripts["page"](args=arguments)
        return [StoredJob(float(score), int(size), Job.read(raw)) for score, size, raw in found], bool(is_more)

    def find(self, of: str, jobs: Sequence[tuple[float, str]], remove: bool = False) -> DeadSet:
        """Find jobs by score and id in the dead or retry set, and remove them on request."""
        answers: list[int] = []
        while True:
            arguments: list[Any] = [self.key(of), int(remove), _FOUND_BYTES]
            arguments += [part for score, job_id in jobs[len(answers) :] for part in (repr(score), job_id)]
            try:
                size, oldest, *more = self._scripts["find"](args=arguments)
            except ResponseError as error:
                if not is_other_type(error):
                    raise
                return DeadSet(0, None, [2] * len(jobs))
            answers += more
            if len(answers) >= len(jobs):
                return DeadSet(int(size), float(oldest) if oldest else None, answers)

    def dropped_before(self, dead: DeadSet) -> float:
        """Return the time before which Sidekiq may have dropped deaths, because the set was full. It drops the oldest."""
        key, now = self._own_key("dropped"), now_ms(self.client) / 1000
        known, sampled = (one or 0.0 for one in self.client.zmscore(key, ["before", "sampled"]))
        # After a gap it may have been full meanwhile.
        if dead.size >= self.dead_max_jobs * _NEARLY_FULL or (sampled and now - sampled > _SAMPLED_S):
            known = max(known, now if dead.oldest is None else min(dead.oldest, now))
        with contextlib.suppress(*NOT_WRITTEN):
            pipe = self.client.pipeline()
            pipe.zadd(key, {"before": known, "sampled": now}, gt=True)
            pipe.expire(key, self._known_s)
            pipe.execute()
        return known

    def sample(self) -> None:
        """Note how full the dead set is, every few seconds."""
        if time.monotonic() - self._sampled_at >= _SAMPLED_S / 12:
            self._sampled_at = time.monotonic()
            self.dropped_before(self.find("dead", []))

    def oldest_known_death(self) -> float:
        """Return the time before which deaths are no longer recorded, because they are too many; 0 if they are not."""
        key = self._own_key("died")
        if self.client.zcard(key) < self._known_deaths:
            return 0.0
        oldest: Any = self.client.zrange(key, 0, 0, withscores=True)
        return float(oldest[0][1])

    def search_queue(self, queue: str, ids: Sequence[str]) -> set[str] | None:
        """Return those of these jobs that wait in the queue; None if it is too long to be searched."""
        found: set[str] = set()
        read = 0
        while read < _SEARCHED:
            arguments: list[Any] = [self.key(f"queue:{queue}"), read, _SEARCHED_AT_ONCE, _SEARCHED_BYTES, *ids]
            n, is_more, met = self._scripts["search"](args=arguments)
            read += int(n)
            found |= {one.decode() for one in met}
            if not is_more:
                return found
        return None

    # Deaths: Sidekiq counts no attempt if someone brings a dead job back, so its next failure starts another run.

    def record_deaths(self, deaths: Sequence[tuple[str, float]]) -> None:
        """Record jobs (`job_member`) and their times of death: the latest two of each."""
        latest, _ = self._deaths([job for job, _ in deaths])
        later: dict[str, float] = {}
        before: dict[str, float] = {}
        for job, at in deaths:
            last = later.get(job, latest.get(job))
            if last is not None and at > last:
                before[job] = last
            if last is None or at > last:
                later[job] = at
        if not later:
            return
        pipe = self.client.pipeline()
        for name, found in (("died", later), ("before", before)):
            if found:
                pipe.zadd(self._own_key(name), found, gt=True)
            pipe.zremrangebyscore(self._own_key(name), 0, time.time() - self._known_s)
            pipe.zremrangebyrank(self._own_key(name), 0, -self._known_deaths - 1)
            pipe.expire(self._own_key(name), self._known_s)
        with contextlib.suppress(*NOT_WRITTEN):
            pipe.execute()

    def latest_deaths(self, jobs: Sequence[str]) -> list[float | None]:
        """Return the recorded time of each job's latest death; None: unknown."""
        latest, _ = self._deaths(jobs)
        return [latest.get(job) for job in jobs]

    def deaths_before(self, failures: Sequence[tuple[str, float]]) -> list[float | None]:
        """Return the time of each job's latest recorded death before a failure; None if it has not died before."""
        known = self._deaths([job for job, _ in failures])
        return [
            max((died for one in known if (died := one.get(job)) is not None and died < at), default=None)
            for job, at in failures
        ]

    def _deaths(self, jobs: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
        """Return the latest death of each of these jobs, and the one before."""
        if not jobs:
            return {}, {}
        pipe = self.client.pipeline(transaction=False)
        for name in ("died", "before"):
            pipe.zmscore(self._own_key(name), list(jobs))
        latest, before = pipe.execute()
        return (
            {job: score for job, score in zip(jobs, latest, strict=True) if score is not None},
            {job: score for job, score in zip(jobs, before, strict=True) if score is not None},
        )

    # Processes

    def processes(self) -> dict[str, Mapping[str, Any]]:
        """Return the information of each live process, by name. That of a dead one expires after a minute."""
        names: list[str] = []
        cursor, key = 0, self.key("processes")
        while True:
            cursor, page = self.client.sscan(key, cursor, count=_MOST)
            names += [_text(one) for one in page]
            if not cursor or len(names) >= _MOST:
                break
        pipe = self.client.pipeline(transaction=False)
        for name in names[:_MOST]:
            pipe.hget(self.key(name), "info")
        found: dict[str, Mapping[str, Any]] = {}
        for name, info in zip(names, self.answers(pipe) if names else [], strict=False):
            if isinstance(info, bytes):
                found[name] = untrusted.read_object(info)
        return found

    def find_running(self, ids: Sequence[str]) -> set[str]:
        """Return those of these jobs that processes run, as of their latest heartbeats."""
        names = list(self.processes())
        pipe = self.client.pipeline(transaction=False)
        for name in names:
            pipe.hvals(self.key(f"{name}:work"))
            pipe.hvals(self.key(f"{name}:workers"))
        answers = self.answers(pipe) if names else []
        running = b"\n".join(one for answer in answers if isinstance(answer, list) for one in answer)
        return {one for one in ids if one.encode() in running}

    # Write access

    def send(self, replay: str, messages: Sequence[tuple[int, str, bytes, bytes, str]]) -> list[int]:
        """Push jobs: token, queue, job in the dead set, job to push, why it may not be absent."""
        head: list[Any] = [LEDGER_S, SENT_MARK, self.key("dead"), self.key("queues"), len(messages)]
        for token, queue, *rest in messages:
            head += [token, self.key(f"queue:{queue}"), queue, *rest]
        answers: list[int] = self._send(keys=[self.ledger(replay)], args=head)
        return answers

    def why_read_only(self) -> str:
        """Return why the source is read-only; "" if it is not."""
        key = self._own_key("may-write")
        pipe: Any = self.client.pipeline()  # the commands of sending and removing
        pipe.lpush(key, "1").expire(key, 60).delete(key)
        pipe.sadd(key, "1").delete(key)
        pipe.hset(key, "1", "1").hdel(key, "1")
        pipe.zadd(key, {"1": 1}).zrem(key, "1")
        return self.why_unknown() or self.why_no_writing(key) or self.why_no_sending(pipe)

    def refuse_read_only(self) -> None:
        """Raise SourceRefused if the source is read-only."""
        if time.monotonic() < self._may_write_until:
            return
        if why := self.call(self.why_read_only):
            raise SourceRefused(f"{why} Nothing was changed.")
        self._may_write_until = time.monotonic() + _MAY_WRITE_S

    def why_unknown(self) -> str:
        """Return why this Redis is not of a known version of Sidekiq; "" if it is, as far as it reveals that."""
        for info in self.processes().values():
            version = info.get("version")  # since Sidekiq 7.1
            if isinstance(version, str) and not is_known_version(version):
                return f"A process runs Sidekiq {version[:20]}, which is not known."
        pipe = self.client.pipeline(transaction=False)
        for of in ("dead", "retry"):
            pipe.zcard(self.key(of))
        if any(isinstance(one, ResponseError) for one in self.answers(pipe)):
            return "The key of the dead or retry set is not a sorted set."
        for of in ("dead", "retry"):
            found, _ = self.page(of, float("-inf"), 0, 1)
            if found and found[0].is_complete and not found[0].job.fields:
                return f"The oldest entry of the {of} set does not have the format of Sidekiq 5 to 8."
        return ""


def _text(answer: bytes | str) -> str:
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def is_other_type(error: Exception) -> bool:
    """Return whether an error is about a key that is not of Sidekiq's type."""
    return "WRONGTYPE" in str(error)


def is_known_version(version: str) -> bool:
    major = version.partition(".")[0]
    return major.isascii() and major.isdigit() and int(major) in _MAJORS
