"""Pauses in real workers, on Redis and on RabbitMQ: nothing starts while they are in force, nothing is lost, nothing runs twice."""

from __future__ import annotations

import json
import time

import pytest

from jobs_admin.core import keys
from jobs_admin.core.pauses import UNTIL_RESUMED
from tests.kit.endurance import crossed
from tests.kit.pausing import unique
from tests.kit.streams import reports

pytestmark = pytest.mark.server

BROKERS = ("redis", "amqp")
WAYS = ("prefork-early", "prefork-late", "threads-early", "solo-late")


@pytest.mark.contract
@pytest.mark.parametrize(
    ("shop", "way"),
    crossed(BROKERS, WAYS, few=[*(f"redis-{way}" for way in WAYS), "amqp-prefork-early", "amqp-solo-late"]),
    indirect=["shop"],
)
def test_what_was_fetched_and_has_not_started_goes_back_and_runs_once_after_the_resume(shop, way):
    paused, other = unique("paused"), unique("other")
    pool, acks = way.split("-")
    shop.work(queues=f"{paused},{other}", late_ack=acks == "late", pool=pool)
    shop.send(1, paused, "the pause")
    shop.settle(lambda: shop.ran() == [0], "a job that runs")
    if pool != "solo":
        shop.send(1, paused, "the pause")
        shop.settle(lambda: shop.ran() == [0, 1], "both places to be taken")
    waiting = shop.send(20, paused)
    time.sleep(0.5)  # some of them are fetched
    since = shop.pause(queues=[paused])
    if pool != "solo":  # whose consumer is busy with the job itself
        shop.settle(lambda: shop.queued(paused) == 20, "all that has not started to be back")
    shop.worker.let("the pause")
    elsewhere = shop.send(3, other)
    shop.settle(lambda: set(elsewhere) <= set(shop.ran()), "the jobs of another queue")
    running = 1 if pool == "solo" else 2
    shop.settle(lambda: len(shop.read_notes("end")) == running + 3, "what ran to its end")
    time.sleep(1.5)
    assert not [n for at, n in shop.read_notes() if at > since and n in waiting]
    assert shop.queued(paused) == 20
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) == shop.sent, "all of them")
    if pool != "solo":
        both = shop.send(2, paused, "both")
        shop.settle(lambda: {*both} <= {*shop.ran()}, "both places to be taken at the same time")
        assert not {n for _, n in shop.read_notes("end")} & {*both}
        shop.worker.let("both")
        shop.settle(lambda: len(shop.read_notes("end")) == shop.sent, "both")
    assert sorted(shop.ran()) == list(range(shop.sent))
    if pool == "solo":  # one after the other: as they were sent
        assert [n for n in shop.ran() if n in waiting] == list(waiting)
    assert {one.kind for one in reports(shop.engine)} <= {"success"}  # of what RabbitMQ delivered again


@pytest.mark.parametrize(
    ("shop", "acks"), crossed(BROKERS, ("early", "late"), few=("redis-early", "amqp-late")), indirect=["shop"]
)
def test_a_job_whose_time_comes_while_its_queue_is_paused_waits_in_the_queue(shop, acks):
    paused = unique("paused")
    shop.work(queues=paused, late_ack=acks == "late")
    jobs = shop.send(6, paused, countdown=15)  # on a slow machine, too, the pause is in force before
    shop.settle(lambda: shop.worker.text().count("noted[") >= 6, "all of them in the worker's memory")
    since = shop.pause(queues=[paused])
    assert not shop.ran()
    shop.settle(lambda: shop.queued(paused) == 6, "all of them back in the queue")
    time.sleep(1)
    assert not [at for at, _ in shop.read_notes() if at > since]
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) == 6, "all of them")
    assert sorted(shop.ran()) == list(jobs)


@pytest.mark.contract
def test_a_worker_that_starts_or_reconnects_while_a_queue_is_paused_starts_nothing_of_it(shop):
    paused, other = unique("paused"), unique("other")
    shop.publish(queues={paused: UNTIL_RESUMED})
    shop.work(queues=f"{paused},{other}", later=True)
    jobs = shop.send(10, paused)
    shop.worker.start()
    shop.wait_for(queues=[paused])
    elsewhere = [*shop.send(2, other)]
    shop.settle(lambda: set(shop.ran()) == set(elsewhere), "the jobs of the other queue")
    shop.cut()
    shop.settle(lambda: "Connection to broker lost" in shop.worker.text(), "the connection to be lost")
    elsewhere += shop.send(2, other)
    shop.settle(lambda: set(elsewhere) <= set(shop.ran()), "the other queue to be consumed again")
    time.sleep(1.5)
    assert set(shop.ran()) == set(elsewhere)
    assert shop.queued(paused) == 10
    shop.publish()
    shop.settle(lambda: set(shop.ran()) == {*jobs, *elsewhere}, "all of them")
    # What ran just before the cut may have been acknowledged too late, and run again.
    assert sorted(n for n in shop.ran() if n in jobs) == list(jobs)


def test_a_worker_all_of_whose_queues_are_paused_lives_and_answers(shop):
    paused = unique("paused")
    shop.publish(queues={paused: UNTIL_RESUMED})
    shop.work(queues=paused)
    shop.wait_for(queues=[paused])
    jobs = shop.send(3, paused)
    time.sleep(3)
    assert shop.worker.app.control.ping(timeout=60, limit=1)
    assert not shop.ran()
    shop.publish()
    shop.settle(lambda: sorted(shop.ran()) == list(jobs), "all of them")


@pytest.mark.contract
@pytest.mark.parametrize(
    ("shop", "moment"), crossed(BROKERS, ("before", "after"), few=("redis-before", "amqp-after")), indirect=["shop"]
)
def test_a_worker_that_is_killed_in_the_midst_of_giving_back_loses_nothing_and_nothing_runs_twice(shop, moment):
    paused = unique("paused")
    dying = {"REAL_DIE_GIVING_BACK": f"{moment} 3", "REAL_VISIBILITY": "2"}
    shop.work(queues=paused, late_ack=True, concurrency=1, prefetch=8, environment=dying)
    shop.worker.send("slow", 300, queue=paused)
    shop.settle(lambda: shop.worker.text().count("slow[") >= 1, "the place to be taken")
    jobs = shop.send(12, paused)
    shop.settle(lambda: shop.worker.text().count("noted[") >= 7, "some of them to be fetched")
    shop.publish(queues={paused: UNTIL_RESUMED})
    shop.worker.wait(lambda: shop.worker.process.poll() is not None, what="its death", may_die=True)
    shop.worker.kill()
    shop.store.delete(keys.workers("shop"))
    shop.work(queues=paused, late_ack=True, environment={"REAL_VISIBILITY": "2"})
    shop.wait_for(queues=[paused])
    shop.settle(lambda: shop.queued(paused) == 13, "all that the dead worker had, and what it was running")
    assert not shop.ran()
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) == 12, "all of them")
    assert sorted(shop.ran()) == list(jobs)


def test_a_pause_ends_at_its_time_and_holds_until_then_while_the_store_is_away(shop, own_store):
    paused = unique("paused")
    shop.work(queues=paused)
    lasts_s = 20  # on a slow machine, too, the store is away before its end
    end = time.monotonic() + lasts_s
    shop.pause(queues=[paused], until=int((time.time() + lasts_s) * 1000))
    own_store.stop()
    jobs = shop.send(5, paused)
    assert time.monotonic() < end
    shop.settle(lambda: sorted(shop.ran()) == list(jobs), "all of them, when the pause has ended")
    assert min(at for at, _ in shop.read_notes()) > end - 0.5


@pytest.mark.parametrize("lost", ["store", "key"])
def test_a_worker_that_starts_without_the_store_or_its_pauses_obeys_what_its_host_read_last(shop, own_store, lost):
    ended, paused, other = unique("ended"), unique("paused"), unique("other")
    queues = f"{ended},{paused},{other}"
    shop.work(queues=queues)
    spool = {"REDRIVE_SPOOL": shop.worker.environment["REDRIVE_SPOOL"]}
    shop.pause(queues=[ended])
    shop.worker.stop()
    shop.store.delete(keys.workers("shop"))
    shop.publish(queues={paused: UNTIL_RESUMED})
    shop.work(queues=queues, environment=spool)  # reads it at its start, and no later change
    shop.wait_for(queues=[paused])
    shop.worker.stop()
    own_store.stop() if lost == "store" else shop.store.delete(keys.pauses("shop"))
    shop.work(queues=queues, environment=spool)
    jobs, elsewhere = shop.send(3, paused), [*shop.send(2, ended), *shop.send(2, other)]
    shop.settle(lambda: {*elsewhere} <= {*shop.ran()}, "the jobs of queues that are not paused")
    time.sleep(2)
    assert not {*jobs} & {*shop.ran()}
    assert shop.queued(paused) == 3


def test_an_access_list_that_lacks_the_pauses_leaves_the_switch_in_order(shop):
    shop.store.execute_command(
        "ACL", "SETUSER", "old", "on", ">old", "+@all", "~redrive:{shop}:[^p]*", "~redrive:[^{]*"
    )
    shop.store_url = "redis://old:old@" + shop.store_url.rpartition("@")[2].removeprefix("redis://")
    shop.work(queues=unique("queue"))
    beat = shop.settle(lambda: [json.loads(one) for one in shop.store.hvals(keys.workers("shop"))], "a heartbeat")
    assert beat[0]["pauses"] == []
    shop.store.set(keys.switch(), "off")
    shop.settle(lambda: "switched off" in shop.worker.text(), "the switch to be obeyed")


@pytest.mark.contract
@pytest.mark.parametrize(
    ("shop", "acks"), crossed(BROKERS, ("early", "late"), few=("redis-late", "amqp-early")), indirect=["shop"]
)
def test_a_paused_task_waits_without_an_attempt_and_others_of_its_queue_run(shop, acks):
    queue = unique("shared")
    shop.work(queues=queue, late_ack=acks == "late")
    since = shop.pause(tasks=["noted"])
    jobs = shop.send(20, queue)
    shop.worker.send("ok", "another", queue=queue)
    shop.settle(lambda: shop.worker.marks("ok"), "another task of the queue")
    shop.settle(lambda: shop.due() == 20, "all of them to wait")
    assert shop.queued(queue) == 0
    time.sleep(7)  # they are checked again meanwhile
    shop.settle(lambda: shop.due() == 20, "all of them to wait again")
    assert not [at for at, _ in shop.read_notes() if at > since]
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) == 20, "all of them")
    assert sorted(shop.ran()) == list(jobs)
    assert {(one.kind, one.attempt) for one in reports(shop.engine)} <= {("success", 1)}


def test_a_worker_that_is_killed_once_a_job_of_a_paused_task_waits_leaves_it_there_once(shop):
    queue = unique("shared")
    shop.publish(tasks={"noted": UNTIL_RESUMED})
    dying = {"REAL_DIE_ONCE_IT_WAITS": "1", "REAL_VISIBILITY": "2"}
    shop.work(queues=queue, late_ack=True, environment=dying)
    jobs = shop.send(5, queue)
    shop.worker.wait(lambda: shop.worker.process.poll() is not None, what="its death", may_die=True)
    shop.worker.kill()
    shop.store.delete(keys.workers("shop"))
    shop.work(queues=queue, late_ack=True, environment={"REAL_VISIBILITY": "2"})
    shop.settle(lambda: shop.due() == 5, "all of them to wait")
    assert not shop.ran()
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) >= 5, "all of them")
    time.sleep(2)
    assert sorted(shop.ran()) == list(jobs)


@pytest.mark.parametrize("shop", ["redis"], indirect=True)
def test_a_call_that_the_hub_dropped_is_made_again(shop):
    paused = unique("paused")
    shop.work(queues=paused, environment={"REAL_DROPPED_CALL": "1"})
    shop.pause(queues=[paused])
    shop.send(3, paused)
    time.sleep(4)
    waiting = shop.send(3, paused)
    time.sleep(2)
    assert not {*waiting} & {*shop.ran()}
    assert shop.queued(paused) >= 3
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) == 6, "all of them")


def test_hundreds_that_were_fetched_go_back_without_a_place_of_the_pool_being_lost(shop):
    paused, other = unique("paused"), unique("other")
    shop.work(queues=f"{paused},{other}", late_ack=True, concurrency=1, prefetch=600)
    shop.send(1, paused, "the way back")
    shop.settle(lambda: shop.ran() == [0], "the place to be taken")
    waiting = shop.send(500, paused)
    shop.settle(lambda: shop.worker.text().count("received") > 400, "most of them to be fetched")
    shop.pause(queues=[paused])
    shop.settle(lambda: shop.queued(paused) == 500, "all of them to be back")
    shop.worker.let("the way back")
    elsewhere = shop.send(5, other)
    shop.settle(lambda: set(elsewhere) <= set(shop.ran()), "the jobs of another queue")
    assert not {*shop.ran()} & {*waiting}
    assert "RecursionError" not in shop.worker.text()
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) == shop.sent, "all of them")
    assert sorted(shop.ran()) == list(range(shop.sent))


@pytest.mark.contract
@pytest.mark.parametrize("shop", ["amqp"], indirect=True)
def test_a_queue_that_is_deleted_without_a_consumer_is_consumed_on_and_the_worker_reports_it(shop):
    queue = unique("temporary")
    shop.work(queues=queue, environment={"REAL_AUTO_DELETE": queue})
    shop.publish(queues={queue: UNTIL_RESUMED})

    def beats() -> list[dict]:
        return [json.loads(text) for text in shop.store.hvals(keys.workers("shop"))]

    shop.settle(lambda: [one["unpausable"] for one in beats()] == [[queue]], "the worker to report it")
    assert beats()[0]["paused"]["queues"] == []
    assert shop.queue_exists(queue)
