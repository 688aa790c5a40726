"""Evidence about BullMQ's jobs: what comes late, what was lost, what changes between a look and the step that sends."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage, Ref, SourceRefused, SourceUnreachable
from tests.sources.pulled_contract import read

pytestmark = pytest.mark.server

QUEUE = "sure"


@pytest.fixture
def client(engine):
    with redis.Redis.from_url(engine.url.removesuffix("/0") + "/6", decode_responses=True) as made:
        made.flushdb()
        made.hset(f"bull:{QUEUE}:meta", "version", "bullmq:5.81.5")
        yield made
        made.flushdb()


@pytest.fixture
def another(engine):
    made = []

    def connected():
        made.append(connect("shop", "bullmq", engine.url.removesuffix("/0") + "/6", [QUEUE], {}))
        return made[-1]

    yield connected
    for one in made:
        one.close()


@pytest.fixture
def source(client, another):
    return another()


def now(client):
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000


def failed(client, job_id, ago_ms=0):
    at = now(client) - ago_ms
    fields = {"name": "w", "data": "{}", "timestamp": at, "failedReason": "x", "finishedOn": at, "atm": 1}
    client.hset(f"bull:{QUEUE}:{job_id}", mapping=fields)
    client.zadd(f"bull:{QUEUE}:failed", {job_id: at})


def outgoing_message(report, **changes):
    lineage = {"queue": QUEUE, "job_id": report.job_id, "run": 2, "item": 1, "replay": "r", "sent_as": report.job_id}
    return OutgoingMessage(
        **{"token": 1, "raw": report.raw, "queue": QUEUE, "job_id": report.job_id, "lineage": lineage} | changes
    )


def test_a_failure_that_comes_into_the_set_some_moments_after_its_time_is_reported_at_once(client, source):
    failed(client, "1")
    _, after = read(source)
    failed(client, "2", ago_ms=3_000)
    assert [one.job_id for one in read(source, after)[0]] == ["2"]


def test_what_was_known_from_before_a_loss_that_another_process_noticed_is_no_evidence(client, source, another):
    failed(client, "7", ago_ms=1_000)
    (report,), after = read(source)
    client.delete(f"bull:{QUEUE}:7", f"bull:{QUEUE}:failed")
    client.xadd(f"bull:{QUEUE}:events", {"event": "removed", "jobId": "7", "prev": "failed"})
    _, after = read(source, after)
    client.flushdb()
    client.hset(f"bull:{QUEUE}:meta", "version", "bullmq:5.81.5")
    _, after = read(another(), after)
    read(source, after)
    assert source.check_jobs([Ref(QUEUE, "7", "dead", report.at)]).gone == {}


def test_a_queue_that_is_upgraded_in_this_very_moment_is_left_alone(client, source):
    failed(client, "1")
    (report,), _ = read(source)
    refuse = source._refuse_what_others_took

    def meanwhile(*given):
        client.hset(f"bull:{QUEUE}:meta", "version", "bullmq:6.7.0")
        return refuse(*given)

    source._refuse_what_others_took = meanwhile  # between the look at the version and the step that sends
    with pytest.raises(SourceRefused, match="another version"):
        source.send("r", [outgoing_message(report)])
    assert client.zscore(f"bull:{QUEUE}:failed", "1") and not source.was_sent("r", [1])


@pytest.mark.parametrize("priority", [-1, 2**21 + 1])
def test_a_priority_that_there_is_not_leaves_all_unsent_however_many_go_before_it(client, source, priority):
    for n in range(101):
        failed(client, str(n))
    reports, _ = read(source)
    messages = [outgoing_message(one, token=n) for n, one in enumerate(reports)]
    with pytest.raises(SourceRefused, match="between 0 and 2097152"):
        source.send("r", [*messages[:100], outgoing_message(reports[100], token=100, priority=priority)])
    assert client.zcard(f"bull:{QUEUE}:failed") == 101 and source.was_sent("r", range(101)) == set()


def test_a_key_of_ours_that_is_of_another_kind_is_found_before_the_first_is_sent(client, source):
    failed(client, "1")
    (report,), _ = read(source)
    client.set(keys.copies("shop"), "no hash")
    with pytest.raises(SourceUnreachable, match="is no hash"):
        source.send("r", [outgoing_message(report)])
    assert client.zcard(f"bull:{QUEUE}:failed") == 1 and not source.was_sent("r", [1])


@pytest.mark.parametrize(("counter", "then"), [(None, "3"), ("2", "3"), ("5", "5")])
def test_a_job_that_is_put_back_raises_the_counter_of_its_queue_and_never_lowers_it(client, source, counter, then):
    """The next job would be given the id of one that is there, and BullMQ would drop it."""
    failed(client, "3", ago_ms=1_000)
    (report,), _ = read(source)
    client.delete(f"bull:{QUEUE}:3", f"bull:{QUEUE}:failed")
    if counter:
        client.set(f"bull:{QUEUE}:id", counter)
    assert source.send("r", [outgoing_message(report)]) == {1: "sent"}
    assert client.get(f"bull:{QUEUE}:id") == then


def test_what_is_beside_a_job_and_is_no_place_of_a_copy_keeps_none_from_being_sent(client, source):
    failed(client, "1")
    failed(client, "2")
    reports, _ = read(source)
    client.hset(keys.copies("shop"), f"{QUEUE}:1", 'no JSON\n[1, 2]\n{}\n["a"]\n[["a"], "1"]\n5\n["a", "1", 5]')
    messages = [outgoing_message(one, token=n) for n, one in enumerate(reports)]
    assert source.send("r", messages) == {0: "sent", 1: "sent"} and not client.exists(keys.copies("shop"))


def test_what_is_noted_of_a_send_does_not_stay_for_ever(client, source):
    failed(client, "1")
    (report,), _ = read(source)
    before = set(client.scan_iter("redrive:*"))
    source.send("r", [outgoing_message(report)])
    noted = set(client.scan_iter("redrive:*")) - before
    assert len(noted) == 2 and all(0 < client.ttl(key) <= 8 * 86_400 for key in noted)


@pytest.mark.parametrize(
    ("state", "is_gone"), [("dead", True), ("quarantined", True), ("replaying", False), ("retrying", False)]
)
def test_that_a_copy_was_taken_out_is_evidence_of_what_was_dead_alone(client, source, state, is_gone):
    read(source)
    client.hset(keys.copies("shop"), f"{QUEUE}:7", '["dead", "1", "5"]')
    assert bool(source.check_jobs([Ref(QUEUE, "7", state, now(client) / 1000)]).gone) == is_gone


@pytest.fixture
def busy(client, engine):
    """A script of another person that runs and runs: Redis answers everything else that it is busy."""
    before = client.config_get("lua-time-limit")["lua-time-limit"]

    def run():
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(engine.url) as other:
            other.eval("while true do end", 0)

    script = threading.Thread(target=run)

    def begin():
        client.config_set("lua-time-limit", 1)
        script.start()
        ends = time.monotonic() + 90
        with contextlib.suppress(redis.ResponseError):
            while time.monotonic() < ends:
                client.get("x")

    yield begin
    client.script_kill()
    script.join()
    client.config_set("lua-time-limit", before)


def test_a_redis_that_is_busy_is_none_whose_queues_are_empty(source, busy):
    busy()
    for question in (source.depths, lambda: source.waiting([QUEUE])):
        with pytest.raises(SourceUnreachable, match="busy"):
            question()


def test_a_set_of_failed_jobs_that_is_none_is_no_evidence(client, source):
    failed(client, "1")
    (report,), _ = read(source)
    client.set(f"bull:{QUEUE}:failed", "no set")
    assert source.check_jobs([Ref(QUEUE, "1", "dead", report.at)]).gone == {}
