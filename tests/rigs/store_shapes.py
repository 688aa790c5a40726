"""Every key of the store and of a source's own Redis that the desk or a worker reads, with its readers (`KEYS`); and which function of
`core/keys.py` names it (`NAMED_BY`). What is read in each, and what of it is a number rather than a document, is fuzzed alike.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import redis

from dashboard.holds import breaker_page
from jobs_admin import config, holds, ingest
from jobs_admin.core import keys, untrusted
from jobs_admin.core.breaker import Breaker, Outcome
from jobs_admin.core.coverage import Coverage, Gap, Minute, WorkerCoverage, parse
from jobs_admin.core.lint import configuration as lint_configuration
from jobs_admin.core.lint import options as lint_options
from jobs_admin.core.report_signature import SigningKey, sign
from jobs_admin.db import audit_anchor
from jobs_admin.failures import quarantine
from jobs_admin.fleet import heartbeats, stranded, worker_store
from jobs_admin.holds import breaker_history, breakers
from jobs_admin.ingest import lost_jobs
from jobs_admin.models import Pause, PolicyVersion, Source
from jobs_admin.models.access import ENGINE
from jobs_admin.policies import pushing
from jobs_admin.policies.running import budgets
from jobs_admin.queues import coverage, liveness
from jobs_admin.retries import delayed, draining, promoting
from jobs_admin.sources import connect
from jobs_admin.sources.base import Ref, SourceError
from jobs_admin.sources.bullmq.dead_letters import _parse_copies, _parse_sent
from jobs_admin.sources.bullmq.places import Place
from jobs_admin.sources.bullmq.wire import JobEvent, text
from jobs_admin.sources.ledger import Ledger
from jobs_admin.sources.rabbitmq.copies import Copies
from jobs_admin.worker.delays import Delays, _waiting
from jobs_admin.worker.pausing import Pausing
from jobs_admin.worker.policies import Policies
from jobs_admin.worker.policies import _json as policies_json
from jobs_admin.worker.queues import Queues
from tests.rigs import shapes
from tests.rigs.shapes import BOOT, Key

Put = Callable[[redis.Redis, bytes], object]

_ODD_SCORES = (
    0, -1, 1, 1e15, 1e18, -1e18, 1e300, -1e300, float("inf"), float("-inf"), 253402300800_000, 253402300799_999, -62135596800_000,
    -62135596801_000, 1.79e12, 1.79e12 + 0.5, 4e11, 5e-324, 2**53, 2**63,
)  # fmt: skip


def scores(source: random.Random, count: int) -> Iterator[float]:
    """Return `count` scores of a sorted set, as no clock says them."""
    for _ in range(count):
        yield (
            source.choice(_ODD_SCORES) if source.random() < 0.6 else source.uniform(-1, 1) * 10 ** source.randrange(308)
        )


def _score_of(shape: bytes) -> float:
    """A score that is determined by a shape, so that one generator serves all keys."""
    return next(scores(random.Random(shape), 1))


def _refused_or(read: Callable[[], object]) -> Callable[[], None]:
    """A reader of one source, of which others go on when it says that it cannot be read."""

    def read_or_refuse() -> None:
        with suppress(SourceError):
            read()

    return read_or_refuse


def _hash(name: str, *fields: str) -> Put:
    return lambda store, shape: store.hset(name, mapping=dict.fromkeys(fields, shape))


def _hash_or_field(name: str, field: str) -> Put:
    """The shape as a value, and as the name of a field that has the value of a sound one."""

    def write(store: redis.Redis, shape: bytes) -> None:
        store.delete(name)
        store.hset(name, mapping={field: shape, shape: b"0"})

    return write


def _members(name: str) -> Put:
    def write(store: redis.Redis, shape: bytes) -> None:
        store.delete(name)
        store.sadd(name, shape, shape[:20])

    return write


def _scored(name: str, *members: str) -> Put:
    """Odd scores of known members, and the shape itself as a member."""

    def write(store: redis.Redis, shape: bytes) -> None:
        store.delete(name)
        store.zadd(name, {**dict.fromkeys(members, _score_of(shape)), shape: _score_of(shape + b" ")})

    return write


def _text(name: str) -> Put:
    return lambda store, shape: store.set(name, shape)


# -- sources -------------------------------------------------------------------------------------------------------------


@cache
def _celery(url: str) -> Any:
    return connect("shop", "celery", url, store_prefix=keys.PREFIX, store=config.store)


@cache
def _bullmq(url: str) -> Any:
    return connect("shop", "bullmq", url, store_prefix=keys.PREFIX, store=config.store)


def _url() -> str:
    options = config.store().connection_pool.connection_kwargs
    return f"redis://:{options.get('password') or ''}@{options['host']}:{options['port']}/{options.get('db') or 0}"


def _ledger(action: Callable[[Ledger], object]) -> Callable[[], None]:
    return _refused_or(lambda: action(Ledger("shop", config.store, keys.PREFIX)))


def _copies(action: Callable[[Copies], object]) -> Callable[[], None]:
    return _refused_or(lambda: action(Copies("shop", config.store, keys.PREFIX)))


def _of_bullmq(action: Callable[[Any], object]) -> Callable[[], None]:
    return _refused_or(lambda: action(_bullmq(_url())))


def _dlq(store: redis.Redis) -> None:
    """A dead-letter queue of BullMQ with one job, so that the place up to which it was read is asked for."""
    store.hset("bull:dead:meta", "version", "bullmq:5.0.0")
    store.hset("bull:dead:1", mapping={"name": "x", "data": "{}", "timestamp": "1"})
    store.lpush("bull:dead:wait", "1")


def _read_places() -> None:
    source = _bullmq(_url())
    source._dead._recognised.seen.add("dead")
    failing: dict[str, str] = {}
    source._dead.read(["dead"], {"dead": 5}, failing)
    assert not failing, failing


def _put_place(store: redis.Redis, shape: bytes) -> None:
    _dlq(store)
    store.hset(f"{keys.copies('shop')}:places", "dead", shape)


def _put_saved(store: redis.Redis, shape: bytes) -> None:
    """A job that BullMQ forgot, of which a worker kept the hash: fields as BullMQ writes them, with the shape in each in turn."""
    key = keys.bullmq_kept("shop")
    store.delete(key)
    store.zadd(key, {b"emails:1": _score_of(shape), shape: 1.0})
    store.delete(f"{key}:emails:1")
    store.hset(f"{key}:emails:1", mapping=_saved_fields(shape))


def _saved_fields(shape: bytes) -> dict[str, bytes]:
    fields = ("name", "data", "opts", "timestamp", "attemptsMade", "atm", "failedReason", "stacktrace", "finishedOn", "processedOn", "delay",
              "priority", "redrive", "keptBytes", "parent", "parentKey", "returnvalue", "stc")  # fmt: skip
    return {
        "name": b"send",
        "data": b"{}",
        "timestamp": b"1",
        **dict.fromkeys(random.Random(shape).sample(fields, 6), shape),
    }


def _read_saved() -> None:
    source = _bullmq(_url())
    source._jobs._saved_from = 0
    found, _ = source._jobs.saved_reports()
    source._jobs.forget_saved([job for job, _ in found[:1]])


def _delays() -> Delays:
    return Delays(config.store(), "shop")


def _promote() -> None:
    promoting._closed_until.clear()
    promoting._places["shop"] = [delayed.Place(_delays(), None)]
    promoting.step()


def _claim() -> None:
    _delays().hasten()
    draining.bury("shop", delayed.Place(_delays(), None))


def _release() -> None:
    _delays().count_all_holds()
    _delays().release("partner", 3, "1:1790000000000")
    _claim()


_HEAD = {"job_id": "j", "attempt": 2, "task": "t", "queue": "emails", "policy": "p@1", "list": "emails", "tag": "x", "unacked": "unacked",
         "unacked_index": "unacked_index", "mark": "m", "breaker": "partner", "index": keys.holds("shop", "partner")}  # fmt: skip


def _put_due_job(store: redis.Redis, shape: bytes) -> None:
    store.zadd(keys.due("shop"), {"j:2": 1})
    store.hset(keys.due_jobs("shop"), "j:2", shape + b"\n{}")


def _budget() -> None:
    if not PolicyVersion.objects.exists():
        PolicyVersion.objects.create(
            version=1, document=_DOCUMENT["policy"], published_at=datetime.now(UTC), published_by="ann"
        )
    Source.objects.get_or_create(name="shop")
    budgets(ENGINE, list(PolicyVersion.objects.filter(is_published=True)))


@cache
def _policies() -> Policies:
    return Policies("shop", "enforce", Path(tempfile.mkdtemp(prefix="redrive-shapes-")))


def _poll() -> None:
    one = _policies()
    one._read_at = float("-inf")
    one.poll(config.store(), b"another")


_PAUSES = {"v": 1, "queues": {"emails": 0, "webhooks": 1790000000000}, "tasks": {"deliver": 0}}


def _obey_pauses() -> None:
    """As a worker does that has nothing to do."""
    queues = SimpleNamespace(queues=SimpleNamespace(consume_from={}))
    consumer = SimpleNamespace(
        task_consumer=None, pool=None, hub=None, call_soon=lambda act: None, app=SimpleNamespace(amqp=queues)
    )
    one = Pausing(consumer, Queues(), "shop", Path(tempfile.mkdtemp(prefix="redrive-shapes-")), None)
    pipeline = config.store().pipeline(transaction=False)
    one.read(pipeline)
    one.obey(*pipeline.execute(raise_on_error=False))
    one.check(is_silenced=False)
    json.dumps(one.describe())


_BREAKER = Breaker("partner")
_BREAKER.note([Outcome(False, subject=str(number), kind="connection") for number in range(30)], 1_790_000_000.0)
_BREAKER.force("open", 1_790_000_001.0, until=1_790_000_600.0, by="ann", reason="maintenance")


def _read_breakers() -> None:
    """As the worker does that releases jobs."""
    for value in [*config.store().hgetall(keys.breakers("shop")).values()][:50]:
        breaker = Breaker.parse("partner", value)
        for second in range(3):
            now = 1_790_000_000.0 + 400 * second
            breaker.note([Outcome(False, subject="j"), Outcome(True, ticket=breaker.ticket(now))], now)
            breaker.released(breaker.tick(now, 5), now, breaker.ticket(now))
            breaker.admits(breaker.ticket(now), now, "t")
        breaker.render()


def _push_pauses() -> None:
    Pause.objects.get_or_create(
        source="shop", queue="emails", resumed_at=None, defaults={"created_at": datetime.now(UTC)}
    )
    holds.step(datetime.now(UTC))


_ON_HOLD = {"at": 1.79e9, "breakers": {"partner": {"count": 700, "sampled": 300, "queues": {"webhooks": 300}, "tasks": {"t": 300},
            "tenants": {"acme": 300}, "jobs": [{"job_id": "j", "task": "t", "queue": "webhooks", "tenant": "acme"}]}}}  # fmt: skip


def _show_breakers() -> None:
    now = datetime.now(UTC)
    Source.objects.get_or_create(name="shop")
    for one in breakers.listing(ENGINE).rows:
        breaker_page.sentence(one, now)
        breaker_page.closing_text(one)
        breakers.on_hold(one)
    breaker_history.step(now)


def _deep_reap() -> None:
    """With a worker that is dead for sure, so that what it kept is filed."""
    store = config.store()
    store.sadd(keys.kept_boots("shop"), BOOT)
    store.hset(keys.kept("shop", BOOT), "j", b"{}")
    reaper = lost_jobs.Reaper()
    for now in (0.0, lost_jobs.CONFIRM_SILENCE_S):
        reaper.check(store, now)


def _ingest() -> None:
    store = config.store()
    store.xadd(keys.failures("shop"), {b"v": b"1", b"meta": b"{}"})
    ingest._reading.finished.clear()
    ingest.step("fuzz", wait_s=0.001)


def _append() -> None:
    draining._ship("shop", [{b"v": b"1", b"meta": b"{}"}])
    config.store().delete(keys.failures("shop"))


def _lately() -> None:
    quarantine.suspects(ENGINE)
    stranded.find_stranded("shop")


_DOCUMENT = {"name": "p", "version": 1, "policy": {"name": "p", "mode": "enforce", "match": {"source": "*", "queue": "*", "task": "t"},
             "max_attempts": 3, "backoff": {"kind": "exponential", "base_s": 1, "cap_s": 60}, "budget": {"per_minute": 60, "burst": 5},
             "classes": [{"class": "transient", "errors": ["Timeout*"]}]}}  # fmt: skip
_LINEAGE = {
    "lineage": {"queue": "q", "job_id": "j", "run": 2, "item": 1, "replay": "r"},
    "made": 1,
    "stacks": 0,
    "at": 1.79e12,
}
_PLACE = [3, 1.0, 1, ["1", "1"], [0, 1], [0, 0], [0, 0]]


def _put_source(store: redis.Redis, shape: bytes) -> None:
    """Keys that are named as those of a source, whose name is the shape."""
    for key in store.keys("redrive:{*") or ():
        store.delete(key)
    store.set(b"redrive:{" + shape[:200] + b"}:failures", shape)
    store.hset(b"redrive:{" + shape[:200] + b"}:workers", "w", shape)


def _find_sources() -> None:
    worker_store.restart_search()
    heartbeats.count_heartbeats(datetime.now(UTC))
    liveness.ingest_lags_s()


_COVERAGE = json.loads(
    Coverage(
        at=1.79e9,
        since=1.78e9,
        minutes={29833333: Minute(3, 3, 1)},
        gaps=[Gap(1.78e9, 1.781e9, 2)],
        workers={"w@h": WorkerCoverage(1, 5, 4, 3, 1.79e9)},
    ).dump()
)


def _read_coverage() -> None:
    stored, now = parse(config.store().get(keys.coverage("shop"))) or Coverage(), datetime.now(UTC)
    silent = coverage._unguarded(config.store(), "shop", stored.silent(), now)
    found = coverage._of_source("shop", stored, silent, now)
    assert found.percent is None or 0 <= found.percent <= 100


def _shared(name: str, sound: Any, field: str) -> Key:
    """Keys that guards of the version before share, read as the same key of a source is."""
    return Key(sound, _hash(keys.shared(name), field), shapes.KEYS[name].read, keys.shared(name))


KEYS: dict[str, Key] = shapes.KEYS | {
    "shared-workers": _shared("workers", shapes.KEYS["workers"].sound, "shop/w@h"),
    "shared-in-hand": _shared("in-hand", shapes.KEYS["in-hand"].sound, f"shop/{BOOT}"),
    "shared-dropped": _shared("dropped", shapes.KEYS["dropped"].sound, BOOT),
    "shared-kept": Key(f"shop/{BOOT}", _members(keys.shared("kept")), (_deep_reap,), keys.shared("kept")),
    "coverage": Key(_COVERAGE, _text(keys.coverage("shop")), (_read_coverage,), keys.coverage("shop")),
    "sources-found": Key("another", _put_source, (_find_sources,)),
    "failures-bytes": Key(1, _text(keys.failures_bytes("shop")), (_ingest, _append), keys.failures_bytes("shop")),
    "kept-places": Key(BOOT, _members(keys.kept_boots("shop")), (_deep_reap,), keys.kept_boots("shop")),
    "boots": Key(BOOT, _scored(keys.boots("shop"), BOOT, "another"), (_deep_reap, _lately), keys.boots("shop")),
    "boot-fields": Key("w@h", _hash(keys.boot("shop", BOOT), "gone", "worker", "stream", "leaving", "died_with"), (_deep_reap, _lately)),
    "ledger": Key(["epoch"], _hash_or_field(keys.ledger("shop", "1"), "1"),
                  (_ledger(lambda one: one.epoch("1")), _ledger(lambda one: one.begin("1", [1])), _ledger(lambda one: one.was_sent("1", [1])),
                   _ledger(lambda one: one.in_doubt("1", [1])), _refused_or(lambda: list(_celery(_url()).recall("1", ["emails"]))),
                   _refused_or(lambda: _celery(_url()).was_sent("1", [1])), _of_bullmq(lambda one: one.was_sent("1", [1]))),
                  keys.ledger("shop", "1")),
    "ledger-epoch": Key("epoch", _hash(keys.ledger("shop", "1"), "epoch"),
                        (_ledger(lambda one: one.epoch("1")), _refused_or(lambda: _celery(_url()).epoch("1")),
                         _of_bullmq(lambda one: one.epoch("1")))),
    "removals": Key(1, _hash(keys.removals("shop"), "emails"), (_refused_or(lambda: list(_celery(_url()).recall("1", ["emails"]))),),
                    keys.removals("shop")),
    "dead-letters-owed": Key(["r", 1], _hash(keys.dead_letters("shop", "owed", "q"), "name"), (_copies(lambda one: one.owed("q")),),
                             keys.dead_letters("shop", "owed", "q")),
    "dead-letters-owed-names": Key("n", _hash_or_field(keys.dead_letters("shop", "owed", "q"), "n"), (_copies(lambda one: one.owed("q")),)),
    "dead-letters-taking": Key("n", _members(keys.dead_letters("shop", "taking", "q")), (_copies(lambda one: one.taking("q")),)),
    "dead-letters-taken": Key("n", _scored(keys.dead_letters("shop", "taken", "q"), "n"),
                              (_copies(lambda one: one.recently_taken("q", 60)), _copies(lambda one: one.find_taken("q", ["n"])))),
    "dead-letters-held": Key(1, _text(keys.dead_letters("shop", "held", "q")), (_copies(lambda one: one.unacknowledged_counts(["q"])),)),
    "whole-since": Key(0, _text(keys.whole_since("shop")), (_of_bullmq(lambda one: one._jobs.complete_since()),
                       _of_bullmq(lambda one: one._jobs.is_complete("x"))), keys.whole_since("shop")),
    "sent": Key(_LINEAGE, _text(keys.sent("shop", "emails") + "j"),
                (_of_bullmq(lambda one: one._dead._sent_records([("emails", "j")])),
                 _of_bullmq(lambda one: list(one._jobs._by_events("emails", "j", [_completed()], True))))),
    "copies": Key([["dead", "1", "1"]], _hash(keys.copies("shop"), "emails:j"),
                  (_of_bullmq(lambda one: one._dead.still_present([Ref("emails", "j")])),), keys.copies("shop")),
    "copies-places": Key(_PLACE, _put_place, (_refused_or(_read_places),)),
    "bullmq-kept": Key({"a": 1}, _put_saved, (_refused_or(_read_saved),), keys.bullmq_kept("shop")),
    "policies": Key(_DOCUMENT, _hash(keys.policies(), "p", "q"), (pushing.push, _poll), keys.policies()),
    "policies-version": Key(1, _text(keys.policies_version()), (pushing.push, _poll), keys.policies_version()),
    "breakers": Key(
        _BREAKER.as_dict(),
        lambda store, shape: store.hset(keys.breakers("shop"), "partner", b"7 " + shape),
        (_read_breakers, _show_breakers),
        keys.breakers("shop"),
    ),
    "on-hold": Key(_ON_HOLD, _text(keys.on_hold("shop")), (_show_breakers,), keys.on_hold("shop")),
    "pauses": Key(_PAUSES, _text(keys.pauses("shop")), (_obey_pauses, _push_pauses), keys.pauses("shop")),
    "due": Key("j:2", _scored(keys.due("shop"), "j:2"), (_promote, _claim), keys.due("shop")),
    "due-jobs": Key(_HEAD, _put_due_job, (_promote, _claim), keys.due_jobs("shop")),
    "held": Key("j:2", _scored(keys.holds("shop", "partner"), "j:2"), (_release,), keys.holds("shop", "partner")),
    "held-places": Key(1, _hash(keys.holds("shop", "partner") + ":places", "0:"), (_release,)),
    "held-breakers": Key("partner", _members(keys.holding_breakers("shop")), (_release,), keys.holding_breakers("shop")),
    "due-claims": Key("claim", _hash(keys.due_claims("shop"), "j:2"), (_claim, _promote), keys.due_claims("shop")),
    "budget": Key(1.0, _hash(keys.budget("shop"), "p"), (_budget,), keys.budget("shop")),
}  # fmt: skip


def _completed() -> Any:
    return JobEvent("1790000000000-0", "completed", "j", "")


# Which keys of `KEYS` each function of `core/keys.py` names.
NAMED_BY: dict[str, Sequence[str]] = {
    "steps": ["watch"], "switch": ["switch"], "store_findings": ["store-findings"], "unjudged_rules": ["unjudged-rules"],
    "workers": ["workers"], "tasks": ["tasks"], "configuration": ["configuration"], "options": ["options"], "in_hand": ["in-hand"],
    "reading": ["reading"], "dropped": ["dropped"], "audit_head": ["audit-head"], "boot": ["running", "boot", "boot-fields"],
    "kept": ["kept"], "kept_boots": ["kept-places"], "boots": ["boots"], "failures_bytes": ["failures-bytes"],
    "ledger": ["ledger", "ledger-epoch"], "removals": ["removals"],
    "dead_letters": ["dead-letters-owed", "dead-letters-owed-names", "dead-letters-taking", "dead-letters-taken", "dead-letters-held"],
    "whole_since": ["whole-since"], "sent": ["sent"], "copies": ["copies", "copies-places"], "bullmq_kept": ["bullmq-kept"],
    "policies": ["policies"], "policies_version": ["policies-version"], "pauses": ["pauses"],
    "breakers": ["breakers"], "on_hold": ["on-hold"], "due": ["due"], "due_jobs": ["due-jobs"],
    "due_claims": ["due-claims"], "holds": ["held", "held-places"], "holding_breakers": ["held-breakers"], "budget": ["budget"], "source_of": ["sources-found"],
    "coverage": ["coverage"],
    "shared": ["shared-workers", "shared-in-hand", "shared-dropped", "shared-kept"],
}  # fmt: skip
# Functions whose key is not fuzzed here, and why.
NOT_HERE = {
    "failures": "reports: every field of them is fuzzed (`shapes.reports`, `store_shapes.reports_of`)",
    "crash": "read by workers' scripts alone, in the step that counts a start",
    "leases": "read by workers' scripts alone",
    "starts": "read by workers' scripts alone",
    "due_gone": "read by the scripts of delayed jobs alone, by members that are keys of theirs",
    "older_desk": "only whether it exists is read",
    "once": "set, and never read",
    "store_id": "compared with that of a backup, as bytes",
}


_STEPS = (
    "pull",
    "reconcile",
    "sample",
    "rollup",
    "judge",
    "lay",
    "send",
    "settle",
    "promote",
    "prune",
    "regroup",
    "policies",
    "deliver",
)


@dataclass(frozen=True, slots=True)
class Many:
    """A hash of which every field is read at once: as many shapes in one reading."""

    name: str
    fields: tuple[str, ...]

    def write(self, store: redis.Redis, many: Sequence[bytes]) -> None:
        store.delete(self.name)
        store.hset(self.name, mapping=dict(zip(self.fields, many, strict=False)))


MANY: dict[str, Many] = {
    "watch": Many(keys.steps(), ("ingest", *_STEPS)),
    "workers": Many(keys.workers("shop"), ("w@h", *(f"w@h{n}" for n in range(99)))),
    "in-hand": Many(keys.in_hand("shop"), (BOOT, *(f"{BOOT}{n}" for n in range(99)))),
    "dropped": Many(keys.dropped("shop"), (BOOT, *(f"{BOOT}{n}" for n in range(99)))),
    "reading": Many(keys.reading(), tuple(f"other{n}" for n in range(100))),
    "kept": Many(keys.kept("shop", BOOT), ("j", *(f"j{n}" for n in range(99)))),
    "running": Many(f"{keys.boot('shop', BOOT)}:running", tuple(f"j{n}" for n in range(100))),
    "shared-workers": Many(keys.shared("workers"), ("shop/w@h", *(f"shop/w@h{n}" for n in range(99)))),
    "shared-in-hand": Many(keys.shared("in-hand"), (f"shop/{BOOT}", *(f"shop/{BOOT}{n}" for n in range(99)))),
    "shared-dropped": Many(keys.shared("dropped"), (BOOT, *(f"{BOOT}{n}" for n in range(99)))),
    "dead-letters-owed": Many(keys.dead_letters("shop", "owed", "q"), tuple(f"n{n}" for n in range(100))),
}


def _place(shape: bytes) -> None:
    place = Place.read(text(shape))
    place.update(7, [1, 2], 1, 1)
    place.advance([1.0])
    Place.read(place.to_text())


def _anchor(shape: bytes) -> None:
    config.store().set(keys.audit_head(), shape)
    with suppress(audit_anchor.BadAnchor):
        audit_anchor.read()


def _document(shape: bytes) -> None:
    _policies()._take({"p": untrusted.read(shape), "q": policies_json(shape)})


def _report_of(shape: bytes) -> None:
    """The report of a job that BullMQ forgot."""
    _bullmq(_url())._jobs._report(
        "emails", "1", {name.encode(): text for name, text in _saved_fields(shape).items()}, 5
    )


def _read_sent(shape: bytes) -> None:
    if (sent := _parse_sent(shape)) is not None:
        sent.lineage.as_header()


# Parsers that take a text: of these keys every shape goes to the parser, and some go the whole way.
PARSERS: dict[str, Callable[[bytes], object]] = {
    "audit-head": _anchor,
    "due-jobs": lambda shape: _waiting(b"j:2", shape + b"\n{}", "claim"),
    "policies": _document,
    "options": lambda shape: lint_options.read(shape, "shop"),
    "configuration": lambda shape: lint_configuration.read(shape, "shop"),
    "copies-places": _place,
    "store-findings": liveness._findings,
    "unjudged-rules": lambda shape: untrusted.texts(untrusted.read_object(shape), 50),
    "sent": _read_sent,
    "copies": _parse_copies,
    "bullmq-kept": _report_of,
}


# Fields of an entry beside `meta`, `raw` and `trace`, as they are sound.
_OF_ENTRY: dict[str, Any] = {"v": 1, "key": "3f9a1c2e77d0", "sig": "0" * 64, "lost": {"at": 1.7e9, "reason": "gone"}}


def reports_of(field: str, source: random.Random, count: int, key: SigningKey) -> Iterator[dict[bytes, bytes]]:
    """Draw `count` shapes of a field, and yield a report of each one that was not drawn before, signed with the key; a field of the
    entry is changed after that."""
    seen: set[int] = set()
    for n in range(count):
        sound = shapes._REPORT | {"job_id": f"j{n}", "kind": source.choice(shapes._KINDS)}
        raw, trace, of_entry = b"{}", b"Traceback (most recent call last):\n", None
        if field == "raw":
            [raw] = shapes.shapes(
                source, {"headers": {"id": "j", "redrive": {"run": 2}}, "body": "e30=", "properties": {}}, 1
            )
        elif field == "trace":
            [trace] = shapes.shapes(source, 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nE: x', 1)
        elif field in _OF_ENTRY:
            sound["kind"] = "lost" if field == "lost" else sound["kind"]
            [of_entry] = shapes.shapes(source, _OF_ENTRY[field], 1)
        elif isinstance(sound[field], str) and sound[field].startswith(("[", "{")):
            [text] = shapes.shapes(source, json.loads(sound[field]), 1)
            sound[field] = text.decode("utf-8", "replace")
        elif source.random() < 0.5:
            sound[field] = shapes.odd(source)
        else:
            [text] = shapes.shapes(source, sound[field], 1)
            try:
                sound[field] = json.loads(text)
            except (ValueError, RecursionError):
                sound[field] = text.decode("latin-1")
        drawn = hash((repr(sound["kind"]), repr(sound.get(field)), raw, trace, of_entry))
        if drawn in seen:
            continue
        seen.add(drawn)
        entry = sign({b"v": b"1", b"meta": json.dumps(sound).encode(), b"raw": raw, b"trace": trace}, key)
        if of_entry is not None:
            entry[field.encode()] = of_entry
        yield entry


FIELDS = (*shapes._REPORT, "raw", "trace", *_OF_ENTRY)
