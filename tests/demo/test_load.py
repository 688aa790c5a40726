from __future__ import annotations

import os
import signal
import subprocess
import sys
from random import Random

import pytest
import redis

from demo import control, orders
from demo.load import DEEPEST, FIRST_PILL_AFTER_S, Publisher
from demo.shop import QUEUES
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def broker(engine):
    client = redis.Redis.from_url(engine.url[:-1] + "3")
    client.flushdb()
    yield client
    client.close()


def depth(broker):
    return sum(broker.llen(queue) for queue in QUEUES)


@pytest.fixture
def publisher(broker):
    """A publisher whose jobs go nowhere: the shop's app of this process has its broker in memory."""
    from demo.shop import app

    app.conf.update(broker_url="memory://localhost", broker_transport_options={})
    app.loader.import_default_modules()
    return Publisher(broker, Random(1), now=0.0)


def test_it_publishes_the_rate_that_is_set(broker, publisher):
    control.set_rate(broker, 20)
    for tenth in range(1, 31):
        publisher.step(tenth / 10)
    assert 58 <= publisher.published <= 60


def test_a_stall_does_not_end_in_a_burst(broker, publisher):
    control.set_rate(broker, 20)
    assert publisher.step(0.1) <= 2
    assert publisher.step(60) <= 20


@pytest.mark.long("Starts workers of the demo shop and waits for their policies.")
def test_a_pill_is_published_once_workers_have_the_policies_and_seldom(broker, publisher, monkeypatch):
    pills = []
    monkeypatch.setattr("demo.orders.pill", lambda random: pills.append(1) or orders.ordinary(random))
    for second in range(1, int(FIRST_PILL_AFTER_S)):
        publisher.step(second)
    assert not pills
    for second in range(int(FIRST_PILL_AFTER_S), 1200):
        publisher.step(second)
    assert len(pills) == 1


def test_it_holds_while_too_many_jobs_wait(broker, publisher):
    broker.lpush("webhooks", *["{}"] * DEEPEST)
    assert sum(publisher.step(second) for second in range(1, 5)) == 0
    assert control.load(broker).pause_depth == DEEPEST
    broker.delete("webhooks")
    assert sum(publisher.step(second) for second in range(5, 9)) > 0
    assert control.load(broker).pause_depth is None


def test_what_it_does_is_forgotten_when_it_stops(broker, publisher):
    publisher.step(1)
    assert control.load(broker).published_per_s == control.DEFAULT_RATE
    assert 0 < broker.ttl(control.REPORT) <= 5


@pytest.mark.parametrize("rate", [-1, 1000, float("nan")])
def test_an_impossible_rate_is_refused(broker, rate):
    with pytest.raises(control.BadWish, match="Nothing was changed"):
        control.set_rate(broker, rate)
    assert control.load(broker).rate == control.DEFAULT_RATE


def test_the_process_publishes_to_the_shops_queues_and_stops_on_request(engine, broker):
    environment = {**os.environ, "CELERY_BROKER_URL": engine.url[:-1] + "3"}
    control.set_rate(broker, 50)
    process = subprocess.Popen([sys.executable, "-m", "demo.load"], env=environment)
    try:
        queues = ("emails", "webhooks", "payments")
        wait_until(
            lambda: depth(broker) >= 40 and all(broker.llen(queue) for queue in queues),
            "jobs on every queue",
            progress=lambda: depth(broker),
            process=process,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert all(broker.llen(queue) for queue in ("emails", "webhooks", "payments"))


def test_without_a_broker_it_shows_which_variable_is_missing():
    environment = {k: v for k, v in os.environ.items() if k != "CELERY_BROKER_URL"}
    done = subprocess.run(
        [sys.executable, "-m", "demo.load"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "CELERY_BROKER_URL is not set" in done.stderr
