"""Breaker documents in the store, read as untrusted and bounded text.

Workers write the state of each breaker there (`core/breaker.py`). The desk reads it, and writes it only to force a state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import redis

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.core.outcomes import TASK
from jobs_admin.core.text import representable

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
STATES = (CLOSED, OPEN, HALF_OPEN)
AUTO = "auto"
FORCED = (OPEN, CLOSED, AUTO)
MOST_NAMES = 100  # per source
MOST_BYTES = 64_000  # per document; workers write at most 16 kB
LONGEST_NAME = 200
MOST_HISTORY = 50
MOST_TENANTS, MOST_KINDS, MOST_PLACES, MOST_HOSTS = 50, 20, 20, 20
_MOST_KEYS_READ = 1_000


@dataclass(frozen=True, slots=True)
class Transition:
    at: datetime
    from_state: str
    to_state: str
    why: str
    host: str = ""  # the host whose hold started or ended, if the breaker's state did not change
    is_start: bool = False  # of that hold

    @property
    def is_of_host(self) -> bool:
        return bool(self.host)


@dataclass(frozen=True, slots=True)
class Forced:
    as_: str  # open, closed
    until: datetime | None
    by: str
    reason: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Attempts that opened the breaker. Shares are 0 to 1; None: not stated."""

    failures: int
    attempts: int
    share: float | None
    usual: float | None
    kinds: Mapping[str, int]
    first_error: str
    since: datetime | None
    chance: float | None  # probability of such failures without an outage


@dataclass(frozen=True, slots=True)
class HostHold:
    """A host that starts no job of the breaker: its attempts failed while those of other hosts succeeded."""

    host: str
    since: datetime | None
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Job:
    """A job on hold."""

    job_id: str
    task: str
    queue: str
    tenant: str


@dataclass(frozen=True, slots=True)
class OnHold:
    """Held jobs of a breaker, as last sampled. Counts by name are estimates if not all jobs were read."""

    count: int = 0
    is_estimate: bool = False
    by_queue: Mapping[str, int] = field(default_factory=dict)
    by_task: Mapping[str, int] = field(default_factory=dict)
    by_tenant: Mapping[str, int] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()  # examples


@dataclass(frozen=True, slots=True)
class Document:
    """A breaker as its workers last wrote it. None: not stated."""

    number: int = 0  # increases with every change
    state: str = CLOSED
    since: datetime | None = None  # of this state
    opened_at: datetime | None = None  # start of the present open period
    forced: Forced | None = None
    evidence: Evidence | None = None
    tenants: tuple[str, ...] = ()  # with `tasks`, the scope for which it is open; both empty: all
    on_hold: int | None = None
    released: int | None = None
    next_probe_at: datetime | None = None
    probing_since: datetime | None = None
    rate: float | None = None  # jobs released per second
    would_hold: int | None = None
    at_bound: datetime | None = None  # a job could not be held since the opening: the limit of delayed jobs is reached
    history: tuple[Transition, ...] = ()  # oldest first
    is_observed: bool = False  # observed only: its workers hold no jobs
    tasks: tuple[str, ...] = ()
    hosts: tuple[HostHold, ...] = ()  # present in any state


def read_documents(sources: Collection[str]) -> dict[tuple[str, str], Document]:
    """Return (source, name) -> document of the breakers of these sources. Raises redis.RedisError, config.BadConfiguration."""
    if not sources:
        return {}
    store = config.store()
    found: dict[tuple[str, str], Document] = {}
    for place, names in _read_names(store, sources).items():
        for name, text in _read_texts(store, place, names):
            if (one := parse(text)) is not None:
                found[place, representable(name.decode("utf-8", "replace"))] = one
    return found


def read_on_hold(sources: Collection[str]) -> dict[tuple[str, str], OnHold]:
    """Return (source, name) -> the jobs on hold of breakers that hold any. Raises redis.RedisError, config.BadConfiguration."""
    if not sources:
        return {}
    texts: Any = config.store().mget([keys.on_hold(source) for source in sources])
    found = {}
    for source, text in zip(sources, texts, strict=True):
        named = untrusted.read_object(text).get("breakers")
        for name, values in list(named.items())[:MOST_NAMES] if isinstance(named, dict) else ():
            if isinstance(values, dict) and (one := _parse_on_hold(values)) is not None:
                found[source, representable(name)] = one
    return found


def _parse_on_hold(values: dict[str, Any]) -> OnHold | None:
    count, sampled = _count(values.get("count")), _count(values.get("sampled"))
    if not count:
        return None

    def scaled(name: str) -> dict[str, int]:
        found = _parse_counts(values.get(name), MOST_PLACES)
        return (
            found if not sampled or sampled >= count else {one: round(n * count / sampled) for one, n in found.items()}
        )

    rows = values.get("jobs")
    jobs = [
        Job(*(untrusted.text(one.get(name), 255) for name in ("job_id", "task", "queue", "tenant")))
        for one in (rows[:MOST_PLACES] if isinstance(rows, list) else ())
        if isinstance(one, dict)
    ]
    is_estimate = sampled is not None and sampled < count
    return OnHold(count, is_estimate, scaled("queues"), scaled("tasks"), scaled("tenants"), tuple(jobs))


def _read_names(store: redis.Redis, sources: Collection[str]) -> dict[str, list[bytes]]:
    pipe = store.pipeline(transaction=False)
    for source in sources:
        pipe.hlen(keys.breakers(source))
    sizes = pipe.execute(raise_on_error=False)  # a key of another type excludes only that source
    found = {}
    for source, size in zip(sources, sizes, strict=True):
        if isinstance(size, redis.ResponseError) or not size:
            continue
        if isinstance(size, Exception):
            raise size
        names: list[bytes] = []
        for n, name in enumerate(store.hscan_iter(keys.breakers(source), count=MOST_NAMES, no_values=True)):
            if n >= _MOST_KEYS_READ:
                break
            if name and len(name) <= LONGEST_NAME:
                names.append(name)
        found[source] = sorted(names)[:MOST_NAMES]
    return found


def _read_texts(store: redis.Redis, source: str, names: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    pipe = store.pipeline(transaction=False)
    for name in names:
        pipe.hstrlen(keys.breakers(source), name)
    fitting = [name for name, size in zip(names, pipe.execute(), strict=True) if size <= MOST_BYTES]
    texts: Any = store.hmget(keys.breakers(source), fitting) if fitting else []
    return [(name, text) for name, text in zip(fitting, texts, strict=True) if text]


def parse(text: bytes) -> Document | None:
    """Return the document in `NUMBER JSON`; None for anything else."""
    digits, _, body = text.partition(b" ")
    number, values = untrusted.integer(digits), untrusted.read_object(body)
    state = values.get("state")
    if number is None or state not in STATES:
        return None
    parts = _parse_parts(values.get("tenants"))
    return Document(
        number,
        state,
        untrusted.moment(values.get("since") or None),
        untrusted.moment(values.get("opened_at") or None),
        _parse_forced(values.get("forced")),
        _parse_evidence(values.get("evidence")),
        tuple(one for one in parts if not one.startswith(TASK)),
        _count(values.get("held")),
        _count(values.get("released")),
        untrusted.moment(values.get("next_probe_at") or None),
        _parse_probe(values.get("probe")),
        untrusted.number(values.get("rate")),
        _count(values.get("starts")),
        _parse_bound(values),
        history=_parse_history(values.get("history")),
        is_observed=values.get("observe") is True,
        tasks=tuple(one[len(TASK) :] for one in parts if one.startswith(TASK)),
        hosts=_parse_hosts(values.get("hosts")),
    )


def _parse_forced(value: object) -> Forced | None:
    if not isinstance(value, dict) or value.get("as") not in (OPEN, CLOSED):
        return None
    return Forced(
        value["as"],
        untrusted.moment(value.get("until")),
        untrusted.text(value.get("by"), 150),
        untrusted.text(value.get("reason"), 500),
        untrusted.moment(value.get("at")),
    )


def _parse_evidence(value: object) -> Evidence | None:
    if not isinstance(value, dict):
        return None
    return Evidence(
        _count(value.get("failures")) or 0,
        _count(value.get("attempts")) or 0,
        _share(value.get("share")),
        _share(value.get("usual")),
        _parse_counts(value.get("kinds"), MOST_KINDS),
        untrusted.text(value.get("first_error"), 500),
        untrusted.moment(value.get("since")),
        _share(value.get("p")),
    )


def _parse_probe(value: object) -> datetime | None:
    return untrusted.moment(value.get("at")) if isinstance(value, dict) else None


def _parse_counts(value: object, most: int) -> dict[str, int]:
    counts = list(value.items())[:most] if isinstance(value, dict) else []
    found = {untrusted.text(name, 200): _count(n) for name, n in counts}
    return {name: n for name, n in found.items() if name and n}


def _parse_bound(values: dict[str, Any]) -> datetime | None:
    at, opened_at = untrusted.moment(values.get("at_bound")), untrusted.moment(values.get("opened_at"))
    return at if at is not None and (opened_at is None or at >= opened_at) else None


def _parse_hosts(value: object) -> tuple[HostHold, ...]:
    current = value.get("held") if isinstance(value, dict) else None
    found = []
    for name, one in list(current.items())[:MOST_HOSTS] if isinstance(current, dict) else ():
        evidence = _parse_evidence(one.get("evidence")) if isinstance(one, dict) else None
        if evidence is not None:
            found.append(HostHold(untrusted.text(name, 200), untrusted.moment(one.get("since")), evidence))
    return tuple(found)


def _parse_parts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(name for one in value[:MOST_TENANTS] if (name := untrusted.text(one, 200)))


def _parse_history(value: object) -> tuple[Transition, ...]:
    found = []
    for one in value[-MOST_HISTORY:] if isinstance(value, list) else ():
        if not isinstance(one, dict):
            continue
        at, to = untrusted.moment(one.get("at")), one.get("to")
        if at is None or to not in STATES:
            continue
        before = one.get("from") if one.get("from") in STATES else ""
        why, host = untrusted.text(one.get("why"), 500), untrusted.text(one.get("host"), 200)
        found.append(Transition(at, before, to, why, host, one.get("starts") is True))
    return tuple(sorted(found, key=lambda one: one.at))


def _count(value: object) -> int | None:
    found = untrusted.number(value)
    return int(found) if found is not None and found >= 0 else None


def _share(value: object) -> float | None:
    found = untrusted.number(value)
    return float(found) if found is not None and 0 <= found <= 1 else None
