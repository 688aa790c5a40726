from __future__ import annotations

import json
from datetime import timedelta

import pytest

from jobs_admin import config, ingest
from jobs_admin.core import keys
from jobs_admin.core.lint.configuration import App, Configuration, document
from jobs_admin.db import step_progress
from jobs_admin.models import AuditEvent, DepthSample, Failure, Group, QueueCounter, Source, Worker
from jobs_admin.retries import awaiting
from tests.kit.counts import list_counts, recount
from tests.kit.reports import NOW, file, report

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

LATE = NOW + timedelta(seconds=60 + 3600 + 60 + 1)


def test_a_retry_that_never_came_back_is_dead_and_lost():
    file(report(kind="retry"))
    ingest.reconcile(LATE)
    failure = Failure.objects.get()
    assert (failure.state, failure.kind, failure.attempts, failure.due_at) == ("dead", "lost", 2, None)
    assert "did not report" in failure.reason
    assert failure.attempt_set.filter(kind="lost", attempt=2).count() == 1
    assert sum(QueueCounter.objects.filter(step=60).values_list("failed", flat=True)) == 1
    assert Group.objects.get().count == 2 and list_counts() == recount()


def test_a_retry_that_may_still_come_is_left_alone():
    file(report(kind="retry"))
    ingest.reconcile(LATE - timedelta(seconds=3))
    assert Failure.objects.get().state == "retrying"


def test_once_is_enough():
    file(report(kind="retry"))
    ingest.reconcile(LATE)
    ingest.reconcile(LATE)
    assert Failure.objects.get().attempt_set.count() == 2


@pytest.mark.parametrize(("kind", "state"), [("success", "recovered"), ("retry", "retrying"), ("exception", "dead")])
def test_any_word_from_the_worker_is_better_than_our_guess(kind, state):
    file(report(kind="retry"))
    ingest.reconcile(LATE)
    file(report(kind=kind, attempt=2), now=LATE)
    failure = Failure.objects.get()
    assert (failure.state, failure.kind, failure.attempts) == (state, kind, 2)


def test_a_longer_visibility_timeout_of_the_source_is_waited_for(settings, tmp_path):
    file_ = tmp_path / "sources.toml"
    file_.write_text('[sources.shop]\nbackend = "celery"\nurl = "redis://127.0.0.1:1/0"\nvisibility_timeout = 7200\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file_)}
    config.sources.cache_clear()
    file(report(kind="retry"))
    ingest.reconcile(LATE)
    assert Failure.objects.get().state == "retrying"
    ingest.reconcile(LATE + timedelta(seconds=3600))
    assert Failure.objects.get().state == "dead"
    config.sources.cache_clear()


def beat(store, **fields):
    """A worker that lives, and what it says of itself."""
    word = {"source": "shop", "name": "w1", "boot": "b", "at": LATE.timestamp(), "queues": ["emails"], **fields}
    store.hset(keys.workers("shop"), "w1", json.dumps(word))
    Worker.objects.update_or_create(
        source="shop", name="w1", defaults={"seen_at": LATE, "spooled": fields.get("spooled", 0)}
    )


@pytest.fixture(autouse=True)
def _forget_timeouts():
    awaiting._timeouts_s.clear()
    yield
    awaiting._timeouts_s.clear()


def state_at(now):
    ingest.reconcile(now, awaiting.delays(now))
    return Failure.objects.get().state


def test_a_longer_visibility_timeout_of_the_workers_is_waited_for(store):
    file(report(kind="retry"))
    configuration = Configuration("shop", App(broker="redis", visibility_timeout=43_200))
    store.set(keys.configuration("shop", "a" * 32), document(configuration))
    beat(store, configuration="a" * 32)
    assert state_at(LATE) == "retrying"
    assert state_at(LATE + timedelta(seconds=43_200 - 3600)) == "dead"


def test_while_no_one_can_hear_nothing_is_lost(store, settings):
    file(report(kind="retry"))
    entry = store.xadd(keys.failures("shop"), {b"v": b"1"}, id=f"{int(LATE.timestamp() * 1000) - 61_000}-0")
    assert state_at(LATE) == "retrying"
    store.xdel(keys.failures("shop"), entry)
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": ""}
    config.store.cache_clear()
    assert state_at(LATE) == "retrying"
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    assert state_at(LATE) == "retrying"


def test_reports_that_wait_hold_up_their_own_source_alone(store):
    file(report(kind="retry"))
    Source.objects.get_or_create(name="evil")
    store.xadd(keys.failures("evil"), {b"v": b"1"}, id="1-1")
    assert awaiting.delays(LATE).late == {"evil"}
    assert state_at(LATE) == "dead"


def test_old_reports_in_the_stream_that_older_guards_share_hold_up_every_source(store):
    file(report(kind="retry"))
    store.xadd(keys.shared("failures"), {b"v": b"1"}, id=f"{int(LATE.timestamp() * 1000) - 61_000}-0")
    assert state_at(LATE) == "retrying"


HOLDS = [
    {"waiting": 1},
    {"is_reachable": False},
    {"waiting": 0, "workers": 0, "active": 1},
    {"waiting": 0, "workers": 0, "delayed": 1},
]


@pytest.mark.parametrize("sample", HOLDS)
def test_what_may_lie_in_its_queue_is_waited_for_and_not_for_ever(store, sample):
    file(report(kind="retry"))
    seen = DepthSample.objects.create(source="shop", queue="emails", at=LATE, **sample)
    assert state_at(LATE) == "retrying"
    seen.at = LATE + timedelta(days=1)
    seen.save()
    assert state_at(seen.at) == "dead"


@pytest.mark.parametrize("sample", [{"waiting": 0}, {"waiting": 0, "workers": 1, "active": 1}])
def test_a_queue_that_holds_nothing_of_it_delays_nothing(store, sample):
    file(report(kind="retry"))
    for queue, at, found in (("other", 0, {"waiting": 9}), ("emails", 10, {"waiting": 5}), ("emails", 0, sample)):
        DepthSample.objects.create(source="shop", queue=queue, at=LATE - timedelta(seconds=at), **found)
    assert state_at(LATE) == "dead"


def test_a_worker_that_holds_reports_back_may_hold_this_one(store):
    file(report(kind="retry"))
    beat(store, spooled=5)
    assert state_at(LATE) == "retrying"
    beat(store, spooled=0)
    assert state_at(LATE) == "dead"


def test_a_group_is_not_new_for_ever():
    file(report())
    ingest.reconcile(NOW + timedelta(minutes=61))
    assert Group.objects.get().state == "ongoing"


def muted(**until):
    file(report())
    Group.objects.update(state="muted", **until)
    return Group.objects.get()


@pytest.mark.parametrize("until", [{"muted_until": NOW}, {"muted_until_count": 1}])
def test_a_mute_ends_by_time_or_by_count_and_the_audit_reports_it(until):
    group = muted(**until)
    ingest.reconcile(NOW)
    ended, event = Group.objects.get(), AuditEvent.objects.get(object__startswith="group:")
    assert (ended.state, ended.muted_until, ended.muted_until_count) == ("ongoing", None, None)
    assert (event.actor, event.object) == ("redrive", f"group:{group.fingerprint}")
    assert (event.before["state"], event.after["state"]) == ("muted", "ongoing")


@pytest.mark.parametrize("until", [{"muted_until": NOW + timedelta(seconds=1)}, {"muted_until_count": 2}, {}])
def test_a_mute_lasts_until_its_end(until):
    muted(**until)
    ingest.reconcile(NOW)
    assert Group.objects.get().state == "muted" and not AuditEvent.objects.filter(object__startswith="group:")


def test_progress_is_reported_after_each_mute_that_ends_and_each_source(monkeypatch):
    reports = []
    monkeypatch.setattr(step_progress, "_listener", lambda: reports.append(1))
    for source in ("shop", "web"):
        file(report(kind="retry", source=source, job_id=source))
    at = {"first_seen": NOW, "last_seen": NOW}
    for n in range(3):
        Group.objects.create(fingerprint=f"v1-{n}", state="muted", muted_until=NOW, **at)
    ingest.reconcile(LATE)
    assert not Group.objects.filter(state="muted").exists() and Failure.objects.filter(kind="lost").count() == 2
    assert len(reports) == 5
