"""The wheel in workers of the oldest Celery that it is put into, of one in the middle and of the latest: real ones, without Django."""

from __future__ import annotations

import base64
import json
import re
import subprocess

import pytest
import redis
from amqp import Message
from kombu import Connection

from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage
from jobs_admin.worker.versions import TESTED, VERSION
from tests.kit.celery import RealWorker
from tests.kit.garbage import CORPUS, element
from tests.kit.policies import attempts, obeyed, policy, running
from tests.kit.streams import of_job, reports
from tests.workers.environments import LOCKS, Environments, OutOfReach, pip

pytestmark = pytest.mark.server

# What kombu, until 5.3.5, falls over where a connection breaks (kombu#1774): with the guard and without.
_FALLS_OVER = r"RuntimeError\('Set changed size during iteration'\)|'NoneType' object has no attribute 'fileno'"
NAMES = [f"celery-{major}.{minor}" for major, minor in TESTED]


def locked(name: str, package: str) -> str:
    return re.search(rf"^{package}==(\S+)", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE)[1]


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    try:
        return Environments(tmp_path_factory.mktemp("environments"), NAMES)
    except OutOfReach as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=NAMES)
def worker(request, environments, tmp_path_factory):
    """One for all tests of a version."""
    broker = Engine(tmp_path_factory.mktemp("broker")).start()
    store = Engine(tmp_path_factory.mktemp("store")).start()
    jitter = {"REAL_RECONNECT_JITTER": "0.5"}
    made = RealWorker(broker.url, store.url, home=environments[request.param], environment=jitter).start()
    made.store_engine, made.environment_name = store, request.param
    yield made
    made.stop()
    for engine in (broker, store):
        engine.stop()


def wait_for_reports(worker, job: str, kinds: list[str], deadline_s: float = 60):
    worker.wait(lambda: len(of_job(worker.store_engine, job)) >= len(kinds), deadline_s, f"{kinds} of {job}")
    found = sorted(of_job(worker.store_engine, job), key=lambda report: report.attempt)
    assert [report.kind for report in found] == kinds
    return found


def test_what_runs_is_the_wheel_beside_the_locked_celery_and_no_django(worker):
    program = (
        "from importlib.util import find_spec as find; from importlib.metadata import version, requires;"
        "print(version('redrive-worker'), version('celery'), version('redis'), find('django'), find('jobs_admin.models'));"
        "print(find('jobs_admin').origin)"
    )
    done = subprocess.run(
        [worker.home.python, "-c", program], cwd=worker.home.folder, capture_output=True, text=True, check=True
    )
    name = worker.environment_name
    versions, origin = done.stdout.splitlines()
    assert versions == f"{VERSION} {locked(name, 'celery')} {locked(name, 'redis')} None None"
    assert origin.startswith(str(worker.home.python.parent.parent))
    # What the wheel asks for is what is there.
    check = [*pip(worker.home.python), "check"]
    assert subprocess.run(check, capture_output=True, text=True, check=False).stdout.startswith(
        "No broken requirements"
    )
    (heartbeat,) = worker.wait(lambda: running(worker.store_engine.url))
    assert (heartbeat["celery"], heartbeat["guard"]) == (locked(name, "celery"), VERSION)
    assert "Redrive's guard records the failures of" in worker.text()
    assert "and is tested with" not in worker.text()


def test_each_bad_end_is_reported_once_and_complete(worker):
    ends = {
        "fail": ("exception", "tests.kit.celery.PartnerDown"),
        "late": ("exception", "tests.kit.celery.PartnerDown"),
        "soft": ("soft_limit", "billiard.exceptions.SoftTimeLimitExceeded"),
        "hard": ("hard_limit", "billiard.exceptions.TimeLimitExceeded"),
        "killed": ("worker_lost", "billiard.exceptions.WorkerLostError"),
        "leaves": ("worker_lost", None),  # billiard before 4.2 tells of the exit, later ones of SystemExit
        "unpicklable": ("exception", "tests.kit.celery.Unpicklable"),
        "unprintable": ("exception", "tests.kit.celery.Unprintable"),
        "reject": ("rejected", "celery.exceptions.Reject"),
    }
    jobs = {task: worker.send(task) for task in ends}
    fine = [worker.send(task) for task in ("ok", "ignore", "soft_caught")]
    for task, (kind, error_type) in ends.items():
        (report,) = wait_for_reports(worker, jobs[task], [kind])
        assert error_type in (report.error_type, None)
        assert (report.attempt, report.late_ack, report.is_raw_complete) == (1, task == "late", True)
        assert json.loads(report.raw)["headers"]["id"] == jobs[task]
    assert [of_job(worker.store_engine, job) for job in fine] == [[], [], []]


def test_the_raw_message_is_the_element_that_was_in_the_queue(worker):
    job = worker.send("fail", "Zoë 😀", queue="held", headers={"who": "Zoë"})
    with redis.Redis.from_url(worker.broker_url) as client:
        # As another language writes it: without spaces, in UTF-8, with a number that Python would write otherwise.
        text = json.dumps(json.loads(client.rpop("held")), ensure_ascii=False, separators=(",", ":"))
        element = text.replace('"priority":', '"cost":1.50e3,"priority":', 1).encode()
        client.lpush("emails", element)
    (report,) = wait_for_reports(worker, job, ["exception"])
    assert report.raw == element


def test_celerys_own_retries_are_reported_and_ended_by_the_success(worker):
    flaky, automatic, gives_up = worker.send("flaky", 2), worker.send("autoretry", 1), worker.send("exhaust")
    first, _, last = wait_for_reports(worker, flaky, ["retry", "retry", "success"])
    assert (first.error_type, first.message, last.attempt) == ("tests.kit.celery.PartnerDown", "not yet (0)", 3)
    assert wait_for_reports(worker, automatic, ["retry", "success"])[0].max_attempts == 3
    assert wait_for_reports(worker, gives_up, ["retry", "exception"])[1].message == "never"


def test_a_dead_job_is_replayed_to_success(worker):
    worker.break_("ann")
    job = worker.send("deliver", "ann", queue="emails")
    (dead,) = wait_for_reports(worker, job, ["exception"])
    worker.fix("ann")
    source = connect("shop", "celery", worker.broker_url)
    try:
        lineage = {"queue": "emails", "job_id": job, "run": 2, "item": 7, "replay": "r1"}
        source.send("r1", [OutgoingMessage(7, dead.raw, "emails", f"{job}-2", lineage)])
    finally:
        source.close()
    (well,) = wait_for_reports(worker, f"{job}-2", ["success"])
    assert (well.lineage.item, worker.marks("delivered")) == (7, ["ann"])


def test_a_policy_decides_and_what_waits_comes_back(worker):
    waits = {"backoff": {"kind": "fixed", "first_delay_s": 0.5}}
    version = obeyed(
        worker,
        worker.store_engine.url,
        policy("webhooks", "try*", **waits, classes=[{"error": "ValueError", "as": "permanent"}]),
        policy("pills", "dies", **waits),
        policy("slow", "hangs", **waits),
        policy("asked", "asks", **waits, native="replace"),
    )
    try:
        well, wrong, never = worker.send("try", "down", 2), worker.send("try1", "wrong"), worker.send("try2")
        lost, hung, with_retry_after = worker.send("dies", 2), worker.send("hangs", 2), worker.send("asks", 2)
        first, last = wait_for_reports(worker, well, ["retry", "success"])
        assert (first.policy, last.attempt) == (f"webhooks@{version}", 2)
        (_, began), (_, again) = attempts(worker, well)
        assert again - began >= 0.5
        (permanent,) = wait_for_reports(worker, wrong, ["exception"])
        assert permanent.reason == "permanent"
        assert wait_for_reports(worker, never, ["retry", "retry", "exception"])[2].reason == "exhausted"
        for job in (lost, hung, with_retry_after):
            assert wait_for_reports(worker, job, ["retry", "success"])[0].max_attempts == 3
    finally:
        obeyed(worker, worker.store_engine.url)


def test_what_never_becomes_a_job_is_reported_and_ends_no_worker(worker):
    unclaimed = worker.send("nobody_knows")
    sent = {name: element(name, n) for n, name in enumerate(CORPUS)}
    with redis.Redis.from_url(worker.broker_url) as broker:
        broker.lpush("webhooks", *sent.values())
        good = worker.send("fail", "behind it", queue="webhooks")
        wait_for_reports(worker, good, ["exception"])
        (unknown,) = wait_for_reports(worker, unclaimed, ["unknown_task"])
        assert json.loads(unknown.raw)["headers"]["id"] == unclaimed
        wanted = {raw: CORPUS[name][1] for name, raw in sent.items() if CORPUS[name][1]}

        def find_kinds():
            return {report.raw: report.kind for report in reports(worker.store_engine) if report.raw in wanted}

        worker.wait(lambda: len(find_kinds()) == len(wanted), what="a report of each")
        assert find_kinds() == wanted
    assert worker.text().count(" ready.") == 1 and "Connection to broker lost" not in worker.text()


def test_off_is_obeyed_and_so_is_on(worker):
    with redis.Redis.from_url(worker.store_engine.url) as client:
        client.set(keys.switch(), "off")
        try:
            worker.wait(lambda: "guard was switched off" in worker.text(), what="the guard to be off")
            job = worker.send("fail", "unseen")
            worker.wait(lambda: f"{job}] raised" in worker.text())
        finally:
            client.delete(keys.switch())
        worker.wait(lambda: "guard was switched on" in worker.text(), what="the guard to be on")
    wait_for_reports(worker, worker.send("fail", "seen"), ["exception"])
    assert of_job(worker.store_engine, job) == []


def test_it_comes_back_when_its_connections_break(worker):
    def ended() -> bool:
        return worker.process.poll() is not None

    with redis.Redis.from_url(worker.broker_url) as broker:
        for _ in range(2):
            lost = worker.text().count("Connection to broker lost")
            broker.client_kill_filter(_type="normal", skipme=True)
            worker.wait(
                lambda lost=lost: worker.text().count("Connection to broker lost") > lost or ended(),
                what="the loss",
                may_die=True,
            )
            job = worker.send("fail", "after it")
            worker.wait(lambda job=job: of_job(worker.store_engine, job) or ended(), may_die=True)
            if ended():
                assert worker.environment_name == "celery-5.3", worker.text()[-5_000:]
                assert re.search(_FALLS_OVER, worker.text()), worker.text()[-5_000:]
                worker.start()
            worker.wait(lambda job=job: of_job(worker.store_engine, job))
            # Once, or again where it ran and could not be acknowledged any more.
            assert {report.kind for report in of_job(worker.store_engine, job)} == {"exception"}


@pytest.mark.parametrize("name", NAMES)
def test_on_rabbitmq_a_failure_is_reported_with_all_its_parts_and_replayed_to_success(
    environments, node, own_store, name
):
    jobs = RealWorker(node.url, own_store.url, home=environments[name], queues=name)
    aside, is_known = f"{name}-aside", {"durable": True, "auto_delete": False, "arguments": {"x-max-priority": 10}}
    try:
        with Connection(node.url) as connection:
            channel = connection.default_channel
            for queue in (name, aside):
                channel.queue_declare(queue, **is_known)
            job = jobs.send("deliver", "Zoë 😀", queue=aside, priority=6, headers={"who": "Zoë"})
            jobs.wait(lambda: channel.queue_declare(aside, passive=True).message_count, what="the message")
            message = channel.basic_get(aside, no_ack=True)
            channel.basic_publish(Message(message.body, **message.properties), "", name)
        jobs.break_("Zoë 😀")
        jobs.start()
        (dead,) = jobs.wait(lambda: of_job(own_store, job), what="its report")
        data = json.loads(dead.raw)
        body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
        assert (dead.kind, dead.queue, dead.priority, base64.b64decode(data["body"])) == ("exception", name, 6, body)
        properties = {name: value for name, value in message.properties.items() if name != "application_headers"}
        assert data["headers"] == message.properties["application_headers"]
        assert {name: data["properties"].get(name) for name in properties} == properties
        jobs.fix("Zoë 😀")
        with redis.Redis.from_url(own_store.url) as client:
            source = connect("shop", "celery", node.url, queues=[name], store=lambda: client)
            try:
                lineage = {"queue": name, "job_id": job, "run": 2, "item": 7, "replay": "r1"}
                source.send("r1", [OutgoingMessage(7, dead.raw, name, f"{job}-2", lineage)])
            finally:
                source.close()
        (well,) = jobs.wait(lambda: of_job(own_store, f"{job}-2"), what="the replayed job")
        assert (well.kind, well.lineage.item, jobs.marks("delivered")) == ("success", 7, ["Zoë 😀"])
    finally:
        jobs.stop()


def test_its_configuration_is_read_and_nothing_of_the_guard_broke(worker):
    def settled():
        """The heartbeat once the last report of the tests before is in the store."""
        heartbeats = running(worker.store_engine.url)
        return heartbeats and heartbeats[0]["configuration"] and not heartbeats[0]["spooled"] and heartbeats

    (heartbeat,) = worker.wait(settled)
    with redis.Redis.from_url(worker.store_engine.url) as client:
        text = json.loads(client.get(keys.configuration("shop", heartbeat["configuration"])))
        assert {"ok", "fail", "flaky"} <= set(json.loads(client.get(keys.tasks("shop", heartbeat["tasks"]))))
    assert (text["app"]["broker"], text["app"]["visibility_timeout"]) == ("redis", 3600)
    assert (heartbeat["broken"], heartbeat["dropped"]) == (0, 0)
    assert "Redrive could not" not in worker.text() and "Redrive's heartbeat failed" not in worker.text()
