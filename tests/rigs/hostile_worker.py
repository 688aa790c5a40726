"""A worker that has the store user and the key of its own source `evil`, and writes whatever it can against the source `shop`.

victim = Victim(store, broker)         # source `shop`: failures, a replay on its way, policies, everything that workers write
before = victim.snapshot()
for write in forgeries(random, victim):
    write(evil)                        # a client with evil's store user
victim.desk_reads_all()
assert victim.snapshot() == before
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import redis
from django.apps import apps
from django.db.models import Model, QuerySet
from django.utils import timezone

from jobs_admin.core import keys, worker_acl
from jobs_admin.core.envelope import KINDS, Envelope, Lineage, encode
from jobs_admin.core.report_signature import KEY, SIGNATURE, sign
from jobs_admin.worker.delays import Delays, Head

EVIL, SHOP = "evil", "shop"
PASSWORD = "of evil's workers"  # noqa: S105
BOOT, DIGEST = "b00t", "0123456789abcdef" * 2
Write = Callable[[redis.Redis], object]


def message(n: int) -> bytes:
    """A job of shop as it lies in its broker: kombu's message of Celery's protocol 2."""
    import base64

    body = base64.b64encode(json.dumps([[n], {}, {"callbacks": None}]).encode()).decode()
    headers = {
        "lang": "py",
        "task": "ok",
        "id": f"j{n}",
        "root_id": f"j{n}",
        "retries": 0,
        "argsrepr": f"[{n}]",
        "kwargsrepr": "{}",
    }
    properties = {
        "correlation_id": f"j{n}", "delivery_mode": 2, "delivery_info": {"exchange": "", "routing_key": "emails"}, "priority": 0,
        "body_encoding": "base64", "delivery_tag": f"tag{n}",
    }  # fmt: skip
    fields = {
        "body": body,
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties,
    }
    return json.dumps(fields).encode()


def failed(n: int, source: str = SHOP, **fields: Any) -> Envelope:
    raw = message(n)
    values: dict[str, Any] = {
        "source": source, "queue": "emails", "task": "ok", "job_id": f"j{n}", "kind": "exception", "attempt": 1,
        "at": time.time() - 600, "error_type": f"{source}.Error{n % 3}", "message": "no answer", "raw": raw, "raw_size": len(raw),
        "args": f"[{n}]", "kwargs": "{}", "worker": "w1@shop",
    }  # fmt: skip
    return Envelope(**{**values, **fields})


class Victim:
    """The source `shop` on a desk of this process."""

    def __init__(self, store: redis.Redis, broker: redis.Redis) -> None:
        from jobs_admin import replays
        from jobs_admin.models import Failure, Replay, ReplayItem
        from jobs_admin.models.access import ADMIN, Viewer
        from jobs_admin.trust import source_keys

        self.store, self.broker = store, broker
        self._consumer = "victim"
        write(store, SHOP, *(failed(n) for n in range(40)))
        self.desk_reads_all()
        ann = Viewer("ann", {"*": ADMIN})
        ids = list(Failure.objects.filter(source=SHOP).order_by("pk").values_list("pk", flat=True)[:20])
        replays.start(ann, replays.draft(ann, selection=ids, reason="a test"))
        for _ in range(50):
            replays.create_items()
            replays.send("victim", timezone.now())
            if ReplayItem.objects.filter(state="sent").count() == 20:
                break
        self.replay = replays.pause(ann, Replay.objects.get())  # else time alone would steer it
        self.items = list(ReplayItem.objects.order_by("pk").values("pk", "job_id", "run", "failure__first_job_id"))
        assert len(self.items) == 20 and self.broker.llen("emails") == 20
        self.key = source_keys.create(ann, EVIL)  # evil's own
        self._publish(ann)
        self._write_as_a_worker()
        self.desk_reads_all()
        self.desk_reads_all()  # what the first round settles, the next finds

    def _publish(self, viewer: Any) -> None:
        from jobs_admin import policies

        policies.publish(viewer, "all", {"match": {"source": "*"}, "mode": "enforce", "max_attempts": 3})

    def _write_as_a_worker(self) -> None:
        now, store = time.time(), self.store
        beat = {
            "v": 1,
            "boot": BOOT,
            "at": now,
            "queues": ["emails"],
            "mode": "enforce",
            "tasks": DIGEST,
            "configuration": DIGEST,
        }
        store.hset(
            keys.workers(SHOP), "w1@shop", json.dumps(beat | {"counts": {"emails": {"started": 9, "succeeded": 9}}})
        )
        store.set(keys.tasks(SHOP, DIGEST), '["ok"]')
        store.set(keys.configuration(SHOP, DIGEST), '{"v": 1}')
        store.hset(keys.dropped(SHOP), "e" * 32, json.dumps({"host": "h", "count": 3, "since": now, "last": now}))
        store.hset(
            keys.in_hand(SHOP),
            BOOT,
            json.dumps({"worker": "w1", "at": now, "jobs": [["t", "j1", "ok", "emails", True]]}),
        )
        store.zadd(keys.boots(SHOP), {BOOT: 1000 * (now + 3600)})  # it lives, whatever anyone does
        store.hset(keys.boot(SHOP, BOOT), "worker", "w1@shop")
        meta = encode(failed(900, kind="lost"))[b"meta"]
        store.sadd(keys.kept_boots(SHOP), BOOT)
        store.hset(keys.kept(SHOP, BOOT), "j900:1", b"%d 1 %d\n%sraw" % (now * 1000, len(meta), meta))
        store.hset(keys.crash(SHOP, "j901"), "token", json.dumps({"at": now * 1000, "boot": BOOT, "how": "killed"}))
        store.hset(keys.budget(SHOP), "all", f"{int(now * 1e6)} 1000000 10")
        store.zadd(keys.leases(SHOP, "all", "ok"), {"token": 1000 * (now + 3600)})
        store.set(keys.once(SHOP, "r-1-j1", 1), BOOT)
        Delays(store, SHOP).schedule(Head("j902", 2, "ok", "emails", "all@1"), message(902), 3600)

    def desk_reads_all(self) -> None:
        """Every step of `watch` that reads what workers write, until nothing is left."""
        from jobs_admin import ingest, policies, replays
        from jobs_admin.fleet import configurations, heartbeats, stranded, uncaptured
        from jobs_admin.ingest.lost_jobs import CONFIRM_SILENCE_S, Reaper
        from jobs_admin.models.access import ENGINE
        from jobs_admin.retries import awaiting, promoting

        now, reaper = timezone.now(), Reaper()
        reaper.check(self.store, 0.0)
        reaper.check(self.store, CONFIRM_SILENCE_S)
        while any(self.store.xlen(key) for key in ingest.streams(self.store) if self.store.type(key) == b"stream"):
            ingest.step(self._consumer, wait_s=0.01)
        heartbeats.count_heartbeats(now)
        heartbeats.worker_reports(with_tasks=True)
        configurations.reported_configurations(ENGINE)
        uncaptured.record_counts(now)
        for source in (SHOP, EVIL):
            with suppress(redis.RedisError):
                stranded.find_stranded(source, self.store)
        promoting.step()
        replays.settle(now)
        ingest.reconcile(now, awaiting.delays(now))
        policies.step(now)

    def snapshot(self) -> dict[str, Any]:
        """Return the rows of every source but evil in all tables, and the keys of the store and of shop's broker.

        Left out: `_of_no_source`, and what changes by time alone (`_without_time`).
        """
        models = [model for model in apps.get_app_config("jobs_admin").get_models() if model not in _of_no_source()]
        found: dict[str, Any] = {
            f"rows of {model.__name__}": sorted(repr(_without_time(row)) for row in _of_others(model).values())
            for model in models
        }
        of_items = apps.get_model("jobs_admin", "Attempt").objects.filter(
            item__isnull=False
        )  # also those of evil's failures
        found["attempts of items"] = sorted(repr(row) for row in of_items.values())
        found["known tasks"] = _known_tasks()
        mine = f"redrive:{{{EVIL}}}:"
        for name, client in (("store", self.store), ("broker", self.broker)):
            for key in sorted(client.scan_iter("*", count=1000)):
                text = key.decode("utf-8", "backslashreplace")
                if not text.startswith(mine) and text not in (keys.steps(), keys.reading()):
                    found[f"{name} {text}"] = _contents(client, key)
        return found


def _of_no_source() -> list[type[Model]]:
    """Tables of errors, whatever source they happened in: a failure of evil with the same error counts in a group, may be the one
    that it shows, and may make it regress. Their texts for each source (GroupSource) are compared.
    """
    from jobs_admin import models

    return [models.Group, models.GroupAlias, models.GroupCounter, models.Traceback]


def _of_others(model: type[Model]) -> QuerySet[Model]:
    """Return the rows of a table that are not evil's: its own source's, its failure's; of a table without either, all."""
    names = {field.name for field in model._meta.fields}
    if model.__name__ == "Source":
        return model._default_manager.exclude(name=EVIL)
    if model.__name__ == "Unfiled":  # without a source where it cannot be read; of evil's stream it is evil's
        return model._default_manager.exclude(entry_id__startswith=f"{EVIL}/")
    for path in ("source", "failure__source"):
        if path.split("__")[0] in names:
            return model._default_manager.exclude(**{path: EVIL})
    return model._default_manager.all()


def _without_time(row: dict[str, Any]) -> dict[str, Any]:
    """A row without a replay's lease and its controller's clock."""
    core = dict((row.pop("controller", None) or {}).get("core", {}))
    return {name: value for name, value in row.items() if name not in ("sender", "sender_until", "may_send")} | core


def _contents(client: redis.Redis, key: bytes) -> Any:
    """The content of a key; of a stream its entries, as reading them leaves traces in its groups."""
    kind = client.type(key)
    if kind == b"stream":
        return client.xrange(key)
    if kind == b"set":
        return client.smembers(key)
    if kind == b"hash":
        return client.hgetall(key)
    return client.dump(key)


def _known_tasks() -> Any:
    from jobs_admin.fleet import heartbeats

    return heartbeats._task_names([(SHOP, DIGEST)])


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def make_user(store: redis.Redis, *more: str) -> None:
    """The store user of evil's workers, with the rules that `manage.py worker-acl` gives, and `more` after them."""
    user = worker_acl.user_of(EVIL)
    store.execute_command("ACL SETUSER", user, "resetpass", f">{PASSWORD}", *worker_acl.rules(EVIL), *more)


def connect(url: str) -> redis.Redis:
    """A client of the store with that user."""
    parts = redis.connection.parse_url(url)
    return redis.Redis(host=parts["host"], port=parts["port"], username=worker_acl.user_of(EVIL), password=PASSWORD)


def write(store: redis.Redis, source: str, *reports: Envelope) -> None:
    with store.pipeline(transaction=False) as pipe:
        for one in reports:
            pipe.xadd(keys.failures(source), encode(one))
        pipe.execute()


# -- forgeries ----------------------------------------------------------------------------------------------------


def forgeries(rng: random.Random, victim: Victim, *only: str) -> Iterator[tuple[str, Write]]:
    """Without end: the name of a shape, and one write of it. `only`: names of shapes; none: all."""
    shapes = [
        _report,
        _report,
        _report,
        _entry,
        _stream,
        _hash,
        _hash,
        _stored_jobs,
        _text,
        _desk,
        _scripted,
        _scripted,
        _command,
        _invented,
        _due,
    ]
    drawn = [(shape.__name__.strip("_"), shape) for shape in shapes]
    drawn = [one for one in drawn if not only or one[0] in only]
    while True:
        name, shape = rng.choice(drawn)
        yield name, shape(rng, victim)


def _target(rng: random.Random) -> str:
    return rng.choice([SHOP, SHOP, SHOP, "crm", EVIL])


def _forged(rng: random.Random, victim: Victim) -> Envelope:
    item = rng.choice(victim.items)
    n = rng.choice([int(item["failure__first_job_id"][1:]), rng.randrange(50)])
    lineage = rng.choice(
        [
            None,
            Lineage(f"j{n}", "emails", item["run"], str(victim.replay.pk), item["pk"]),
            Lineage(item["failure__first_job_id"], "emails", item["run"], str(victim.replay.pk), item["pk"]),
            Lineage(f"j{n}", "emails", rng.choice([1, 2, 3, 2**40]), "999", rng.choice([item["pk"], -1, 2**62])),
        ]
    )
    kind = rng.choice(KINDS)
    job_id = rng.choice([f"j{n}", item["job_id"], "mine"])
    base = failed(n, _target(rng), kind=kind, job_id=job_id, attempt=rng.choice([1, 2, 99]), lineage=lineage)
    at = rng.choice([time.time(), time.time() + 1e6, 0.0, -1e12])
    return replace(
        base, at=at, queue=rng.choice(["emails", "webhooks", "x" * 300]), policy="all@1", reason="poison", escalate=rng.random() < 0.2,
        due_at=time.time() + 60 if kind == "retry" else None, release=rng.choice(["", "r1"]), crashes=rng.choice(["", '[{"how": "lost"}]']),
    )  # fmt: skip


def _signed(rng: random.Random, victim: Victim, fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """With evil's own key, most of the time; or with what is no signature of it."""
    how = rng.random()
    if how < 0.7:
        return sign(fields, victim.key)
    return fields if how < 0.85 else {**fields, KEY: victim.key.id.encode(), SIGNATURE: b"0" * 64}


def _report(rng: random.Random, victim: Victim) -> Write:
    """On its own stream, in the name of another source, or with another's jobs, items and lineage."""
    fields = _signed(rng, victim, encode(_forged(rng, victim)))
    if rng.random() < 0.2:  # of two values of one name in JSON the last counts, or the first
        meta = fields[b"meta"]
        fields[b"meta"] = meta[:-1] + b', "source": "%s"}' % rng.choice([SHOP, EVIL]).encode()
        fields = _signed(rng, victim, fields)
    return lambda evil: evil.xadd(
        keys.failures(EVIL), fields, id=rng.choice(["*", "*", "*", f"{rng.randrange(1, 9)}-{rng.randrange(99)}"])
    )


def _entry(rng: random.Random, victim: Victim) -> Write:
    """An entry that is no report."""
    fields = encode(_forged(rng, victim))
    name = rng.choice(list(fields))
    fields = _signed(rng, victim, fields)
    fields[name] = rng.choice([b"", b"[", b"\xff" * 50, b"9" * 5_000, b'{"source": "shop"}', b"null", b"[" * 50_000])
    signed = _signed(rng, victim, {name: value for name, value in fields.items() if name not in (KEY, SIGNATURE)})
    return lambda evil: evil.xadd(keys.failures(EVIL), signed)


def _stream(rng: random.Random, victim: Victim) -> Write:
    """On the stream of another source, or the one that older guards share; or what becomes of another's entries."""
    fields = encode(_forged(rng, victim))
    stream = rng.choice([keys.failures(SHOP), keys.failures("crm"), keys.shared("failures")])
    return rng.choice(
        [
            lambda evil: evil.xadd(stream, fields),
            lambda evil: evil.xtrim(stream, maxlen=0),
            lambda evil: evil.xdel(stream, "1-1"),
            lambda evil: evil.delete(stream),
            lambda evil: evil.set(stream, "x"),
            lambda evil: evil.xgroup_destroy(stream, "ingest"),
            lambda evil: evil.xack(stream, "ingest", "1-1"),
            lambda evil: evil.xreadgroup("ingest", "evil", {stream: ">"}),
            lambda evil: evil.set(keys.failures_bytes(SHOP), 2**40),
            lambda evil: evil.rename(keys.failures(EVIL), stream),
            lambda evil: evil.copy(keys.failures(EVIL), stream, replace=True),
        ]
    )


def _hash(rng: random.Random, victim: Victim) -> Write:
    """Heartbeats, counts of what was not captured, jobs in hand: under its own key, another's, or the shared one."""
    now = time.time()
    name, field, value = rng.choice(
        [
            ("workers", rng.choice(["w1@shop", "shop/w1@shop"]), {"name": "w1@shop", "boot": BOOT, "at": now, "queues": ["emails"],
             "counts": {"emails": {"started": 10**6, "succeeded": 10**6}}, "tasks": DIGEST, "spooled": 9, "policies": {"all": 7}}),
            ("dropped", "e" * 32, {"host": "h", "count": rng.choice([0, 10**6]), "since": now, "last": now}),
            ("in-hand", rng.choice([BOOT, f"shop/{BOOT}"]), {"worker": "w1", "at": 1.0, "jobs": [["tag1", "j1", "ok", "emails", True]]}),
        ]
    )  # fmt: skip
    of = {"workers": keys.workers, "dropped": keys.dropped, "in-hand": keys.in_hand}[name]
    key = rng.choice([of(EVIL), of(EVIL), of(SHOP), of("crm"), keys.shared(name)])
    text = json.dumps(value | {"v": 1, "source": rng.choice([SHOP, EVIL])})
    return rng.choice(
        [
            lambda evil: evil.hset(key, field, text),
            lambda evil: evil.hset(key, field, text),
            lambda evil: evil.hdel(key, field),
        ]
    )


def _stored_jobs(rng: random.Random, victim: Victim) -> Write:
    """Jobs that a worker keeps while they run: its own of another source's jobs, or another's."""
    meta = encode(_forged(rng, victim))[b"meta"]
    value = rng.choice([b"1000 1 %d\n%sraw" % (len(meta), meta), b"1000 1 99999999\n{}", b"x", b"1 " * 9])
    boot = rng.choice([BOOT, "evilboot"])
    source = rng.choice([EVIL, EVIL, SHOP])

    def act(evil: redis.Redis) -> None:
        evil.sadd(rng.choice([keys.kept_boots(source), keys.shared("kept")]), rng.choice([boot, f"{SHOP}/{boot}"]))
        evil.sadd(keys.kept_boots(source), boot)
        evil.hset(keys.kept(source, boot), "j900:1", value)

    return rng.choice(
        [
            act,
            act,
            lambda evil: evil.srem(keys.kept_boots(SHOP), BOOT),
            lambda evil: evil.delete(keys.kept(SHOP, BOOT)),
            lambda evil: evil.zadd(keys.boots(SHOP), {BOOT: 0}),
            lambda evil: evil.hset(keys.boot(SHOP, BOOT), "gone", "1"),
        ]
    )


def _text(rng: random.Random, victim: Victim) -> Write:
    """Names of tasks and configurations under a digest that another source's workers have."""
    name, text = rng.choice([("tasks", '["mine"]'), ("configuration", '{"v": 1, "tasks": []}')])
    of = {"tasks": keys.tasks, "configuration": keys.configuration}[name]
    key = rng.choice([of(EVIL, DIGEST), of(SHOP, DIGEST), keys.shared(f"{name}:{DIGEST}")])
    return rng.choice([lambda evil: evil.set(key, text), lambda evil: evil.delete(key)])


def _desk(rng: random.Random, victim: Victim) -> Write:
    """Keys that the desk publishes or writes for itself."""
    key = rng.choice(
        [
            keys.switch(), keys.policies(), keys.policies_version(), keys.steps(), keys.reading(), keys.store_findings(),
            keys.audit_head(), keys.unjudged_rules(), keys.options(SHOP), keys.options(EVIL), keys.ledger(SHOP, str(victim.replay.pk)),
        ]
    )  # fmt: skip
    return rng.choice(
        [
            lambda evil: evil.set(key, "off"),
            lambda evil: evil.delete(key),
            lambda evil: evil.hset(
                key, "all", '{"name": "all", "version": 9, "policy": {"match": {}, "max_attempts": 99}}'
            ),
            lambda evil: evil.hdel(key, "all"),
            lambda evil: evil.expire(key, 1),
            lambda evil: evil.incr(key),
        ]
    )


def _scripted(rng: random.Random, victim: Victim) -> Write:
    """Scripts, which run under the same rights: with keys that they name, and with keys that they do not."""
    key = rng.choice(
        [
            keys.failures(SHOP), keys.workers(SHOP), keys.due(SHOP), keys.budget(SHOP), keys.policies(), keys.switch(), "emails",
            keys.leases(SHOP, "all", "ok"), keys.once(SHOP, "r-1-j1", 1), keys.crash(SHOP, "j901"), keys.shared("failures"),
        ]
    )  # fmt: skip
    call = rng.choice(
        [
            f"redis.call('DEL', '{key}')",
            f"redis.pcall('DEL', '{key}')",
            f"redis.call('SET', '{key}', 'x')",
            f"redis.call('HSET', '{key}', 'all', 'x')",
            f"redis.call('XADD', '{key}', '*', 'v', '1')",
            f"redis.call('ZADD', '{key}', 0, 'j902:2')",
            f"redis.call('LPUSH', '{key}', 'x')",
            f"redis.call('EXPIRE', '{key}', 1)",
            "redis.call('FLUSHALL')",
            "redis.call('CONFIG', 'SET', 'maxmemory', '1')",
            f"redis.setresp(3); redis.call('DEL', '{key}')",
        ]
    )
    named = rng.choice([[], [key], [keys.failures(EVIL)]])
    return lambda evil: evil.eval(call, len(named), *named)


def _command(rng: random.Random, victim: Victim) -> Write:
    """Commands that no worker needs."""
    command = rng.choice(
        [
            ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("SCAN", "0"),
            ("ACL", "SETUSER", worker_acl.user_of(EVIL), "allkeys"), ("ACL", "LIST"), ("CLIENT", "KILL", "TYPE", "normal"),
            ("CLIENT", "LIST"), ("SCRIPT", "FLUSH"), ("FUNCTION", "LOAD", "#!lua name=x\nredis.register_function('x', function() end)"),
            ("SHUTDOWN", "NOSAVE"), ("DEBUG", "SLEEP", "1"), ("REPLICAOF", "127.0.0.1", "1"), ("SWAPDB", "0", "1"),
            ("MIGRATE", "127.0.0.1", "1", keys.failures(SHOP), "0", "1"), ("PUBLISH", "/1.celeryev", "x"), ("MONITOR",),
            ("RESTORE", keys.switch(), "0", "x"), ("MOVE", keys.failures(SHOP), "1"), ("SORT", keys.failures(EVIL), "STORE", keys.switch()),
            ("OBJECT", "FREQ", keys.switch()), ("BGREWRITEAOF",), ("SLOWLOG", "RESET"), ("MODULE", "LIST"),
        ]
    )  # fmt: skip
    return lambda evil: evil.execute_command(*command)


def _invented(rng: random.Random, victim: Victim) -> Write:
    """Sources that there are not."""
    name = f"s{rng.randrange(10**6)}"
    fields = encode(replace(failed(1), source=name))
    return rng.choice(
        [
            lambda evil: evil.xadd(keys.failures(name), fields),
            lambda evil: evil.hset(
                keys.workers(name), "w", json.dumps({"v": 1, "name": "w", "at": time.time(), "boot": "b"})
            ),
            lambda evil: evil.xadd(keys.failures(EVIL), fields),
            lambda evil: evil.xadd(f"redrive:{{{EVIL}}}:x:{{{name}}}:failures", fields),
        ]
    )


def _due(rng: random.Random, victim: Victim) -> Write:
    """Delayed jobs: its own that name another's queue and deliveries, or another's."""
    source = rng.choice([EVIL, EVIL, SHOP])
    head = Head("j1", 2, "ok", rng.choice(["emails", "", "redrive:switch"]), "all@1", list="emails", tag="tag1", unacked="unacked",
                unacked_index=keys.due(SHOP))  # fmt: skip
    if rng.random() < 0.5:
        return lambda evil: Delays(evil, source).schedule(head, message(1), -5.0)
    return lambda evil: [
        evil.zadd(keys.due(source), {"odd": 0}),
        evil.hset(keys.due_jobs(source), "odd", rng.choice(["x", "\n", "{}\nx"])),
    ]
