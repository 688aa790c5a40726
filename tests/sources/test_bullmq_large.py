"""Large or absurd values in BullMQ's keys: one part of it holds up neither Redis nor the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.sources import connect
from jobs_admin.sources.base import Ref
from tests.kit.waiting import wait_until
from tests.sources.pulled_contract import read, read_until

pytestmark = pytest.mark.server

QUEUE = "large"


@pytest.fixture
def client(engine):
    with redis.Redis.from_url(engine.url.removesuffix("/0") + "/6", decode_responses=True, socket_timeout=60) as made:
        made.flushdb()
        made.hset(f"bull:{QUEUE}:meta", "version", "bullmq:5.81.5")
        yield made
        made.flushdb()


@pytest.fixture
def source(engine, client):
    made = connect("shop", "bullmq", engine.url.removesuffix("/0") + "/6", [], {})
    yield made
    made.close()


def failed(client, job_id, at=None, queue=QUEUE):
    now = int(client.time()[0]) * 1000 if at is None else at
    client.hset(
        f"bull:{queue}:{job_id}",
        mapping={"name": "w", "data": "{}", "timestamp": 1, "failedReason": "x", "finishedOn": now, "atm": 1},
    )
    client.zadd(f"bull:{queue}:failed", {job_id: now})


def entries(source, begin="0-0"):
    """The number of answers that it takes to read all events, and what they reported."""
    reports, answers = [], 0
    while True:
        page = source._wire.events({QUEUE: begin}, 2_000)[0][QUEUE]
        answers, begin = answers + 1, f"({page.last}"
        reports += page.events
        if not page.is_more:
            return answers, reports


def test_of_large_reasons_some_megabytes_are_read_at_once_and_a_beginning_is_reported(client, source):
    for n in range(9):
        client.xadd(f"bull:{QUEUE}:events", {"event": "failed", "jobId": str(n), "failedReason": "x" * 1_000_000})
    answers, entries_read = entries(source)
    assert [one.job_id for one in entries_read] == [str(n) for n in range(9)]
    assert answers > 3 and max(len(one.more) for one in entries_read) == 20_000
    reports, _ = read(source)
    assert sorted(one.job_id for one in reports) == [str(n) for n in range(9)]


def test_many_small_events_are_read_at_once_and_each_once(client, source):
    for n in range(1_000):
        client.xadd(f"bull:{QUEUE}:events", {"event": "failed", "jobId": str(n), "failedReason": "x"})
    answers, reports = entries(source)
    assert answers == 1 and [one.job_id for one in reports] == [str(n) for n in range(1_000)]


def test_a_job_queried_again_is_searched_for_in_new_events_only(client, source):
    failed(client, "7")
    reports, _ = read(source)
    refs = [Ref(QUEUE, "7", "dead", reports[0].at)]
    client.delete(f"bull:{QUEUE}:7", f"bull:{QUEUE}:failed")
    for n in range(500):
        client.xadd(f"bull:{QUEUE}:events", {"event": "active", "jobId": f"other-{n}"})
    assert not source.check_jobs(refs).gone
    client.config_resetstat()
    assert not source.check_jobs(refs).gone
    assert client.info("commandstats")["cmdstat_xrange"]["calls"] == 1
    client.xadd(f"bull:{QUEUE}:events", {"event": "removed", "jobId": "7", "prev": "failed"})
    assert list(source.check_jobs(refs).gone) == refs
    assert list(source.check_jobs(refs).gone) == refs  # what was read is known


@pytest.mark.parametrize("score", ["inf", "1e300"])
def test_a_job_with_an_absurd_score_keeps_no_other_from_being_reported_and_has_its_turn(client, source, score):
    failed(client, "1")
    failed(client, "9")
    client.zadd(f"bull:{QUEUE}:failed", {"9": score})
    reports, after = read(source)
    assert [one.job_id for one in reports] == ["1"]
    failed(client, "2")
    more, _ = read_until(source, lambda reports: {one.job_id for one in reports} >= {"2", "9"}, after)
    assert all(one.at < 4e9 for one in more)
    assert not source.check_jobs([Ref(QUEUE, "9", "dead", more[0].at)]).reports


def test_a_walk_that_was_not_over_goes_on_and_finds_all_queues(client, source):
    names = {QUEUE, *(f"q{n}" for n in range(50))}
    for name in names:
        client.hset(f"bull:{name}:meta", "version", "bullmq:5.81.5")
    client.eval("for n = 1, 300000 do redis.call('SET', 'cache:' .. n, '') end", 0)
    assert set(source._wire.queues()) < names  # not all in one walk
    wait_until(lambda: set(source._wire.queues()) == names, "all queues")


def test_more_queues_than_are_read_are_a_finding(client, source):
    assert "queues-not-read" not in [one.id for one in source.findings()]
    with client.pipeline() as pipe:
        for n in range(1_004):
            pipe.hset(f"bull:q{n}:meta", "version", "bullmq:5.81.5")
        pipe.execute()
    source._wire.rediscover()
    (one,) = [one for one in source.findings() if one.id == "queues-not-read"]
    assert one.text.startswith("1,000 queues are read; up to 5 more")


@pytest.mark.parametrize("unreadable", [0, 1, 99, 100])  # of the 100 that are read at once
def test_saved_jobs_that_did_not_fail_and_unreadable_names_block_no_other(client, source, unreadable):
    script, place = Path("clients/node/lua/keep.lua").read_text(), keys.bullmq_kept("shop", "redrive")
    for job_id in (*(f"c{n}" for n in range(unreadable, 100)), "dead"):
        key, name = f"bull:{QUEUE}:{job_id}", f"{QUEUE}:{job_id}"
        client.hset(key, mapping={"name": "w", "data": "{}", "timestamp": 1})
        bounds = (name, 10_000, 2**28, 86_400, "failedReason", "x")
        assert client.eval(script, 4, key, f"{place}:{name}", place, f"{place}-bytes", *bounds) == 1
    client.zadd(place, {f"{QUEUE}:dead": 2e9} | {b"\xff%d" % n: n for n in range(unreadable)})  # it is the last of them
    client.delete(f"bull:{QUEUE}:dead")
    reports, _ = read_until(source, bool)
    assert [one.job_id for one in reports] == ["dead"]
    assert client.zcard(place) == 100
