"""A real worker's handling of replayed messages: redirected, under their own id, with retries counted, in order, taken back."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import redis

from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage
from tests.kit.celery import RealWorker
from tests.kit.streams import of_job, reports
from tests.sources.contract import recalled

pytestmark = pytest.mark.server


@pytest.fixture
def broker(engine):
    """A database of its own: the store's is another."""
    redis.Redis.from_url(engine.url).flushall()
    url = engine.url.removesuffix("/0") + "/1"
    with redis.Redis.from_url(url) as client:
        client.url = url
        yield client


@pytest.fixture
def source(broker):
    source = connect("shop", "celery", broker.url)
    yield source
    source.close()


@pytest.fixture
def worker(engine, broker):
    """Not started yet. Consumes `emails` alone."""
    made = RealWorker(broker.url, engine.url, queues="emails", concurrency=1)
    yield made
    made.kill()


def captured(worker, broker, task, *args, queue="webhooks", **options) -> bytes:
    """A message as it waits on a queue that no worker here consumes."""
    worker.send(task, *args, queue=queue, **options)
    return broker.rpop(queue)


def outgoing_message(raw, token=1, queue="emails", **changes) -> OutgoingMessage:
    lineage = {"queue": "webhooks", "job_id": "first", "run": 2, "item": token, "replay": "r"}
    return OutgoingMessage(
        **{"token": token, "raw": raw, "queue": queue, "job_id": f"new-{token}", "lineage": lineage, **changes}
    )


def wait_for_reports(worker, engine, job_id, kinds):
    worker.wait(lambda: len(of_job(engine, job_id)) >= len(kinds), what=f"{kinds} of {job_id}")
    found = sorted(of_job(engine, job_id), key=lambda report: report.attempt)
    assert [report.kind for report in found] == kinds
    return found


@pytest.mark.parametrize("address", [("", "webhooks"), ("shop", "hooks.new")])
def test_a_redirected_job_is_tried_again_where_it_was_sent(worker, engine, broker, source, address):
    raw = captured(worker, broker, "flaky", 2)
    message = json.loads(raw)
    message["properties"]["delivery_info"] = dict(zip(("exchange", "routing_key"), address, strict=True))
    source.send("r", [outgoing_message(json.dumps(message).encode())])
    worker.start()
    attempts = wait_for_reports(worker, engine, "new-1", ["retry", "retry", "success"])
    assert {report.queue for report in attempts} == {"emails"}
    assert {report.lineage.queue for report in attempts} == {"webhooks"}
    assert broker.llen("webhooks") == 0
    # What a recall must leave alone: Celery's own retries do not carry the mark of what was sent.
    assert [b'"redrive-r-1"' in report.raw for report in attempts[:2]] == [True, False]


def test_retries_are_counted_from_what_the_message_reports(worker, engine, broker, source):
    raw = captured(worker, broker, "exhaust", retries=1)  # of its one retry
    source.send(
        "r",
        [
            outgoing_message(raw),
            outgoing_message(raw, token=2, retries=1),
            outgoing_message(raw, token=3, retries=None),
        ],
    )
    worker.start()
    wait_for_reports(worker, engine, "new-1", ["retry", "exception"])
    for job in ("new-2", "new-3"):
        (only,) = wait_for_reports(worker, engine, job, ["exception"])
        assert (only.attempt, only.max_attempts) == (2, 2)


def test_a_job_under_its_own_id_runs_again_under_it(worker, engine, broker, source):
    raw = captured(worker, broker, "fail", "down", task_id="same")
    source.send("r", [outgoing_message(raw, job_id="same")])
    worker.start()
    (report,) = wait_for_reports(worker, engine, "same", ["exception"])
    headers = json.loads(report.raw)["headers"]
    assert (headers["id"], headers["parent_id"], headers["root_id"]) == ("same", None, "same")
    assert report.lineage.item == 1


def test_a_priority_goes_before_what_waited_longer(worker, engine, broker, source):
    raw = captured(worker, broker, "fail", priority=9) or broker.rpop("webhooks\x06\x169")
    source.send("r", [outgoing_message(raw, token=n, priority=p) for n, p in ((1, None), (2, 6), (3, 0))])
    worker.start()
    worker.wait(lambda: len(reports(engine)) == 3, what="three jobs")
    assert [report.job_id for report in reports(engine)] == ["new-3", "new-2", "new-1"]
    assert [report.priority for report in reports(engine)] == [0, 6, 9]


@pytest.mark.long("Recalls jobs beside a Celery worker that runs them.")
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_under_a_working_worker_each_job_ran_or_was_taken_back(engine, broker, source, pool):
    worker = RealWorker(broker.url, engine.url, queues="emails", concurrency=2, pool=pool)
    raw, tokens = captured(worker, broker, "ok"), range(1, 12_001)
    for start in range(0, 12_000, 500):
        source.send("r", [outgoing_message(raw, token=n, args=[n]) for n in tokens[start : start + 500]])
    try:
        worker.start()
        worker.wait(lambda: len(worker.marks("ok")) >= 100, what="a hundred jobs")
        back = recalled(source, "r", ["emails"])
        # An empty list is no end: what a worker has just taken from it is nowhere for a moment.
        worker.wait(lambda: len(worker.marks("ok")) + len(back) >= 12_000, 90, "the rest to end")
        worker.wait(lambda: not broker.llen("emails") and not broker.hlen("unacked"), what="them to be acknowledged")
    finally:
        worker.stop()
    ran = Counter(int(mark.strip("(,)")) for mark in worker.marks("ok"))
    assert set(ran.values()) == {1} and ran.keys() | back == set(tokens) and not ran.keys() & back
    assert len(back) > 0 and source.was_sent("r", list(tokens)) == set(ran)
