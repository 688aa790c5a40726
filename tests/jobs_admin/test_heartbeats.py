"""What those who plan a replay ask of the workers: which tasks they know, and how many there are."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs_admin import heartbeats, totals
from jobs_admin.core import keys
from jobs_admin.models import DepthSample, QueueCounter
from jobs_admin.models.access import ENGINE
from jobs_admin.worker.known_tasks import known_tasks as told_by

pytestmark = [pytest.mark.django_db, pytest.mark.server]

NOW = datetime(2026, 11, 21, 12, 0, 3, tzinfo=UTC)


@pytest.fixture(autouse=True)
def just_started():
    heartbeats._heard.clear()
    heartbeats._read_names.clear()


def beat(store, name="w1", tasks=("shop.send",), queues=("emails",), said_tasks=None):
    """As a worker does it; `tasks` None: one of a version that does not tell."""
    word = {"tasks": said_tasks} if said_tasks is not None else {}
    word |= {"v": 1, "source": "shop", "name": name, "boot": "b", "at": NOW.timestamp(), "queues": list(queues)}
    if tasks is not None:
        told = told_by(tasks)
        word |= {"tasks": told.digest, "tasks_cut": told.is_cut}
        if not told.is_cut:
            store.set(keys.tasks(told.digest), told.text)
    store.hset(keys.workers(), f"shop/{name}", json.dumps(word))
    return heartbeats.fold(NOW)


def sample(queue="emails", workers=1, guarded=1, at=NOW):
    DepthSample.objects.create(source="shop", queue=queue, at=at, workers=workers, guarded_workers=guarded)


def test_the_tasks_of_all_live_workers_are_known(store):
    beat(store, "w1", ["shop.send", "celery.chord_unlock"])
    alive = beat(store, "w2", ["shop.bill"])
    assert heartbeats.known_tasks("shop", NOW) == {"shop.send", "shop.bill"}
    assert {h.name: h.tasks for h in alive} == {"w1": frozenset({"shop.send"}), "w2": frozenset({"shop.bill"})}


def test_nobody_knows_which_tasks_there_are_where_nobody_lives(store):
    assert heartbeats.known_tasks("shop", NOW) is None
    beat(store)
    assert heartbeats.known_tasks("other", NOW) is None
    assert heartbeats.known_tasks("shop", NOW + timedelta(seconds=31)) is None


@pytest.mark.parametrize(
    "tasks", [None, [f"t{n}" for n in range(2_001)], [str(n) * 400 for n in range(200)]], ids=["older", "many", "long"]
)
def test_one_worker_that_does_not_tell_leaves_all_open(store, tasks):
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
    store.delete(*store.keys("redrive:tasks:*"))
    heartbeats._read_names.clear()
    assert heartbeats.known_tasks("shop", NOW) is None


@pytest.mark.parametrize("digest", ["", "../x", 7, ["a"], "A" * 32, None])
def test_a_heartbeat_cannot_name_a_key_of_its_own(store, digest):
    (one,) = beat(store, tasks=None, said_tasks=digest)
    assert one.tasks is None and heartbeats.known_tasks("shop", NOW) is None


def test_live_workers_are_counted_for_the_queues_that_they_consume(store):
    beat(store, "w1", queues=["emails", "webhooks"])
    beat(store, "w2", queues=["emails"])
    assert [heartbeats.live_workers("shop", queue, NOW) for queue in ("emails", "webhooks", "x")] == [2, 1, 0]
    assert heartbeats.live_workers("shop", "emails", NOW + timedelta(seconds=31)) == 0


def test_guarded_are_told_beside_all_that_consume_a_queue(store):
    beat(store)
    assert heartbeats.guarded("shop", "emails", NOW) == (1, None)
    sample(workers=1, at=NOW - timedelta(seconds=20))
    sample(workers=3)
    sample(queue="webhooks", workers=2, guarded=0)
    assert heartbeats.guarded("shop", "emails", NOW) == (1, 3)
    assert heartbeats.guarded("shop", "webhooks", NOW) == (0, 2)
    assert heartbeats.guarded("shop", "emails", NOW + timedelta(minutes=6)) == (0, None)


def test_what_workers_did_is_counted_once_over_lost_repeated_and_restarted_heartbeats(store):
    def beat_with(boot, at, **counts):
        word = {"source": "shop", "name": "w1", "boot": boot, "at": NOW.timestamp() + at, "queues": ["emails"]}
        store.hset(keys.workers(), "shop/w1", json.dumps(word | {"counts": {"emails": counts}}))
        heartbeats.fold(NOW + timedelta(seconds=at))

    beat_with("b1", 1, started=5, succeeded=3, failed=1, retried=1, busy_s=2.5)
    beat_with("b1", 1, started=5, succeeded=3, failed=1, retried=1, busy_s=2.5)
    beat_with("b1", 11, started=9, succeeded=7, failed=1, retried=1, busy_s=4.5)
    beat_with("b2", 21, started=1, succeeded=1, failed=0, retried=0, busy_s=0.5)
    told = {counted.metric: value for counted, value in totals.read(ENGINE)}
    assert told == {totals.COMPLETED: 8, totals.BUSY_S: 5, totals.ENDED: 10}
    assert sum(QueueCounter.objects.filter(step=60).values_list("failed", flat=True)) == 0
