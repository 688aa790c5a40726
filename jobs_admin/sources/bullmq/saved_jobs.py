"""Jobs that a worker with the Node agent saved before BullMQ forgot them (`removeOnFail`), until they are filed here.

`place` is `keys.bullmq_kept` of the source. A worker saves a job before BullMQ moves it, so it may still be running.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from jobs_admin.core import untrusted

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


def waiting(client: redis.Redis, place: str, start: int, most: int) -> tuple[list[Job], bool]:
    """Return saved jobs, the oldest first, skipping `start`, and whether more may follow. Raises redis.RedisError.

    Of `most` names read, those that are of no job (not UTF-8, without a queue or an id) are left out.
    """
    names: Any = client.zrange(place, start, start + most - 1)
    found = [name.partition(":") for name in map(_name_of, names) if name]
    return [(queue, job_id) for queue, _, job_id in found if queue and job_id], len(names) == most


def fields(client: redis.Redis, place: str, jobs: Sequence[Job]) -> list[dict[bytes, bytes]]:
    """The hash of each job, as it was; empty of one that is not saved. Raises redis.RedisError."""
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        pipe.hgetall(_key(place, job))
    answers = pipe.execute(raise_on_error=False)
    return [answer if isinstance(answer, dict) else {} for answer in answers]


def fitting(client: redis.Redis, place: str, jobs: Sequence[Job], most: int) -> int:
    """Number of jobs, from the first one, that have at most `most` bytes together; at least one.

    Raises redis.RedisError.
    """
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        pipe.hget(_key(place, job), "keptBytes")
    sizes = [
        untrusted.integer(size) or 0 if isinstance(size, bytes) else 0 for size in pipe.execute(raise_on_error=False)
    ]
    return max(1, bisect.bisect_right(list(itertools.accumulate(sizes)), most))


def forget(client: redis.Redis, place: str, jobs: Iterable[Job]) -> None:
    """Delete jobs that are filed. Raises redis.RedisError; may be called again."""
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        pipe.eval(_FORGET, 3, place, f"{place}-bytes", _key(place, job), _name(job))
    pipe.execute()


def _name(job: Job) -> str:
    return ":".join(job)


def _key(place: str, job: Job) -> str:
    return f"{place}:{_name(job)}"


def _name_of(member: bytes | str) -> str:
    try:
        return member.decode() if isinstance(member, bytes) else member
    except UnicodeDecodeError:
        return ""
