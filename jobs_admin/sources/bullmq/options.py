"""With which `attempts`, `backoff` and `removeOnFail` the jobs of BullMQ's queues lie there: each distinct way, quoted.

BullMQ has no place where a queue's options stand: each job carries its own, as its producer gave them. So jobs are looked at, the
newest of each list always and the older ones in turn, a bounded number each time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import redis

from jobs_admin.core.lint.options import EXPONENTIAL, FIXED, MOST_QUEUES, NONE, FoundOptions, Looked, Options
from jobs_admin.core.redaction import redact
from jobs_admin.core.text import representable

JOBS = 4_000  # of a source that are looked at each time
_LARGEST = 65_536  # bytes of options or of a name; what is larger is not read
_LONGEST = 300  # characters that are quoted
_AT_ONCE = 500  # jobs of one pipeline
_MOST_KNOWN = 2_000  # distinct ways that are remembered of a source
_QUOTED = ("attempts", "backoff", "removeOnFail")
# What jobs lie in; True: a list, newest first; False: a sorted set, newest last (delayed: the one due last).
_PLACES = {
    "wait": True, "paused": True, "active": True, "prioritized": False, "delayed": False, "failed": False,
    "waiting-children": False,
}  # fmt: skip


@dataclass(slots=True)
class _Place:
    """A list or set of one queue, and where its turn goes on."""

    key: str
    is_list: bool
    size: int = 0


@dataclass(slots=True)
class OptionsSurvey:
    """Remembers between looks where it is, and what it found in jobs whose turn is over until it comes again."""

    redis: redis.Redis
    of_a_list: tuple[int, int] = (
        40,
        500,
    )  # jobs of one list: so many at least, where the turn comes to it; so many at most
    _turns: dict[str, int] = field(default_factory=dict)  # key -> where the older ones go on
    _next: int = 0  # the place that comes first, should the jobs not reach for all
    _known: dict[tuple[str, str, str], tuple[int, Options]] = field(default_factory=dict)  # when it was last seen
    _looks: int = 0

    def look(
        self, source: str, at: float, queues: Mapping[str, str], for_dead: Container[str] = frozenset()
    ) -> FoundOptions:
        """`queues`: name -> how its keys begin (`bull:emails:`); `for_dead`: those of dead letters. `at` is now. Raises what
        redis raises."""
        self._looks += 1
        sizes = {queue: self._places(begins) for queue, begins in islice(queues.items(), MOST_QUEUES)}
        looked: dict[str, int] = dict.fromkeys(sizes, 0)
        seen: dict[tuple[str, str, str], Options] = {}
        for queue, place, share in self._shared_out(sizes):
            for job_id, said in self._jobs(queues[queue], self._ids(place, share)):
                looked[queue] += 1
                if (one := read_job(queue, job_id, said)) is not None:
                    key = queue, one.task, one.quoted
                    seen[key] = _together(seen[key], one) if key in seen else one
        self._remember(seen, sizes, looked)
        told = tuple(
            Looked(queue, looked[queue], sum(p.size for p in places), _dead(places), queue in for_dead)
            for queue, places in sizes.items()
        )
        return FoundOptions(source, at, tuple(one for _, one in self._known.values()), told)

    def _places(self, begins: str) -> list[_Place]:
        places = [_Place(begins + name, is_list) for name, is_list in _PLACES.items()]
        pipe = self.redis.pipeline(transaction=False)
        for place in places:
            (pipe.llen if place.is_list else pipe.zcard)(place.key)
        for place, size in zip(places, pipe.execute(raise_on_error=False), strict=True):
            place.size = size if isinstance(size, int) else 0  # another kind of key by that name, up to BullMQ 3
        return places

    def _shared_out(self, sizes: Mapping[str, list[_Place]]) -> Iterator[tuple[str, _Place, int]]:
        """Every place with jobs, and how many of them are looked at; from one that had to wait last time on."""
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
        """The newest half, and as many of the older ones, whose turn it is."""
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
        """Of each job that is still there and not too large to be read: what `read_job` reads."""
        waiting = iter(ids)
        while some := list(islice(waiting, _AT_ONCE)):
            sizes = self.redis.pipeline(transaction=False)
            for job_id in some:
                sizes.hstrlen(begins.encode() + job_id, "opts")
                sizes.hstrlen(begins.encode() + job_id, "name")
            told = sizes.execute(raise_on_error=False)
            pairs = zip(some, told[::2], told[1::2], strict=True)
            small = [i for i, opts, name in pairs if _is_small(opts, 2) and _is_small(name, 0)]
            pipe = self.redis.pipeline(transaction=False)
            for job_id in small:
                pipe.hmget(begins.encode() + job_id, "opts", "name", "timestamp", "stc", "priority")
            for job_id, said in zip(small, pipe.execute(raise_on_error=False), strict=True):
                if isinstance(said, list):
                    yield job_id.decode("utf-8", "replace"), said

    def _remember(
        self, seen: Mapping[tuple[str, str, str], Options], sizes: Mapping[str, list[_Place]], looked: Mapping[str, int]
    ) -> None:
        """What was seen now, and of queues of which only a part was looked at, what was seen since the turn was last here."""
        share = self.of_a_list[0]
        for key, (look, _) in list(self._known.items()):
            queue = key[0]
            there = sum(place.size for place in sizes.get(queue, ()))
            is_whole = looked.get(queue, 0) >= there
            comes_again = 2 * math.ceil(there / share)  # looks, at the slowest
            if queue not in sizes or is_whole or self._looks - look > comes_again:
                del self._known[key]
        for key, one in seen.items():
            if key in self._known or len(self._known) < _MOST_KNOWN:
                self._known[key] = self._looks, replace(one, looked=looked[one.queue])


def _is_small(size: object, least: int) -> bool:
    return isinstance(size, int) and least <= size <= _LARGEST


def _dead(places: Iterable[_Place]) -> int:
    return next(place.size for place in places if place.key.endswith(":failed"))


def _together(one: Options, other: Options) -> Options:
    """Two jobs, or more, of one way; the newest is the example."""
    newest = max(one, other, key=lambda each: each.newest_at or 0)
    return replace(
        newest,
        jobs=one.jobs + other.jobs,
        stalled=one.stalled + other.stalled,
        without_priority=one.without_priority + other.without_priority,
        with_priority=one.with_priority + other.with_priority,
        first_priority=one.first_priority + other.first_priority,
    )


# -- one job ------------------------------------------------------------------------------------------------------


def read_job(queue: str, job_id: str, said: list[bytes | None]) -> Options | None:
    """From its `opts`, `name`, `timestamp`, `stc` and `priority`; None where its options are no JSON object."""
    opts, name, made_at, stalls, priority = said
    try:
        options = json.loads(opts or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(options, dict):
        return None
    backoff, is_named, first_ms, jitter = _backoff(options.get("backoff"))
    keeps, keeps_s = _kept(options.get("removeOnFail"))
    urgency = _number(priority) or _number(options.get("priority")) or 0
    made_ms = _number(made_at)
    return Options(
        queue=queue,
        task=representable((name or b"").decode("utf-8", "replace")),
        quoted=_quoted(options),
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


def _backoff(said: Any) -> tuple[str, bool, float, float]:
    """(its type, whether the system can know that, the first delay in ms, jitter), as BullMQ's `backoffs.js` reads it."""
    if isinstance(said, bool) or said is None or said == "" or said == 0:
        return (NONE, True, 0.0, 0.0) if said is not True else ("true", False, 0.0, 0.0)
    if isinstance(said, int | float):
        return FIXED, True, float(said), 0.0
    if not isinstance(said, dict):
        return representable(str(said))[:_LONGEST] or "?", False, 0.0, 0.0
    kind = said.get("type")
    if kind not in (EXPONENTIAL, FIXED):
        return (
            (representable(kind)[:_LONGEST], True, 0.0, 0.0)
            if isinstance(kind, str) and kind
            else ("?", False, 0.0, 0.0)
        )
    return kind, True, _number(said.get("delay")) or 0.0, _number(said.get("jitter")) or 0.0


def _kept(said: Any) -> tuple[int | None, float | None]:
    """(How many dead letters are kept, for how many seconds), as BullMQ's `getKeepJobs` reads `removeOnFail`."""
    if isinstance(said, bool):
        return (0 if said else None), None
    if isinstance(said, int | float):
        return _count(said), None
    if isinstance(said, dict):
        return _count(_number(said.get("count"))), _number(said.get("age"))
    return None, None


def _count(said: float | None) -> int | None:
    return None if said is None or said < 0 else int(min(said, 2**31 - 1))


def _quoted(options: Mapping[str, Any]) -> str:
    """As it lies there, without what says nothing of retries; a secret that somebody keeps there is hidden."""
    written = {name: options[name] for name in _QUOTED if name in options}
    try:
        text = json.dumps(redact(written)[0], ensure_ascii=False)
    except (ValueError, RecursionError):
        text = "options that cannot be quoted"
    text = representable(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _number(said: Any) -> float | None:
    """Of a number, or of a text that is one; None for whatever else it is."""
    if said is None or isinstance(said, bool) or not isinstance(said, int | float | str | bytes):
        return None
    try:
        number = float(said)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
