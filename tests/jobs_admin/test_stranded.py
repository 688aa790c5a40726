"""A worker is killed with jobs in hand: the desk says so and returns them, each once."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from jobs_admin import audit, config, sampling, stranded
from jobs_admin.core import keys
from jobs_admin.models import AuditEvent, Source
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from tests.conftest import forget_configuration
from tests.dashboard.conftest import log_in
from tests.real_celery import RealWorker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server, pytest.mark.timeout(180)]

ANN, EVE = Viewer("ann", {"*": OPERATOR}), Viewer("eve", {"*": VIEWER})


@pytest.fixture
def broker(engine, store, settings):
    url = engine.url.removesuffix("/0") + "/1"
    redis.Redis.from_url(url).flushdb()
    settings.REDRIVE_DEMO_BROKER_URL = url
    forget_configuration(config)
    yield url
    forget_configuration(config)


def worker_on(broker, store_url, **options) -> RealWorker:
    return RealWorker(broker, store_url, concurrency=1, **options)


def killed(worker: RealWorker, store, *, is_held: bool) -> str:
    """Kill it with a job in hand that its heartbeat has told of, and let it be silent for a minute. Answers the job's id."""
    job = worker.send("until", "never")
    worker.wait(lambda: worker.marks("until"), what="it to run")

    def is_told():
        told = [stranded._read(text) for text in store.hvals(keys.in_hand())]
        return any(one[1] == job and one[4] is is_held for said in told for one in said["jobs"])

    worker.wait(is_told, what="its heartbeat")
    worker.kill()
    (place,) = store.hkeys(keys.in_hand())
    source, boot = place.decode().split("/")
    assert stranded.stranded("shop", store) == []  # it may be alive yet
    store.zincrby(keys.boots(source), -60_000, boot)
    return job


def test_what_a_killed_worker_had_in_hand_is_said_and_returned_once(broker, engine, store, django_user_model):
    worker = worker_on(broker, engine.url, late_ack=True).start()
    job = killed(worker, store, is_held=True)
    (one,) = stranded.stranded("shop")
    assert (len(one.tags), one.lost, one.queues) == (1, 0, ("celery",))
    assert one.returns_at - timezone.now() > timedelta(minutes=55)
    assert one.text == (
        f"1 job was running or fetched in worker {one.worker}, last seen at {one.seen_at:%H:%M:%S} UTC; "
        f"the job returns at {one.returns_at:%H:%M:%S} UTC."
    )
    sampling.sample(timezone.now())
    (finding,) = [one for one in Source.objects.get(name="shop").findings if one["id"] == stranded.FINDING]
    assert finding["text"] == one.text

    browser = log_in(django_user_model, "otto", shop="operator")
    assert one.text in browser.get("/queues/shop/celery/").content.decode()
    assert one.text in browser.get("/").content.decode()
    with pytest.raises(stranded.StrandedRefused) as refused:
        stranded.return_now(EVE, "shop", one.boot)
    assert refused.value.code == "forbidden"
    answer = browser.post(f"/workers/shop/{one.boot}/return/", {"queue": "celery"})
    assert answer.status_code == 302
    with pytest.raises(stranded.StrandedRefused) as refused:
        stranded.return_now(ANN, "shop", one.boot)
    assert refused.value.code == "not_gone"
    with redis.Redis.from_url(broker) as there:
        assert there.llen("celery") == 1 and not there.hlen("unacked") and not there.zcard("unacked_index")
    acts = AuditEvent.objects.filter(act="worker.return").values_list("actor", "allowed")
    assert sorted(acts) == [("eve", False), ("otto", True)] and audit.verify() is None

    another = worker_on(broker, engine.url, late_ack=True)
    another.let("never")
    another.start()
    try:
        another.wait(lambda: f"[{job}] succeeded" in another.text(), what="the job to end")
        assert another.text().count(f"[{job}] received") == 1
    finally:
        another.stop()


def test_two_who_return_it_at_once_send_it_once(broker, engine, store):
    worker = worker_on(broker, engine.url, late_ack=True).start()
    killed(worker, store, is_held=True)
    (one,) = stranded.stranded("shop")
    adapter = config.adapter("shop")
    assert [adapter.give_back(one.tags), adapter.give_back(one.tags)] == [1, 0]


def test_a_job_that_was_acknowledged_before_it_ran_does_not_return_and_that_is_said(broker, engine, store):
    worker = worker_on(broker, engine.url).start()
    killed(worker, store, is_held=False)
    (one,) = stranded.stranded("shop")
    assert (one.tags, one.lost) == ((), 1)
    assert one.text.endswith("acknowledged on receipt, so the job does not return.")


def test_a_worker_that_ends_in_order_leaves_nothing_behind(broker, engine, store):
    worker = worker_on(broker, engine.url, late_ack=True).start()
    worker.send("ok")
    worker.wait(lambda: "succeeded" in worker.text(), what="it to run")
    worker.stop()
    ends = time.monotonic() + 20
    while store.hlen(keys.in_hand()) and time.monotonic() < ends:
        time.sleep(0.1)
    assert stranded.stranded("shop") == []


def test_what_is_told_of_killed_workers_goes_when_nothing_is_left_of_it(broker, engine, store):
    """Else it is read at each sampling for as long as any worker lives."""
    long_ago = time.time() - 2 * stranded.LOST_FOR_S
    said = {"worker": "w@host", "at": long_ago, "jobs": [["tag", "id", "shop.send", "celery", False]], "more": 0}
    for n in range(3):
        store.hset(keys.in_hand(), f"shop/boot{n}", json.dumps(said))
    store.hset(keys.in_hand(), "shop/fresh", json.dumps(said | {"at": time.time() - 60}))
    store.hset(keys.in_hand(), "other/boot", json.dumps(said))
    assert [one.boot for one in stranded.stranded("shop")] == ["fresh"]
    assert sorted(store.hkeys(keys.in_hand())) == [b"other/boot", b"shop/fresh"]
