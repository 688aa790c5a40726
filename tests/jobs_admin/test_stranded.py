"""A worker is killed with jobs in hand: the desk says so and returns them, each once."""

from __future__ import annotations

import io
import json
import time
from datetime import timedelta

import pytest
import redis
from django.core.management import CommandError, call_command
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.figures import clock
from jobs_admin.core.policy import document, parse
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.fleet import stranded
from jobs_admin.management.commands.token import create
from jobs_admin.models import AuditEvent, Failure, PolicyVersion, Source
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.queues import sampling
from tests.kit.celery import RealWorker
from tests.kit.people import log_in
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]

ANN, EVE = Viewer("ann", {"*": OPERATOR}), Viewer("eve", {"*": VIEWER})


@pytest.fixture
def broker(engine, store, settings):
    url = engine.url.removesuffix("/0") + "/1"
    redis.Redis.from_url(url).flushdb()
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": url}
    forget_configuration(config)
    yield url
    forget_configuration(config)


def worker_on(broker, store_url, **options) -> RealWorker:
    return RealWorker(broker, store_url, concurrency=1, **options)


def killed(worker: RealWorker, store, *, is_reserved: bool) -> str:
    """Kill it with a job in hand that its heartbeat has reported, and let it be silent for a minute. Answers the job's id."""
    job = worker.send("until", "never")
    worker.wait(lambda: worker.marks("until"), what="it to run")

    def is_reported():
        fetched = [stranded._parse_fetched(text) for text in store.hvals(keys.in_hand("shop"))]
        return any(one[1] == job and one[4] is is_reserved for entry in fetched for one in entry["jobs"])

    worker.wait(is_reported, what="its heartbeat")
    worker.kill()
    (place,) = store.hkeys(keys.in_hand("shop"))
    boot = place.decode()
    assert stranded.find_stranded("shop", store) == []  # it may be alive yet
    store.zincrby(keys.boots("shop"), -60_000, boot)
    return job


def at_time(at):
    return clock(at, timezone.now(), with_seconds=True)


def test_a_time_of_another_day_is_reported_with_its_day():
    seen, returns = timezone.now() - timedelta(days=2), timezone.now() + timedelta(days=2)
    one = stranded.Stranded("shop", "boot", "w1", seen, ("celery",), ("tag",), returns, 0)
    assert one.text == (
        f"1 job was running or fetched in worker w1, last seen at {seen:%-d %b %H:%M:%S} UTC; "
        f"the job returns at {returns:%-d %b %H:%M:%S} UTC."
    )


@pytest.mark.long("Kills a worker and waits until the desk returns what it had.")
def test_what_a_killed_worker_had_in_hand_is_reported_and_returned_once(broker, engine, store, django_user_model):
    worker = worker_on(broker, engine.url, late_ack=True).start()
    job = killed(worker, store, is_reserved=True)
    (one,) = stranded.find_stranded("shop")
    assert (len(one.tags), one.lost, one.queues) == (1, 0, ("celery",))
    assert one.returns_at - timezone.now() > timedelta(minutes=55)
    assert one.text == (
        f"1 job was running or fetched in worker {one.worker}, last seen at {at_time(one.seen_at)} UTC; "
        f"the job returns at {at_time(one.returns_at)} UTC."
    )
    sampling.sample(timezone.now())
    (finding,) = [one for one in Source.objects.get(name="shop").findings if one["id"] == stranded.FINDING]
    assert finding["text"] == one.text

    browser = log_in(django_user_model, "otto", shop="operator")
    assert one.text in browser.get("/queues/shop/celery/").content.decode()
    assert one.text in browser.get("/").content.decode()
    with pytest.raises(Refused) as refused:
        stranded.return_jobs(EVE, "shop", one.boot)
    assert refused.value.code == "forbidden"
    answer = browser.post(f"/workers/shop/{one.boot}/return/", {"queue": "celery"})
    assert answer.status_code == 302
    with pytest.raises(Refused) as refused:
        stranded.return_jobs(ANN, "shop", one.boot)
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
        another.kill()


def on_its_way(job: str, now) -> Failure:
    return Failure.objects.create(
        source="shop", queue="celery", task="until", state="retrying", kind="exception", first_job_id=job, job_id=job,
        first_failed_at=now, failed_at=now, received_at=now,
    )  # fmt: skip


def test_a_program_and_a_terminal_return_it_by_the_same_door(broker, engine, store, client):
    killed(worker_on(broker, engine.url, late_ack=True).start(), store, is_reserved=True)
    (one,) = stranded.find_stranded("shop")

    def call_api(method, path, role, source="*"):
        token = create(f"{role} of {source}", role, source)
        answer = client.generic(method, f"/api/{path}", headers={"Authorization": f"Bearer {token}"})
        return answer.status_code, json.loads(answer.content)

    status, listed = call_api("GET", "workers/gone", "viewer")
    (item,) = listed["items"]
    assert status == 200 and item["text"] == one.text
    assert (item["boot"], item["held"], item["lost"], item["queues"]) == (one.boot, 1, 0, ["celery"])
    assert call_api("GET", "workers/gone", "viewer", "bank")[1]["items"] == []
    address = f"workers/shop/{one.boot}/return"
    assert call_api("POST", address, "viewer", "shop")[0] == 403
    assert call_api("POST", address, "operator", "bank")[0] == 404

    output = io.StringIO()
    call_command("workers", "gone", stdout=output)
    assert f"shop {one.boot}  {one.text}" in output.getvalue()
    assert call_api("POST", address, "operator")[:2] == (200, {"returned": 1})
    status, refused = call_api("POST", address, "admin")
    assert (status, refused["error"]["code"]) == (409, "not_gone")
    with pytest.raises(CommandError, match="have already returned"):
        call_command("workers", "return", "shop", one.boot)
    output = io.StringIO()
    call_command("workers", "gone", stdout=output)
    assert output.getvalue() == "No gone worker had jobs in hand.\n"
    acts = AuditEvent.objects.filter(act="worker.return", allowed=True)
    assert [event.actor for event in acts] == ["token operator of *"]


def test_a_terminal_returns_what_its_list_names(broker, engine, store):
    killed(worker_on(broker, engine.url, late_ack=True).start(), store, is_reserved=True)
    (one,) = stranded.find_stranded("shop")
    output = io.StringIO()
    call_command("workers", "return", "shop", one.boot, stdout=output)
    assert output.getvalue() == "1 job returned to its queue.\n"
    with redis.Redis.from_url(broker) as there:
        assert there.llen("celery") == 1


def test_the_page_of_a_job_in_a_worker_that_is_gone_reports_it(broker, engine, store, django_user_model):
    job = killed(worker_on(broker, engine.url, late_ack=True).start(), store, is_reserved=True)
    now = timezone.now()
    failure, another = on_its_way(job, now), on_its_way("another", now)
    sampling.sample(now)
    browser = log_in(django_user_model, "otto", shop="operator")
    page = browser.get(f"/failures/{failure.pk}/").content.decode()
    assert "data-stranded" in page and 'href="/queues/shop/celery/">return the job now' in page
    assert "data-stranded" not in browser.get(f"/failures/{another.pk}/").content.decode()
    listed = browser.get("/failures/?q=state:retrying").content.decode()
    (marked,) = [row for row in listed.split("<tr ") if "data-stranded" in row]
    assert f'data-row="/failures/{failure.pk}/"' in marked and "worker gone" in marked


def test_a_return_that_fails_midway_states_what_was_returned(broker, engine, store):
    killed(worker_on(broker, engine.url, late_ack=True).start(), store, is_reserved=True)
    (place,) = store.hkeys(keys.in_hand("shop"))
    data = json.loads(store.hget(keys.in_hand("shop"), place))
    tag, _, task, *rest = data["jobs"][0]
    data["jobs"].append(["second", "second", task, *rest])
    store.hset(keys.in_hand("shop"), place, json.dumps(data))
    with redis.Redis.from_url(broker) as there:
        message, exchange, _ = json.loads(there.hget("unacked", tag))
        there.hset("unacked", "second", json.dumps([message, exchange, "blocked"]))
        there.zadd("unacked_index", {"second": time.time()})
        there.set("blocked", "a key that is no queue")
        (one,) = stranded.find_stranded("shop")
        assert one.tags == (tag, "second")
        with pytest.raises(Refused) as refused:
            stranded.return_jobs(ANN, "shop", one.boot)
        data = refused.value.message
        assert data.startswith("1 of 2 jobs were returned to their queues: ") and "WRONGTYPE" in data
        assert f"1 is still held for worker {one.worker}, the first to return at {at_time(one.returns_at)} UTC." in data
        assert there.llen("celery") == 1 and there.hkeys("unacked") == [b"second"]
        acts = AuditEvent.objects.filter(act="worker.return", allowed=True).order_by("pk")
        assert [event.after for event in acts] == [{"jobs": 2}, {"jobs": 1, "left": 1}]
        with pytest.raises(Refused, match="No job was returned: "):
            stranded.return_jobs(ANN, "shop", one.boot)
        there.delete("blocked")
    assert stranded.return_jobs(ANN, "shop", one.boot) == 1


def test_two_who_return_it_at_once_send_it_once(broker, engine, store):
    worker = worker_on(broker, engine.url, late_ack=True).start()
    killed(worker, store, is_reserved=True)
    (one,) = stranded.find_stranded("shop")
    adapter = config.adapter("shop")
    assert [adapter.give_back(one.tags), adapter.give_back(one.tags)] == [1, 0]


def test_a_job_that_was_acknowledged_before_it_ran_does_not_return_and_that_is_reported(
    broker, engine, store, django_user_model
):
    worker = worker_on(broker, engine.url).start()
    job = killed(worker, store, is_reserved=False)
    (one,) = stranded.find_stranded("shop")
    assert (one.tags, one.lost, one.lost_jobs) == ((), 1, (job,))
    assert one.text.endswith("acknowledged on receipt, so the job is lost.")
    assert one.fix == "Publish a policy with file_lost: such jobs are then filed and can be replayed."
    now = timezone.now()
    failure = on_its_way(job, now)
    sampling.sample(now)
    browser = log_in(django_user_model, "otto", shop="operator")
    for address in (f"/failures/{failure.pk}/", "/queues/shop/celery/"):
        page = browser.get(address).content.decode()
        assert "file_lost" in page and "lost" in page and "Return 1 job now" not in page
        assert "The worker will retry this job" not in page

    policy = document(parse({"name": "kept", "mode": "enforce", "match": {"task": "*"}, "file_lost": True}))
    PolicyVersion.objects.create(version=1, document=policy, published_at=now, published_by="ann")
    assert stranded.find_stranded("shop") == []  # such a job is filed as lost


def test_a_worker_that_ends_in_order_leaves_nothing_behind(broker, engine, store):
    worker = worker_on(broker, engine.url, late_ack=True).start()
    worker.send("ok")
    worker.wait(lambda: "succeeded" in worker.text(), what="it to run")
    worker.stop()
    ends = time.monotonic() + 20
    while store.hlen(keys.in_hand("shop")) and time.monotonic() < ends:
        time.sleep(0.1)
    assert stranded.find_stranded("shop") == []


def test_what_is_reported_about_killed_workers_goes_when_nothing_is_left_of_it(broker, engine, store):
    """Else it is read at each sampling for as long as any worker lives."""
    long_ago = time.time() - 2 * stranded.LOST_FOR_S
    fields = {"worker": "w@host", "at": long_ago, "jobs": [["tag", "id", "shop.send", "celery", False]], "more": 0}
    for n in range(3):
        store.hset(keys.in_hand("shop"), f"boot{n}", json.dumps(fields))
    store.hset(keys.in_hand("shop"), "fresh", json.dumps(fields | {"at": time.time() - 60}))
    store.hset(keys.in_hand("other"), "boot", json.dumps(fields))
    assert [one.boot for one in stranded.find_stranded("shop")] == ["fresh"]
    assert store.hkeys(keys.in_hand("shop")) == [b"fresh"] and store.hkeys(keys.in_hand("other")) == [b"boot"]
