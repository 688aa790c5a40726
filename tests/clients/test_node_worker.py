"""Redrive's piece in real BullMQ workers on Node: policies published on the desk, budgets shared with Python, pills under real kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import redis
from django.utils import timezone

from dashboard.setup.engine import Engine
from jobs_admin import ingest, policies
from jobs_admin.core import keys, worker_acl
from jobs_admin.core.envelope import encode
from jobs_admin.core.policy import parse
from jobs_admin.fleet import heartbeats
from jobs_admin.models import Failure
from jobs_admin.models.access import ENGINE, OPERATOR, Viewer
from jobs_admin.sources import connect
from jobs_admin.sources.bullmq import job_hash as bullmq_job_hash
from jobs_admin.sources.bullmq import jobs as bullmq_saved
from jobs_admin.worker.at_start import BEAT, END, START
from jobs_admin.worker.budget import SCRIPT, arguments
from tests.kit import node
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db]

ROOT = Path(__file__).parents[2]
PIECE = ROOT / "clients/node"
ANN = Viewer("ann", {"*": OPERATOR})
SAVED = keys.bullmq_kept("shop")
SOON = {"kind": "fixed", "first_delay_s": 0.05}


@pytest.fixture(scope="module", autouse=True)
def packages():
    try:
        return node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))


@pytest.fixture
def own_store(tmp_path):
    """A store that a test may stop and count."""
    running = Engine(tmp_path / "own-store").start()
    yield running
    running.stop()


@pytest.fixture
def bull(engine, store):
    """Start workers with the Node agent; BullMQ's database is another than the store's."""
    started = []

    def start(major=6, queue="emails", **more) -> node.Bullmq:
        guard = {"source": "shop", "store": engine.url, **more.pop("guard", {})}
        environment = {"REAL_PATIENCE": "10", **(more.pop("environment", None) or {})}
        made = node.Bullmq(major, of_bullmq(engine), work=[queue], guard=guard, environment=environment, **more)
        started.append(made)
        return made.start()

    yield start
    for one in started:
        one.stop()


def of_bullmq(engine):
    return engine.url.removesuffix("/0") + "/1"


def publish(expected=None, name="tries", **fields):
    document = {"match": {"source": "shop"}, "mode": "enforce", "max_attempts": 3, "backoff": SOON, **fields}
    made = policies.publish(ANN, name, document, expected_version=expected)
    policies.push()
    return made


def obeyed(made):
    """Wait until the desk hears from the one worker that it runs this version."""

    def runs_the_policy():
        heartbeats.count_heartbeats(timezone.now())
        return policies.in_force(ENGINE, [made])[made.name].sentence == f"1 of 1 workers on v{made.version}"

    wait_until(runs_the_policy, f"the worker to run {made.name}@{made.version}")


def ended(bull, job, runs):
    """The worker's reports of the job's failures, once there are `n`."""
    wait_until(lambda: len(bull.list_events("failed", id=job)) >= runs, f"{runs} failures of {job}")
    return bull.list_events("failed", id=job)


def report(engine, job, queue="emails"):
    """The adapter's report of the stored job."""
    client = redis.Redis.from_url(of_bullmq(engine))
    fields = client.hgetall(f"bull:{queue}:{job}")
    client.close()
    return bullmq_job_hash.build_report("shop", queue, job, fields, 6)


@pytest.mark.parametrize("major", node.MAJORS)
def test_an_edit_decides_over_the_next_failure_and_the_desk_knows_which_version_did(bull, engine, major):
    first = publish()
    worker = bull(major)
    obeyed(first)
    job = worker.add("emails")
    assert not worker.list_events("failed", id=job)
    again = worker.add("emails", data={"fails": 9})  # without attempts: BullMQ alone would not try it again
    wait_until(lambda: worker.queue("emails", "getFailedCount") == 1, "the job to be dead")
    assert len(ended(worker, again, 3)) == 3
    filed = report(engine, again)
    assert (filed.policy, filed.reason, filed.attempt, filed.max_attempts) == ("tries@1", "exhausted", 3, 3)
    assert filed.worker and filed.host
    obeyed(publish(expected=1, max_attempts=1))
    once = worker.add("emails", data={"fails": 9}, attempts=5, backoff={"type": "exponential", "delay": 10})
    wait_until(lambda: worker.queue("emails", "getFailedCount") == 2, "the job to be dead")
    assert len(ended(worker, once, 1)) == 1 and report(engine, once).policy == "tries@2"
    client = redis.Redis.from_url(of_bullmq(engine))
    assert (
        json.loads(client.hget(f"bull:emails:{once}", "opts"))["attempts"] == 5
    )  # the job keeps what it was added with


def test_an_error_that_is_permanent_is_not_tried_again(bull, engine):
    obeyed_by = publish(classes=[{"error": "Invalid*", "as": "permanent"}])
    worker = bull()
    obeyed(obeyed_by)
    jobs = [
        worker.add("emails", data={"fails": 9, "name": "InvalidAddress"}, attempts=5),
        worker.add("emails", data={"fails": 9, "unrecoverable": True}, attempts=5),
        worker.add("emails", data={"fails": 9, "code": "InvalidArgument"}, attempts=5),
    ]
    wait_until(lambda: worker.queue("emails", "getFailedCount") == 3, "the jobs to be dead")
    assert [(report(engine, job).reason, len(ended(worker, job, 1))) for job in jobs] == [("permanent", 1)] * 3


def test_a_policy_that_observes_reports_what_it_would_do_and_leaves_the_job_to_bullmq(bull, engine):
    made = publish(mode="observe", classes=[{"error": "Invalid", "as": "permanent"}])
    worker = bull()
    obeyed(made)
    job = worker.add("emails", data={"fails": 9, "name": "Invalid"}, attempts=2)
    ended(worker, job, 2)
    filed = wait_until(lambda: (one := report(engine, job)).attempt == 2 and one, "the last attempt")
    assert (filed.observed, filed.policy) == ("would be dead: permanent", "tries@1")


def test_a_ceiling_and_the_switch_hold_every_policy_back(bull, engine, store):
    made = publish(max_attempts=1)
    worker = bull()
    store.set(keys.switch(), "off")
    wait_until(lambda: _mode(store) == "off", "the worker to be off")
    job = worker.add("emails", data={"fails": 1}, attempts=2)
    worker.wait_for_event("completed", id=job)
    store.delete(keys.switch())
    wait_until(lambda: _mode(store) == "enforce", "the worker to be on again")
    obeyed(made)
    job = worker.add("emails", data={"fails": 1}, attempts=2)
    wait_until(lambda: worker.queue("emails", "getFailedCount") == 1, "the job to be dead")
    worker.stop()
    observing = bull(guard={"mode": "observe"})
    observing.wait_for_event("completed", id=observing.add("emails", data={"fails": 1}, attempts=2))


def _mode(store):
    heartbeats = [json.loads(text) for text in store.hvals(keys.workers("shop"))]
    return max(heartbeats, key=lambda one: one["at"])["mode"] if heartbeats else ""


def test_what_a_server_requests_is_waited_for(bull, engine):
    made = publish()
    worker = bull()
    obeyed(made)
    job = worker.add("emails", data={"fails": 1, "retryAfter": 1.5})
    worker.wait_for_event("completed", id=job)
    first, second = (line["at"] for line in worker.list_events("start", id=job))
    assert second - first >= 1500
    client = redis.Redis.from_url(of_bullmq(engine))
    note = json.loads(client.hget(f"bull:emails:{job}", "redriveNote"))
    assert 1.5 <= note["delay_s"] <= 1.5 * 1.2 and note["reason"] == "asked to wait 1.5 s"


def test_workers_of_both_kinds_spend_from_one_budget(bull, engine, store):
    made = publish(max_attempts=9, budget={"per_minute": 0.0001, "burst": 3, "group": "partner"})
    worker = bull()
    obeyed(made)
    call = arguments("partner", 0.0001, 3, spent=1)  # as a Celery worker spends it
    assert store.eval(SCRIPT.text, 1, keys.budget("shop"), *call) == [1, 2]
    job = worker.add("emails", data={"fails": 99})
    wait_until(lambda: worker.queue("emails", "getFailedCount") == 1, "the job to be dead")
    assert len(ended(worker, job, 3)) == 3 and report(engine, job).reason == "budget"
    assert store.eval(SCRIPT.text, 1, keys.budget("shop"), *call) == [0, 0]


def test_a_policy_that_a_node_worker_cannot_do_only_observes_and_reports_it(bull, store):
    publish(max_attempts=1, rate_limit={"max": 1, "per_s": 60})
    worker = bull()

    def refused():
        return [json.loads(text)["refused"] for text in store.hvals(keys.workers("shop"))]

    wait_until(lambda: any("rate_limit" in one.get("tries", "") for one in refused()), "the worker to say so")
    job = worker.add("emails", data={"fails": 1}, attempts=2)
    worker.wait_for_event("completed", id=job)


def test_a_job_that_bullmq_forgets_at_once_reaches_the_desk_complete_and_once(bull, engine):
    worker = bull()
    job = worker.add("emails", "welcome", {"fails": 9, "to": "ann\u00e9"}, attempts=2, removeOnFail=True)
    client = redis.Redis.from_url(of_bullmq(engine))
    wait_until(lambda: bullmq_saved.saved_waiting(client, SAVED, 0, 10)[0] == [("emails", job)], "the job to be kept")
    wait_until(lambda: not client.exists(f"bull:emails:{job}"), "BullMQ to forget it")
    source = connect("shop", "bullmq", of_bullmq(engine), ["emails"], {})
    pulled = source.dead_letters("")
    (report,) = (one for one in pulled.reports if one.job_id == job)
    assert (report.task, report.attempt, report.error_type, report.message) == (
        "welcome", 2, "PartnerDown", "the partner is down",
    )  # fmt: skip
    assert bullmq_job_hash.arguments(report.raw) == ([], {"fails": 9, "to": "ann\u00e9"})
    assert [one.job_id for one in source.dead_letters("").reports] == [job]  # nobody has filed it yet
    source.confirm_filed(pulled)
    assert not bullmq_saved.saved_waiting(client, SAVED, 0, 10)[0] and not client.keys(f"{SAVED}*")
    assert source.dead_letters(pulled.after).reports == []
    source.close()


def test_without_its_store_a_worker_does_what_bullmq_does(bull, own_store):
    broker_url = own_store.url
    worker = bull(guard={"store": broker_url})
    client = redis.Redis.from_url(broker_url)
    wait_until(lambda: client.hlen(keys.workers("shop")), "a sign of life")
    before = client.info("stats")["total_commands_processed"]
    jobs = [worker.add("emails") for _ in range(300)]
    worker.wait_for_event("completed", id=jobs[-1])
    # The sign of life goes on meanwhile, however long that takes; no job that ran well has asked anything.
    assert client.info("stats")["total_commands_processed"] - before < 250
    own_store.stop()
    job = worker.add("emails", data={"fails": 1}, attempts=2)
    assert worker.wait_for_event("completed", id=job)["attempt"] == 2
    dead = worker.add("emails", data={"fails": 9}, attempts=2)
    ended(worker, dead, 2)


def test_with_a_store_user_of_its_source_a_worker_is_refused_nothing(bull, own_store):
    client = redis.Redis.from_url(own_store.url)
    user = worker_acl.user_of("shop")
    client.execute_command("ACL SETUSER", user, ">secret", *worker_acl.rules("shop"))
    policy = {"mode": "enforce", "poison": {}, "budget": {"per_minute": 600, "burst": 10}, "backoff": SOON}
    client.hset(keys.policies(), "tries", json.dumps({"name": "tries", "version": 1, "policy": policy}))
    client.set(keys.policies_version(), 1)
    worker = bull(guard={"store": f"redis://{user}:secret@127.0.0.1:{own_store.port}/0"})
    wait_until(lambda: b'"tries":1' in b"".join(client.hvals(keys.workers("shop"))), "the worker to run it")
    job = worker.add("emails", data={"fails": 1})
    assert worker.wait_for_event("completed", id=job)["attempt"] == 2
    (heartbeat,) = map(json.loads, client.hvals(keys.workers("shop")))
    assert (heartbeat["store_user"], heartbeat["uncounted"], heartbeat["shared_out"], heartbeat["broken"]) == (
        user,
        0,
        0,
        0,
    )
    assert client.acl_log() == []


def test_a_store_that_hangs_holds_up_no_job(bull, engine, own_store):
    client = redis.Redis.from_url(own_store.url)
    policy = {
        "mode": "enforce",
        "poison": {},
        "budget": {"per_minute": 60, "burst": 10},
        "cap_s": 0.2,
        "backoff": SOON,
    }
    client.hset(keys.policies(), "tries", json.dumps({"name": "tries", "version": 1, "policy": policy}))
    client.set(keys.policies_version(), 1)
    worker = bull(guard={"store": own_store.url}, environment={"REAL_PATIENCE": ""})
    wait_until(lambda: b'"tries":1' in b"".join(client.hvals(keys.workers("shop"))), "the worker to run it")
    os.kill(own_store.process.pid, signal.SIGSTOP)
    try:
        jobs = [worker.add("emails", data={"fails": 1}) for _ in range(20)]
        for job in jobs:
            assert worker.wait_for_event("completed", id=job)["attempt"] == 2
        requested = redis.Redis.from_url(of_bullmq(engine))
        note = json.loads(requested.hget(f"bull:emails:{jobs[-1]}", "redriveNote"))
        # Ten at once, and then one a second, as one process of one may: the last waits for some 10 s, less what the others took.
        assert note["reason"].startswith("the budget could not be read: by this process' share of it, its turn came ")
        assert 0 < note["delay_s"] < 11
    finally:
        os.kill(own_store.process.pid, signal.SIGCONT)
    # A heartbeat that was sent while the store hung may be read first: its counts are those of its time.
    filed = wait_until(
        lambda: [one for one in map(json.loads, client.hvals(keys.workers("shop"))) if one["shared_out"] >= 20],
        "the count",
    )
    assert filed[0]["uncounted"] >= 20 and filed[0]["shared_out"] == 20


class Supervised:
    """A worker that is started again whenever it ends, as a supervisor does."""

    def __init__(self, start, queue, concurrency, environment):
        self._start = lambda: start(
            queue=queue,
            environment=environment,
            # A worker that starts after this time may check for stalled jobs before it knows the policies (docs/node.md).
            options={"concurrency": concurrency, "lockDuration": 3000, "stalledInterval": 1000},
        )
        self.lives = [self._start()]

    def tend(self):
        if not self.lives[-1].script.is_running:
            self.lives.append(self._start())

    def wait_for_event(self, kind, **of):
        return [line for life in self.lives for line in life.list_events(kind, **of)]


# A pill, how many jobs run at once beside it.
PILLS = {
    "killed": ({"crash": True}, 1),
    "left": ({"ends": "exit"}, 1),
    "uncaught": ({"ends": "uncaught"}, 3),
    "filled": ({"ends": "memory"}, 1),
    "beside": ({"crash": True}, 4),
}


@pytest.mark.long("Starts a Node worker and lets it die of each kind of pill.")
def test_a_pill_of_each_kind_starts_as_often_as_its_policy_allows_and_no_one_else_is_blamed(bull, engine, store):
    publish(max_attempts=5, poison={"crashes": 2, "window_s": 600})
    small = {"NODE_OPTIONS": "--max-old-space-size=40"}
    client = redis.Redis.from_url(of_bullmq(engine))
    producer = bull(queue="none")
    fleet, pills, good = {}, {}, {}
    for queue, (pill, _) in PILLS.items():
        good[queue] = [producer.add(queue, data={"sleep": 300}) for _ in range(3)]
        pills[queue] = producer.add(queue, "pill", pill)
        good[queue] += [producer.add(queue, data={"sleep": 300}) for _ in range(5)]
    for queue, (_, at_once) in PILLS.items():
        fleet[queue] = Supervised(bull, queue, at_once, small if queue == "filled" else None)

    def is_over():
        for one in fleet.values():
            one.tend()
        return all(client.zcard(f"bull:{q}:failed") and client.zcard(f"bull:{q}:completed") == 8 for q in fleet)

    wait_until(is_over, "all pills in quarantine, and all else done", within_s=240)
    for queue, supervised in fleet.items():
        assert len(supervised.wait_for_event("start", id=pills[queue])) == 2, queue
        filed = report(engine, pills[queue], queue)
        assert (filed.kind, filed.reason, filed.policy) == ("worker_lost", "poison", "tries@1"), queue
        assert len(crashes := json.loads(filed.crashes)) == 2, queue
        assert all(crash["at"] <= crash["seen_at"] <= time.time() for crash in crashes), queue
        assert client.zrange(f"bull:{queue}:failed", 0, -1) == [pills[queue].encode()], queue
        assert len(supervised.lives) == 3, queue


def test_a_pill_in_a_sandbox_is_convicted_alone_and_at_once(bull, engine, store):
    made = publish(max_attempts=9, poison={"crashes": 2, "window_s": 600})
    worker = bull(sandbox=True, options={"concurrency": 3})
    obeyed(made)
    pill = worker.add("emails", data={"crash": True})
    good = [worker.add("emails") for _ in range(5)]
    wait_until(lambda: worker.queue("emails", "getFailedCount") == 1, "the pill to be in quarantine")
    filed = report(engine, pill)
    assert (filed.kind, filed.reason, filed.attempt) == ("worker_lost", "poison", 2)
    assert [one["how"] for one in json.loads(filed.crashes)] == ["killed", "killed"]
    wait_until(lambda: len(worker.list_events("completed")) == len(good), "the others to run well")
    ingest.file([(b"1-1", encode(filed))])
    assert Failure.objects.get().state == "quarantined"


def test_a_pill_that_was_replayed_is_allowed_its_crashes_again(bull, engine, store):
    publish(max_attempts=5, poison={"crashes": 1, "window_s": 600})
    producer = bull(queue="none")
    job = producer.add("pills", "pill", {"ends": "exit"})
    supervised = Supervised(bull, "pills", 1, None)
    client = redis.Redis.from_url(of_bullmq(engine))
    for n in (1, 2):

        def is_over():
            supervised.tend()
            return client.zcard("bull:pills:failed")

        wait_until(is_over, "the quarantine")
        wait_until(lambda: not store.keys("redrive:{shop}:crash:job:*"), "what was held against it to be forgotten")
        assert len(supervised.wait_for_event("start", id=job)) == n
        producer.job("pills", job, "retry")


def test_a_worker_that_was_ordered_to_end_leaves_no_suspects(bull, engine, store):
    made = publish(poison={"crashes": 1, "window_s": 600})
    worker = bull(options={"lockDuration": 1000, "stalledInterval": 500})
    obeyed(made)
    job = worker.add("emails", data={"sleep": 4_000})
    worker.wait_for_event("start", id=job)
    worker.script.write('{"n": 99, "do": "rest", "queue": "emails"}')
    wait_until(
        lambda: any(
            store.hget(key, "leaving")
            for key in store.keys("redrive:{shop}:crash:boot:*")
            if store.type(key) == b"hash"
        ),
        "it to leave",
    )
    assert not worker.list_events("completed", id=job)
    worker.script.kill()
    other = bull(options={"lockDuration": 1000, "stalledInterval": 500})
    assert other.wait_for_event("completed", id=job)


# -- the same as in Python ----------------------------------------------------------------------------------------


def test_the_scripts_are_those_of_the_python_guard():
    for name in ("budget", "limits", "crashes", "at_start", "at_end", "beat"):
        assert (PIECE / f"lua/{name}.lua").read_bytes() == (ROOT / f"jobs_admin/worker/{name}.lua").read_bytes()
    output = _node(
        "const {Script}=require('./lib/redis');const l=require('./lib/ledger');"
        "console.log(JSON.stringify(l.SCRIPTS.map((one) => one.text)))"
    )
    assert output == [START.text, END.text, BEAT.text]


def test_the_names_in_redis_are_those_of_the_python_guard():
    output = _node(
        "const k=require('./lib/keys');console.log(JSON.stringify([k.switch,k.workers('shop'),k.policies,k.policiesVersion,k.budget('shop'),"
        "k.crash('shop','a'),k.crash('shop','q/\u00e9'),k.boots('shop'),k.boot('shop','b'),k.leases('shop','p',''),k.starts('shop','p'),k.kept('shop')]))"
    )
    assert output == [
        keys.switch(), keys.workers("shop"), keys.policies(), keys.policies_version(), keys.budget("shop"), keys.crash("shop", "a"),
        keys.crash("shop", "q/\u00e9"), keys.boots("shop"), keys.boot("shop", "b"), keys.leases("shop", "p", ""), keys.starts("shop", "p"),
        keys.bullmq_kept("shop"),
    ]  # fmt: skip


def test_a_policy_of_every_field_is_read_alike():
    document = {
        "name": "all", "match": {"queue": "web*"}, "mode": "enforce", "native": "after", "max_attempts": 7, "cap_s": 600,
        "backoff": {"kind": "polynomial", "first_delay_s": 3, "power": 2.5, "plus_s": 1}, "jitter": {"kind": "down", "fraction": 0.25},
        "retry_after": {"jitter": 0.1, "cap_s": 50}, "classes": [{"error": "A*", "as": "permanent"}], "budget": {"per_minute": 55},
        "poison": {}, "exhausted": "escalate", "file_lost": True, "expires_at": "2099-01-01T00:00:00Z", "note": "n",
    }  # fmt: skip
    policy = parse(document)
    output = _node(f"console.log(JSON.stringify(require('./lib/policy').parse({json.dumps(document)})))")
    assert output["unknown"] == [] and output["mode"] == "enforce"
    assert output["backoff"] == {
        name: getattr(policy.backoff, name) for name in ("kind", "first_delay_s", "factor", "power", "plus_s")
    } | {"delays_s": []}
    assert (output["budget"]["burst"], output["poison"]) == (policy.budget.burst, {"crashes": 3, "window_s": 300})
    assert (output["match"], output["retry_after"]) == (
        {"source": "*", "queue": "web*", "task": "*"},
        {"respect": True, "jitter": 0.1, "cap_s": 50},
    )


def test_the_pure_parts_pass_their_own_tests():
    done = subprocess.run(["node", "--test", "test/"], cwd=PIECE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_parts_do_what_they_report_in_one_process(engine, store):
    """Many cases, each with a worker of its own, at the cost of one Node: `node/parts.mjs`."""
    places = {**os.environ, "STORE": engine.url, "BULLMQ": of_bullmq(engine)}
    command = ["node", "--test", str(ROOT / "tests/node/parts.mjs")]
    done = subprocess.run(command, env=places, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    wrong = re.search(r"^(?: *not ok|# \w*Error)", output, re.MULTILINE)
    assert done.returncode == 0, output[wrong.start() if wrong else -4000 :][:4000]


def _node(script):
    done = subprocess.run(["node", "-e", script], cwd=PIECE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
