"""A broker and a store on servers of their own, so that one can fail while the other goes on, and a worker on both."""

from __future__ import annotations

import os

import pytest
import redis

from dashboard.setup.engine import Engine
from jobs_admin.worker import line
from jobs_admin.worker import store as store_module
from jobs_admin.worker.delays import Delays
from tests.kit.celery import RealWorker
from tests.kit.network import Road
from tests.kit.pausing import Shop


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    running = Engine(tmp_path_factory.mktemp("broker")).start()
    yield running
    running.stop()


@pytest.fixture
def own_store(tmp_path_factory):
    """A store that a test may stop, hang and fill."""
    running = Engine(tmp_path_factory.mktemp("store")).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def worker(broker, tmp_path_factory):
    """A prefork worker with two children, of a project with Django, shared by the tests that leave it alive."""
    store_engine = Engine(tmp_path_factory.mktemp("shared-store")).start()
    django = {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]}
    running = RealWorker(broker.url, store_engine.url, environment=django).start()
    running.store_engine = store_engine
    yield running
    running.stop()
    store_engine.stop()


@pytest.fixture
def start(broker):
    """Starts workers on a broker database of their own, and ends them."""
    started = []

    def start_one(store_url, **options) -> RealWorker:
        later = options.pop("later", False)
        url = options.pop("broker_url", broker.url.removesuffix("/0") + "/1")
        if not started and url.startswith("redis"):
            redis.Redis.from_url(url).flushdb()
        made = RealWorker(url, store_url, **options)
        started.append(made)
        return made if later else made.start()

    yield start_one
    for one in started:  # a warm shutdown takes as long as a start; RabbitMQ's queues get back what a worker had first
        one.stop() if one.broker_url.startswith("amqp") else one.kill()


@pytest.fixture
def patience(monkeypatch):
    """Stores of this process wait for their answers, however busy the machine is: for tests of something else."""
    for module in (line, store_module):
        monkeypatch.setattr(module, "CALL_TIMEOUT", 10.0)
    monkeypatch.setattr(store_module, "LONG_SECONDS", 60.0)


@pytest.fixture
def client(broker):
    found = redis.Redis.from_url(broker.url.removesuffix("/0") + "/2", socket_timeout=60)
    found.flushdb()
    yield found
    found.close()


@pytest.fixture
def delays(client):
    return Delays(client, "shop")


@pytest.fixture(scope="module")
def node(rabbit_host):
    return rabbit_host


@pytest.fixture(params=["redis", "amqp"])
def shop(request, start, own_store):
    road = Road(request.getfixturevalue("node").url) if request.param == "amqp" else None
    made = Shop(start, own_store, road)
    yield made
    for worker in made.workers:  # its queues are its own: nobody gets what it had in hand
        worker.kill()
    if road:
        road.close()
