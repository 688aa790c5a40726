"""Jobs of a paused task in real workers where they cannot be put aside, or it is not known whether they were."""

from __future__ import annotations

import time

import pytest
from kombu import Exchange

from jobs_admin.core import keys
from jobs_admin.core.pauses import UNTIL_RESUMED, Pauses
from tests.kit.celery import quorum_queue
from tests.kit.endurance import crossed
from tests.kit.partner import Partner
from tests.kit.pausing import unique
from tests.kit.policies import obeyed, policy

pytestmark = pytest.mark.server
CANNOT = "cannot put jobs aside that may not start"


def test_jobs_that_cannot_be_put_aside_stay_in_hand_and_those_of_other_tasks_and_queues_run(shop):
    """At the bound of waiting jobs. Nothing turns in a circle, and what is in hand does not count as fetched."""
    queue, other = unique("shared"), unique("other")
    shop.work(queues=f"{queue},{other}", prefetch=1, environment={"REAL_MOST_WAITING": "3"})
    shop.pause(tasks=["noted"])
    jobs = shop.send(10, queue)
    shop.settle(lambda: shop.due() == 3 and CANNOT in shop.worker.text(), "as many as may")
    time.sleep(2)
    received, queued = shop.worker.text().count("received"), shop.queued(queue)
    assert 0 < queued < 7
    for _ in range(3):
        shop.worker.send("ok", queue=other)
    shop.settle(lambda: len(shop.worker.marks("ok")) == 3, "the jobs of another queue")
    time.sleep(9)  # what waits is checked again meanwhile
    assert shop.worker.text().count("received") <= received + 3 + 9
    assert 1 <= shop.worker.text().count(CANNOT) <= 4
    assert not shop.ran()
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) == 10, "all of them")
    assert sorted(shop.ran()) == list(jobs)


@pytest.mark.parametrize("shop", ["redis"], indirect=True)
def test_jobs_of_a_paused_tenant_or_dependency_wait_aside_and_others_run(shop):
    partner, queue = Partner(), unique("calls")

    def call(n: int, tenant: str) -> None:
        shop.worker.send("call", partner.place, n, queue=queue, kwargs={"tenant": tenant})

    def ended() -> list[int]:
        return sorted(n for _, n in shop.read_notes("end"))

    try:
        shop.work(queues=queue)
        observed = policy("calls", "call*", mode="observe", breaker={"dependency": "partner"})
        obeyed(shop.worker, shop.store_url, observed)
        for pause, waiting in (
            ({"tenants": {"acme": UNTIL_RESUMED}}, [0]),
            ({"dependencies": {"partner": UNTIL_RESUMED}}, [2, 3]),
        ):
            shop.store.set(keys.pauses("shop"), Pauses(**pause).render())
            shop.wait_for(**pause)
            before = ended()
            call(waiting[0], "acme")
            call(waiting[0] + 1, "ibex")
            shop.settle(lambda waiting=waiting: shop.due() == len(waiting), "it to wait")
            shop.settle(
                lambda waiting=waiting, before=before: len(ended()) == len(before) + 2 - len(waiting), "the other one"
            )
            assert not {*waiting} & {*ended()}
            shop.publish()
            shop.settle(lambda waiting=waiting: {*waiting} <= {*ended()}, "those that waited")
        assert ended() == [0, 1, 2, 3]
    finally:
        partner.stop()


@pytest.mark.contract
@pytest.mark.parametrize("shop", ["amqp"], indirect=True)
def test_a_quorum_queue_drops_no_job_that_cannot_be_put_aside(shop):
    queue = unique("quorum")
    shop.work(queues=queue, environment={"REAL_QUORUM": queue, "REAL_MOST_WAITING": "0"})
    shop.pause(tasks=["noted"])
    jobs = shop.send(3, quorum_queue(queue))
    shop.settle(lambda: CANNOT in shop.worker.text(), "them to be in hand")
    time.sleep(12)  # more rounds than the queue delivers a job
    assert not shop.ran()
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) == 3, "all of them")
    assert sorted(shop.ran()) == list(jobs)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("shop", "acks"), crossed(("redis", "amqp"), ("early", "late"), few=("redis-early", "amqp-late")), indirect=["shop"]
)
def test_a_job_of_which_it_is_unknown_whether_it_waits_is_not_given_back(shop, acks):
    queue = unique("shared")
    shop.work(queues=queue, late_ack=acks == "late", environment={"REAL_UNANSWERED": "2"})
    shop.pause(tasks=["noted"])
    shop.send(1, queue)
    shop.settle(lambda: CANNOT in shop.worker.text(), "the answer to be lost")
    assert shop.due() == 1
    shop.publish()  # before it is asked again
    shop.settle(lambda: shop.ran() == [0], "it")
    time.sleep(8)
    assert shop.ran() == [0]


@pytest.mark.contract
def test_a_job_that_waited_and_runs_again_is_not_put_aside_for_its_old_delivery(shop):
    queue = unique("shared")
    shop.work(queues=queue, late_ack=True, environment={"REAL_UNANSWERED": "4"})
    shop.pause(tasks=["noted"])
    shop.send(1, queue)
    shop.settle(lambda: CANNOT in shop.worker.text(), "the answer to be lost")
    shop.publish()
    shop.settle(lambda: shop.ran() == [0], "it, by what waited")
    time.sleep(15)  # the place answers again meanwhile
    assert shop.ran() == [0]


def test_a_message_of_the_first_protocol_runs_though_its_task_is_paused_and_waits_in_a_paused_queue(shop):
    queue = unique("shared")
    shop.work(queues=queue)
    shop.pause(tasks=["noted"])
    second = shop.send(2, queue)
    shop.settle(lambda: shop.due() == 2, "those of the second protocol to wait")
    shop.worker.app.amqp.create_task_message = shop.worker.app.amqp.as_task_v1
    first = shop.send(2, queue)
    shop.settle(lambda: {*first} <= {*shop.ran()}, "those of the first")
    assert not {*second} & {*shop.ran()} and CANNOT not in shop.worker.text()
    shop.pause(queues=[queue])
    more = shop.send(2, queue)
    time.sleep(2)
    assert shop.queued(queue) >= 2 and not {*more} & {*shop.ran()}
    shop.publish()
    shop.settle(lambda: len(shop.read_notes("end")) == shop.sent, "all of them")


def test_a_broadcast_job_runs_though_its_task_is_paused(shop):
    queue, everywhere = unique("shared"), unique("everywhere")
    shop.publish(tasks={"noted": UNTIL_RESUMED})
    shop.work(queues=f"{queue},{everywhere}", environment={"REAL_BROADCAST": everywhere})
    shop.wait_for(tasks=["noted"])
    waiting = shop.send(1, queue)
    shop.settle(lambda: shop.due() == 1, "the other to wait")
    options = {"exchange": everywhere, "routing_key": "celery", "declare": [Exchange(everywhere, type="fanout")]}
    shop.worker.app.send_task("noted", args=[7, 0.0], **options)
    shop.settle(lambda: shop.ran() == [7], "the broadcast")
    assert not {*waiting} & {*shop.ran()}


@pytest.mark.contract
@pytest.mark.parametrize("shop", ["amqp"], indirect=True)
def test_a_resumed_quorum_queue_is_fetched_ahead_as_far_as_before(shop):
    """Jobs with an ETA, which the worker holds, must not count for its new consumer."""
    name = unique("quorum")
    queue = quorum_queue(name)
    shop.work(queues=name, environment={"REAL_QUORUM": name})

    def received() -> int:
        return shop.worker.text().count("received")

    shop.send(8, queue, countdown=300)
    shop.settle(lambda: received() == 8, "as many as are fetched ahead")
    shop.pause(queues=[name])
    shop.pause()
    running = shop.send(2, queue, 8.0)
    shop.settle(lambda: {*running} <= {*shop.ran()}, "both places to be taken")
    shop.send(30, queue)
    shop.settle(lambda: received() >= 18, "them to be fetched")
    time.sleep(1)
    assert received() == 8 + 2 + 8
