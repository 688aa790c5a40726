"""Celery without the guard: failures of a stock app are filed from its events and its result backend, and nothing is written there."""

from __future__ import annotations

import base64
import json
import time
import uuid
from datetime import timedelta
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
import redis
from django.db import OperationalError
from django.utils import timezone

from jobs_admin import config, trust
from jobs_admin.core import keys
from jobs_admin.ingest import lost_jobs
from jobs_admin.models import Attempt, Failure, Group, Payload, QueueCounter, Source, Worker
from jobs_admin.models.counter import MINUTE
from jobs_admin.models.failure import Caveat
from jobs_admin.queues.coverage import read as read_coverage
from jobs_admin.replays import obstacles
from jobs_admin.replays.options import Options
from jobs_admin.retries import pulling
from tests.kit.following import attempts, coverage, ended, pull, pull_heartbeat, pull_until
from tests.kit.signed_reports import end_unsigned
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]


def test_failures_of_a_stock_app_are_grouped_with_their_attempts(follow, stock, broker):
    worker = stock(broker)
    follow(broker, queues=["celery"])
    for n in range(20):
        worker.send("pay", n, password="hunter2-secret")
        worker.send("ok", n)
    for n in range(3):
        worker.send("mail", n, well_at=3)
        worker.send("mail", n, well_at=9)
    wait_until(lambda: len(worker.lines()) == 58, "all attempts")
    pull_until(lambda: len(attempts()) == 35 and Failure.objects.filter(state="recovered").count() == 3, "the failures")
    assert attempts() == ended(worker, "failed", "retried")
    assert sorted(Group.objects.values_list("error_type", "culprit")) == [
        ("ValueError", Group.objects.get(error_type="ValueError").culprit),
        ("tests.workers.stock_app.PartnerDown", Group.objects.exclude(error_type="ValueError").get().culprit),
    ]
    row = Failure.objects.filter(task="shop.pay").first()
    assert (row.state, row.queue, row.message) == ("dead", "celery", f"order {json.loads(row.args)[0]} was declined")
    assert "hunter2-secret" not in row.kwargs and row.redacted
    assert row.caveats == Caveat.SEEN | Caveat.NO_MESSAGE
    assert not Payload.objects.exists()
    counted = QueueCounter.objects.filter(source="shop", queue="celery", step=MINUTE)
    assert sum(counted.values_list("succeeded", flat=True)) == worker.ends()["succeeded"] == 23
    assert sum(counted.values_list("failed", flat=True)) == worker.ends()["failed"] == 23
    # Of its source and of the job: it stays so when a guard is installed later.
    reasons = [one.reason for one in obstacles.find_obstacles(Options(), timezone.now()) if one.code == "seen"]
    assert len(reasons) == 2 and all("no guard" in reason for reason in reasons)


def test_kinds_are_those_of_the_guard(follow, stock, broker):
    worker = stock(broker)
    follow(broker, queues=["celery"])
    worker.send("refuse")
    worker.send("slow")
    worker.send("missing")
    pull_until(lambda: Failure.objects.count() == 3, "three failures")
    found = dict(Failure.objects.values_list("task", "kind"))
    unknown = Failure.objects.get(kind="unknown_task")
    assert "NotRegistered" in unknown.error_type or "KeyError" in unknown.error_type
    assert found["shop.refuse"] == "rejected" and found["shop.slow"] == "hard_limit"


def test_redis_is_only_read(follow, stock, engine, store):
    url = engine.url.removesuffix("/0") + "/3"
    worker = stock(url, results=url, extended=True)
    # A user who may write nothing: each refusal is an entry of the log.
    rights = [
        "~*",
        "&*",
        "+@read",
        "+subscribe",
        "+psubscribe",
        "+unsubscribe",
        "+punsubscribe",
        "+@connection",
        "+info",
    ]
    store.execute_command("ACL", "SETUSER", "guest", "on", ">open", *rights, "+config|get", "-@write", "-publish")
    store.acl_log_reset()
    host = url.rpartition("@")[2]
    source = follow(f"redis://guest:open@{host}")
    worker.send("pay", 1)
    worker.send("mail", 1, well_at=2)
    pull_until(lambda: Failure.objects.filter(state__in=("dead", "recovered")).count() == 2, "the failures")
    source.depths()
    source.findings()
    assert source.workers() is None
    assert [entry["object"] for entry in store.acl_log() if entry["username"] == "guest"] == []
    store.execute_command("ACL", "DELUSER", "guest")


def test_on_rabbitmq_only_a_queue_of_the_connection_is_declared(follow, stock, rabbit_node):
    stock(rabbit_node.url)
    before = _rabbit_queues(rabbit_node)
    source = follow(rabbit_node.url, queues=["celery"])
    source.depths()
    source.findings()
    (new,) = [one for name, one in _rabbit_queues(rabbit_node).items() if name not in before]
    assert new["exclusive"] and new["auto_delete"] and not new["durable"]
    source.close()
    wait_until(lambda: _rabbit_queues(rabbit_node).keys() == before.keys(), "the end of the queue")


def _rabbit_queues(node):
    user = urlsplit(node.url)
    login = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
    request = Request(f"{node.management_url}/api/queues", headers={"Authorization": f"Basic {login}"})
    with urlopen(request, timeout=10) as answer:
        return {one["name"]: one for one in json.load(answer)}


def test_without_events_a_finding_names_the_workers_and_the_result_backend_is_read(follow, stock, engine):
    url = engine.url.removesuffix("/0") + "/3"
    worker = stock(url, events=False, results=url, extended=True)
    source = follow(url)
    pull_heartbeat()
    for n in range(5):
        worker.send("pay", n)
    worker.send("ok")
    wait_until(lambda: len(worker.lines()) == 6, "the jobs")
    pull_until(lambda: coverage().last_hour(time.time()).executed == 6, "heartbeats")
    (finding,) = [one for one in source.findings() if one.id == "events-off"]
    assert worker.name in finding.text and "-E" in finding.fix
    assert read_coverage(["shop"], timezone.now())["shop"].silent == [worker.name]
    heartbeat = json.dumps({"at": time.time()})  # its guard reports
    config.store().hset(keys.workers("shop"), worker.name, heartbeat)
    assert [one.id for one in source.findings() if one.id == "events-off"] == []
    assert read_coverage(["shop"], timezone.now())["shop"].silent == []
    config.store().hset(keys.workers("shop"), worker.name, json.dumps({"at": time.time() - 300}))
    assert read_coverage(["shop"], timezone.now())["shop"].silent == [worker.name]
    assert coverage().share(time.time()) == 0.0
    pull_until(lambda: Failure.objects.count() == 5, "the results")
    assert sorted(Failure.objects.values_list("job_id", "attempts", "kind")) == ended(worker, "failed")
    assert set(Failure.objects.values_list("task", "queue")) == {("shop.pay", "celery")}
    for _ in range(3):
        pull()
    assert Attempt.objects.count() == 5


def test_a_gap_is_a_gap_and_nothing_is_doubled(follow, stock, engine):
    url = engine.url.removesuffix("/0") + "/3"
    worker = stock(url, results=url, extended=True)
    follow(url)
    pull_heartbeat()
    worker.send("pay", 1)
    pull_until(lambda: Failure.objects.count() == 1 and coverage().last_hour(time.time()).executed == 1, "the first")
    # The process ends without a word; another one reads later.
    config.adapter("shop")._listener = None
    forget_configuration(config)
    worker.send("pay", 2)
    worker.send("pay", 3)
    wait_until(lambda: worker.ends()["failed"] == 3, "the others")
    wait_until(lambda: time.time() - coverage().at > 3, "a gap")
    pull_until(lambda: Failure.objects.count() == 3, "the results")
    pull_until(lambda: coverage().gaps and coverage().gaps[-1].missed == 2, "the heartbeat")
    (gap,) = coverage().gaps
    assert gap.end - gap.start > 2
    assert attempts() == ended(worker, "failed")
    hour = coverage().last_hour(time.time())
    assert (hour.started, hour.executed, hour.missed) == (1, 1, 2)


def test_failures_that_cannot_be_filed_come_again(follow, stock, engine, monkeypatch):
    broker = engine.url.removesuffix("/0") + "/3"
    worker = stock(broker)
    follow(broker, queues=["celery"], result_backend="none")
    pull_heartbeat()
    file, refusals = pulling._file, []

    def file_unless_database_is_away(reports):
        if reports and len(refusals) < 3:
            refusals.append(len(reports))
            raise OperationalError("the database is away")
        return file(reports)

    monkeypatch.setattr(pulling, "_file", file_unless_database_is_away)
    for n in range(5):
        worker.send("pay", n)
    worker.send("ok", 1)
    wait_until(lambda: len(worker.lines()) == 6, "all attempts")
    while len(refusals) < 3:
        try:
            pull()
        except OperationalError:
            continue
    pull_until(lambda: len(attempts()) == 5, "the failures")
    counted = QueueCounter.objects.filter(source="shop", queue="celery", step=MINUTE)
    pull_until(lambda: sum(counted.values_list("succeeded", flat=True)) == 1, "the success")
    assert not coverage().gaps


def test_the_guard_makes_a_seen_failure_replayable(follow, stock, engine):
    from jobs_admin import ingest
    from jobs_admin.core.envelope import Envelope, encode

    url = engine.url.removesuffix("/0") + "/3"
    worker = stock(url)
    follow(url)
    job = worker.send("pay", 7)
    pull_until(lambda: Failure.objects.count() == 1, "the failure")
    raw = json.dumps(
        {"body": "W1tdLHt9LHt9XQ==", "headers": {"id": job, "task": "shop.pay"}, "properties": {}}
    ).encode()
    report = Envelope(
        source="shop", queue="payments", task="shop.pay", job_id=job, kind="exception", attempt=1, at=time.time(),
        error_type="ValueError", message="order 7 was declined", args="[7]", kwargs="{}", raw=raw, raw_size=len(raw),
    )  # fmt: skip
    ingest.file([(b"1-1", encode(report))], is_trusted=True)
    (row,) = Failure.objects.all()
    assert row.caveats is None and row.payloads.get().is_whole
    assert Attempt.objects.count() == 1
    assert sum(QueueCounter.objects.filter(step=MINUTE).values_list("failed", flat=True)) == 1


def test_what_a_guarded_worker_does_is_not_filed_from_its_events(follow, stock, engine):
    url = engine.url.removesuffix("/0") + "/3"
    worker = stock(url)
    follow(url)
    pull_heartbeat()
    Worker.objects.create(source="shop", name=worker.name, boot="b", seen_at=timezone.now() + timedelta(minutes=5))
    worker.send("pay", 1)
    worker.send("ok")
    pull_until(lambda: coverage().last_hour(time.time()).started == 2, "the events")
    pull_until(
        lambda: sum(QueueCounter.objects.filter(step=MINUTE).values_list("succeeded", flat=True)) == 1, "the success"
    )
    assert not Failure.objects.exists()


def test_one_process_reads_while_another_watches(follow, stock, engine):
    url = engine.url.removesuffix("/0") + "/3"
    worker = stock(url)
    follow(url)
    worker.send("pay", 1)
    pull_until(lambda: Failure.objects.count() == 1, "the failure")
    assert pull("two") is False
    assert Source.objects.get(name="shop").puller == "one"


HOSTILE = [
    b"", b"not json", b"[" * 5000, b"{}", b'{"type": 7}', b'{"type": "task-failed"}', b'{"type": "task-failed", "uuid": []}',
    b'{"type": "task-failed", "uuid": "\\u0000\\ud800", "exception": {"a": 1}, "traceback": 5, "timestamp": 1e400}',
    b'{"type": "task-received", "uuid": "x", "retries": -5, "args": ["no", "text"], "eta": "never"}',
    b'{"type": "task-received", "uuid": "y", "retries": 1e300, "name": null, "eta": 5}',
    b'{"type": "task-failed", "uuid": "x", "exception": "ValueError(", "timestamp": 99999999999999}',
    b'{"type": "worker-heartbeat", "hostname": "w", "pid": "x", "processed": -3}', b"[1, 2, 3]", b"[[]]", b"null",
    b'{"type": "worker-heartbeat", "hostname": "w", "pid": 1, "processed": 99999999999999999999999}',
    b'{"type": "task-failed", "uuid": "' + b"z" * 100_000 + b'", "exception": "' + b"(" * 10_000 + b'"}',
]  # fmt: skip


def test_hostile_events_do_not_stop_it(follow, engine):
    url = engine.url.removesuffix("/0") + "/3"
    follow(url)
    with redis.Redis.from_url(url) as client:
        for body in HOSTILE:
            client.publish("/3.celeryev/task.multi", body)
            client.publish(
                "/3.celeryev", json.dumps({"body": body.decode("latin-1"), "content-type": "application/json"})
            )
            client.publish("/3.celeryev", json.dumps({"body": [1], "properties": 4}))
        good = {
            "type": "task-failed",
            "uuid": uuid.uuid4().hex,
            "exception": "KeyError('k')",
            "timestamp": time.time() + 1e6,
        }
        message = {"body": json.dumps(good), "content-type": "application/json"}
        client.publish("/3.celeryev", json.dumps(message))
    pull_until(lambda: Failure.objects.filter(error_type="KeyError").exists(), "the good one")
    row = Failure.objects.get(error_type="KeyError")
    assert row.message == "k" and row.failed_at <= timezone.now()
    assert coverage().unreadable > 20
    assert not Source.objects.get(name="shop").why_not_pulled


def _publish(url, *events):
    with redis.Redis.from_url(url) as client:
        for event in events:
            body = json.dumps({"hostname": "w@h", "timestamp": time.time(), "n": uuid.uuid4().hex} | event)
            client.publish("/3.celeryev", json.dumps({"body": body, "content-type": "application/json"}))


def _file_guarded(job, kind, **fields):
    from jobs_admin import ingest
    from jobs_admin.core.envelope import Envelope, encode

    raw = b'{"body": "W1tdLHt9LHt9XQ==", "headers": {}, "properties": {}}'
    report = Envelope(
        source="shop", queue="payments", task="shop.pay", job_id=job, kind=kind, attempt=1, at=time.time() - 5,
        error_type="ValueError", message="declined", args="[7]", kwargs="{}", raw=raw, raw_size=len(raw), **fields,
    )  # fmt: skip
    ingest.file([(f"{uuid.uuid4().int % 10**9}-1".encode(), encode(report))], is_trusted=True)


@pytest.mark.parametrize("is_closed", [True, False])
def test_forged_events_change_only_what_unsigned_reports_might(follow, engine, is_closed):
    url = engine.url.removesuffix("/0") + "/3"
    follow(url)
    _file_guarded("guarded", "retry", due_at=time.time() + 3600)
    if is_closed:
        end_unsigned()
    trust.forget()
    _publish(
        url,
        {"type": "task-received", "uuid": "guarded", "name": "evil", "retries": 1},
        {"type": "task-failed", "uuid": "guarded", "exception": "Forged('x')"},
        {"type": "task-received", "uuid": "new", "name": "shop.pay", "retries": 0},
        {"type": "task-failed", "uuid": "new", "exception": "KeyError('k')"},
    )
    pull_until(lambda: Failure.objects.filter(job_id="new").exists(), "the unknown job")
    row = Failure.objects.get(job_id="guarded")
    forged = (row.state, row.error_type, row.attempts)
    assert forged == (("retrying", "ValueError", 1) if is_closed else ("dead", "Forged", 2))
    assert row.payloads.get().is_whole  # the message is the guard's
    # A success that nobody can vouch for does not end it either.
    if is_closed:
        _publish(
            url,
            {"type": "task-succeeded", "uuid": "guarded"},
            {"type": "task-failed", "uuid": "third", "exception": "E()"},
        )
        pull_until(lambda: Failure.objects.filter(job_id="third").exists(), "the next one")
        assert Failure.objects.get(job_id="guarded").state == "retrying"


def test_a_seen_retry_without_news_is_gone_and_a_guarded_one_is_lost_by_its_due_time(follow, engine):
    url = engine.url.removesuffix("/0") + "/3"
    source = follow(url)
    _file_guarded("guarded", "retry", due_at=time.time() + 1)
    _publish(
        url,
        {"type": "task-received", "uuid": "seen", "name": "shop.pay", "retries": 0},
        {"type": "task-retried", "uuid": "seen", "exception": "KeyError('k')"},
    )
    pull_until(lambda: Failure.objects.filter(job_id="seen").exists(), "the retry")
    source._events.jobs.clear()
    long_ago = timezone.now() - timedelta(days=2)
    Failure.objects.update(failed_at=long_ago, due_at=long_ago)
    source._checked_at = 0.0
    pull()
    assert dict(Failure.objects.values_list("job_id", "state")) == {"seen": "gone", "guarded": "retrying"}
    Failure.objects.filter(job_id="seen").update(state="retrying", due_at=long_ago)
    lost_jobs.reconcile(timezone.now())
    found = {job: (state, kind) for job, state, kind in Failure.objects.values_list("job_id", "state", "kind")}
    assert found == {"seen": ("retrying", "retry"), "guarded": ("dead", "lost")}
