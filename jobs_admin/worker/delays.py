"""Delayed jobs: they wait in Redis, never in a worker's memory, and move to their queues when due.

If the broker is Redis, they wait in the broker's own Redis: one atomic step moves a job to its queue exactly once,
whoever calls it. For other brokers they wait in Redrive's store: a worker claims them for 30 s, publishes them with
confirmation, then removes them. A crash between publishing and removing publishes the job again (at least once).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis

from jobs_admin.core import keys
from jobs_admin.core.text import representable
from jobs_admin.worker.next_message import with_ticket

MOST_WAITING = 1_000_000  # of one source; beyond it a failed job is dead, and its report gives the reason
_AT_ONCE = 100  # jobs per call: 2 ms of Redis
_BYTES_AT_ONCE = 4_000_000
LEASE_S = 30.0

_MEMBER = re.compile(r"(.*?):(\d{1,10})(?::[0-9a-f]+)?", re.DOTALL)
_HERE = Path(__file__).parent


class TooManyWait(Exception):
    """The source has its maximum of delayed jobs. The job was not added."""


@dataclass(frozen=True, slots=True)
class Head:
    """Facts about a delayed job, stored before its message."""

    job_id: str
    attempt: int  # the next attempt, counted from 1
    task: str
    queue: str
    policy: str = ""  # `name@version` that decided the delay
    list: str | None = None  # the broker's key, if the broker is this Redis
    # Location of the failed delivery until it is acknowledged; None if it was acknowledged before the job ran.
    tag: str | None = None
    unacked: str | None = None
    unacked_index: str | None = None
    mark: str = ""  # distinguishes jobs with the same id (`task_id=…`)
    breaker: str | None = None  # that holds the job …
    index: str | None = None  # … and the sorted set in which the job waits for its release
    tenant: str | None = None  # of a job on hold, for the desk
    # Key of a delivery that is not in this Redis: scheduled again under it, the job waits once, even if it has left by
    # then.
    idempotency_key: str | None = None

    @property
    def member(self) -> bytes:
        """Key of one attempt of one job: a second delivery that fails again adds nothing."""
        name = f"{self.job_id}:{self.attempt}" + (f":{self.mark}" if self.mark else "")
        return name.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Hold:
    """Breaker that holds a job, and the job's place in line: by rank, then round-robin by queue and tenant."""

    breaker: str
    since_ms: int
    tenant: str = ""
    rank: int = 0  # 0 to 255 by priority, the most urgent first; 256: failed after a release


@dataclass(frozen=True, slots=True)
class Waiting:
    """A claimed job. If the entry cannot be parsed, `message` is the whole entry and the head names no queue."""

    member: bytes
    head: Head
    message: bytes
    claim: str  # id of the claim


@dataclass(frozen=True, slots=True)
class Promoted:
    jobs: int
    next_s: float | None  # seconds until the next is due, 0 for at once; None: none waits
    failed: str = ""  # why some could not be moved; they stay


class Delays:
    """Delayed jobs of one source. All methods raise redis.RedisError or OSError if Redis is unavailable."""

    def __init__(self, client: redis.Redis, source: str, prefix: str = keys.PREFIX) -> None:
        self._client = client
        self._source, self._prefix = source, prefix
        self._names = [name(source, prefix) for name in (keys.due, keys.due_jobs, keys.due_claims)]
        self._gone = keys.due_gone(source, prefix)
        shared = (_HERE / "delays_held.lua").read_text()
        self._schedule, self._promote, self._claim, self._finish, self._hasten, self._release = (
            client.register_script(shared + (_HERE / f"delays_{name}.lua").read_text())
            for name in ("schedule", "promote", "claim", "finish", "hasten", "release")
        )

    def schedule(
        self, head: Head, message: bytes, delay_s: float, *, is_paused: bool = False, hold: Hold | None = None
    ) -> bool:
        """Schedule a job. Return False if the same attempt already waits, or has left under the same idempotency key.

        `is_paused`: leave a tenth of the capacity free, and add nothing if the broker has taken the delivery back.
        `hold`: a breaker holds the job until `release` or the end of the delay.

        Safe to repeat when the outcome is unknown. If the attempt is claimed, it has reached its queue by now, because
        a worker schedules it here: its delay starts again. Raises TooManyWait.
        """
        names = [*self._names, self._gone]
        place: list[bytes | str | int] = []
        if hold is not None:
            names = [*names, *self._index(hold.breaker)]
            head = replace(head, breaker=hold.breaker, index=names[4], tenant=hold.tenant or None)
            place = [_text(hold.breaker), hold.rank, keys.short(f"{head.queue}\0{hold.tenant}")]
        line = json.dumps({name: value for name, value in asdict(head).items() if value is not None}).encode()
        entry = line + b"\n" + message
        most = MOST_WAITING - MOST_WAITING // 10 if is_paused else MOST_WAITING
        delivery = [head.unacked, head.tag] if is_paused and head.unacked and head.tag else ["", ""]
        arguments = [head.member, round(delay_s * 1000), entry, most, *delivery, head.idempotency_key or "", *place]
        answer = self._schedule(keys=names, args=arguments)
        if answer == -1:
            raise TooManyWait(f"{most:,} jobs wait already")
        return bool(answer)

    def promote(self, late_by_s: float = 0.0) -> Promoted:
        """Move a batch of jobs that are due (for at least `late_by_s`) to their queues in this Redis."""
        jobs, next_ms = self._promote(keys=self._names, args=[round(late_by_s * 1000), _AT_ONCE, _BYTES_AT_ONCE])
        return Promoted(jobs, None if next_ms < 0 else next_ms / 1000)

    def claim(
        self, *, most: int = _AT_ONCE, is_due: bool = True, late_by_s: float = 0.0
    ) -> tuple[list[Waiting], float | None]:
        """Claim jobs for 30 s. Return them, and the seconds until the next is due. Unfinished claims expire."""
        which, claim = "due" if is_due else "all", uuid4().hex
        next_ms, *entries = self._claim(
            keys=self._names, args=[which, most, round(LEASE_S * 1000), round(late_by_s * 1000), claim]
        )
        found = [_waiting(member, entry, claim) for member, entry in zip(entries[::2], entries[1::2], strict=True)]
        return found, None if next_ms < 0 else next_ms / 1000

    def finish(self, claimed: Sequence[Waiting]) -> None:
        """Remove claimed jobs that have reached their destination. A job that was scheduled again since then stays."""
        self._settle("done", claimed)

    def give_back(self, claimed: Sequence[Waiting]) -> None:
        """Make the claimed jobs due again at once."""
        self._settle("back", claimed)

    def _settle(self, how: str, claimed: Sequence[Waiting]) -> None:
        if claimed:
            self._finish(
                keys=[*self._names, self._gone], args=[claimed[0].claim, how, *(job.member for job in claimed)]
            )

    def hasten(self) -> int:
        """Make all delayed jobs due now, except claimed ones. Return the number of delayed jobs."""
        due: Any = self._client.zrange(self._names[0], 0, -1)
        for at in range(0, len(due), 1_000):
            self._hasten(keys=self._names, args=due[at : at + 1_000])
        return len(due)

    def count(self) -> int:
        found: Any = self._client.zcard(self._names[0])
        return int(found)

    # Jobs that a breaker holds

    def release(self, breaker: str, most: int, ticket: str, *, is_probe: bool = False) -> int:
        """Make the next `most` held jobs due now, each with the ticket ("": none). Return their number.

        `is_probe`: put them at the front of their queue, if this Redis is the broker. A crash leaves each job either on
        hold or due. Claimed jobs are skipped.
        """
        names = [*self._names, *self._index(breaker)]
        released = passed = 0
        while True:
            wanted = min(most - released, _AT_ONCE)
            members: Any = self._client.zrange(names[3], passed, passed + wanted - 1) if wanted else []
            args: list[bytes | str] = [_text(breaker)]
            for member, entry in self._entries(members):
                args += [member, hashlib.sha1(entry).hexdigest(), _released(entry, ticket, is_probe)]  # noqa: S324  (no secret)
            answer: Any = self._release(keys=names, args=args)
            went, gone = int(answer[0]), int(answer[1])
            released, passed = released + went, passed + len(members) - went - gone
            if not wanted or len(members) < wanted:
                return released

    def _entries(self, members: list[bytes]) -> list[tuple[bytes, bytes]]:
        found: Any = self._client.hmget(self._names[1], members) if members else []
        return [(member, entry or b"") for member, entry in zip(members, found, strict=True)]

    def count_holds(self, breaker: str) -> int:
        found: Any = self._client.zcard(keys.holds(self._source, breaker, self._prefix))
        return int(found)

    def count_all_holds(self) -> dict[str, int]:
        """Return the number of held jobs per breaker, without zeros."""
        return {one: count for one in self.holding() if (count := self.count_holds(one))}

    def holding(self) -> list[str]:
        """Return the breakers with held jobs."""
        names: Any = self._client.smembers(keys.holding_breakers(self._source, self._prefix))
        return sorted(one.decode("utf-8", "replace") for one in names)

    def read_heads(self, script: str, breaker: str, most: int) -> list[Any]:
        """Return a breaker's number of held jobs, then the heads of at most `most` of them, by a script of the desk."""
        found: Any = self._client.eval(script, 2, self._index(breaker)[0], self._names[1], most)
        return list(found)

    def _index(self, breaker: str) -> list[str]:
        index = keys.holds(self._source, breaker, self._prefix)
        return [index, f"{index}:places", keys.holding_breakers(self._source, self._prefix)]


def _text(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _released(entry: bytes, ticket: str, is_probe: bool) -> bytes:
    """Return a held job's entry as a released one; unchanged if it cannot be parsed."""
    line, _, message = entry.partition(b"\n")
    try:
        head = {name: value for name, value in json.loads(line).items() if name not in ("breaker", "index", "tenant")}
        head |= {"is_probe": True} if is_probe else {}
        return json.dumps(head).encode() + b"\n" + (with_ticket(message, ticket) if ticket else message)
    except (ValueError, AttributeError, RecursionError):
        return entry


def _waiting(member: bytes, entry: bytes, claim: str) -> Waiting:
    line, _, message = entry.partition(b"\n")
    try:
        values = json.loads(line)
        known = {name: _part(name, values[name]) for name in Head.__dataclass_fields__ if name in values}
        return Waiting(member, Head(**known), message, claim)
    except (ValueError, TypeError, RecursionError):  # must not block the jobs claimed with it
        found = _MEMBER.fullmatch(representable(member.decode("utf-8", "replace")))
        job, attempt = (found[1], int(found[2])) if found else ("", 1)
        return Waiting(member, Head(job, attempt, "", ""), entry, claim)


def _part(name: str, value: Any) -> Any:
    """Return a part of a head, valid for the tables. Raises TypeError for a value that no worker wrote."""
    if name == "attempt":
        if type(value) is not int or not 0 < value < 2**31:
            raise TypeError
        return value
    if value is not None and not isinstance(value, str):
        raise TypeError
    if value is None and name in ("job_id", "task", "queue", "policy", "mark"):
        raise TypeError
    return None if value is None else representable(value)
