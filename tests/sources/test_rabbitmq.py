"""RabbitMQ's own dead-letter queues, on a real node: mirrored and drained."""

from __future__ import annotations

import json

import amqp
import pytest

from jobs_admin.sources.rabbitmq import messages as rabbitmq_messages
from tests.kit.rabbit_bus import Queues, broken
from tests.kit.waiting import wait_until
from tests.sources.contract import SourceContract
from tests.sources.pulled_contract import PulledContract, name, read, ref

pytestmark = pytest.mark.server


class Contract(Queues, PulledContract):
    def waiting(self, queue):
        return self.list_sent(queue)

    def waiting_data(self, queue):
        return [json.loads(message.body) for message in self.bus.bodies(queue)]

    def work(self, queue):
        self.bus.consume(queue, self.dlq, lambda message: None)

    def fail_again(self, queue):
        self.bus.consume(queue, self.dlq, broken)

    def take_out(self, ref):
        """Another tool takes the message and acknowledges it."""
        before, depth = self.acknowledged(), self.bus.depth(self.dlq)
        with self.bus.connection.clone() as other:
            channel = other.default_channel
            while message := channel.basic_get(self.dlq):
                if self.ref_of(message) == ref:
                    channel.basic_ack(message.delivery_tag)
            # Every two minutes RabbitMQ deletes the counters of closed channels, collected (each five seconds) or not.
            wait_until(lambda: self.acknowledged() > before, "the acknowledgement in the statistics")
            channel.close()
        wait_until(lambda: self.bus.depth(self.dlq) == depth - 1, "the other messages in their places")

    def acknowledged(self):
        return ((self.broker.queue(self.dlq) or {}).get("message_stats") or {}).get("ack", 0)

    def trim(self, ref):
        """A policy of the server bounds the queue: the oldest go."""
        rule = {"pattern": f"^{self.dlq}$".replace(".", "\\."), "definition": {"max-length": 1}, "apply-to": "queues"}
        self.broker.request("PUT", f"/api/policies/%2F/{self.queue}", rule)
        wait_until(lambda: self.bus.depth(self.dlq) == 1)

    def lose_everything(self):
        for queue in (self.queue, self.dlq):
            self.bus.channel.queue_delete(queue)
        wait_until(lambda: self.broker.queue(self.dlq) is None)
        self.declare()

    def unplug(self, source):
        source.close()
        source._sender.url = "amqp://redrive:secret@127.0.0.1:1//"


class TestMirrored(Contract):
    pass


class TestDrained(Contract):
    mode = "drain"

    def test_each_dead_letter_is_reported_once_with_what_it_takes_to_send_it_again(self, source):
        self.bury(3)
        reports, after = read(source)
        assert [self.data(one) for one in reports] == [0, 1, 2] and read(source, after)[0] == []
        assert all(one.is_raw_complete and one.error_type and one.kind == "exception" for one in reports)
        assert self.bus.depth(self.dlq) == 0

    def test_who_is_started_again_in_the_middle_misses_nothing(self, source):
        self.bury(5)
        pulled = source.dead_letters("")
        source.close()  # it dies before it could tell that these were filed
        wait_until(lambda: self.bus.depth(self.dlq) == 5)  # RabbitMQ notices that it is gone
        again, _ = read(self.another(), "")
        assert [name(one) for one in again] == [name(one) for one in pulled.reports] and len(again) == 5
        assert self.bus.depth(self.dlq) == 0

    def test_what_a_person_took_out_is_gone(self, source):
        self.bury(2)
        reports, _ = read(source)
        assert source.check_jobs([ref(one) for one in reports]).gone == {}

    trim = None


class TestSending(Queues, SourceContract):
    queue = "emails"

    @pytest.fixture(autouse=True)
    def _set_up_message(self, source):
        self.bus.declare("webhooks")
        self.bus.channel.queue_purge("webhooks")
        properties = amqp.Message(b"", application_headers={"x-error": "away"})._serialize_properties()
        self.raw = rabbitmq_messages.pack(self.dlq, self.queue, "x|1", "", self.dlq, properties, b'{"n": 1}')

    def waiting(self, queue):
        return self.list_sent(queue)

    def lose_everything(self):
        self.store.flushall()

    def unplug(self, source):
        source.close()
        source._sender.url = "amqp://redrive:secret@127.0.0.1:1//"
