"""Each source writes under keys of its own: what it writes there is its own, and keeps no other source from being read."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest

from jobs_admin import ingest, trust
from jobs_admin.core import keys
from jobs_admin.core.envelope import encode
from jobs_admin.core.stream import weight
from jobs_admin.fleet import configurations, heartbeats, stranded, uncaptured, worker_store
from jobs_admin.ingest.lost_jobs import CONFIRM_SILENCE_S, Reaper
from jobs_admin.models import Failure, Source, Unfiled, Worker
from jobs_admin.models.access import ENGINE
from jobs_admin.queues import liveness
from jobs_admin.retries import draining
from jobs_admin.trust import admission
from tests.kit.reports import NOW, drain, report
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def own_reading(monkeypatch):
    monkeypatch.setattr(ingest, "_reading", ingest._Reading())


def write(store, source, *reports):
    with store.pipeline(transaction=False) as pipe:
        for one in reports:
            pipe.xadd(keys.failures(source), encode(one))
        pipe.execute()


def list_failures() -> list[tuple[str, str]]:
    return sorted(Failure.objects.values_list("source", "job_id"))


def test_a_report_on_the_stream_of_another_source_is_stored_raw_and_changes_nothing(store):
    write(store, "shop", report("j1"))
    drain()
    (before,) = Failure.objects.values()
    write(store, "evil", report("j1", "success", 2), report("j2"), report("j3", source="evil"))
    drain()
    assert list_failures() == [("evil", "j3"), ("shop", "j1")]
    assert Failure.objects.filter(source="shop").values().get() == before
    assert set(Unfiled.objects.values_list("why", flat=True)) == {
        "the report names the source 'shop' and came on the stream of 'evil'"
    }
    assert Unfiled.objects.count() == 2 and not store.xlen(keys.failures("evil"))


def test_a_flood_of_one_source_holds_up_another_by_no_more_than_a_batch(store):
    drain()
    write(store, "evil", *(report(f"e{n}", source="evil") for n in range(1500)))
    assert ingest.step("c1", NOW, wait_s=0.01)  # one: how large they are is not known yet
    write(store, "shop", *(report(f"j{n}") for n in range(20)))
    assert ingest.step("c1", NOW, wait_s=0.01)
    assert Failure.objects.filter(source="shop").count() == 20
    assert Failure.objects.filter(source="evil").count() < 1000
    drain()
    assert Failure.objects.count() == 1520


def test_every_source_has_its_turn_where_there_are_more_than_fit_in_a_batch(store):
    for n in range(12):
        write(store, f"s{n}", *(report(f"j{m}", source=f"s{n}") for m in range(3)))
    store.xgroup_create(keys.failures("s0"), ingest.GROUP, id="0")
    names = worker_store.all_sources(store)
    among = {keys.failures(name): name for name in names}
    seen = set()
    for _ in range(len(among)):
        ingest._reading.count = 2
        seen |= {entry.source for entry in ingest._read_streams(store, among, "c1", ">")}
    assert seen == set(names)


@pytest.mark.parametrize("kind", ["string", "hash", "list", "set"])
def test_a_key_that_is_no_stream_keeps_no_other_source_from_being_read(store, kind):
    {
        "string": lambda key: store.set(key, "x"),
        "hash": lambda key: store.hset(key, "a", "b"),
        "list": lambda key: store.lpush(key, "x"),
        "set": lambda key: store.sadd(key, "x"),
    }[kind](keys.failures("evil"))
    store.set(keys.workers("evil"), "x")
    store.set(keys.dropped("evil"), "x")
    store.set(keys.kept_boots("evil"), "x")
    store.set(keys.in_hand("evil"), "x")
    write(store, "shop", report("j1"))
    beat(store, "shop", "w1")
    drain()
    assert list_failures() == [("shop", "j1")]
    assert [one.source for one in heartbeats.count_heartbeats(NOW)] == ["shop"]
    uncaptured.record_counts(NOW)
    Reaper().check(store, 0.0)
    assert stranded.find_stranded("evil", store) == [] and [*draining.workers()] == ["shop/w1"]
    assert set(liveness.ingest_lags_s().values()) == {0}


def test_what_is_neither_filed_nor_stored_stays_on_its_stream_and_is_filed_once_there_is_room(store, monkeypatch):
    bounds = admission._BOUNDS
    monkeypatch.setitem(bounds, trust.Cause.UNFILED, admission._Bound(1, 10**9))
    monkeypatch.setattr(ingest, "_MOST_LEFT", 4)
    monkeypatch.setattr(ingest, "_ABANDONED_S", 1)
    drain()
    stream = keys.failures("evil")
    for n in range(3):
        write(store, "evil", report(f"e{n}", source="evil"), report("", source="evil", order=n))
    drain()
    assert [job for _, job in list_failures()] == ["e0", "e1", "e2"]  # good ones pass
    assert Unfiled.objects.count() == 1 and store.xlen(stream) == 2
    write(store, "evil", *(report("", source="evil") for _ in range(4)), report("e3", source="evil"))
    write(store, "shop", report("j1"))
    drain()
    left = store.xlen(stream)
    write(store, "evil", report("e4", source="evil"))
    for _ in range(5):
        ingest.step("c1", NOW, wait_s=0.01)
    assert store.xlen(stream) == left + 1 and ("shop", "j1") in list_failures()  # its stream is read no further
    assert "evil: 1 reports that cannot be filed" in admission.findings(admission.state(ENGINE, NOW), NOW)[0].text
    monkeypatch.setitem(bounds, trust.Cause.UNFILED, admission._Bound(100, 10**9))
    wait_until(lambda: ingest.step("c2", NOW, wait_s=0.01) is None or not store.xlen(stream))  # by another process
    assert Unfiled.objects.count() == 7 and ("evil", "e4") in list_failures()


def test_a_stream_that_is_gone_with_what_was_left_in_it_is_read_again_when_it_is_back(store, monkeypatch):
    monkeypatch.setitem(admission._BOUNDS, trust.Cause.UNFILED, admission._Bound(0, 0))
    monkeypatch.setattr(ingest, "_MOST_LEFT", 1)
    drain()
    write(store, "evil", report("", source="evil"))
    drain()
    assert store.xlen(keys.failures("evil")) == 1
    store.delete(keys.failures("evil"))
    write(store, "evil", report("e1", source="evil"))
    ingest._forget_consumers(store, ingest.streams(store))
    ingest.step("c1", NOW, wait_s=0.01)
    assert ("evil", "e1") in list_failures()


def test_entries_of_one_id_in_two_streams_are_two(store):
    for source in ("one", "two"):
        store.xadd(keys.failures(source), {"v": "1", "meta": source}, id="7-7")
    drain()
    assert sorted(Unfiled.objects.values_list("entry_id", flat=True)) == ["one/7-7", "two/7-7"]


def test_a_batch_stays_within_its_bytes_whatever_one_source_writes(store, monkeypatch):
    drain()
    monkeypatch.setattr(ingest, "_BYTES_AT_ONCE", 100_000)
    write(store, "evil", *(report(f"e{n}", source="evil", message="x") for n in range(30)))
    among = ingest.streams(store)
    for n in range(30):
        store.xadd(keys.failures("evil"), {"v": "1", "meta": "x" * 50_000}, id=f"{2**50 + n}-0")
    ingest._reading.count = 500
    taken = ingest._read_streams(store, among, "c1", ">")
    size = sum(weight(entry.fields) for entry in taken)
    assert 32 <= len(taken) <= 33 and size < 200_000


def test_the_stream_that_older_guards_share_is_read_too_and_counted_off(store):
    one = encode(report("j1", source="old"))
    store.xadd(keys.shared("failures"), one)
    store.set(keys.shared("failures:bytes"), weight(one) + 5)
    write(store, "shop", report("j2"))
    drain()
    assert list_failures() == [("old", "j1"), ("shop", "j2")]
    assert int(store.get(keys.shared("failures:bytes"))) == 5 and not store.xlen(keys.shared("failures"))


def test_a_source_that_is_not_configured_is_found_among_many_keys(store, monkeypatch):
    with store.pipeline(transaction=False) as pipe:
        for n in range(20_000):
            pipe.set(f"redrive:{{shop}}:once:{n}", "x")
        pipe.execute()
    write(store, "crm", report("j1", source="crm"))
    beat(store, "node", "w1")
    store.set("redrive:{No!}:failures", "x")
    store.set("redrive:{a}:x:{b}:failures", "x")
    assert worker_store.all_sources(store) == ["crm", "node"]
    write(store, "later", report("j1", source="later"))
    calls = store.info("commandstats")["cmdstat_scan"]["calls"]
    for _ in range(20):
        worker_store.all_sources(store)
    assert store.info("commandstats")["cmdstat_scan"]["calls"] - calls <= 2 * worker_store._PAGES  # not at each look
    monkeypatch.setattr(worker_store, "_EVERY_S", 0)
    for _ in range(30):
        if "later" in worker_store.all_sources(store):
            break
    assert worker_store.all_sources(store) == ["crm", "later", "node"]
    store.delete(keys.failures("later"))
    for _ in range(30):
        worker_store.all_sources(store)
    assert worker_store.all_sources(store) == ["crm", "node"]


def test_sources_that_are_found_are_bounded(store):
    for n in range(worker_store.MOST_FOUND + 50):
        write(store, f"s{n}", report("j1", source=f"s{n}"))
    assert len(worker_store.all_sources(store)) == worker_store.MOST_FOUND
    known = [f"s{n}" for n in range(0, worker_store.MOST_FOUND + 50, 5)]
    Source.objects.bulk_create(Source(name=name) for name in known)
    worker_store.restart_search()
    assert set(known) <= set(worker_store.all_sources(store))


def test_invented_sources_hide_no_registered_one_from_any_step(store, monkeypatch):
    """The store holds that many invented names that no further source is found there."""
    monkeypatch.setattr(worker_store, "MOST_FOUND", 0)
    Source.objects.create(name="crm")
    beat(store, "crm", "w1")
    meta = encode(report("j1", "lost", source="crm"))[b"meta"]
    store.sadd(keys.kept_boots("crm"), "b1")
    store.hset(keys.kept("crm", "b1"), "j1", b"1000 1 %d\n%sraw" % (len(meta), meta))
    assert [*draining.workers()] == ["crm/w1"]
    assert configurations.reported_configurations(ENGINE, NOW).silent == (("crm", 1),)
    reaper = Reaper()
    reaper.check(store, 0.0)
    reaper.check(store, CONFIRM_SILENCE_S)
    assert store.xlen(keys.failures("crm")) == 1
    drain()
    assert list_failures() == [("crm", "j1")]
    store.delete(keys.failures("crm"))
    store.xadd(keys.failures("crm"), {"v": "1"}, id=f"{int((time.time() - 60) * 1000)}-0")
    assert liveness.ingest_lags_s()["crm"] > 59


def beat(store, source, name, /, **fields):
    word = {"v": 1, "boot": "b1", "at": NOW.timestamp(), "queues": ["emails"], "spooled": 0, **fields}
    store.hset(keys.workers(source), name, json.dumps(word))


def test_a_heartbeat_is_of_the_source_whose_key_holds_it(store):
    beat(store, "evil", "w1", source="shop", name="w2", counts={"emails": {"succeeded": 5}})
    (alive,) = heartbeats.count_heartbeats(NOW)
    assert (alive.source, alive.name) == ("evil", "w1")
    assert list(Worker.objects.values_list("source", "name")) == [("evil", "w1")]


def test_a_text_under_the_same_digest_is_another_for_each_source(store):
    digest = "b" * 32  # of this test alone: texts are cached by their digest
    store.set(keys.tasks("evil", digest), '["evil.task"]')
    store.set(keys.tasks("shop", digest), '["shop.task"]')
    store.set(keys.shared(f"tasks:{digest}"), '["old.task"]')
    beat(store, "evil", "w1", tasks=digest)
    beat(store, "shop", "w1", tasks=digest)
    beat(store, "old", "w1", tasks=digest)
    assert {one.source: one.tasks for one in heartbeats.count_heartbeats(NOW)} == {
        "evil": {"evil.task"},
        "shop": {"shop.task"},
        "old": {"old.task"},
    }


def test_what_older_guards_wrote_in_shared_hashes_is_of_the_source_that_the_field_names(store):
    word = {"v": 1, "source": "shop", "name": "w9", "boot": "b1", "at": NOW.timestamp(), "queues": []}
    store.hset(keys.shared("workers"), mapping={"old/w1": json.dumps(word), "No!/w1": json.dumps(word)})
    assert [(one.source, one.name) for one in heartbeats.count_heartbeats(NOW)] == [("old", "w1")]
    heartbeats.count_heartbeats(NOW + timedelta(hours=2))
    assert store.hkeys(keys.shared("workers")) == [b"No!/w1"]
    fields = {"source": "old", "host": "h", "count": 3, "since": NOW.timestamp(), "last": NOW.timestamp()}
    store.hset(keys.shared("dropped"), "e1", json.dumps(fields))
    store.hset(keys.dropped("evil"), "e1", json.dumps(fields | {"count": 9}))
    Source.objects.get_or_create(name="evil")
    trust.forget()
    uncaptured.record_counts(NOW)
    assert sorted(uncaptured.totals_by_source(ENGINE)) == [("evil", 9), ("old", 3)]
    uncaptured.record_counts(NOW + timedelta(days=2))
    assert not store.exists(keys.shared("dropped")) and not store.exists(keys.dropped("evil"))


def test_a_job_that_a_dead_worker_stored_is_of_the_source_under_whose_key_it_was(store):
    meta = encode(report("j1", "lost"))[b"meta"]
    store.sadd(keys.kept_boots("evil"), "b1")
    store.hset(keys.kept("evil", "b1"), "j1", b"1000 1 %d\n%sraw" % (len(meta), meta))
    store.sadd(keys.shared("kept"), "old/b2")
    theirs = encode(report("j2", "lost", source="old"))[b"meta"]
    store.hset(keys.kept("old", "b2"), "j2", b"1000 1 %d\n%sraw" % (len(theirs), theirs))
    reaper = Reaper()
    reaper.check(store, 0.0)
    reaper.check(store, CONFIRM_SILENCE_S)
    drain()
    assert list_failures() == [("old", "j2")]
    assert "came on the stream of 'evil'" in Unfiled.objects.get().why
    assert not Source.objects.filter(name="shop").exists()
    assert not store.exists(keys.shared("kept")) and not store.exists(keys.kept_boots("evil"))


def keep(store, source, boot, job):
    """Records of a worker about a job that runs in it."""
    text = encode(report(job, "lost", source=source))[b"meta"]
    store.sadd(keys.kept_boots(source), boot)
    store.hset(keys.kept(source, boot), job, b"1000 1 %d\n%sraw" % (len(text), text))


@pytest.mark.parametrize(
    "key",
    [
        keys.boots("evil"),
        keys.boot("evil", "b0"),
        keys.kept("evil", "b0"),
        keys.kept("evil", "b0") + ":lost",
        keys.kept_boots("evil"),
        keys.failures("evil"),
        keys.failures_bytes("evil"),
    ],
)
@pytest.mark.parametrize("kind", ["string", "list"])
def test_a_key_of_another_type_keeps_no_lost_job_of_another_source_from_being_filed(store, key, kind, caplog):
    keep(store, "evil", "b0", "e1")
    store.sadd(keys.shared("kept"), "evil/b0")
    keep(store, "shop", "b1", "j1")
    store.delete(key)
    store.set(key, "x") if kind == "string" else store.rpush(key, "x")
    reaper = Reaper()
    for seconds in (0.0, CONFIRM_SILENCE_S, CONFIRM_SILENCE_S + 1, CONFIRM_SILENCE_S + 2):
        reaper.check(store, seconds)
    assert store.xlen(keys.failures("shop")) == 1 and not store.exists(keys.kept("shop", "b1"))
    if store.type(keys.failures("evil")) == b"stream":
        assert store.xlen(keys.failures("evil")) == 1  # written once, not at every look
    assert caplog.text.count("cannot be filed") <= 1


def test_a_stream_that_takes_no_more_entries_keeps_no_lost_job_of_another_source(store):
    store.xadd(keys.failures("evil"), {"v": "1"}, id=f"{2**64 - 1}-{2**64 - 1}")
    keep(store, "evil", "b0", "e1")
    keep(store, "shop", "b1", "j1")
    reaper = Reaper()
    reaper.check(store, 0.0)
    reaper.check(store, CONFIRM_SILENCE_S)
    assert store.xlen(keys.failures("shop")) == 1


def test_each_source_has_the_lag_of_its_own_oldest_report(store):
    now = time.time()
    for source, age in (("one", 5), ("two", 60)):
        Source.objects.create(name=source)
        store.xadd(keys.failures(source), {"v": "1"}, id=f"{int((now - age) * 1000)}-0")
    lags = liveness.ingest_lags_s()
    assert 4 < lags["one"] < 15 and 59 < lags["two"] < 70
