"""Faults that a policy's retries survive: the store, the broker's answer, every worker. None is lost, none comes twice."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import redis
from django.core.management import call_command

from jobs_admin import config, ingest
from jobs_admin.core import keys
from jobs_admin.core.envelope import decode
from jobs_admin.management.commands import drain
from jobs_admin.models import Attempt, Failure, Notice
from jobs_admin.retries import promoting
from jobs_admin.worker.delays import Delays, Head
from jobs_admin.worker.spool import Spool
from tests.kit.policies import attempts, obeyed, policy, published
from tests.kit.sources import forget_configuration
from tests.kit.streams import of_job, reports

pytestmark = pytest.mark.server

SOON = {"kind": "fixed", "first_delay_s": 0.3}


def of_broker(worker) -> redis.Redis:
    return redis.Redis.from_url(worker.broker_url)


def file_all() -> None:
    rounds = 0
    while ingest.step("test", wait_s=0.01) or rounds < 2:
        rounds += 1


def waiting(worker) -> int:
    with of_broker(worker) as client:
        return client.zcard(keys.due("shop"))


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_other_pools_retry_too(start, own_store, pool):
    version = published(own_store.url, policy("p", max_attempts=2))
    worker = start(own_store.url, pool=pool)
    job = worker.send("try")
    worker.wait(lambda: len(of_job(own_store, job)) == 2, what="two attempts")
    assert [(one.kind, one.policy, one.reason) for one in of_job(own_store, job)] == [
        ("retry", f"p@{version}", ""),
        ("exception", f"p@{version}", "exhausted"),
    ]


def test_the_last_good_policy_outlives_the_store_and_a_restart_of_the_worker_without_it(start, own_store):
    worker = start(own_store.url, concurrency=1)
    version = obeyed(worker, own_store.url, policy("p", backoff=SOON))
    own_store.stop()
    first = worker.send("try")
    worker.wait(lambda: len(attempts(worker, first)) == 3, what="three attempts without a store")
    worker.stop()
    worker.start()
    second = worker.send("try")
    worker.wait(lambda: len(attempts(worker, second)) == 3, what="three attempts after a restart")
    own_store.start()
    for job in (first, second):
        worker.wait(lambda job=job: len(of_job(own_store, job)) == 3, what="the spool to be shipped")
        assert {one.policy for one in of_job(own_store, job)} == {f"p@{version}"}


def test_where_nothing_takes_the_retry_the_job_is_dead_with_its_reason_and_celery_is_reported(
    start, own_store, tmp_path
):
    """A broker that is not Redis: retries wait in the store, and that is gone."""
    (tmp_path / "control").mkdir()
    worker = start(own_store.url, broker_url=f"filesystem://{tmp_path}", concurrency=1)
    rules = policy("p", backoff=SOON, max_attempts=2), policy("q", "late", backoff=SOON, max_attempts=2)
    version = obeyed(worker, own_store.url, *rules)
    well = worker.send("try", "down", 2)
    worker.wait(lambda: len(of_job(own_store, well)) == 2, what="a retry that waited in the store")
    assert [one.kind for one in of_job(own_store, well)] == ["retry", "success"]
    own_store.stop()
    on_error = [{"task": "note", "args": ["errback"], "kwargs": {}, "options": {}, "immutable": True}]
    job = worker.send("try", link_error=on_error)
    worker.wait(lambda: worker.marks("notes"), what="the errback")
    late = worker.send("late", link_error=on_error)
    worker.wait(lambda: len(worker.marks("notes")) == 2, what="its errback")
    own_store.start()
    (only,) = worker.wait(lambda: of_job(own_store, job), what="the report")
    assert (only.kind, only.policy, only.error_type) == ("exception", f"p@{version}", "tests.kit.celery.PartnerDown")
    assert only.reason.startswith("store: the place where retries wait did not take it")
    assert len(attempts(worker, job)) == 1
    # Under late ack it had been told as a retry before it was known that nothing takes it.
    reports = worker.wait(lambda: len(results := of_job(own_store, late)) == 2 and results, what="both reports")
    assert [(one.kind, one.attempt, one.reason[:7]) for one in reports] == [
        ("retry", 1, ""),
        ("exception", 1, "store: "),
    ]


@pytest.mark.parametrize("task", ["late", "dies"])
def test_under_late_ack_a_failure_is_reported_before_its_next_attempt_waits(start, own_store, task):
    """Bringing it back takes the delivery that failed away: what was not reported by then never would be."""
    published(own_store.url, policy("p", task, backoff=SOON))
    worker = start(own_store.url, environment={"REAL_DIE_ONCE_IT_WAITS": "1"})
    job = worker.send(task)
    worker.wait(lambda: worker.process.poll() is not None, what="its death", may_die=True)
    durable = reports(own_store)
    Spool(worker.spool).drain(lambda batch: durable.extend(map(decode, batch)))
    assert waiting(worker) == 1 and [(one.job_id, one.attempt, one.kind) for one in durable] == [(job, 1, "retry")]


def test_under_early_ack_a_job_waits_before_it_is_reported(start, own_store):
    """The broker has it no more: that it is not lost comes first."""
    published(own_store.url, policy("p", backoff=SOON))
    worker = start(own_store.url, environment={"REAL_DIE_ONCE_IT_WAITS": "1"})
    worker.send("try")
    worker.wait(lambda: worker.process.poll() is not None, what="its death", may_die=True)
    assert waiting(worker) == 1 and not reports(own_store)


@pytest.fixture
def desk(engine, store, settings, broker):
    """The desk's own settings, with the broker of the workers as source `shop`."""
    url = broker.url.removesuffix("/0") + "/1"
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": url}
    forget_configuration(config)
    promoting._places.clear()
    promoting._closed_until.clear()
    yield store
    promoting._places.clear()


@pytest.mark.long("Starts workers, and kills them while they retry.")
def test_a_kill_of_every_worker_loses_no_retry_and_doubles_none_and_watch_brings_them_back(start, engine, desk):
    # None comes back before all of them wait, however slow the machine.
    published(engine.url, policy("p", max_attempts=2, backoff={"kind": "fixed", "first_delay_s": 600}))
    worker = start(engine.url, late_ack=True, environment={"REAL_VISIBILITY": "3"})
    jobs = [worker.send("try") for _ in range(40)]
    worker.wait(lambda: waiting(worker) == 40, what="40 that wait")
    worker.kill()
    with of_broker(worker) as client:
        assert Delays(client, "shop").hasten() == 40
        worker.wait(lambda: (promoting.step(), client.llen("celery"))[1] == 40, 60, "all on their queue", may_die=True)
    worker.start()
    worker.wait(lambda: len(worker.marks("attempts")) == 80, what="two attempts of each")
    worker.stop()
    began = [line.split()[:2] for line in worker.marks("attempts")]
    assert Counter(map(tuple, began)) == Counter({(job, n): 1 for job in jobs for n in ("1", "2")})


@pytest.mark.long("Starts workers, and kills them while they retry.")
def test_a_worker_that_dies_between_schedule_and_acknowledge_does_not_make_two_of_one(start, own_store):
    published(own_store.url, policy("p", "late", max_attempts=3, backoff=SOON))
    dying = start(own_store.url, environment={"REAL_REQUEST": "1", "REAL_DIE_BEFORE_ACK": "1", "REAL_VISIBILITY": "2"})
    job = dying.send("late")
    dying.wait(lambda: dying.marks("shop_request"), what="the failure", may_die=True)
    dying.process.wait(60)
    with of_broker(dying) as client:
        assert client.hlen("unacked") == 1 and waiting(dying) == 1
        dying.wait(lambda: Delays(client, "shop").promote().jobs == 1, what="its time", may_die=True)
        assert client.hlen("unacked") == 0 and client.llen("celery") == 1
    # What the one could tell the disk alone, the next one ships.
    spool = dying.environment["REDRIVE_SPOOL"]
    living = start(own_store.url, environment={"REAL_VISIBILITY": "2", "REDRIVE_SPOOL": spool})
    living.wait(lambda: len(of_job(own_store, job)) == 3, what="three attempts")
    time.sleep(2.5)  # in which the first delivery would have come again
    assert sorted((one.attempt, one.kind) for one in of_job(own_store, job)) == [
        (1, "retry"),
        (2, "retry"),
        (3, "exception"),
    ]


@pytest.mark.django_db
def test_retries_and_escalations_come_home_to_the_desk(start, engine, desk):
    version = published(engine.url, policy("pay", max_attempts=2, exhausted="escalate"))
    worker = start(engine.url)
    jobs = [worker.send("try"), worker.send("try", "down", 2)]
    worker.wait(lambda: len(reports(engine)) == 4, what="four reports")
    file_all()
    dead, well = (Failure.objects.get(first_job_id=job) for job in jobs)
    assert (dead.state, dead.reason, dead.attempts, well.state) == ("dead", "exhausted", 2, "recovered")
    attempts = Attempt.objects.filter(failure=dead).order_by("attempt").values_list("kind", "policy", "delay_s")
    assert [(kind, by, delay and round(delay, 3)) for kind, by, delay in attempts] == [
        ("retry", f"pay@{version}", 0.05),
        ("exception", f"pay@{version}", None),
    ]
    (notice,) = Notice.objects.filter(type="job.escalated")
    assert notice.body["failure"] == dead.pk and notice.body["policy"] == f"pay@{version}"


@pytest.mark.django_db
@pytest.mark.parametrize("how", ["now", "to_dead"])
def test_drain_empties_what_waits_and_reports_when_install_can_go(start, engine, desk, capsys, monkeypatch, how):
    monkeypatch.setattr(drain, "_OBEYED_WITHIN_S", 3)  # a worker tells at once that it obeys
    published(engine.url, policy("p", max_attempts=2, backoff={"kind": "fixed", "first_delay_s": 600}))
    worker = start(engine.url)
    jobs = [worker.send("try") for _ in range(3)]
    worker.wait(lambda: waiting(worker) == 3, what="three that wait")
    with of_broker(worker) as client:  # of which no report was ever filed
        Delays(client, "shop").schedule(Head("stray", 2, "try", "celery", "p@1", list="celery"), b"{}", 600)
        file_all()
        if how == "now":
            client.zrem(keys.due("shop"), "stray:2")
        call_command("drain", **{how: True})
        assert capsys.readouterr().out.rstrip().endswith("safe to remove install()")
        assert client.zcard(keys.due("shop")) == 0
    if how == "now":
        worker.wait(lambda: all(len(attempts(worker, job)) == 2 for job in jobs), what="the second attempts")
        worker.wait(lambda: len(reports(engine)) >= 3, what="their reports")
        assert waiting(worker) == 0  # the policy decides no more
    else:
        file_all()
        failures = Failure.objects.order_by("first_job_id").values_list("first_job_id", "state", "kind", "attempts")
        assert sorted(failures) == sorted([(job, "dead", "lost", 2) for job in [*jobs, "stray"]])
        assert set(Failure.objects.values_list("reason", flat=True)) == {
            "drained: it waited for its next attempt when Redrive was taken out"
        }


def test_what_a_dead_worker_spooled_is_folded_in(desk, settings, tmp_path, monkeypatch):
    from jobs_admin.retries import draining

    left = Spool(tmp_path / "shop")
    left.append({b"v": b"1", b"meta": b"{}"})
    left.close()
    assert draining.fold_in_spools(str(tmp_path)) == 1
    assert [fields for _, fields in desk.xrange(keys.failures("shop"))] == [{b"v": b"1", b"meta": b"{}"}]
