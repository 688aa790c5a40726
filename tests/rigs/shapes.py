"""Shapes that no one who writes to the store by its rules would write, made from a seed; and what reads each key.

shapes(random.Random(1), KEYS["workers"].sound, 100)
"""

from __future__ import annotations

import json
import marshal
import random
import string
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import redis

from jobs_admin import config, ingest
from jobs_admin.core import keys
from jobs_admin.db import audit_anchor
from jobs_admin.desk import overview
from jobs_admin.failures import quarantine
from jobs_admin.fleet import configurations, heartbeats, stranded, uncaptured
from jobs_admin.ingest import lost_jobs, suspects  # fmt: skip
from jobs_admin.models.access import ENGINE
from jobs_admin.queues import liveness
from jobs_admin.retries import draining

BOOT, DIGEST = "b00t", "0123456789abcdef" * 2
_ODD: list[Any] = [
    None, True, False, 0, -1, 1, 10**18, 2**63, 10**400, -(10**400), 1e308, -1e308, float("nan"), float("inf"),
    -62135596801, 253402300800, 4e11, "", "x", "1", "-1", "1e999", "9" * 5_000, "\x00", "\ud800", "\u202e", "<b>", "a/b",
    "..", [], [[]], {}, {"": {}}, [None] * 6, {"a": [1, {"b": None}]}, ["x"] * 60, {"id": [], "severity": {}},
]  # fmt: skip
_ODD_BYTES = [
    b"", b"null", b"true", b"0", b'"x"', b"[]", b"{}", b"[[[]]]", b"\xff\xfe", b"\x00", b"{", b'{"a"', b"[" * 5_000,
    b'{"a":' * 5_000, b"1" * 5_000, b"NaN", b"[Infinity]", b"-", b'{"at": 1e999}', b'{"v": 1}',
]  # fmt: skip
_ALPHABETS = (
    "0123456789", "0123456789.eE+-_ ", "0123456789-T:Z+", "0123456789abcdef", "abcdefghijklmnopqrstuvwxyz", string.printable,
    "<>\"'&;/\\{}[]%$`=,:", "\x00\x01\x07\x1b\x7f\x85\u2028\ufeff", "äöüßéèçñøåłİıſ", "αβγδабвгд", "אבגد\u202e\u202d\u2066\u200fשل", "語漢字かなカナ한글",
    "😀🏽\u200d👩🇩🇪\ufe0f", "\ud800\udfff\udc00x", "./\\:*?#@ ", "١٢٣٤٥²½Ⅷ",
)  # fmt: skip
_ENCODERS = (json.JSONEncoder(), json.JSONEncoder(ensure_ascii=False))


def shapes(source: random.Random, sound: Any, count: int) -> Iterator[bytes]:
    """Return `count` texts: most are the sound document with some parts replaced, dropped or moved; others none at all."""
    copied = marshal.dumps(json.loads(json.dumps(sound)))
    for _ in range(count):
        if source.random() < 0.1:
            yield _odd_bytes(source)
            continue
        document = marshal.loads(copied)  # several times faster than another copy
        for _ in range(source.choice((1, 1, 1, 2, 3, 6))):
            document = _changed(source, document)
        text = _ENCODERS[source.random() < 0.2].encode(document).encode("utf-8", "surrogatepass")
        yield _damaged(source, text) if source.random() < 0.08 else text


def odd(source: random.Random) -> Any:
    """A value of any type: one of a list, or a number, a text or a container that is drawn."""
    kind = source.random()
    if kind < 0.15:
        return deepcopy(source.choice(_ODD))
    if kind < 0.5:
        return _drawn_number(source)
    return _drawn_text(source) if kind < 0.9 else _nested(source, source.randrange(5))


def _drawn_number(source: random.Random) -> int | float:
    kind, sign = source.randrange(6), source.choice((1, -1))
    if kind == 0:
        return sign * source.getrandbits(source.randrange(1, 80))
    if kind == 1:
        return sign * (2 ** source.randrange(70) + source.randrange(-2, 3))
    if kind == 2:
        return sign * source.random() * 10.0 ** source.randrange(-320, 309)
    if kind == 3:  # seconds, milliseconds or microseconds of some date
        return source.uniform(-7e10, 3e11) * source.choice((1, 1_000, 1_000_000))
    if kind == 4:
        return round(sign * source.uniform(0, 10_000), source.randrange(5))
    return sign * source.getrandbits(source.randrange(80, 1_400))


def _drawn_text(source: random.Random) -> str:
    length = int(source.expovariate(0.1)) + 1 if source.random() < 0.995 else source.randrange(5_000)
    text = "".join(source.choices(source.choice(_ALPHABETS), k=length))
    return text + _drawn_text(source) if source.random() < 0.2 else text


def _nested(source: random.Random, depth: int) -> Any:
    if depth <= 0:
        return _drawn_number(source) if source.random() < 0.5 else _drawn_text(source)
    inner = [_nested(source, depth - source.randrange(1, 3)) for _ in range(source.randrange(4))]
    return inner if source.random() < 0.5 else {_drawn_text(source): value for value in inner}


def _odd_bytes(source: random.Random) -> bytes:
    kind = source.random()
    if kind < 0.2:
        return source.choice(_ODD_BYTES)
    if kind < 0.5:
        return source.randbytes(int(source.expovariate(0.05)) + 1)
    if kind < 0.6:
        opening = source.choice((b"[", b'{"a":', b'[{"":', b"-", b"1", b'"\\u'))
        return opening * (int(source.expovariate(0.02)) + 1) + source.choice((b"", b"0", b"]", b"}", b"null"))
    return _damaged(source, json.dumps(odd(source)).encode())


def _damaged(source: random.Random, text: bytes) -> bytes:
    """The text cut off, with a piece dropped or doubled, or with other bytes in it."""
    start, end = sorted((source.randrange(len(text) + 1), source.randrange(len(text) + 1)))
    kind = source.randrange(4)
    if kind == 0:
        return text[:end]
    if kind == 1:
        return text[:start] + text[end:]
    if kind == 2:
        return text[:end] + text[start:]
    return text[:start] + source.randbytes(source.randrange(1, 4)) + text[start + 1 :]


def _changed(source: random.Random, value: Any) -> Any:
    """The value, with one part of it another."""
    if not isinstance(value, dict | list) or not value or source.random() < 0.15:
        return _varied(source, value) if source.random() < 0.2 else odd(source)
    place = source.choice(list(value)) if isinstance(value, dict) else source.randrange(len(value))
    kind = source.random()
    if kind < 0.7:
        value[place] = _changed(source, value[place])
    elif kind < 0.8:
        del value[place]
    elif isinstance(value, dict):
        value[_drawn_text(source) if source.random() < 0.7 else source.choice(("", "x", "\x00", "9" * 300, "a b"))] = (
            odd(source)
        )
    else:
        value.insert(place, odd(source))
    return value


def _varied(source: random.Random, value: Any) -> Any:
    """A value near to the sound one: another spelling, or a little more or less."""
    if isinstance(value, str):
        at = source.randrange(len(value) + 1)
        return value[:at] + _drawn_text(source) + value[at + source.randrange(2) :]
    if isinstance(value, int | float) and abs(value) < 1e300:
        near = value + source.choice((-1, 1)) * source.random() * 10.0 ** source.randrange(-9, 18)
        return source.choice((near, str(near), -near, [near], {"": near}))
    return [value, odd(source)]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the store that the desk reads: how a shape gets there, and the functions that read it."""

    sound: Any
    put: Callable[[redis.Redis, bytes], object]
    read: tuple[Callable[[], object], ...]
    name: str = ""  # in the store, where it is one of a fixed name


def prepare(store: redis.Redis) -> None:
    """Let the worker `b00t` of the shop have died a minute ago."""
    seconds, _ = store.time()
    store.zadd(keys.boots("shop"), {BOOT: (seconds - 60) * 1000})


def _now() -> datetime:
    return datetime.now(UTC)


def _watched() -> None:
    liveness.forget()
    overview.findings(ENGINE, [], liveness.current_state(_now()).findings)


def _reap() -> None:
    config.store().sadd(keys.kept_boots("shop"), BOOT)
    lost_jobs.Reaper().check(config.store(), 0.0)


def _task_names() -> None:
    heartbeats._known_task_names.clear()  # else the first list is read once, and no other
    heartbeats._task_names([("shop", DIGEST)])


def _crashes() -> None:
    quarantine.suspects(ENGINE)


def _hash(name: str, field: str) -> Callable[[redis.Redis, bytes], object]:
    return lambda store, shape: store.hset(name, field, shape)


def _text(name: str) -> Callable[[redis.Redis, bytes], object]:
    return lambda store, shape: store.set(name, shape)


def _suspects() -> None:
    suspects.read_entries(
        config.store(), "another", [ingest.Entry(b"1-1", {})], lambda entries: entries, lambda entry, why: []
    )


_AT = 1.79e9
_WORKER = {
    "source": "shop", "name": "w@h", "boot": BOOT, "at": _AT, "host": "h", "release": "r", "celery": "5.7", "guard": "1",
    "mode": "enforce", "pool": "prefork", "concurrency": 4, "queues": ["emails"], "spooled": 0, "dropped": 0,
    "overrun": 0, "shared_out": 0, "policies": {"p": 1}, "refused": {"p": "why"}, "tasks": DIGEST, "broker": "redis",
    "configuration": DIGEST, "late_ack": {"emails": True},
    "counts": {"emails": {"succeeded": 1, "failed": 1, "retried": 0, "busy_s": 1.5}},
}  # fmt: skip
_CONFIGURATION = {
    "v": 1, "app": {"broker": "redis", "visibility_timeout": 3600}, "queues": [{"name": "emails", "kind": "classic"}],
    "tasks": [{"name": "t", "queue": "emails", "max_retries": 3, "calls": [{"quoted": "self.retry()"}],
               "clients": [{"library": "httpx", "name": "c", "attempts": 3}], "retry_backoff": 2, "time_limit": 5.0}],
    "left_out": 0,
}  # fmt: skip
_OPTIONS = {
    "v": 1, "at": _AT, "options": [{"queue": "emails", "task": "t", "attempts": 3, "jobs": 5, "keeps_s": 60}],
    "queues": [{"queue": "emails", "jobs": 5, "of": 9, "dead": 1}], "left_out": 2,
}  # fmt: skip
_FINDING = {"id": "eviction", "severity": "high", "text": "It evicts.", "fix": "Set noeviction."}

KEYS: dict[str, Key] = {
    "watch": Key({"at": _AT, "failed_rounds": 2, "error": "x"}, _hash(keys.steps(), "ingest"),
                 (_watched, lambda: liveness.find_stale(_now()), lambda: liveness.failed_rounds("ingest"),
                  lambda: liveness.stalled_steps(_now())), keys.steps()),
    "switch": Key("off", _text(keys.switch()), (liveness.guard_switch, _watched), keys.switch()),
    "store-findings": Key([_FINDING, _FINDING], _text(keys.store_findings()), (_watched, liveness.store_findings),
                          keys.store_findings()),
    "unjudged-rules": Key({"rule": "why"}, _text(keys.unjudged_rules()), (liveness.unjudged_rules,), keys.unjudged_rules()),
    "workers": Key(_WORKER, _hash(keys.workers("shop"), "w@h"),
                   (lambda: heartbeats.count_heartbeats(_now()), lambda: heartbeats.worker_reports(with_tasks=True), draining.workers,
                    lambda: configurations.reported_configurations(ENGINE), lambda: heartbeats.known_tasks("shop")), keys.workers("shop")),
    "tasks": Key(["t", "u"], _text(keys.tasks("shop", DIGEST)), (_task_names,), keys.tasks("shop", DIGEST)),
    "configuration": Key(_CONFIGURATION, _text(keys.configuration("shop", DIGEST)), (lambda: configurations.reported_configurations(ENGINE),),
                         keys.configuration("shop", DIGEST)),
    "options": Key(_OPTIONS, _text(keys.options("shop")),
                   (lambda: configurations.stored_options(ENGINE).stale(_now()),), keys.options("shop")),
    "in-hand": Key({"at": _AT, "worker": "w@h", "visibility_timeout": 3600, "jobs": [["tag", "id", "t", "emails", False]]},
                   _hash(keys.in_hand("shop"), BOOT), (lambda: stranded.find_stranded("shop"),
                   lambda: stranded.find_for_job("shop", "id")), keys.in_hand("shop")),
    "reading": Key({"ids": ["1-1"], "deaths": 1, "at": _AT}, _hash(keys.reading(), "other"), (_suspects,), keys.reading()),
    "dropped": Key({"source": "shop", "host": "h", "count": 3, "since": _AT, "last": _AT}, _hash(keys.dropped("shop"), BOOT),
                   (lambda: uncaptured.record_counts(_now()),), keys.dropped("shop")),
    "audit-head": Key({"id": 1, "mac": "m", "at": "2026-11-21T00:00:00+00:00", "signature": "s"},
                      _text(keys.audit_head()), (audit_anchor.findings, audit_anchor.advance), keys.audit_head()),
    "running": Key({"queue": "emails", "task": "t", "id": "j"}, _hash(f"{keys.boot('shop', BOOT)}:running", "j"), (_crashes,)),
    "boot": Key("w@h", _hash(keys.boot("shop", BOOT), "died_with"), (_crashes, _reap), keys.boot("shop", BOOT)),
    "kept": Key({"source": "shop", "queue": "emails", "job_id": "j"}, _hash(keys.kept("shop", BOOT), "j"), (_reap,)),
}  # fmt: skip

_REPORT = {
    "source": "shop", "queue": "emails", "task": "t", "job_id": "j", "kind": "exception", "attempt": 1, "at": _AT,
    "error_type": "E", "message": "m", "max_attempts": 3, "due_at": _AT + 60, "duration_s": 1.5, "worker": "w@h",
    "host": "h", "release": "r", "tenant": "a", "priority": 1, "args": "[1]", "kwargs": '{"id": 5}',
    "headers": '{"id": "j", "parent_id": "p", "root_id": "p", "group": "g", "parent": {"queue": "q", "id": "1"}}',
    "redacted": 0, "policy": "p@1", "reason": "exhausted", "crashes": '[{"how": "lost", "seen_at": 1.7e9}]',
    "observed": "", "escalate": False, "late_ack": True, "raw_size": 2, "raw_sha256": "", "made_at": _AT, "labels": ["x"],
    "lineage": {"queue": "q", "job_id": "j", "run": 2, "item": 1, "sent_as": "j"}, "sealed": "",
}  # fmt: skip
_KINDS = ("exception", "retry", "success", "worker_lost", "undecodable", "lost")


def reports(source: random.Random, count: int) -> Iterator[dict[bytes, bytes]]:
    """Return `count` entries of the stream of failures, each another job, most with some field of another shape."""
    for n in range(count):
        sound = _REPORT | {"job_id": f"j{n}", "kind": source.choice(_KINDS), "lineage": None}
        for inner in ("args", "kwargs", "headers", "crashes"):
            if source.random() < 0.2:
                [text] = shapes(source, json.loads(sound[inner]), 1)
                sound[inner] = text.decode("utf-8", "replace")
        field = source.choice(list(sound))
        sound[field] = odd(source) if source.random() < 0.8 else _changed(source, sound[field])
        meta = json.dumps(sound).encode()
        raw = source.choice((b"{}", b"", b"\xff", b"[" * 3_000, meta))
        trace = source.choice((b"", b"\xff\x00", b"Traceback (most recent call last):\n" * 3))
        yield {b"v": b"1", b"meta": meta, b"raw": raw, b"trace": trace}
