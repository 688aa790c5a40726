"""The workers that a replay needs: which tasks they know, and how many there are."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import Count

from jobs_admin.core import keys
from jobs_admin.db import counters, step_progress
from jobs_admin.fleet import heartbeats
from jobs_admin.models import DepthSample, QueueCounter, Worker
from jobs_admin.models.access import ENGINE
from jobs_admin.worker.heartbeat import known_tasks as pack_tasks

pytestmark = [pytest.mark.django_db, pytest.mark.server]

NOW = datetime(2026, 11, 21, 12, 0, 3, tzinfo=UTC)


@pytest.fixture(autouse=True)
def just_started():
    for remembered in (heartbeats._last_heard, heartbeats._excluded, heartbeats._counted_queues, heartbeats._full):
        remembered.clear()
    heartbeats._known_task_names.clear()


def beat(store, name="w1", tasks=("shop.send",), queues=("emails",), reported_tasks=None):
    """As a worker does it; `tasks` None: one of a version that does not report."""
    word = {"tasks": reported_tasks} if reported_tasks is not None else {}
    word |= {"v": 1, "source": "shop", "name": name, "boot": "b", "at": NOW.timestamp(), "queues": list(queues)}
    if tasks is not None:
        known = pack_tasks(tasks)
        word |= {"tasks": known.digest, "tasks_cut": known.is_cut}
        if not known.is_cut:
            store.set(keys.tasks("shop", known.digest), known.text)
    store.hset(keys.workers("shop"), name, json.dumps(word))
    return heartbeats.count_heartbeats(NOW)


def sample(queue="emails", workers=1, guarded=1, at=NOW):
    DepthSample.objects.create(source="shop", queue=queue, at=at, workers=workers, guarded_workers=guarded)


def test_the_tasks_of_all_live_workers_are_known(store):
    beat(store, "w1", ["shop.send", "celery.chord_unlock"])
    alive = beat(store, "w2", ["shop.bill"])
    assert heartbeats.known_tasks("shop", NOW) == {"shop.send", "shop.bill"}
    assert {h.name: h.tasks for h in alive} == {"w1": frozenset({"shop.send"}), "w2": frozenset({"shop.bill"})}


def test_no_one_knows_which_tasks_there_are_where_no_one_lives(store):
    assert heartbeats.known_tasks("shop", NOW) is None
    beat(store)
    assert heartbeats.known_tasks("other", NOW) is None
    assert heartbeats.known_tasks("shop", NOW + timedelta(seconds=31)) is None


@pytest.mark.parametrize(
    "tasks", [None, [f"t{n}" for n in range(2_001)], [str(n) * 400 for n in range(200)]], ids=["older", "many", "long"]
)
def test_one_worker_that_does_not_report_leaves_all_open(store, tasks):
    beat(store, "w1")
    (one, other) = beat(store, "w2", tasks)
    assert heartbeats.known_tasks("shop", NOW) is None
    assert {one.tasks, other.tasks} == {frozenset({"shop.send"}), None}


@pytest.mark.parametrize("workers", [2, None])
def test_a_worker_without_a_guard_may_know_more(store, workers):
    beat(store)
    sample(workers=workers)
    assert heartbeats.known_tasks("shop", NOW) is None


def test_names_that_the_store_lost_are_not_known(store):
    beat(store)
    store.delete(*store.keys("redrive:{shop}:tasks:*"))
    heartbeats._known_task_names.clear()
    assert heartbeats.known_tasks("shop", NOW) is None


@pytest.mark.parametrize("digest", ["", "../x", 7, ["a"], "A" * 32, None])
def test_a_heartbeat_cannot_name_a_key_of_its_own(store, digest):
    (one,) = beat(store, tasks=None, reported_tasks=digest)
    assert one.tasks is None and heartbeats.known_tasks("shop", NOW) is None


def test_what_workers_did_is_counted_once_over_lost_repeated_and_restarted_heartbeats(store):
    def beat_with(boot, at, **counts):
        word = {"source": "shop", "name": "w1", "boot": boot, "at": NOW.timestamp() + at, "queues": ["emails"]}
        store.hset(keys.workers("shop"), "w1", json.dumps(word | {"counts": {"emails": counts}}))
        heartbeats.count_heartbeats(NOW + timedelta(seconds=at))

    beat_with("b1", 1, started=5, succeeded=3, failed=1, retried=1, busy_s=2.5)
    beat_with("b1", 1, started=5, succeeded=3, failed=1, retried=1, busy_s=2.5)
    beat_with("b1", 11, started=9, succeeded=7, failed=1, retried=1, busy_s=4.5)
    beat_with("b2", 21, started=1, succeeded=1, failed=0, retried=0, busy_s=0.5)
    values = {counted.metric: value for counted, value in counters.read_totals(ENGINE)}
    assert values == {counters.COMPLETED: 8, counters.BUSY_S: 5, counters.ENDED: 10}
    assert sum(QueueCounter.objects.filter(step=60).values_list("failed", flat=True)) == 0


def written_by_transaction(run):
    """Run it; rows of workers and of queues' counters that each transaction wrote, as [workers, queues]."""
    written = [[0, 0]]

    def watch(execute, sql, params, many, context):
        if sql.startswith("SAVEPOINT"):  # the test is a transaction itself
            written.append([0, 0])
        elif sql.startswith('UPDATE "jobs_admin_worker"'):
            written[-1][0] += len(params) if many else sql.rpartition(" IN (")[2].count("%s")
        elif sql.startswith('INSERT INTO "jobs_admin_queuecounter"'):
            written[-1][1] += len(re.findall(r"\((?:%s|')", sql))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        run()
    return written[1:]


def word(boot="b", queues=5, name="w"):
    counts = {f"{name}-q{n}": {"succeeded": 1, "busy_s": 1} for n in range(queues)}
    return json.dumps({"boot": boot, "at": NOW.timestamp(), "queues": ["q"], "counts": counts})


def test_thousands_of_heartbeats_of_one_source_hold_up_no_other_and_no_transaction(store, monkeypatch, caplog):
    reports = []
    monkeypatch.setattr(step_progress, "_listener", lambda: reports.append(1))
    store.hset(keys.workers("evil"), mapping={f"w{n}": word(queues=2, name=f"w{n}") for n in range(3_000)})
    store.hset(keys.workers("shop"), "w1", word())
    alive = []
    written = written_by_transaction(lambda: alive.extend(heartbeats.count_heartbeats(NOW)))
    assert Worker.objects.filter(source="shop", seen_at=NOW).count() == 1
    assert Worker.objects.filter(source="evil").count() == heartbeats.MOST_OF_SOURCE == 1_000
    assert [one.source for one in alive].count("shop") == 1 and len(alive) == 1_001
    assert max(workers for workers, _ in written) <= 100 and sum(workers for workers, _ in written) == 1_001
    assert max(queues for _, queues in written) <= 500 * 4
    assert len(reports) >= 11
    heartbeats.count_heartbeats(NOW)
    assert caplog.text.count("2000 heartbeats of source evil are left out") == 1


def test_heartbeats_that_count_many_queues_are_counted_in_small_transactions(store, caplog):
    store.hset(keys.workers("evil"), mapping={f"w{n}": word(queues=150, name=f"w{n}") for n in range(20)})
    written = written_by_transaction(lambda: heartbeats.count_heartbeats(NOW))
    assert 0 < max(queues for _, queues in written) <= 500 * 4
    assert {len(counted) for counted in Worker.objects.values_list("counted", flat=True)} == {100}
    assert QueueCounter.objects.filter(source="evil", step=60).count() == 2_000
    assert caplog.text.count("1000 counts of queues") == 1


def test_invented_names_of_many_rounds_leave_no_more_rows_than_are_remembered(store, caplog, monkeypatch):
    monkeypatch.setattr(heartbeats, "MOST_ROWS", 30)
    monkeypatch.setattr(heartbeats, "MOST_QUEUES", 40)
    for n in range(6):
        now = NOW + timedelta(seconds=5 * n)
        at = {"boot": "b", "at": now.timestamp()}
        store.delete(keys.workers("evil"))
        names = [f"w{n}-{m}" for m in range(20)]
        words = {name: json.dumps(at | {"counts": {f"{name}-q": {"succeeded": 1}}}) for name in names}
        store.hset(keys.workers("evil"), mapping=words)
        store.hset(keys.workers("shop"), "w1", json.dumps(at | {"counts": {"emails": {"succeeded": n + 1}}}))
        heartbeats.count_heartbeats(now)
    evil = Worker.objects.filter(source="evil")
    assert evil.count() == 30 and set(names) <= set(evil.values_list("name", flat=True))
    assert set(QueueCounter.objects.filter(source="evil").values_list("step").annotate(n=Count("pk"))) == {
        (60, 40), (900, 40), (3600, 40)
    }  # fmt: skip
    assert QueueCounter.objects.get(source="shop", step=60).succeeded == 6
    assert caplog.text.count("Source evil has more than 30 workers") == 1
    assert caplog.text.count("queues of source evil are left out") == 1
    assert {source for source, _ in heartbeats._last_heard} == {"evil", "shop"} and len(heartbeats._last_heard) == 21
    heartbeats.count_heartbeats(NOW + timedelta(hours=1))
    assert not caplog.text.count("Source shop")


def test_the_queues_that_are_counted_are_remembered_by_the_tables_not_by_the_process(store, monkeypatch):
    monkeypatch.setattr(heartbeats, "MOST_QUEUES", 5)
    for name in ("w1", "w2"):
        heartbeats._counted_queues.clear()
        store.hset(keys.workers("evil"), name, word(name=name, queues=4))
        heartbeats.count_heartbeats(NOW)
    assert QueueCounter.objects.filter(source="evil", step=60).count() == 5


def test_of_too_many_heartbeats_those_that_were_heard_last_are_read(store):
    old = NOW - timedelta(minutes=30)
    stale = json.dumps({"boot": "b", "at": old.timestamp()})
    store.hset(keys.workers("shop"), mapping={f"old{n}": stale for n in range(heartbeats.MOST_OF_SOURCE)})
    store.hset(keys.workers("shop"), mapping={f"w{n}": word(queues=1) for n in range(10)})
    assert {one.name for one in heartbeats.count_heartbeats(NOW)} == {f"w{n}" for n in range(10)}
