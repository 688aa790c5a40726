"""Jobs that are acknowledged before they run, under a policy that files them as lost: real workers, killed, frozen, cut off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter

import pytest
import redis
from django.utils import timezone

from jobs_admin import config, replays
from jobs_admin.core import keys
from jobs_admin.core.envelope import decode
from jobs_admin.ingest.lost_jobs import CONFIRM_SILENCE_S, Reaper
from jobs_admin.models import Attempt, Failure, QueueCounter
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.worker.at_start import AtStart
from tests.kit.ledger import KEEPING, elements, fall_silent, file_all, list_stored, of_store, reap
from tests.kit.patience import patient
from tests.kit.policies import obeyed, policy, published, running
from tests.kit.sources import forget_configuration
from tests.kit.streams import of_job, reports

pytestmark = [
    pytest.mark.server,
    pytest.mark.django_db(transaction=True),
    pytest.mark.long("Each kills real workers, and starts others that find what was left."),
]

ANN = Viewer("ann", {"*": OPERATOR})


@pytest.fixture
def desk(engine, store, settings, broker):
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": broker.url.removesuffix("/0") + "/1"}
    forget_configuration(config)
    return store


@pytest.mark.django_db(transaction=True)
def test_what_ran_in_a_killed_worker_is_filed_once_each_byte_for_byte_and_is_replayed_to_success(start, engine, desk):
    version = published(engine.url, KEEPING)
    worker = start(engine.url, later=True)
    jobs = [worker.send("until", f"j{n}", kwargs={"error": ""}, queue="celery") for n in range(5)]
    sent = elements(worker)
    worker.start()
    worker.wait(lambda: len(worker.marks("until")) == 2 and len(list_stored(desk)) == 2, what="two that run")
    with redis.Redis.from_url(worker.broker_url) as client:
        # All fetched: what kombu has popped and not yet written into `unacked` dies with the process.
        worker.wait(
            lambda: (client.hlen("unacked"), client.llen("celery")) == (3, 0),
            what="two acknowledged and the others fetched",
        )
    ran = {worker.marks("until")[0], worker.marks("until")[1]}
    lost = {job for n, job in enumerate(jobs) if f"j{n}" in ran}
    worker.kill()
    reap(desk, watches=4)
    found = reports(engine)
    assert sorted(one.job_id for one in found) == sorted(lost) and desk.xlen(keys.failures("shop")) == 2
    for one in found:
        assert (one.kind, one.attempt, one.queue, one.task) == ("lost", 1, "celery", "until")
        assert (one.raw, one.is_raw_complete, one.late_ack) == (sent[one.job_id], True, False)
        assert one.policy == f"keeping@{version}" and one.args.startswith('["j') and one.release == "2026.11"
        assert one.reason.startswith(f"worker {one.worker} stopped soon after ")
        assert one.reason.endswith("the job had been acknowledged, so the broker will not redeliver it")
    assert list_stored(desk) == [] and not desk.smembers(keys.kept_boots("shop"))
    with redis.Redis.from_url(worker.broker_url) as client:  # those that had not begun: the broker has them
        assert client.hlen("unacked") + client.llen("celery") == 3
    file_all()
    assert set(Failure.objects.values_list("first_job_id", "state", "kind")) == {(j, "dead", "lost") for j in lost}

    for n in range(5):
        worker.let(f"j{n}")
    worker.start()
    replay = replays.start(ANN, replays.draft(ANN, query="kind:lost", reason="the worker was killed"))

    def recovered():
        replays.create_items()
        replays.send("test", timezone.now())
        file_all()
        replays.settle(timezone.now())
        return Failure.objects.filter(state="recovered").count() == 2

    worker.wait(recovered, what="both to run well")
    replay.refresh_from_db()
    assert replay.succeeded == 2
    worker.wait(lambda: not list_stored(desk), what="nothing kept")  # which is told behind the report


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_other_pools_keep_theirs_too(start, own_store, pool):
    published(own_store.url, KEEPING)
    worker = start(own_store.url, pool=pool, concurrency=2)
    at_once = 1 if pool == "solo" else 2
    jobs = [worker.send("until", f"j{n}") for n in range(at_once)]
    with of_store(own_store) as client:
        worker.wait(lambda: len(list_stored(client)) == at_once, what="jobs that run")
        worker.kill()
        reap(client)
        assert sorted(one.job_id for one in reports(own_store)) == sorted(jobs)
        worker.start()
        well = worker.send("ok")
        bad = worker.send("fail_plain")
        worker.wait(lambda: worker.marks("ok") and of_job(own_store, bad), what="both ends")
        worker.wait(lambda: not list_stored(client), what="nothing kept")
        assert not of_job(own_store, well)


class Monitor:
    """All that a store is asked between two moments."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._lines: list[str] = []
        self._monitor = self._client.monitor().__enter__()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError, ValueError):
            for command in self._monitor.listen():
                self._lines.append(command["command"])

    def of_the_ledger(self) -> list[str]:
        return [line for line in self._lines if ":kept" in line and not line.startswith("SCAN")]

    def count(self, begins: str) -> int:
        return sum(line.startswith(begins) for line in self._lines)

    def has_seen(self, text: str) -> bool:
        return any(text in line for line in self._lines)


@pytest.fixture
def quiet(worker):
    """The shared worker without a policy, and its store."""
    obeyed(worker, worker.store_engine.url)
    with of_store(worker.store_engine) as client:
        client.flushall()
        yield client
    obeyed(worker, worker.store_engine.url)


def run_jobs(worker, n: int, monitor: Monitor, task: str = "ok") -> None:
    before = len(worker.marks("ok"))
    for _ in range(n):
        worker.send(task)
    worker.wait(lambda: len(worker.marks("ok")) == before + n, what=f"{n} jobs")
    with of_store(worker.store_engine) as client:  # what was sent before this is seen when this is
        client.echo(f"behind {n} {task}")
    worker.wait(lambda: monitor.has_seen(f"behind {n} {task}"), what="the monitor")


def test_without_such_a_policy_no_call_is_made_and_nothing_is_stored(worker, quiet):
    url = worker.store_engine.url
    monitor = Monitor(url)
    run_jobs(worker, 20, monitor)
    obeyed(worker, url, policy("plain", "*"))
    run_jobs(worker, 21, monitor)
    obeyed(worker, url, KEEPING | {"mode": "observe"})
    run_jobs(worker, 22, monitor)
    obeyed(worker, url, KEEPING | {"match": {"task": "another"}})
    run_jobs(worker, 23, monitor)
    assert monitor.of_the_ledger() == []
    obeyed(worker, url, KEEPING)
    run_jobs(worker, 10, monitor)
    worker.wait(lambda: not list_stored(quiet), what="nothing kept")
    for word in ("HSET", "HDEL"):
        worker.wait(lambda word=word: monitor.count(f"{word} redrive:{{shop}}:kept:") == 10, what=f"10 of {word}")


ENDS = [
    ("ok", ()), ("fail_plain", ()), ("flaky", (1,)), ("exhaust", ()), ("reject", ()), ("ignore", ()), ("killed", ()),
    ("hard", ()), ("soft", ()), ("leaves", ()), ("unpicklable", ()), ("try", ("down", 2)),
]  # fmt: skip


def has_ended(reports_of_job):
    """Not only one of its attempts: between two of them nothing of it is kept."""
    return bool(reports_of_job) and reports_of_job[-1].kind != "retry"


def test_whatever_way_a_job_ends_nothing_is_left_and_nothing_is_called_lost(worker, quiet):
    url, engine = worker.store_engine.url, worker.store_engine
    obeyed(worker, url, policy("keeping", "*", max_attempts=2, native="after", file_lost=True))
    jobs = [worker.send(task, *args) for task, args in ENDS]
    revoked = worker.send("until", "never")
    worker.wait(lambda: "never" in worker.marks("until"), what="the one that is revoked")
    worker.wait(lambda: any(name.startswith(revoked) for name in list_stored(quiet)), what="it to be kept")
    worker.app.control.revoke(revoked, terminate=True, signal="SIGKILL")
    silent = {"ok", "ignore"}
    reporting = [job for job, (task, _) in zip(jobs, ENDS, strict=True) if task not in silent]
    worker.wait(lambda: all(has_ended(of_job(engine, job)) for job in reporting), 90, "all to be told")
    worker.wait(lambda: not list_stored(quiet), what="nothing kept")
    reap(quiet)
    theirs = {one.kind for one in reports(engine) if one.job_id in {*jobs, revoked}}
    assert "lost" not in theirs
    assert all(heartbeat["unkept"] == 0 for heartbeat in running(url))


def test_what_is_acknowledged_late_is_not_stored(worker, quiet):
    url = worker.store_engine.url
    monitor = Monitor(url)
    obeyed(worker, url, KEEPING)
    job = worker.send("late")
    worker.wait(lambda: of_job(worker.store_engine, job), what="its report")
    # Of the jobs before it the last may leave the ledger only now.
    assert not [command for command in monitor.of_the_ledger() if job in command]


@pytest.mark.django_db
def test_a_worker_that_dies_between_report_and_removal_has_reported_already(start, engine, desk):
    published(engine.url, KEEPING)
    worker = start(engine.url, concurrency=1, environment={"REAL_DIE_ONCE_IT_IS_TOLD": "1"})
    job = worker.send("until", "j", kwargs={"error": "it failed"})
    worker.wait(
        lambda: list_stored(desk) and running(engine.url),
        what="it to be kept, by a worker that has a line to the store",
    )
    worker.let("j")
    worker.wait(lambda: worker.process.poll() is not None, what="its death", may_die=True)
    assert list_stored(desk) == [f"{job}:1"]
    file_all()
    before = rows()
    reap(desk)
    assert [one.kind for one in of_job(engine, job)] == ["lost"]
    file_all()
    assert rows() == before
    assert before[0] == [(job, "dead", "exception", 1)] and len(before[1]) == 1


def rows():
    return (
        list(Failure.objects.values_list("first_job_id", "state", "kind", "attempts")),
        list(Attempt.objects.order_by("pk").values_list("failure", "run", "attempt", "kind")),
        list(QueueCounter.objects.order_by("pk").values()),
    )


@pytest.mark.django_db
def test_a_worker_that_was_only_frozen_has_the_last_word(start, engine, desk):
    published(engine.url, KEEPING)
    worker = start(engine.url)
    well = worker.send("until", "well")
    bad = worker.send("until", "bad", kwargs={"error": "it failed after all"})
    worker.wait(lambda: len(list_stored(desk)) == 2, what="both to be kept")
    os.killpg(worker.process.pid, signal.SIGSTOP)
    try:
        reap(desk)
        file_all()
        assert set(Failure.objects.values_list("first_job_id", "kind")) == {(well, "lost"), (bad, "lost")}
    finally:
        os.killpg(worker.process.pid, signal.SIGCONT)
    worker.let("well")
    worker.let("bad")
    worker.wait(lambda: of_job(engine, well) and of_job(engine, bad), what="its own word")
    file_all()
    filed = set(Failure.objects.values_list("first_job_id", "state", "kind", "message"))
    assert (bad, "dead", "exception", "it failed after all") in filed
    assert (well, "recovered", "success") in {one[:3] for one in filed}
    assert "had been filed as lost" in Attempt.objects.get(failure__first_job_id=well, kind="success").reason
    # And once that is said, nothing is known of it any more.
    fall_silent(desk)
    worker.wait(lambda: not list(desk.scan_iter("redrive:{shop}:kept:*")), what="nothing left in the store")


def test_a_store_that_is_away_holds_up_no_job_and_it_is_reported(start, own_store):
    published(own_store.url, KEEPING)
    worker = start(own_store.url, concurrency=1, environment={"REAL_PATIENCE": ""})
    worker.send("ok")
    worker.wait(lambda: worker.marks("ok"), what="a first job")
    open_job = worker.send("until", "through")
    with of_store(own_store) as client:
        worker.wait(lambda: list_stored(client), what="one that runs")
    os.kill(own_store.process.pid, signal.SIGSTOP)
    try:
        worker.let("through")
        began = time.monotonic()
        for _ in range(400):
            worker.send("ok")
        worker.wait(lambda: len(worker.marks("ok")) == 401, what="400 jobs")
        assert time.monotonic() - began < 30  # at 100 ms each it would be forty seconds and more
        assert "go on without keeping jobs that are acknowledged before they run" in worker.text()
    finally:
        os.kill(own_store.process.pid, signal.SIGCONT)
    # Not all: the main process may hear of the last ones when the store is back.
    worker.wait(lambda: running(own_store.url)[0]["unkept"] > 320, what="what was not kept to be told")
    with of_store(own_store) as client:
        worker.wait(lambda: not list_stored(client), what="the end of what was open to be heard")

        names = (f"after{n}" for n in range(100))

        def is_stored_again():
            """One job after another, until the worker has found out that the store answers."""
            name = next(names)
            worker.send("until", name)
            with contextlib.suppress(AssertionError):
                return worker.wait(lambda: list_stored(client), 3)
            worker.let(name)

        worker.wait(is_stored_again, what="jobs to be kept again")
    assert not of_job(own_store, open_job)
    worker.kill()


def test_of_jobs_that_began_none_vanishes_in_several_kills(start, own_store):
    published(own_store.url, KEEPING)
    worker = start(own_store.url, later=True, concurrency=4, environment={"REAL_VISIBILITY": "1"})
    jobs = {n: worker.send("noted", n, 0.1) for n in range(160)}
    for lines in (
        30,
        50,
        40,
    ):  # by what ran, not by the clock: however busy the machine is, jobs are left for the next kill
        worker.start()
        noted = len(worker.marks("noted"))
        worker.wait(lambda most=noted + lines: len(worker.marks("noted")) >= most, 60, "jobs to run")
        worker.kill()
        with of_store(own_store) as client:
            reap(client, watches=2)
    worker.start()
    with of_store(own_store) as client, redis.Redis.from_url(worker.broker_url) as of_broker:
        worker.wait(lambda: not of_broker.llen("celery") and not of_broker.hlen("unacked"), what="an empty broker")
        worker.wait(lambda: not list_stored(client), what="nothing that runs")
    lines = [line.split() for line in worker.marks("noted")]
    began, ended = ({int(line[2]) for line in lines if line[0] == what} for what in ("start", "end"))
    found = Counter(one.job_id for one in reports(own_store))
    starts = Counter(jobs[int(line[2])] for line in lines if line[0] == "start")
    # Once for each worker that died with it: one that was not acknowledged yet came again, and the last may not have got
    # as far as its first line.
    assert {job: n for job, n in found.items() if n > starts[job] + 1} == {}
    assert {jobs[n] for n in began - ended} <= set(found)
    assert found, "no kill hit a job"


def test_what_a_cold_shutdown_ends_is_filed_as_lost(start, own_store):
    """Celery cancels it: acknowledged already, and published no more."""
    published(own_store.url, KEEPING)
    worker = start(own_store.url, concurrency=1, environment={"REDRIVE_STREAM_MB": "7"})
    job = worker.send("until", "never")
    with of_store(own_store) as client, redis.Redis.from_url(worker.broker_url) as of_broker:
        worker.wait(lambda: list_stored(client) and not of_broker.hlen("unacked"), what="one that runs")
        (boot,) = client.zrange(keys.boots("shop"), 0, -1)
        assert client.hget(keys.boot("shop", boot.decode()), "stream") == b"%d" % (7 * 1024**2)  # for who files it
        worker.process.send_signal(signal.SIGQUIT)
        worker.process.wait(60)
        reap(client)
        assert [one.kind for one in of_job(own_store, job)] == ["lost"] and not list_stored(client)


def test_a_worker_that_reports_goodbye_is_not_waited_for(own_store):
    with of_store(own_store) as client:
        leaving = AtStart(patient(own_store.url), "shop", "b1", "w@here", "here")
        client.sadd(keys.kept_boots("shop"), "b1")
        client.hset(keys.kept("shop", "b1"), "j1", b"1000 1 2\n{}raw")
        leaving.beat()
        Reaper().check(client, 0.0)
        assert list_stored(client)
        leaving.beat("gone")
        Reaper().check(client, 0.0)
        ((_, fields),) = client.xrange(keys.failures("shop"))
        assert b"worker w@here stopped at 2" in fields[b"lost"] and fields[b"raw"] == b"raw"


def test_a_store_that_was_away_makes_no_one_lost(start, own_store):
    """Every worker looks silent then, until it has given a sign."""
    published(own_store.url, KEEPING)
    worker = start(own_store.url, concurrency=1)
    worker.send("until", "j")
    with of_store(own_store) as client:
        worker.wait(lambda: list_stored(client), what="one that runs")
        reaper, boot = Reaper(), client.zrange(keys.boots("shop"), 0, -1)[0]
        fall_silent(client)
        reaper.check(client, 0.0)
        before = client.zscore(keys.boots("shop"), boot)
        worker.wait(lambda: client.zscore(keys.boots("shop"), boot) > before, what="its next sign")
        fall_silent(client)  # and again: the two looks saw two silences
        reaper.check(client, CONFIRM_SILENCE_S)
        assert list_stored(client) and not reports(own_store)
        reaper.check(client, 2 * CONFIRM_SILENCE_S + 100)  # nor does a silence count that nobody looked at
        assert list_stored(client) and not reports(own_store)
    worker.kill()


def test_a_report_that_cannot_be_read_is_filed_as_that_and_not_dropped(own_store):
    with of_store(own_store) as client:
        client.sadd(keys.kept_boots("shop"), "b1", "no such place", "x" * 300)
        client.hset(keys.kept("shop", "b1"), "j1", b"\xff\x00 nonsense")
        reap(client)
        ((_, fields),) = client.xrange(keys.failures("shop"))
        assert fields == {b"kept": b"\xff\x00 nonsense"}
        with pytest.raises(ValueError):
            decode(fields)


def test_a_job_that_the_broker_gives_again_is_not_lost_in_the_worker_that_never_acknowledged_it(start, own_store):
    """A worker died between the two; only its trace in the store is played here."""
    published(own_store.url, KEEPING)
    worker = start(own_store.url, later=True, concurrency=1, environment={"REAL_VISIBILITY": "1"})
    job = worker.send("until", "j")
    with of_store(own_store) as client, redis.Redis.from_url(worker.broker_url) as of_broker:
        (element,) = of_broker.lrange("celery", 0, -1)
        message = json.loads(element)
        message["properties"]["delivery_info"]["redelivered"] = True
        message["headers"]["redelivered"] = True  # as kombu marks what it puts back
        of_broker.lset("celery", 0, json.dumps(message))
        client.sadd(keys.kept_boots("shop"), "dead")
        client.sadd(keys.kept_boots("other"), "dead")
        for source in ("shop", "other"):
            client.hset(keys.kept(source, "dead"), f"{job}:1", b"1000 1 2\n{}raw")
        worker.start()
        worker.wait(lambda: not client.exists(keys.kept("shop", "dead")), what="the trace to go")
        assert list_stored(client) == [f"{job}:1"] and client.exists(keys.kept("other", "dead"))
        worker.kill()
