"""Dramatiq's keys in one Redis: its queues, and its messages read within bounds.

Keys of Dramatiq 1.18, 2.0 and 2.2 (their `dispatch.lua`): `dramatiq:Q` is a list of names, `dramatiq:Q.msgs` a hash of
name -> message, both waiting and with a worker; `dramatiq:Q.DQ` and `.DQ.msgs` are the same for delayed messages;
`dramatiq:Q.XQ` is a sorted set of names by time of death (ms), with `.XQ.msgs`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.exceptions import ResponseError

from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.dramatiq.message import Message
from jobs_admin.sources.ledger import LEDGER_S, SENT_MARK
from jobs_admin.sources.one_redis import SENDING, LossMark, OneRedis, count, escape_glob, job_member, now_ms

_HERE = Path(__file__).parent
_QUEUES_FOR_S = 1.0
_SEARCH_SHARE = 20  # the search for queues takes at most one twentieth of the time
_QUEUES = 1_000  # that are read
_LONGEST_NAME = 200  # of a queue
RAW_BYTES = 15_000_000  # of a message that can be sent
_READ_BYTES = 8_000_000  # of messages in one call
_AT_ONCE = 200
_AT_BYTES = 4_000_000  # of dead letters that one call searches
_CHECK_S, _REMOVE_S = 0.5, 20.0  # a job not found by then is unknown, and is searched again
_PAGE_OF_SCAN = 1_000
_SCAN_BYTES = 500_000  # per page
_DIED_MS = 90 * 86_400_000  # after Dramatiq's own TTL: the latest death of each job stays known
_MAY_WRITE_S = 1.0  # for which an answer is not checked again
_SAMPLE_BYTES = 262_144
_SENT_S = 2 * 86_400  # a replayed job without news for longer than a day is uncertain (`outcome_within_s`)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    queue: str
    name: str  # in Redis
    at_ms: float | None  # end of its last attempt; None: it does not exist
    size: int  # bytes; -1: no message
    message: Message

    @property
    def job_id(self) -> str:
        """Id of its message, the same in each attempt and run; its name in Redis if the message cannot be read."""
        return self.message.id or self.name

    @property
    def is_complete(self) -> bool:
        return self.size == len(self.message.raw) > 0


class Wire(OneRedis):
    """One Redis with Dramatiq's keys in one namespace."""

    def __init__(self, source: str, url: str, namespace: str, queues: Sequence[str], store_prefix: str) -> None:
        super().__init__(source, url, "Dramatiq", queues, store_prefix)
        self.namespace = namespace
        self._found: dict[str, None] = {}
        self._search_at = 0.0
        self._may_write_until = 0.0
        self.mark = LossMark(self.client, self.own_key("mark"))
        self._scripts = {
            name: self.client.register_script((_HERE / f"{name}.lua").read_text())
            for name in ("read", "at", "page", "scan")
        }
        self._send = self.client.register_script(SENDING + (_HERE / "send.lua").read_text())

    def key(self, queue: str, of: str = "") -> str:
        return f"{self.namespace}:{queue}{of}"

    def own_key(self, name: str) -> str:
        return f"{self.store_prefix}:{{{self.source}}}:dramatiq:{name}"

    def now(self) -> float:
        """Return the time of the server in seconds, to compare with times of workers."""
        return now_ms(self.client) / 1000

    # Queues

    def queues(self) -> list[str]:
        """Return the configured queues, else all that were found so far, by name.

        Dramatiq has no list of queues: a queue with messages has a hash `….msgs`.
        """
        if self._named:
            return self._named
        began = time.monotonic()
        if began >= self._search_at:
            head, match = f"{self.namespace}:", f"{escape_glob(self.namespace)}:*.msgs"
            self.unread = 0
            for key in self.client.scan_iter(match, count=1_000, _type="hash"):
                name = _canonical(key.decode("utf-8", "replace").removeprefix(head).removesuffix(".msgs"))
                if name in self._found or (len(self._found) < _QUEUES and len(name) <= _LONGEST_NAME):
                    self._found[name] = None
                else:
                    self.unread += 1
            took = time.monotonic() - began
            self._search_at = time.monotonic() + max(_QUEUES_FOR_S, took * _SEARCH_SHARE)
        return sorted(self._found)

    def counts(self, queues: Sequence[str]) -> dict[str, list[int | None]]:
        """Return the counts of each queue: waiting, waiting or with a worker, delayed, dead.

        None: the key has another type.
        """
        pipe = self.client.pipeline(transaction=False)
        for queue in queues:
            pipe.llen(self.key(queue))
            pipe.hlen(self.key(queue, ".msgs"))
            pipe.hlen(self.key(queue, ".DQ.msgs"))
            pipe.zcard(self.key(queue, ".XQ"))
        answers = iter(self.answers(pipe))
        return {queue: [count(next(answers)) for _ in range(4)] for queue in queues}

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        return dict(zip(queues, self.lengths([self.key(queue) for queue in queues]), strict=True))

    # Messages

    def delayed_queues(self) -> list[str]:
        """Return the queues with delayed messages."""
        queues = self.queues()
        pipe = self.client.pipeline(transaction=False)
        for queue in queues:
            pipe.hlen(self.key(queue, ".DQ.msgs"))
        return [queue for queue, n in zip(queues, self.answers(pipe), strict=True) if count(n)]

    def scan_delayed(
        self, queue: str, cursor: int, most_bytes: int, most: int
    ) -> tuple[int, int, list[tuple[str, bytes]]]:
        """Read some delayed messages.

        Return the next cursor (0: these were the last), the bytes read, and (name, message) pairs.
        """
        arguments: list[Any] = [self.key(queue, ".DQ.msgs"), cursor, RAW_BYTES, most_bytes, most]
        try:
            found: Any = self._scripts["page"](args=arguments)
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                return 0, 0, []
            raise
        names = [name.decode("utf-8", "replace") for name in found[2][::2]]
        return int(found[0]), int(found[1]), list(zip(names, found[2][1::2], strict=True))

    def dead_letters(self, queue: str, names: Iterable[str]) -> Iterator[StoredMessage]:
        """Yield these dead letters, read in calls of a few megabytes."""
        rest = list(dict.fromkeys(names))
        while rest:
            arguments: list[Any] = [self.key(queue, ".XQ"), RAW_BYTES, _READ_BYTES, *rest[:_AT_ONCE]]
            answers = self._scripts["read"](args=arguments)
            for name, (score, size, raw) in zip(rest, answers, strict=False):
                yield StoredMessage(queue, name, float(score) if score else None, int(size), Message.read(raw))
            rest = rest[max(1, len(answers)) :]

    def find_dead(self, queue: str, jobs: Sequence[tuple[str, float]]) -> list[int]:
        """Return for each job and time of death (ms): 1 if it is still dead, 0 if not, 2 if unknown."""
        return self._at(queue, "0", jobs, _CHECK_S)

    def remove(self, queue: str, jobs: Sequence[tuple[str, float]]) -> list[int]:
        return self._at(queue, "1", jobs, _REMOVE_S)

    def _at(self, queue: str, is_removal: str, jobs: Sequence[tuple[str, float]], within_s: float) -> list[int]:
        answers: list[int] = []
        head: list[Any] = [self.key(queue, ".XQ"), is_removal, RAW_BYTES, _AT_BYTES]
        ends = time.monotonic() + within_s
        while len(answers) < len(jobs) and time.monotonic() < ends:
            rest = jobs[len(answers) :]
            targets: list[Any] = [part for job, at in rest for part in (job, at, "1" if is_exact(at) else "")]
            answers += self._scripts["at"](args=[*head, *targets])
        return answers + [2] * (len(jobs) - len(answers))

    def send(self, replay: str, messages: Sequence[Sequence[Any]]) -> list[int]:
        arguments = [part for message in messages for part in message]
        self._found |= dict.fromkeys(str(queue) for _, queue, *_ in messages)
        head: list[Any] = [LEDGER_S, SENT_MARK, self.namespace, self._sent_key(0), _SENT_S, len(messages)]
        answers: list[int] = self._send(keys=[self.ledger(replay)], args=[*head, *arguments])
        return answers

    # Records of sent jobs, to find their outcomes

    def _sent_key(self, days_ago: int) -> str:
        return self.own_key(f"sent:{int(time.time() // 86_400) - days_ago}")

    def sent_records(self, queue: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the record of the latest sending of each job, from today and yesterday."""
        found: dict[str, bytes] = {}
        for days_ago in (1, 0):
            records: list[Any] = self.client.hmget(self._sent_key(days_ago), [job_member(queue, one) for one in ids])
            found |= {one: record for one, record in zip(ids, records, strict=True) if record}
        return found

    def are_queued(self, queue: str, names: Sequence[str]) -> list[bool]:
        """Return whether messages of these names wait or are with a worker."""
        found = self.client.hmget(self.key(queue, ".msgs"), names)
        return [one is not None for one in found]

    def search(self, queue: str, hash_of: str, cursor: int, ids: Sequence[str]) -> tuple[int, set[str]]:
        """Search some messages of a hash. Return the next cursor (0: these were the last) and the jobs found."""
        arguments: list[Any] = [self.key(queue, hash_of), cursor, "", _SCAN_BYTES, _PAGE_OF_SCAN, RAW_BYTES, *ids]
        met, after = self._scripts["scan"](args=arguments)
        return int(after), {one.decode() for one in met}

    def search_dead(
        self, queue: str, since_ms: float, offset: int, ids: Sequence[str]
    ) -> tuple[float, int, set[str], bool]:
        """Search some dead letters by time.

        Return time and offset of the next ones, the jobs found, and whether there are more.
        """
        arguments: list[Any] = [self.key(queue, ".XQ"), offset, since_ms, _SCAN_BYTES, _PAGE_OF_SCAN, RAW_BYTES, *ids]
        met, read, last, is_more = self._scripts["scan"](args=arguments)
        at = float(last)
        return at, 0 if at > since_ms else offset + int(read), {one.decode() for one in met}, bool(is_more)

    # First deaths of runs: Dramatiq counts no attempt if a dead letter is requeued outside Redrive.

    def is_first_death(self, stored: StoredMessage, run: int, keep_ms: float) -> bool | None:
        """Record the death of a run. Return whether it is the first of that run; None if nothing may be recorded."""
        job, at, key = job_member(stored.queue, stored.job_id), stored.at_ms or 0.0, self.own_key("deaths")
        member = f"{job}\n{run}"
        pipe = self.client.pipeline(transaction=False)
        pipe.zadd(key, {member: at}, nx=True)
        pipe.zremrangebyscore(key, 0, at - keep_ms)
        pipe.zadd(self.own_key("died"), {job: at}, gt=True)
        pipe.zremrangebyscore(self.own_key("died"), 0, at - keep_ms - _DIED_MS)
        pipe.zscore(key, member)
        score = pipe.execute(raise_on_error=False)[-1]
        return at <= score if isinstance(score, float) else None

    def died_at(self, jobs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Return the time (s) of each job's latest death that was read; None: unknown."""
        found = self.client.zmscore(self.own_key("died"), [job_member(*job) for job in jobs])
        return [None if score is None else float(score) / 1000 for score in found]

    # Write access

    def why_read_only(self) -> str:
        """Return why the source is read-only; "" if it is not."""
        if queue := self._unknown_messages():
            return f"A message in {queue[:60]} does not have the format of Dramatiq 1 or 2."
        key = self.own_key("may-write")
        pipe: Any = self.client.pipeline()  # the commands of sending and removing
        pipe.rpush(key, "1").expire(key, 60).delete(key)
        pipe.hset(key, "1", "1").hdel(key, "1")
        pipe.zadd(key, {"1": 1}).zrem(key, "1")
        return self.why_no_writing(key) or self.why_no_sending(pipe)

    def _unknown_messages(self) -> str:
        """Return a queue whose latest message or dead letter has unknown fields; "" for none."""
        queues = self.queues()
        pipe = self.client.pipeline(transaction=False)
        for queue in queues:
            pipe.lrange(self.key(queue), -1, -1)
            pipe.zrange(self.key(queue, ".XQ"), -1, -1)
        names = self.answers(pipe) if queues else []
        wanted = [
            (queue, self.key(queue, hash_of), one[0])
            for queue, *both in zip(queues, names[::2], names[1::2], strict=True)
            for hash_of, one in zip((".msgs", ".XQ.msgs"), both, strict=True)
            if isinstance(one, list) and one
        ]
        for _, key, name in wanted:
            pipe.hstrlen(key, name)
        sizes = self.answers(pipe) if wanted else []
        wanted = [
            one for one, size in zip(wanted, sizes, strict=True) if isinstance(size, int) and size <= _SAMPLE_BYTES
        ]
        for _, key, name in wanted:
            pipe.hget(key, name)
        for (queue, *_), raw in zip(wanted, self.answers(pipe) if wanted else [], strict=True):
            message = Message.read(raw if isinstance(raw, bytes) else b"")
            if not message.is_foreign and not message.is_known:
                return queue
        return ""

    def refuse_read_only(self) -> None:
        """Raise SourceRefused if the source is read-only."""
        if time.monotonic() < self._may_write_until:
            return
        if why := self.call(self.why_read_only):
            raise SourceRefused(f"{why} Nothing was changed.")
        self._may_write_until = time.monotonic() + _MAY_WRITE_S


def is_exact(at_ms: float) -> bool:
    """Return whether a time of death is Dramatiq's own, in whole milliseconds. Others: see `reports.known_at`."""
    return abs(at_ms - round(at_ms)) < 0.1


def _canonical(queue: str) -> str:
    return queue[:-3] if queue.endswith((".DQ", ".XQ")) else queue
