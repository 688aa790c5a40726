from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest
import redis
from django.utils import timezone

from dashboard.setup.engine import free_port
from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.desk import overview
from jobs_admin.fleet import durability, heartbeats
from jobs_admin.fleet.durability import Grade
from jobs_admin.management import switch
from jobs_admin.models import AuditEvent, DepthSample, QueueCounter, Source, Worker
from jobs_admin.models.access import ENGINE
from jobs_admin.queues import liveness, sampling
from tests.kit.counts import bury
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.server, pytest.mark.django_db]

NOW = datetime(2026, 11, 21, 2, 7, 34, tzinfo=UTC)
AT = datetime(2026, 11, 21, 2, 7, 30, tzinfo=UTC)


@pytest.fixture
def sources(store, engine, settings, tmp_path):
    """Sets the configured sources: name -> URL. Each knows the queue `emails`."""

    def configure(**urls):
        file = tmp_path / "sources.toml"
        tables = (f'[sources.{n}]\nbackend = "celery"\nurl = "{u}"\nqueues = ["emails"]\n' for n, u in urls.items())
        file.write_text("".join(tables))
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        config.sources.cache_clear()
        config.adapter.cache_clear()
        sampling._checked_at.clear()
        sampling._unguarded.clear()
        sampling._oldest.clear()

    yield configure
    config.sources.cache_clear()
    config.adapter.cache_clear()


@pytest.fixture
def broker(engine):
    url = engine.url.removesuffix("0") + "1"
    with redis.Redis.from_url(url) as client:
        yield url, client


def beat(store, at=NOW, boot="b1", name="w1", counts=None, **fields):
    word = {"v": 1, "source": "shop", "name": name, "boot": boot, "at": at.timestamp(), "queues": ["emails"]}
    word |= {"counts": {"emails": counts or {}}, "late_ack": {"emails": True}, **fields}
    store.hset(keys.workers("shop"), name, json.dumps(word))


@pytest.fixture(autouse=True)
def just_started():
    heartbeats._last_heard.clear()
    sampling._checked_at.clear()


def read_counter():
    return QueueCounter.objects.values_list("started", "succeeded", "failed", "busy_s").get(step=60)


def test_a_sample_reports_what_waits_and_what_is_dead(store, sources, broker):
    url, client = broker
    sources(shop=url)
    client.lpush("emails", "a", "b", "c")
    bury(2)
    beat(store)
    sampling.sample(NOW)
    row = DepthSample.objects.get()
    assert (row.at, row.is_reachable, row.waiting, row.dead, row.guarded_workers) == (AT, True, 3, 2, 1)
    assert row.durability == "late" and row.oldest_dead_at is not None
    source = Source.objects.get()
    assert (source.is_reachable, source.is_configured, source.sampled_at) == (True, True, NOW)


def test_the_overview_reports_of_a_store_that_is_not_persistent_what_doctor_reports(store, sources):
    store.config_set("appendonly", "no")
    try:
        sampling.sample(NOW)
        (found,) = liveness.store_findings()
    finally:
        store.config_set("appendonly", "yes")
    assert "a restart loses the reports that are not filed yet" in found["text"] and "job" not in found["text"]


def test_two_samplers_at_once_leave_one_sample(sources, broker):
    sources(shop=broker[0])
    sampling.sample(NOW)
    sampling.sample(NOW + timedelta(seconds=1))
    assert DepthSample.objects.count() == 1


def test_an_unreachable_source_is_a_sample_with_its_reason_and_the_others_go_on(sources, broker):
    sources(shop=broker[0], gone=f"redis://127.0.0.1:{free_port()}/0")
    bury(1, source="gone")
    sampling.sample(NOW)
    row = DepthSample.objects.get(source="gone")
    assert (row.is_reachable, row.waiting, row.dead, bool(row.why)) == (False, None, 1, True)
    gone = Source.objects.get(name="gone")
    assert (gone.is_reachable, gone.changed_at) == (False, NOW) and gone.why_unreachable
    assert Source.objects.get(name="shop").is_reachable
    sampling.sample(NOW + timedelta(seconds=10))
    assert Source.objects.get(name="gone").changed_at == NOW


def test_a_source_that_hangs_costs_its_deadline_once_and_delays_no_other(sources, broker, monkeypatch):
    monkeypatch.setattr(sampling, "_PATIENCE_S", 2.0)
    is_over, requests, probe = threading.Event(), [], sampling._probe_source

    def probe_or_hang(name, *given):
        requests.append(name)
        is_over.wait(90) if name == "mute" else probe(name, *given)

    monkeypatch.setattr(sampling, "_probe_source", probe_or_hang)
    sources(shop=broker[0], mute="redis://127.0.0.1:1/0")
    sampling.sample(NOW)
    sampling.sample(NOW + timedelta(seconds=10))
    assert sorted(requests) == ["mute", "shop", "shop"] and not is_over.is_set()
    is_over.set()
    assert "no answer within 2 s" in Source.objects.get(name="mute").why_unreachable
    assert DepthSample.objects.filter(source="shop", is_reachable=True).count() == 2


def test_a_source_that_comes_back_reports_it(sources, broker):
    sources(shop=f"redis://127.0.0.1:{free_port()}/0")
    sampling.sample(NOW)
    sources(shop=broker[0])
    sampling.sample(NOW + timedelta(seconds=10))
    source = Source.objects.get()
    assert (source.is_reachable, source.why_unreachable, source.changed_at) == (True, "", NOW + timedelta(seconds=10))


def test_unsafe_settings_of_the_broker_are_stored_with_the_source(sources, broker):
    url, client = broker
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        sources(shop=url)
        sampling.sample(NOW)
        assert any("allkeys-lru" in finding["text"] for finding in Source.objects.get().findings)
    finally:
        client.config_set("maxmemory-policy", "noeviction")


def test_unsafe_settings_of_our_own_store_are_found_and_reported(store):
    sampling._checked_at.clear()
    store.config_set("maxmemory-policy", "allkeys-lru")
    try:
        sampling.sample(NOW)
    finally:
        store.config_set("maxmemory-policy", "noeviction")
    assert any("allkeys-lru" in f["text"] and f["source"] == "Redrive’s store" for f in overview.findings(ENGINE))
    sampling.sample(NOW + timedelta(seconds=10))
    assert overview.findings(ENGINE)  # not looked at again within the minute
    sampling.sample(NOW + timedelta(seconds=60))
    assert not any(f["id"] == "eviction" for f in overview.findings(ENGINE))


def test_who_works_on_a_queue_is_queried_once_a_minute_and_the_guarded_count_even_if_they_do_not_answer(
    store, settings, tmp_path
):
    file = tmp_path / "sources.toml"
    file.write_text('[sources.shop]\nbackend = "memory"\nurl = "memory:"\nqueues = ["emails", "idle"]\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    sampling._checked_at.clear()
    config.adapter("shop").consumers = {"emails": {"w1", "bare"}}
    beat(store), beat(store, name="busy")
    sampling.sample(NOW)
    config.adapter("shop").consumers = {}
    sampling.sample(NOW + timedelta(seconds=10))
    rows = DepthSample.objects.order_by("at").values_list("queue", "workers", "guarded_workers")
    assert set(rows) == {("emails", 3, 2), ("idle", 0, 0)}
    sampling.sample(NOW + timedelta(seconds=60))
    assert DepthSample.objects.filter(queue="emails").latest("at").workers == 0


def test_a_worker_of_a_source_that_knows_it_by_another_name_is_counted_once(store, settings, tmp_path):
    file = tmp_path / "sources.toml"
    file.write_text('[sources.shop]\nbackend = "memory"\nurl = "memory:"\nqueues = ["emails"]\nkeeps_dead = true\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    sampling._checked_at.clear()
    config.adapter("shop").consumers = {"emails": {"127.0.0.1:4711", "127.0.0.1:4712"}}  # BullMQ's are connections
    beat(store, name="web-1:17")
    sampling.sample(NOW)
    assert DepthSample.objects.values_list("workers", "guarded_workers").get() == (2, 1)


def test_a_guarded_worker_that_ended_since_it_was_queried_is_no_worker_without_a_guard(store, settings, tmp_path):
    file = tmp_path / "sources.toml"
    file.write_text('[sources.shop]\nbackend = "memory"\nurl = "memory:"\nqueues = ["emails"]\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    sampling._checked_at.clear()
    config.adapter("shop").consumers = {"emails": {"w1", "bare"}}
    beat(store)
    sampling.sample(NOW)
    later = NOW + timedelta(seconds=50)  # it was restarted under another name, and the source is not asked again yet
    beat(store, at=later, name="w2")
    sampling.sample(later)
    rows = DepthSample.objects.order_by("at").values_list("workers", "guarded_workers")
    assert list(rows) == [(2, 1), (2, 1)]


def test_a_source_that_cannot_query_its_workers_has_no_number_of_them(sources):
    sources(gone=f"redis://127.0.0.1:{free_port()}/0")
    bury(1, source="gone")
    sampling.sample(NOW)
    assert DepthSample.objects.get().workers is None


# -- heartbeats -------------------------------------------------------------------------------------------------


def test_only_what_was_done_since_the_last_heartbeat_is_added(store):
    beat(store, counts={"started": 10, "succeeded": 8, "failed": 2, "busy_s": 1.5})
    heartbeats.count_heartbeats(NOW)
    heartbeats.count_heartbeats(NOW)
    beat(store, NOW + timedelta(seconds=5), counts={"started": 15, "succeeded": 13, "failed": 2, "busy_s": 2.0})
    heartbeats.count_heartbeats(NOW + timedelta(seconds=5))
    # Failures are counted by ingest, with their attempts.
    assert read_counter() == (15, 13, 0, 2.0)


def test_a_worker_that_began_again_counts_from_zero(store):
    beat(store, counts={"started": 10})
    heartbeats.count_heartbeats(NOW)
    beat(store, NOW + timedelta(seconds=5), boot="b2", counts={"started": 3})
    heartbeats.count_heartbeats(NOW + timedelta(seconds=5))
    assert read_counter()[0] == 13
    assert Worker.objects.get().boot == "b2"


def test_an_older_heartbeat_is_not_counted_after_a_newer(store):
    beat(store, counts={"started": 10})
    heartbeats.count_heartbeats(NOW)
    beat(store, NOW - timedelta(seconds=5), counts={"started": 5})
    heartbeats.count_heartbeats(NOW)
    beat(store, NOW + timedelta(seconds=5), counts={"started": 12})
    heartbeats.count_heartbeats(NOW + timedelta(seconds=5))
    assert read_counter()[0] == 12


def test_who_is_silent_is_not_there_and_is_forgotten_after_an_hour(store):
    beat(store, counts={"started": 1})
    assert len(heartbeats.count_heartbeats(NOW)) == 1
    assert heartbeats.count_heartbeats(NOW + timedelta(seconds=31)) == []
    heartbeats.count_heartbeats(NOW + timedelta(seconds=3700))
    assert not store.hlen(keys.workers("shop"))
    assert read_counter()[0] == 1


@pytest.mark.parametrize("wrong", [-7200, 7200])
def test_a_worker_whose_clock_is_wrong_is_there_all_the_same(store, wrong):
    for n in range(2):
        now = NOW + timedelta(seconds=10 * n)
        beat(store, now + timedelta(seconds=wrong))
        alive = heartbeats.count_heartbeats(now)
    assert len(alive) == 1 and Worker.objects.get().seen_at == now


def test_a_heartbeat_that_is_not_ours_harms_no_other(store):
    store.hset(keys.workers("shop"), "x", "[" * 20_000)
    store.hset(keys.workers("shop"), "y", '{"name": "y", "at": "never"}')
    store.set(keys.workers("other"), "no hash")
    beat(store, name="odd", counts={"started": "many"}, queues="emails", late_ack=3, concurrency=-5, spooled=1e400)
    beat(store, counts={"started": 4})
    assert len(heartbeats.count_heartbeats(NOW)) == 2
    assert read_counter()[0] == 4


@pytest.mark.parametrize(
    ("late_ack", "broker_kind", "grade"),
    [
        ({"emails": True}, "amqp", Grade("late", has_window=False)),
        ({"emails": True}, "redis", Grade("late", has_window=True)),
        ({"emails": False}, "amqp", Grade("mixed", has_window=False)),
        ({"emails": None}, "", Grade("mixed", has_window=False)),  # one worker that does both
        ({}, "", Grade("late", has_window=False)),  # of a queue on which none has run, another may tell
    ],
)
def test_a_queue_has_a_durability_grade(store, sources, broker, late_ack, broker_kind, grade):
    sources(shop=broker[0])
    beat(store)
    beat(store, name="w2", late_ack=late_ack, broker=broker_kind)
    sampling.sample(NOW)
    assert durability.parse_grade(DepthSample.objects.get().durability) == grade


def test_one_worker_that_does_both_is_mixed_by_itself(store, sources, broker):
    sources(shop=broker[0])
    beat(store, late_ack={"emails": None})
    sampling.sample(NOW)
    assert DepthSample.objects.get().durability == "mixed"


def test_what_is_at_stake_is_what_living_guarded_workers_of_the_queue_run(store):
    beat(store, concurrency=4)
    beat(store, name="w2", concurrency=8)
    beat(store, name="gone", at=NOW - timedelta(minutes=5), concurrency=100)
    beat(store, name="w3", queues=["other"], concurrency=100)
    heartbeats.count_heartbeats(NOW)
    early = durability.jobs_at_stake("shop", "emails", Grade("early", has_window=True), NOW)
    assert (early.workers, early.running, early.fetched) == (2, 12, 2)
    late = durability.jobs_at_stake("shop", "emails", Grade("late", has_window=False), NOW)
    assert (late.running, late.fetched) == (0, 0)
    beat(store, name="w4", concurrency=None)
    heartbeats.count_heartbeats(NOW)
    assert durability.jobs_at_stake("shop", "emails", Grade("early"), NOW).running is None


def test_a_check_of_a_process_that_paused_is_not_written(sources, broker, monkeypatch):
    sources(shop=broker[0])
    monkeypatch.setattr(sampling, "_FROZEN_S", 0.0)
    sampling.sample(NOW)
    assert not DepthSample.objects.exists() and Source.objects.get().is_reachable
    monkeypatch.undo()
    sampling.sample(NOW)
    assert DepthSample.objects.filter(queue="emails", at=AT).exists()


def test_a_source_that_is_taken_out_of_the_configuration_is_noted_so_after_a_minute(store, sources, broker):
    sources(shop=broker[0], bank=broker[0])
    sampling.sample(NOW)
    sources(shop=broker[0])
    sampling.sample(NOW + timedelta(seconds=50))  # another process may still look at it
    assert Source.objects.get(name="bank").is_configured
    sampling.sample(NOW + timedelta(seconds=70))
    assert dict(Source.objects.values_list("name", "is_configured")) == {"shop": True, "bank": False}
    sources(shop=broker[0], bank=broker[0])
    sampling.sample(NOW + timedelta(seconds=80))
    assert Source.objects.get(name="bank").is_configured


def test_a_guard_that_is_switched_directly_in_the_store_is_recorded_with_its_time(store, sources, broker):
    """Without a record no replay's page knew the start time outcomes are not reported."""
    sources(shop=broker[0])
    began = timezone.now()
    sampling.sample(NOW)
    assert not liveness.guard_off_times(began) and not AuditEvent.objects.filter(object="guard").exists()
    store.set(keys.switch(), "off")
    for n in range(2):
        sampling.sample(NOW + timedelta(seconds=10 * n))
    (off,) = liveness.guard_off_times(began)
    assert off.until is None and began <= off.since <= timezone.now()
    store.delete(keys.switch())
    sampling.sample(NOW + timedelta(seconds=30))
    assert liveness.guard_off_times(began)[0].until is not None
    events = AuditEvent.objects.filter(object="guard").order_by("pk").values_list("actor", "act", "before", "after")
    assert list(events) == [("redrive", "guard.off", "on", "off"), ("redrive", "guard.on", "off", "on")]
    assert switch.turn("off") and not switch.turn("off")
    sampling.sample(NOW + timedelta(seconds=40))
    assert AuditEvent.objects.filter(object="guard").count() == 3, "what the command switched is recorded once"
