"""A real worker with the guard: every end of a job is reported once, with what the broker had, and nothing else changes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import subprocess
import sys
import time
from importlib import import_module
from uuid import uuid4

import pytest
import redis
from celery.worker.request import Request
from kombu import Connection
from kombu.transport.virtual import Message

from jobs_admin.core import keys
from jobs_admin.core.envelope import Lineage
from jobs_admin.worker.celery import GuardStep, _store_url, install, is_supported
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.heartbeat import POLL_SECONDS
from jobs_admin.worker.line import client
from jobs_admin.worker.report import Origin
from jobs_admin.worker.request import guarded
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import Store
from tests.kit.celery import ROOT, make_app
from tests.kit.streams import of_job, reports

pytestmark = pytest.mark.server


def wait_for_reports(worker, job_id: str, kinds: list[str], deadline_s: float = 60):
    """The reports of a job, by attempt, once as many are there as expected; and no more of them come."""
    worker.wait(lambda: len(of_job(worker.store_engine, job_id)) >= len(kinds), deadline_s, f"{kinds} of {job_id}")
    flush = worker.send("fail", "flush")  # what was on its way is there after this one
    worker.wait(lambda: of_job(worker.store_engine, flush), what="a later job")
    # Not in the order of the stream: a retry without delay can end before its cause was told.
    found = sorted(of_job(worker.store_engine, job_id), key=lambda report: report.attempt)
    assert [r.kind for r in found] == kinds
    return found


@pytest.mark.parametrize(
    ("task", "kind", "error_type", "message"),
    [
        ("fail", "exception", "tests.kit.celery.PartnerDown", "it failed"),
        ("late", "exception", "tests.kit.celery.PartnerDown", "it failed late"),
        ("soft", "soft_limit", "billiard.exceptions.SoftTimeLimitExceeded", "soft time limit exceeded"),
        ("hard", "hard_limit", "billiard.exceptions.TimeLimitExceeded", "hard time limit of 1 s exceeded"),
        (
            "killed",
            "worker_lost",
            "billiard.exceptions.WorkerLostError",
            "Worker exited prematurely: signal 9 (SIGKILL)",
        ),
        ("leaves", "worker_lost", "SystemExit", "3"),
        ("unpicklable", "exception", "tests.kit.celery.Unpicklable", "cannot travel"),
        ("http_error", "exception", "urllib.error.HTTPError", "HTTP Error 503: Service Unavailable"),
        ("group", "exception", "ExceptionGroup", "2 of 3 meters failed (2 sub-exceptions)"),
        ("unprintable", "exception", "tests.kit.celery.Unprintable", "<exception str() failed>"),
        ("reject", "rejected", "celery.exceptions.Reject", "('not for me', False)"),
    ],
)
def test_each_bad_end_is_reported_exactly_once(worker, task, kind, error_type, message):
    (report,) = wait_for_reports(worker, worker.send(task), [kind])
    assert (report.error_type, report.message) == (error_type, message)
    assert (report.attempt, report.max_attempts) == (1, 1)
    assert report.late_ack is (task == "late")
    assert 0 <= report.duration_s < 60


@pytest.mark.parametrize("task", ["ok", "ignore", "soft_caught"])
def test_what_is_no_failure_is_not_reported(worker, task):
    job = worker.send(task)
    worker.wait(lambda: f"{job}] " in worker.text().split("received")[-1] or f"{job}] succeeded" in worker.text())
    later = worker.send("fail")
    worker.wait(lambda: of_job(worker.store_engine, later), what="a later failure")
    assert of_job(worker.store_engine, job) == []


def test_a_job_ended_by_an_operator_is_no_failure(worker):
    job = worker.send("until", "an operator ends it")
    worker.wait(lambda: "an operator ends it" in worker.marks("until"), what="it to run")
    worker.app.control.revoke(job, terminate=True, signal="SIGKILL")
    worker.wait(
        lambda: f"{job}) " in worker.text() or f"{job}] revoked" in worker.text() or "Terminating" in worker.text()
    )
    later = [worker.send("fail"), worker.send("fail")]
    worker.wait(lambda: all(of_job(worker.store_engine, one) for one in later), what="later failures")
    assert of_job(worker.store_engine, job) == []


def test_a_retry_is_reported_with_its_error_and_its_due_time_and_ended_by_the_success(worker):
    began = time.time()
    first, second, last = wait_for_reports(worker, worker.send("flaky", 2, 1), ["retry", "retry", "success"])
    assert (first.error_type, first.message) == ("tests.kit.celery.PartnerDown", "not yet (0)")
    assert began + 1 <= first.due_at <= first.at + 1  # a second after it failed, which is told later
    assert [r.attempt for r in (first, second, last)] == [1, 2, 3]
    assert first.max_attempts == 6
    assert "Retry" not in first.trace and first.trace.rstrip().endswith("not yet (0)")
    assert second.raw != first.raw


def test_autoretry_is_reported_the_same_way(worker):
    first, last = wait_for_reports(worker, worker.send("autoretry", 1), ["retry", "success"])
    assert first.error_type == "tests.kit.celery.PartnerDown"
    assert (first.max_attempts, last.attempt) == (3, 2)


def test_the_last_retry_ends_in_an_exception(worker):
    _, last = wait_for_reports(worker, worker.send("exhaust"), ["retry", "exception"])
    assert (last.attempt, last.max_attempts) == (2, 2)


def test_an_error_that_cannot_be_pickled_keeps_its_own_name(worker):
    for report in wait_for_reports(worker, worker.send("answered"), ["retry", "exception"]):
        assert (report.error_type, report.message) == ("tests.kit.celery.Answered", "it said 503")
        assert report.trace.rstrip().endswith("\ntests.kit.celery.Answered: it said 503")


def test_the_traceback_of_an_error_that_cannot_be_pickled_is_its_own(worker):
    (report,) = wait_for_reports(worker, worker.send("group"), ["exception"])
    assert "TimeoutError: late" in report.trace and "celery.Unpicklable: cannot travel" in report.trace
    assert "UnpickleableExceptionWrapper" not in report.trace
    (report,) = wait_for_reports(worker, worker.send("http_error"), ["exception"])
    assert report.trace.rstrip().endswith("\nurllib.error.HTTPError: HTTP Error 503: Service Unavailable")


def test_a_retry_that_names_no_error_is_reported_with_the_one_it_was_queried_in(worker):
    first, _ = wait_for_reports(worker, worker.send("bare_retry"), ["retry", "success"])
    assert (first.error_type, first.message) == ("tests.kit.celery.PartnerDown", "in passing")


REPLAYED = {"queue": "emails", "job_id": "first", "run": 2, "item": 7}


def replay(worker, task: str, *args, desk="of today", **options) -> tuple[str, dict]:
    """Sends a job as a replay does, onto a broker that cannot send once. Its id, and its header."""
    job_id, key = str(uuid4()), uuid4().hex
    header = REPLAYED | {"replay": key, "once": True} | ({"sent_as": job_id} if desk == "of today" else {})
    worker.send(task, *args, task_id=job_id, headers={"tenant": "t", "redrive": header}, **options)
    return job_id, header


def its_own(header: dict) -> Lineage:
    return Lineage.from_header(header)


@pytest.mark.parametrize("desk", ["of today", "older"])
@pytest.mark.parametrize("task", ["flaky", "autoretry"])
def test_a_replayed_job_keeps_its_lineage_through_celerys_own_retry(worker, task, desk):
    job_id, header = replay(worker, task, 1, desk=desk)
    first, last = wait_for_reports(worker, job_id, ["retry", "success"])
    assert first.lineage == last.lineage == its_own(header)


@pytest.mark.parametrize("desk", ["of today", "older"])
def test_a_job_that_got_the_headers_of_a_replayed_one_is_run_and_reported_about(worker, desk):
    child = str(uuid4())
    parent, header = replay(worker, "hands_on", "fail", child, "failed itself", desk=desk)
    (of_parent,), (of_child,) = (
        wait_for_reports(worker, parent, ["exception"]),
        wait_for_reports(worker, child, ["exception"]),
    )
    assert (of_parent.lineage, of_parent.message) == (its_own(header), "failed itself")
    assert json.loads(of_child.raw)["headers"]["redrive"] == header  # it has it, and it is not its own
    assert of_child.lineage == (None if desk == "of today" else its_own(header))


def test_a_job_that_got_the_headers_of_a_replayed_one_and_runs_well_is_no_news(worker):
    child = str(uuid4())
    parent, header = replay(worker, "hands_on", "ok", child)
    (of_parent,) = wait_for_reports(worker, parent, ["success"])
    worker.wait(lambda: f"{child}] succeeded" in worker.text(), what="the child")
    assert of_parent.lineage == its_own(header) and wait_for_reports(worker, child, []) == []


def test_a_job_that_got_the_headers_and_is_retried_has_no_part_in_the_replay(worker):
    child = str(uuid4())
    replay(worker, "hands_on", "exhaust", child)
    assert [one.lineage for one in wait_for_reports(worker, child, ["retry", "exception"])] == [None, None]


def test_what_takes_a_replayed_task_s_place_is_the_replayed_job_and_no_copy(worker):
    """`self.replace`: the same id, the first attempt again."""
    (ended,) = wait_for_reports(worker, (sent := replay(worker, "replaced", "fail"))[0], ["exception"])
    assert (ended.message, ended.task, ended.lineage) == ("in its place", "fail", its_own(sent[1]))


def test_the_next_links_of_a_replayed_job_are_jobs_of_their_own(worker):
    link, broken = (str(uuid4()) for _ in range(2))
    app = worker.app
    replay(worker, "ok", link=app.signature("fail", task_id=link, immutable=True))
    replay(worker, "fail", link_error=app.signature("hands_on", args=("fail", broken), immutable=True))
    chained = app.signature("ok", immutable=True) | app.signature("fail", immutable=True)
    of_chain = str(uuid4())
    header = REPLAYED | {"replay": "r" * 32, "once": True, "sent_as": of_chain}
    last = chained.apply_async(task_id=str(uuid4()), queue="celery", headers={"redrive": header}).id
    for one in (link, broken, last):
        (report,) = wait_for_reports(worker, one, ["exception"])
        assert report.lineage is None


def test_a_replayed_job_reports_its_success_at_once(worker):
    header = {"queue": "emails", "job_id": "first", "run": 2, "item": 7, "replay": "r1"}
    (report,) = wait_for_reports(worker, worker.send("ok", headers={"redrive": header}), ["success"])
    assert report.lineage.item == 7
    assert report.raw is None


def test_hostile_text_is_reported_in_bounds(worker):
    (report,) = wait_for_reports(worker, worker.send("hostile", 10_000_000), ["exception"])
    assert report.message.startswith("a\x00b\ud800c password=[redacted] xxx")
    assert len(report.message) < 10_000
    assert len(report.trace) < 200_000
    assert report.redacted >= 1


def test_arguments_are_shown_without_secrets_and_the_tenant_is_read(worker):
    kwargs = {"customer": {"id": 42}, "password": "hunter2", "note": "Bearer abcdef123456"}
    (report,) = wait_for_reports(
        worker, worker.send("fail", "x", kwargs=kwargs, queue="emails", priority=3), ["exception"]
    )
    assert json.loads(report.args) == ["x"]
    assert json.loads(report.kwargs)["password"] == "[redacted]"
    assert "hunter2" not in report.kwargs + report.headers
    assert b"hunter2" in base64.b64decode(json.loads(report.raw)["body"])
    assert (report.tenant, report.queue, report.priority, report.release) == ("42", "emails", 3, "2026.11")
    assert report.worker.startswith("w") and report.host


def test_a_message_over_the_bound_reports_its_size_and_keeps_its_head(worker):
    (report,) = wait_for_reports(
        worker, worker.send("fail", "big", kwargs={"blob": "y" * 17_000_000}), ["exception"], deadline_s=60
    )
    assert report.raw_size > 17_000_000
    assert len(report.raw) == 64 * 1024
    assert not report.is_raw_complete


def test_the_raw_message_is_the_element_that_was_in_the_queue(start, own_store):
    worker = start(own_store.url, later=True)
    kwargs = {"name": "Zoë \u202e 😀", "n": 1.0, "big": 2**70, "none": None, "deep": [[[{}]]]}
    jobs = [
        worker.send("fail", "plain", queue="emails"),
        worker.send("fail", "odd", kwargs=kwargs, queue="emails", priority=9, headers={"x-own": {"a": [1]}}),
        worker.send("fail", "later", queue="emails", countdown=0.5, expires=3600),
    ]
    with redis.Redis.from_url(worker.broker_url) as client:
        lists = [f"emails{suffix}" for suffix in ("", "\x06\x163", "\x06\x166", "\x06\x169")]
        before = {json.loads(raw)["headers"]["id"]: raw for name in lists for raw in client.lrange(name, 0, -1)}
    assert set(before) == set(jobs)
    worker.start()
    worker.wait(lambda: len(reports(own_store)) == 3, what="three reports")
    for report in reports(own_store):
        assert report.raw == before[report.job_id]
        assert report.raw_sha256 == hashlib.sha256(before[report.job_id]).hexdigest()
        assert report.queue == "emails"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_message_that_another_language_wrote_is_reported_byte_for_byte(start, own_store, pool):
    worker = start(own_store.url, later=True, pool=pool)
    model = worker.send("fail", "Zoë 😀", kwargs={"customer": {"id": 42}}, queue="held", headers={"who": "Zoë"})
    with redis.Redis.from_url(worker.broker_url) as client:
        message = json.loads(client.rpop("held"))

        def element(number: int, **style) -> bytes:
            """As Node or Go write it, each with an id of its own and a number that Python would write otherwise."""
            message["headers"]["id"] = message["properties"]["delivery_tag"] = f"{model}-{number}"
            text = json.dumps(message, ensure_ascii=False, **style)
            return text.replace('"priority":', '"cost":1.50e3, "priority":', 1).encode()

        sent = [element(1, separators=(",", ":")), element(2, indent=1), element(3, sort_keys=True)]
        client.lpush("emails", *sent[:2])
        worker.start()
        worker.wait(lambda: len(reports(own_store)) == 2, what="two reports")
        client.client_kill_filter(_type="normal", skipme=True)  # the worker reconnects, on another channel
        client.lpush("emails", sent[2])
    worker.wait(lambda: len(reports(own_store)) == 3, what="the report after the reconnection")
    assert sorted(report.raw for report in reports(own_store)) == sorted(sent)
    for report in reports(own_store):
        assert report.raw_sha256 == hashlib.sha256(report.raw).hexdigest()
        assert (json.loads(report.args), report.tenant) == (["Zoë 😀"], "42")


def test_a_job_that_succeeds_makes_no_call_to_the_store(worker):
    with redis.Redis.from_url(worker.store_engine.url) as client:

        def calls() -> dict[str, int]:
            stats = client.info("commandstats")
            return {name: stats[name]["calls"] for name in stats if name not in ("cmdstat_info", "cmdstat_hgetall")}

        worker.wait(lambda: client.hgetall(keys.workers("shop")), what="a heartbeat")
        done, started, before = len(worker.marks("ok")), time.monotonic(), calls()
        for number in range(400):
            worker.send("ok", number)
        worker.wait(lambda: len(worker.marks("ok")) == done + 400, what="400 jobs")
        after, seconds = calls(), time.monotonic() - started
    made = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
    assert "cmdstat_xadd" not in made
    # What is left is a look each second and some beats of heartbeats, thirteen commands each: a call a job would be 400 more.
    assert sum(made.values()) <= 40 + 4 * seconds, made


def test_the_heartbeat_counts_what_happened(worker):
    def heartbeat():
        with redis.Redis.from_url(worker.store_engine.url) as client:
            if not (heartbeats := client.hvals(keys.workers("shop"))):
                return None  # not yet
            assert 0 < client.ttl(keys.workers("shop")) <= 86_400
            (beat,) = heartbeats
            return json.loads(beat)

    worker.wait(lambda: reports(worker.store_engine) or worker.send("fail"), what="a report")
    before = worker.wait(heartbeat)
    for task in ("ok", "ok", "fail", "exhaust"):
        worker.send(task, queue="webhooks")

    def ended():
        count = heartbeat()["counts"].get("webhooks")
        return count and sum(count[how] for how in ("succeeded", "failed", "retried")) >= 5 and count

    count = worker.wait(ended, what="counts")
    assert count == {"started": 5, "succeeded": 2, "failed": 2, "retried": 1, "busy_s": count["busy_s"]}
    assert count["busy_s"] > 0
    assert before["boot"] == heartbeat()["boot"]
    last = heartbeat()
    assert (last["pool"], last["concurrency"], last["mode"]) == ("prefork", 2, "enforce")
    assert last["broker"] == "redis"
    assert last["queues"] == ["celery", "emails", "webhooks"]
    assert last["late_ack"]["webhooks"] is False


def test_off_is_obeyed_within_two_seconds_and_so_is_on(worker):
    assert 1.2 * POLL_SECONDS < 2  # the longest pause between two looks; how busy this machine is, is no matter
    with redis.Redis.from_url(worker.store_engine.url) as client:
        client.set(keys.switch(), "off")
        try:
            worker.wait(lambda: "guard was switched off" in worker.text(), what="the guard to be off")
            job = worker.send("fail", "unseen")
            worker.wait(lambda: f"{job}] raised" in worker.text())
        finally:
            client.delete(keys.switch())
        worker.wait(lambda: "guard was switched on" in worker.text(), what="the guard to be on")
    later = worker.send("fail", "seen")
    worker.wait(lambda: of_job(worker.store_engine, later), what="a later failure")
    assert of_job(worker.store_engine, job) == []


def test_memory_error_is_reported_before_the_worker_stops_as_stock_celery_does(start, own_store):
    worker = start(own_store.url)
    job = worker.send("memory")
    worker.wait(lambda: of_job(own_store, job), may_die=True)
    assert [(r.kind, r.error_type) for r in of_job(own_store, job)] == [("memory", "MemoryError")]


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_other_pools_are_guarded_too(start, own_store, pool):
    worker = start(own_store.url, pool=pool)
    failed, flaky, fine = worker.send("fail"), worker.send("flaky", 1), worker.send("ok")
    worker.wait(lambda: worker.marks("ok") and len(reports(own_store)) == 3, what="three reports")
    assert [r.kind for r in of_job(own_store, failed)] == ["exception"]
    assert {(r.attempt, r.kind) for r in of_job(own_store, flaky)} == {(1, "retry"), (2, "success")}
    assert of_job(own_store, fine) == []


def test_a_request_class_of_the_app_is_still_called(start, own_store):
    worker = start(own_store.url, environment={"REAL_REQUEST": "1"})
    jobs = {worker.send("late"), worker.send("fail")}  # `fail` has a base class of its own, and Celery's request
    worker.wait(lambda: {r.job_id for r in reports(own_store)} == jobs, what="both reports")
    worker.wait(lambda: worker.marks("shop_request"), what="the app's own request")
    assert set(worker.marks("shop_request")) < jobs


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"REDRIVE_MODE": "off"}, "guard is off"),
        ({"REDRIVE_MODE": "ofF "}, "guard is off"),
        ({"REDRIVE_MODE": "of"}, "REDRIVE_MODE='of' is none of"),
        ({"REDRIVE_REDIS_URL": ""}, "it knows no store"),
        ({"REDRIVE_REDIS_URL": "http://x:secretword@y"}, "URL cannot be used"),
        ({"REDRIVE_STREAM_MB": "much"}, "whole number of megabytes"),
    ],
)
def test_where_it_cannot_work_it_reports_it_and_the_worker_runs(start, own_store, environment, message):
    worker = start(own_store.url, pool="solo", environment=environment)
    job = worker.send("fail")
    worker.wait(lambda: f"{job}] raised" in worker.text())
    assert message in worker.text()
    assert "secretword" not in worker.text()
    assert reports(own_store) == []


def test_the_brokers_own_redis_is_used_only_on_request_and_with_a_warning(start, broker):
    worker = start("broker", pool="solo")
    job = worker.send("fail")
    with redis.Redis.from_url(worker.broker_url) as client:
        worker.wait(lambda: client.xlen(keys.failures("shop")), what="a report on the broker")
    assert "Set REDRIVE_REDIS_URL to a Redis of its own" in worker.text()
    assert job


def test_the_brokers_url_is_used_as_celery_spells_it():
    """redis-py takes the URL as it is and raises at each connect, in a thread where no one would see why."""
    app = make_app("rediss://:secret@broker.example:6380/3?ssl_cert_reqs=CERT_OPTIONAL&visibility_timeout=60")
    install(app, source="shop", redis_url="broker")
    made = client(_store_url(app, app.redrive_wish)).connection_pool.make_connection()
    assert (made.host, made.port, made.db, made.cert_reqs) == ("broker.example", 6380, 3, ssl.CERT_OPTIONAL)


def test_a_version_of_celery_that_is_not_accepted_is_refused():
    assert [v for v in ("5.2.7", "5.3.0", "5.6.1", "5.7.0", "5.8.0rc1", "6.0.0", "x") if is_supported(v)] == [
        "5.3.0",
        "5.6.1",
        "5.7.0",
    ]


def test_an_older_version_is_guarded_and_the_worker_reports_that_it_was_not_tested(start, own_store):
    worker = start(own_store.url, pool="solo", environment={"REAL_CELERY_VERSION": "5.4.0"})
    job = worker.send("fail")
    worker.wait(lambda: of_job(own_store, job), what="the report")
    assert "accepts Celery 5.4.0, and is tested with 5.3, 5.5, 5.7" in worker.text()


def test_an_untested_version_leaves_the_worker_unguarded_but_running(start, own_store):
    worker = start(own_store.url, pool="solo", environment={"REAL_CELERY_VERSION": "5.8.1"})
    job = worker.send("fail")
    worker.wait(lambda: f"{job}] raised" in worker.text())
    assert "Celery 5.8.1 is not one of 5.3 to 5.7" in worker.text()
    assert reports(own_store) == []


def test_installing_twice_is_installing_once():
    app = make_app("memory://")
    install(app, source="shop")
    install(app, source="other")
    assert app.redrive_wish.source == "shop"
    assert [step for step in app.steps["consumer"] if step is GuardStep] == [GuardStep]


class Lazy:
    """As lazy objects of many libraries: it makes what it stands for when it is asked for its class."""

    @property
    def __class__(self):
        raise RuntimeError("it is not there yet")


def test_a_lazy_object_in_the_process_is_not_queried_what_it_is():
    app = make_app("memory://")
    app.use_fast_trace_task = True  # as where a worker begins
    import_module("celery.worker.consumer.consumer")
    lazy = Lazy()
    install(app, source="shop")
    assert app.redrive_wish.source == "shop"
    del lazy


def test_what_install_cannot_use_is_reported_and_not_raised(caplog):
    app = make_app("memory://")
    install(app, source="shop", tenant=5)
    assert not hasattr(app, "redrive_wish")
    assert GuardStep not in app.steps["consumer"]
    assert "Redrive's guard is not installed" in caplog.text


PRODUCER = """
import sys, threading
from celery import Celery
app = Celery("p", broker="memory://")
@app.task
def one(): pass
before = one.Request
loaded = set(sys.modules)
threads = threading.active_count()
from jobs_admin.worker.celery import install
install(app, source="shop", redis_url="redis://10.255.255.1:1/0")
one.delay(); one.apply()
assert one.Request is before
assert threading.active_count() == threads
print(*sorted(m for m in set(sys.modules) - loaded if m.startswith(("jobs_admin", "redis", "django"))))
print("inert")
"""


def test_a_producer_stays_as_it_was():
    done = subprocess.run(
        [sys.executable, "-c", PRODUCER], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=90, check=False,
    )  # fmt: skip
    ours = "jobs_admin jobs_admin.core jobs_admin.core.keys jobs_admin.worker jobs_admin.worker.celery jobs_admin.worker.versions"
    assert done.stdout.splitlines() == [ours, "inert"], done.stderr


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"redrive": {"queue": "q", "job_id": "x", "run": float("inf")}}},
        {"headers": {"redrive": {"queue": "q", "job_id": "x", "run": 10**400, "item": float("nan")}}},
        {"retries": float("inf")},
        {"priority": 10**400},
    ],
)
def test_no_header_keeps_a_failure_from_being_reported(worker, options):
    (report,) = wait_for_reports(worker, worker.send("fail", **options), ["exception"])
    assert report.message == "it failed" and report.is_raw_complete


def test_a_job_whose_report_cannot_be_made_is_reported_by_its_name_and_its_message(own_store, tmp_path):
    app = make_app("memory://")
    app.send_task("fail", args=["x"], task_id="j1", queue="its-own")  # in memory, for all of a process
    channel = Connection("memory://").channel()
    message = Message(channel._get("its-own"), channel=channel)
    # A path that is no text: reading the tenant fails, as a fault of ours would.
    guard = Guard(Origin("shop", "", (5,)), Store(own_store.url, "shop", Spool(tmp_path / "s")))
    guard.store.dial()
    request = guarded(Request, guard)(message, app=app, hostname="w@h", task=app.tasks["fail"])
    guard.job_timed_out(request, 1)
    guard.job_timed_out(request, 1)
    (report,) = reports(own_store)
    assert (report.job_id, report.task, report.queue, report.kind) == ("j1", "fail", "its-own", "hard_limit")
    assert report.is_raw_complete and json.loads(report.raw)["headers"]["id"] == "j1" and guard.broken == 1


def test_a_worker_reports_which_tasks_it_knows_once_and_again_when_the_store_forgot(start, own_store):
    worker = start(own_store.url)

    with redis.Redis.from_url(own_store.url) as store:

        def names() -> list[str]:
            heartbeats = [json.loads(beat) for beat in store.hvals(keys.workers("shop"))]
            tasks = store.get(keys.tasks("shop", heartbeats[0]["tasks"])) if heartbeats else None
            return json.loads(tasks) if tasks else []

        worker.wait(names, what="the names of its tasks")
        assert {"ok", "fail", "flaky"} <= set(names()) and not any(name.startswith("celery.") for name in names())
        store.flushall()
        worker.wait(names, what="the names once more")
