"""Options `attempts`, `backoff` and `removeOnFail` of the jobs in BullMQ's queues: each distinct set, quoted.

BullMQ has no options per queue: each job contains its own, set by its producer. So a bounded number of jobs is sampled
each time, always the latest of each list and the older ones in turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import redis

from jobs_admin.core.lint.options import EXPONENTIAL, FIXED, MOST_QUEUES, NONE, FoundOptions, Options, SampledQueue
from jobs_admin.core.redaction import redact
from jobs_admin.core.text import representable

JOBS = 4_000  # of a source, sampled each time
_LARGEST = 65_536  # maximum bytes of options or a name; larger ones are not read
_LONGEST = 300  # characters quoted
_AT_ONCE = 500  # jobs per pipeline
_MOST_KNOWN = 2_000  # distinct sets cached per source
_QUOTED = ("attempts", "backoff", "removeOnFail")
# Places of jobs; True: a list, latest first; False: a sorted set, latest last (delayed: the one due last).
_PLACES = {
    "wait": True, "paused": True, "active": True, "prioritized": False, "delayed": False, "failed": False,
    "waiting-children": False,
}  # fmt: skip


@dataclass(slots=True)
class _Place:
    """A list or set of one queue, and the position of its turn."""

    key: str
    is_list: bool
    size: int = 0


@dataclass(slots=True)
class OptionsSurvey:
    """Survey of one Redis.

    Between rounds it stores its positions, and findings about jobs until their next turn.
    """

    redis: redis.Redis
    of_a_list: tuple[int, int] = (
        40,
        500,
    )  # jobs per list: minimum when it is the list's turn; maximum
    _turns: dict[str, int] = field(default_factory=dict)  # key -> next position of the older jobs
    _next: int = 0  # the place to start with if the limit does not allow all
    # round in which it was last seen
    _known: dict[tuple[str, str, str], tuple[int, Options]] = field(default_factory=dict)
    _rounds: int = 0

    def sample(
        self, source: str, at: float, queues: Mapping[str, str], for_dead: Container[str] = frozenset()
    ) -> FoundOptions:
        """Sample the queues.

        `queues`: name -> prefix of its keys (`bull:emails:`). `for_dead`: dead-letter queues. `at`: the current time.

        Raises redis' errors.
        """
        self._rounds += 1
        sizes = {queue: self._places(begins) for queue, begins in islice(queues.items(), MOST_QUEUES)}
        sampled: dict[str, int] = dict.fromkeys(sizes, 0)
        seen: dict[tuple[str, str, str], Options] = {}
        for queue, place, share in self._shared_out(sizes):
            for job_id, values in self._jobs(queues[queue], self._ids(place, share)):
                sampled[queue] += 1
                if (one := read_job(queue, job_id, values)) is not None:
                    key = queue, one.task, one.quoted
                    seen[key] = _merge(seen[key], one) if key in seen else one
        self._remember(seen, sizes, sampled)
        samples = tuple(
            SampledQueue(queue, sampled[queue], sum(p.size for p in places), _dead(places), queue in for_dead)
            for queue, places in sizes.items()
        )
        return FoundOptions(source, at, tuple(one for _, one in self._known.values()), samples)

    def _places(self, begins: str) -> list[_Place]:
        places = [_Place(begins + name, is_list) for name, is_list in _PLACES.items()]
        pipe = self.redis.pipeline(transaction=False)
        for place in places:
            (pipe.llen if place.is_list else pipe.zcard)(place.key)
        for place, size in zip(places, pipe.execute(raise_on_error=False), strict=True):
            place.size = size if isinstance(size, int) else 0  # a key of another type, up to BullMQ 3
        return places

    def _shared_out(self, sizes: Mapping[str, list[_Place]]) -> Iterator[tuple[str, _Place, int]]:
        """Yield every place with jobs and its number to sample, starting with the first one skipped last time."""
        filled = [(queue, place) for queue, places in sizes.items() for place in places if place.size]
        if not filled:
            return
        least, most = self.of_a_list
        share = max(least, min(most, JOBS // len(filled)))
        first = self._next % len(filled)
        left = JOBS
        for done, (queue, place) in enumerate(filled[first:] + filled[:first]):
            if left <= 0:
                self._next = (first + done) % len(filled)
                return
            yield queue, place, share
            left -= min(share, place.size)
        self._next = 0

    def _ids(self, place: _Place, share: int) -> list[bytes]:
        """Return the ids of the latest half, and as many older ones in turn."""
        if place.size <= share:
            return self._range(place, 0, share)
        half = share // 2
        start = max(half, self._turns.get(place.key, half))
        if start >= place.size:
            start = half
        self._turns[place.key] = start + half
        return list(dict.fromkeys(self._range(place, 0, half) + self._range(place, start, half)))

    def _range(self, place: _Place, start: int, count: int) -> list[bytes]:
        read: Any = self.redis.lrange if place.is_list else self.redis.zrevrange
        return list(read(place.key, start, start + count - 1))

    def _jobs(self, begins: str, ids: Iterable[bytes]) -> Iterator[tuple[str, list[bytes | None]]]:
        """Yield the input of `read_job` for each job that exists and is not too large."""
        waiting = iter(ids)
        while some := list(islice(waiting, _AT_ONCE)):
            sizes = self.redis.pipeline(transaction=False)
            for job_id in some:
                sizes.hstrlen(begins.encode() + job_id, "opts")
                sizes.hstrlen(begins.encode() + job_id, "name")
            lengths = sizes.execute(raise_on_error=False)
            pairs = zip(some, lengths[::2], lengths[1::2], strict=True)
            small = [i for i, opts, name in pairs if _is_small(opts, 2) and _is_small(name, 0)]
            pipe = self.redis.pipeline(transaction=False)
            for job_id in small:
                pipe.hmget(begins.encode() + job_id, "opts", "name", "timestamp", "stc", "priority")
            for job_id, values in zip(small, pipe.execute(raise_on_error=False), strict=True):
                if isinstance(values, list):
                    yield job_id.decode("utf-8", "replace"), values

    def _remember(
        self,
        seen: Mapping[tuple[str, str, str], Options],
        sizes: Mapping[str, list[_Place]],
        sampled: Mapping[str, int],
    ) -> None:
        """Store what was seen now; for partly sampled queues, also what was seen since their last complete turn."""
        share = self.of_a_list[0]
        for key, (seen_in, _) in list(self._known.items()):
            queue = key[0]
            there = sum(place.size for place in sizes.get(queue, ()))
            is_complete = sampled.get(queue, 0) >= there
            comes_again = 2 * math.ceil(there / share)  # rounds, at most
            if queue not in sizes or is_complete or self._rounds - seen_in > comes_again:
                del self._known[key]
        for key, one in seen.items():
            if key in self._known or len(self._known) < _MOST_KNOWN:
                self._known[key] = self._rounds, replace(one, sample_size=sampled[one.queue])


def _is_small(size: object, least: int) -> bool:
    return isinstance(size, int) and least <= size <= _LARGEST


def _dead(places: Iterable[_Place]) -> int:
    return next(place.size for place in places if place.key.endswith(":failed"))


def _merge(one: Options, other: Options) -> Options:
    """Merge jobs with the same options; the latest is the example."""
    latest = max(one, other, key=lambda each: each.newest_at or 0)
    return replace(
        latest,
        jobs=one.jobs + other.jobs,
        stalled=one.stalled + other.stalled,
        without_priority=one.without_priority + other.without_priority,
        with_priority=one.with_priority + other.with_priority,
        first_priority=one.first_priority + other.first_priority,
    )


# -- one job ------------------------------------------------------------------------------------------------------


def read_job(queue: str, job_id: str, values: list[bytes | None]) -> Options | None:
    """Return a job's options from its `opts`, `name`, `timestamp`, `stc` and `priority`; None if they are not a
    JSON object.
    """
    opts, name, made_at, stalls, priority = values
    try:
        options = json.loads(opts or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(options, dict):
        return None
    backoff, is_named, first_ms, jitter = _backoff(options.get("backoff"))
    keeps, keeps_s = _retention(options.get("removeOnFail"))
    urgency = _number(priority) or _number(options.get("priority")) or 0
    made_ms = _number(made_at)
    return Options(
        queue=queue,
        task=representable((name or b"").decode("utf-8", "replace")),
        quoted=_quote(options),
        attempts=int(min(max(_number(options.get("attempts")) or 1, 1), 2**31 - 1)),
        backoff=backoff,
        is_named=is_named,
        first_delay_s=min(max(first_ms, 0.0) / 1000, 2**31 - 1),
        jitter=min(max(jitter, 0.0), 1.0),
        keeps=keeps,
        keeps_s=keeps_s,
        jobs=1,
        example=job_id,
        newest_at=None if made_ms is None else made_ms / 1000,
        stalled=int((_number(stalls) or 0) > 0),
        without_priority=int(urgency <= 0),
        with_priority=int(urgency > 0),
        first_priority=int(urgency == 1),
    )


def _backoff(value: Any) -> tuple[str, bool, float, float]:
    """Return (type, whether it is a known type, first delay in ms, jitter), as in BullMQ's `backoffs.js`."""
    if isinstance(value, bool) or value is None or value == "" or value == 0:
        return (NONE, True, 0.0, 0.0) if value is not True else ("true", False, 0.0, 0.0)
    if isinstance(value, int | float):
        return FIXED, True, float(value), 0.0
    if not isinstance(value, dict):
        return representable(str(value))[:_LONGEST] or "?", False, 0.0, 0.0
    kind = value.get("type")
    if kind not in (EXPONENTIAL, FIXED):
        return (
            (representable(kind)[:_LONGEST], True, 0.0, 0.0)
            if isinstance(kind, str) and kind
            else ("?", False, 0.0, 0.0)
        )
    return kind, True, _number(value.get("delay")) or 0.0, _number(value.get("jitter")) or 0.0


def _retention(value: Any) -> tuple[int | None, float | None]:
    """Return (maximum of stored dead letters, seconds for which they are stored), as BullMQ's `getKeepJobs` reads
    `removeOnFail`.
    """
    if isinstance(value, bool):
        return (0 if value else None), None
    if isinstance(value, int | float):
        return _count(value), None
    if isinstance(value, dict):
        return _count(_number(value.get("count"))), _number(value.get("age"))
    return None, None


def _count(value: float | None) -> int | None:
    return None if value is None or value < 0 else int(min(value, 2**31 - 1))


def _quote(options: Mapping[str, Any]) -> str:
    """Return the retry options as text, with secrets redacted."""
    written = {name: options[name] for name in _QUOTED if name in options}
    try:
        text = json.dumps(redact(written)[0], ensure_ascii=False)
    except (ValueError, RecursionError):
        text = "options that cannot be quoted"
    text = representable(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _number(value: Any) -> float | None:
    """Return the value of a number or numeric text; None otherwise."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str | bytes):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
