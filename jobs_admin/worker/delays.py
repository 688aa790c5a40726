"""Jobs that wait for their time in Redis, and go on their queues when it has come. Never in a worker's memory.

They wait in the broker's own Redis where the broker is one: then a job leaves and arrives in one step, once, whoever asks.
For other brokers they wait in Redrive's store, are taken for half a minute, published with the broker's confirmation, and
only then removed. Whoever dies between those two leaves a job that is published again: it goes once at least.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis

from jobs_admin.core import keys
from jobs_admin.core.text import representable

MOST_WAITING = 1_000_000  # of one source; beyond it a failed job is dead, and told so
_AT_ONCE = 100  # jobs of a call: 2 ms of Redis
_BYTES_AT_ONCE = 4_000_000
LEASE_S = 30.0

_MEMBER = re.compile(r"(.*?):(\d{1,10})(?::[0-9a-f]+)?", re.DOTALL)
_HERE = Path(__file__).parent


class TooManyWait(Exception):
    """The source holds as many delayed jobs as it may. The job was not added."""


@dataclass(frozen=True, slots=True)
class Head:
    """The facts about a waiting job beside its message."""

    job_id: str
    attempt: int  # that will run, counted from 1
    task: str
    queue: str
    policy: str = ""  # `name@version` that decided the wait
    list: str | None = None  # the broker's key, where the broker is this Redis
    # Where the delivery that failed stands until it is acknowledged; None where it was acknowledged before it ran.
    tag: str | None = None
    unacked: str | None = None
    unacked_index: str | None = None
    mark: str = ""  # tells jobs apart that were given the same id (`task_id=…`)

    @property
    def member(self) -> bytes:
        """One name for one attempt of one job: so a second delivery that fails again adds nothing."""
        name = f"{self.job_id}:{self.attempt}" + (f":{self.mark}" if self.mark else "")
        return name.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Waiting:
    """One job that was claimed. Of an entry that cannot be read: all of it is the message, and the head names no queue."""

    member: bytes
    head: Head
    message: bytes
    claim: str  # whose it is


@dataclass(frozen=True, slots=True)
class Promoted:
    jobs: int
    next_s: float | None  # until the next is due, 0 for at once; None: nothing waits
    failed: str = ""  # why one, or more, could not go; they wait on


class Delays:
    """The waiting jobs of one source. All calls raise redis.RedisError (or OSError) where Redis cannot be asked."""

    def __init__(self, client: redis.Redis, source: str, prefix: str = keys.PREFIX) -> None:
        self._client = client
        self._names = [name(source, prefix) for name in (keys.due, keys.due_jobs, keys.due_claims)]
        self._schedule, self._promote, self._claim, self._finish, self._hasten = (
            client.register_script((_HERE / f"delays_{name}.lua").read_text())
            for name in ("schedule", "promote", "claim", "finish", "hasten")
        )

    def schedule(self, head: Head, message: bytes, delay_s: float, *, is_paused: bool = False) -> bool:
        """Let a job wait. False where the same attempt of it waits already. Raises TooManyWait.

        `is_paused`: a tenth of the room is left to others, and nothing is added where the broker has taken the delivery back.

        May be repeated when it is unknown whether it worked. An attempt that was claimed is on its queue by now, since
        a worker gives it here: its wait starts again.
        """
        line = json.dumps({name: value for name, value in asdict(head).items() if value is not None}).encode()
        entry = line + b"\n" + message
        most = MOST_WAITING - MOST_WAITING // 10 if is_paused else MOST_WAITING
        delivery = [head.unacked, head.tag] if is_paused and head.unacked and head.tag else []
        answer = self._schedule(keys=self._names, args=[head.member, round(delay_s * 1000), entry, most, *delivery])
        if answer == -1:
            raise TooManyWait(f"{most:,} jobs wait already")
        return bool(answer)

    def promote(self, late_by_s: float = 0.0) -> Promoted:
        """Put a batch of those that are due (for at least `late_by_s`) on their queues in this Redis."""
        jobs, next_ms = self._promote(keys=self._names, args=[round(late_by_s * 1000), _AT_ONCE, _BYTES_AT_ONCE])
        return Promoted(jobs, None if next_ms < 0 else next_ms / 1000)

    def claim(
        self, *, most: int = _AT_ONCE, is_due: bool = True, late_by_s: float = 0.0
    ) -> tuple[list[Waiting], float | None]:
        """Take jobs for half a minute, and how long until the next is due. They come back by themselves unless finished."""
        which, claim = "due" if is_due else "all", uuid4().hex
        next_ms, *entries = self._claim(
            keys=self._names, args=[which, most, round(LEASE_S * 1000), round(late_by_s * 1000), claim]
        )
        found = [_waiting(member, entry, claim) for member, entry in zip(entries[::2], entries[1::2], strict=True)]
        return found, None if next_ms < 0 else next_ms / 1000

    def finish(self, claimed: Sequence[Waiting]) -> None:
        """Remove the claimed jobs, which are where they belong now. A job that began to wait again since then stays."""
        self._settle("done", claimed)

    def give_back(self, claimed: Sequence[Waiting]) -> None:
        """Make the claimed jobs due again at once."""
        self._settle("back", claimed)

    def _settle(self, how: str, claimed: Sequence[Waiting]) -> None:
        if claimed:
            self._finish(keys=self._names, args=[claimed[0].claim, how, *(job.member for job in claimed)])

    def hasten(self) -> int:
        """Make all waiting jobs due now, but for those that are claimed. Return how many wait."""
        due: Any = self._client.zrange(self._names[0], 0, -1)
        for at in range(0, len(due), 1_000):
            self._hasten(keys=self._names, args=due[at : at + 1_000])
        return len(due)

    def count(self) -> int:
        found: Any = self._client.zcard(self._names[0])
        return int(found)


def _waiting(member: bytes, entry: bytes, claim: str) -> Waiting:
    line, _, message = entry.partition(b"\n")
    try:
        values = json.loads(line)
        known = {name: _part(name, values[name]) for name in Head.__dataclass_fields__ if name in values}
        return Waiting(member, Head(**known), message, claim)
    except (ValueError, TypeError, RecursionError):  # it must not hold up those that were claimed with it
        found = _MEMBER.fullmatch(representable(member.decode("utf-8", "replace")))
        job, attempt = (found[1], int(found[2])) if found else ("", 1)
        return Waiting(member, Head(job, attempt, "", ""), entry, claim)


def _part(name: str, value: Any) -> Any:
    """A part of a head, fit for the tables. Raises TypeError for what no worker wrote."""
    if name == "attempt":
        if type(value) is not int or not 0 < value < 2**31:
            raise TypeError
        return value
    if value is not None and not isinstance(value, str):
        raise TypeError
    if value is None and name in ("job_id", "task", "queue", "policy", "mark"):
        raise TypeError
    return None if value is None else representable(value)
