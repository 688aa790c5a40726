"""A consumer that lost its broker comes back at a time of its own, where that is asked for, and as Celery has it where not."""

from __future__ import annotations

import re
import time

import pytest
import redis
from celery.exceptions import WorkerShutdown
from celery.worker import state
from kombu import Connection
from kombu.exceptions import OperationalError

from dashboard.setup.engine import Engine, free_port
from jobs_admin.core import keys
from jobs_admin.worker.reconnecting import is_jitter, spread_reconnects
from tests.kit.streams import of_job

pytestmark = pytest.mark.server

_PAUSE = re.compile(r"Trying again in (\d+\.\d+) seconds")


@pytest.fixture
def own_broker(tmp_path):
    running = Engine(tmp_path / "broker").start()
    yield running
    running.stop()


def pauses(worker) -> list[float]:
    return [float(text) for text in _PAUSE.findall(worker.text())]


@pytest.mark.parametrize("jitter", ["0.8", "0"])
def test_a_worker_that_lost_its_broker_comes_back_and_works(start, own_store, own_broker, jitter):
    worker = start(own_store.url, broker_url=own_broker.url, environment={"REAL_RECONNECT_JITTER": jitter})
    own_broker.kill()
    worker.wait(lambda: len(pauses(worker)) > 1, what="two tries that came to nothing")
    own_broker.start()
    job = worker.send("fail", "after the restart")
    worker.wait(lambda: of_job(own_store, job), what="a job after the restart")
    found = pauses(worker)
    if jitter == "0":  # Celery's own: 2, 4, 6 …
        assert found[:2] == [2.0, 4.0]
    else:
        # Celery logs those under a second as "now": the first found may be a later one. One may be drawn as an even second.
        assert any(pause % 2 for pause in found)
    assert worker.text().count(" ready.") == 1


def test_a_worker_that_waits_for_its_broker_ends_when_it_is_reported_to(start, own_store, own_broker):
    worker = start(own_store.url, broker_url=own_broker.url, environment={"REAL_RECONNECT_JITTER": "300"})
    own_broker.kill()
    worker.wait(lambda: "Connection to broker lost" in worker.text(), what="the loss")
    time.sleep(0.5)
    worker.process.terminate()
    worker.process.wait(60)  # and not the five minutes between which it draws


def test_while_the_guard_is_silenced_it_is_as_celery_has_it(start, own_store, own_broker):
    worker = start(own_store.url, broker_url=own_broker.url, environment={"REAL_RECONNECT_JITTER": "60"})
    with redis.Redis.from_url(own_store.url) as store:
        store.set(keys.switch(), "off")
    worker.wait(lambda: "was switched off" in worker.text(), what="the switch")
    own_broker.kill()
    worker.wait(lambda: pauses(worker), what="a try at once")
    assert pauses(worker)[0] == 2.0


class _Consumer:
    """The parts of Celery's consumer that are used, around a real connection."""

    def __init__(self, tries: int) -> None:
        self.connection = None
        self.first_connection_attempt = True
        self.told: list[float] = []
        self.tries = tries

    def ensure_connected(self, connection):
        return connection.ensure_connection(lambda error, wait: self.told.append(wait), self.tries, callback=list)

    def lose(self) -> None:
        """As Celery's does before it asks for a connection again."""
        self.connection, self.first_connection_attempt = None, False


def test_the_first_try_after_a_loss_comes_by_the_draw(own_broker):
    """A broker that restarts at once would else be met by the whole fleet."""
    consumer, waited = _Consumer(tries=3), []
    spread_reconnects(consumer, 8, lambda: False, lambda: 0.25, lambda seconds, _: waited.append(seconds))
    consumer.connection = consumer.ensure_connected(Connection(own_broker.url))
    consumer.ensure_connected(Connection(own_broker.url)).close()  # one more, of the events
    assert waited == []
    consumer.connection.close()
    consumer.lose()
    consumer.ensure_connected(Connection(own_broker.url)).close()
    assert waited == [2]  # before the only try
    own_broker.kill()
    consumer.lose()
    with pytest.raises(OperationalError):
        consumer.ensure_connected(Connection(own_broker.url))
    assert waited[1:] == [2, 4, 7.5, 7.5]  # of 8, 16, then 30 s
    assert consumer.told == waited[2:]


def test_a_worker_that_is_ordered_to_end_makes_no_first_try(monkeypatch):
    monkeypatch.setattr(state, "should_stop", 0)  # as a warm shutdown sets it
    consumer = _Consumer(tries=0)
    consumer.lose()
    spread_reconnects(consumer, 300, lambda: False, lambda: 0.9)
    with pytest.raises(WorkerShutdown):
        consumer.ensure_connected(Connection(f"redis://127.0.0.1:{free_port()}/0"))
    assert consumer.told == []


def test_it_gives_up_after_as_many_tries_as_celery_does():
    consumer = _Consumer(tries=3)
    spread_reconnects(consumer, 0.01, lambda: False)
    with pytest.raises(OperationalError):
        consumer.ensure_connected(Connection(f"redis://127.0.0.1:{free_port()}/0"))
    assert len(consumer.told) == 3
    assert all(wait <= 0.01 * 2**n for n, wait in enumerate(consumer.told))


def test_of_several_brokers_the_one_that_lives_is_found(own_broker):
    consumer = _Consumer(tries=5)
    spread_reconnects(consumer, 0.01, lambda: False)
    gone = f"redis://127.0.0.1:{free_port()}/0"
    connection = consumer.ensure_connected(Connection([gone, gone, own_broker.url]))
    assert connection.connected
    connection.close()


@pytest.mark.parametrize(("requested", "is_fine"), [(0, True), (300, True), (2.5, True), (-1, False), (301, False),
                                                (float("nan"), False), (True, False), ("5", False), (None, False)])  # fmt: skip
def test_what_may_be_requested(requested, is_fine):
    assert is_jitter(requested) is is_fine
