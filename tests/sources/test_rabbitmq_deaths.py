"""Deaths of messages on RabbitMQ, and their replay: byte for byte, once, and known when they die another time."""

from __future__ import annotations

import datetime
import json
import struct
import time
from decimal import Decimal

import amqp
import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.amqp import fields as amqp_fields
from jobs_admin.sources.amqp.wire import Written, handler
from jobs_admin.sources.base import SourceRefused, SourceUnreachable
from tests.kit import rabbitmq
from tests.kit.network import Road
from tests.kit.rabbit_bus import Bus, Queues, broken, build_message
from tests.kit.waiting import wait_until
from tests.sources.pulled_contract import name, read, ref

pytestmark = pytest.mark.server


class TestDeaths(Queues):
    def read_one_report(self, **options):
        """The one dead letter."""
        wait_until(lambda: self.bus.depth(self.dlq))
        (report,) = read(self.another(**options))[0]
        return report

    def take(self, queue, requeue):
        wait_until(lambda: self.bus.depth(queue))
        message = self.bus.channel.basic_get(queue)
        self.bus.channel.basic_reject(message.delivery_tag, requeue=requeue)

    def test_rejected(self):
        self.bus.publish(self.queue, {"to": "ann"}, type="email.send", correlation_id="c-1")
        self.take(self.queue, requeue=False)
        report = self.read_one_report(dead_letter_queues=[self.dlq])
        assert (report.kind, report.error_type, report.queue, report.attempt) == ("rejected", "Rejected", self.queue, 1)
        assert report.task == "email.send" and json.loads(report.kwargs) == {"to": "ann"}
        assert abs(report.at - time.time()) < 60 and self.queue in report.message

    def test_expired(self):
        self.bus.publish(self.queue, {"n": 1}, expiration="1")
        report = self.read_one_report(dead_letter_queues=[self.dlq])
        assert (report.kind, report.error_type, report.queue) == ("expired", "Expired", self.queue)

    def test_dropped_from_a_full_queue(self):
        self.bus.channel.queue_delete(self.queue)
        self.bus.declare(self.queue, dead_letter_exchange="", dead_letter_routing_key=self.dlq, max_length=1)
        self.bus.publish(self.queue, {"n": 1})
        self.bus.publish(self.queue, {"n": 2})
        report = self.read_one_report(dead_letter_queues=[self.dlq])
        assert (report.kind, report.error_type, json.loads(report.kwargs)) == ("rejected", "QueueFull", {"n": 1})

    def test_given_up_by_a_quorum_queue(self):
        self.bus.channel.queue_delete(self.queue)
        more = {"dead_letter_exchange": "", "dead_letter_routing_key": self.dlq, "delivery_limit": 1}
        self.bus.declare(self.queue, queue_type="quorum", **more)
        self.bus.publish(self.queue, {"n": 1})
        for _ in range(2):
            self.take(self.queue, requeue=True)
        report = self.read_one_report(dead_letter_queues=[self.dlq])
        assert (report.kind, report.error_type, report.queue) == ("worker_lost", "DeliveryLimit", self.queue)

    def test_after_waits_between_its_tries_it_is_of_the_queue_whose_consumer_gave_it_up(self):
        """Retried by a queue in which it waits: five deaths there and back, and then parked."""
        wait, jobs = f"{self.queue}.wait", f"{self.queue}.jobs"
        self.bus.declare(jobs, dead_letter_exchange="", dead_letter_routing_key=wait)
        self.bus.declare(wait, message_ttl=1, dead_letter_exchange="", dead_letter_routing_key=jobs)
        self.bus.publish(jobs, {"n": 1}, message_id="m")
        for _ in range(3):
            self.take(jobs, requeue=False)
        wait_until(lambda: self.bus.depth(jobs))
        parked = self.bus.channel.basic_get(jobs)
        self.bus.channel.basic_publish(amqp.Message(parked.body, **parked.properties), routing_key=self.dlq)
        self.bus.channel.basic_ack(parked.delivery_tag)
        report = self.read_one_report(dead_letter_queues=[self.dlq])
        assert (report.queue, report.attempt) == (jobs, 3)

    def test_what_reports_nothing_is_where_it_is_and_cannot_be_sent_there(self):
        self.bus.publish(self.dlq, b"plain text", content_type="text/plain")
        report = self.read_one_report(dead_letter_queues=[self.dlq], management_url="")
        assert report.queue == self.dlq and report.error_type == "Unexplained" and "without a reason" in report.message
        source = self.another(dead_letter_queues=[self.dlq], management_url="")
        with pytest.raises(SourceRefused, match="of = ") as refused:
            source.send("r", [build_message(report)])
        assert refused.value.tokens == {1}
        assert source.send("r", [build_message(report, queue=self.queue)]) == {1: "sent"}
        assert [one.body for one in self.bus.bodies(self.queue)] == [b"plain text"]
        with pytest.raises(SourceRefused, match="not edited"):
            source.arguments(report.raw)

    def test_secrets_are_hidden_and_the_error_of_other_frameworks_is_read(self):
        headers = {
            "error": {
                "name": "TypeError",
                "message": "password=hunter2hunter2",
                "stack": "TypeError: x\n    at f (a.js:1:2)",
            },
            "authorization": "Bearer abcdefghijklmnop",
        }
        self.bus.publish(self.dlq, {"password": "hunter2hunter2", "n": 1}, application_headers=headers)
        report = self.read_one_report()
        assert report.error_type == "TypeError"
        assert "hunter2" not in report.message + report.kwargs + report.headers + report.trace
        assert "abcdefghijklmnop" not in report.headers and report.redacted >= 3

    def test_a_secret_of_the_body_is_hidden_where_the_error_repeats_it(self):
        headers = {
            "x-exception-message": "ann/hunter2hunter2 was refused",
            "x-exception-stacktrace": "ann/hunter2hunter2\n at f",
        }
        self.bus.publish(self.dlq, {"password": "hunter2hunter2", "n": 1}, application_headers=headers)
        report = self.read_one_report()
        assert report.message == "ann/[redacted] was refused" and "hunter2" not in report.trace + report.kwargs

    def test_headers_of_a_source_are_named_in_its_options(self):
        headers = {"warum": "partner away", "warum-trace": "at f", "job": "mail"}
        self.bus.publish(self.dlq, {"n": 1}, application_headers=headers)
        report = self.read_one_report(error_headers=["warum", "warum-trace"], task_headers=["job"])
        assert (report.kind, report.message, report.trace, report.task) == ("exception", "partner away", "at f", "mail")


ALL_TYPES = {
    "text": "ä",
    "bytes": b"\xff\x00",
    "whole": 7,
    "large": 2**40,
    "negative": -5,
    "yes": True,
    "nothing": None,
    "float": 0.1,
    "decimal": Decimal("12.345"),
    "when": datetime.datetime(2026, 1, 2, 3, 4, 5),
    "table": {"a": {"b": [1, "two", {"three": None}]}},
    "array": [1, [2, [3]], {"x": b"y"}],
}
# What other clients write and ours does not: bytes, shorts, longs, a float of 32 bits, a timestamp beyond any date.
MORE_TYPES = b"".join(
    bytes([len(named)]) + named + value
    for named, value in (
        (b"byte", b"b\xf0"),
        (b"short", b"s\xff\x01"),
        (b"long", b"l" + struct.pack(">q", -(2**50))),
        (b"float32", b"f" + struct.pack(">f", 1.5)),
        (b"never", b"T" + struct.pack(">Q", 2**63)),
        (b"no text", b"S\x00\x00\x00\x02\xc3\x28"),
        (b"deep", b"A\x00\x00\x00\x05A\x00\x00\x00\x00"),
    )
)


class TestByteForByte(Queues):
    def test_all_but_what_is_named_goes_as_it_came(self):
        table = amqp_fields.dumps("F", [ALL_TYPES])[4:] + MORE_TYPES
        parts = {
            "content_type": amqp_fields.short("application/x-thing"),
            "headers": struct.pack(">I", len(table)) + table,
            "delivery_mode": b"\x02",
            "priority": b"\x05",
            "correlation_id": amqp_fields.short("c\x00-1"),
            "reply_to": amqp_fields.short("answers"),
            "message_id": amqp_fields.short("<script>'\"; --"),
            "timestamp": struct.pack(">Q", 2**63),
            "type": amqp_fields.short("thing"),
            "app_id": amqp_fields.short("shop"),
        }
        body = bytes(range(256)) * 10
        # Forwarded by the consumer: what RabbitMQ itself dead-letters it writes anew.
        self.bus.channel.basic_publish(Written(body, amqp_fields.join(parts)), routing_key=self.dlq)
        wait_until(lambda: self.bus.depth(self.dlq))
        source = self.another()
        (report,) = read(source)[0]
        assert report.kind == "rejected" and "script" in report.job_id
        assert source.send("r", [build_message(report)]) == {1: "sent"}
        with self.raw_channel() as channel:
            message = channel.basic_get(self.queue)
        assert message.octets == body
        sent = amqp_fields.split(message.raw_properties)
        headers = sent.pop("headers")
        assert sent == {key: value for key, value in parts.items() if key != "headers"}
        *others, ours = [value for _, value in amqp_fields.entries(headers)]
        assert b"".join(others) == table
        assert ours.startswith(b"\x07redriveF")

    def raw_channel(self):
        connection = amqp.Connection(
            f"127.0.0.1:{self.node._port}", "redrive", self.node._password, frame_handler=handler
        )
        connection.connect()
        return connection.channel()

    def test_a_message_of_16_mb_is_stored_in_full_and_a_larger_one_stays_where_it_is(self):
        self.bus.publish(self.dlq, b"x" * 16_000_000, content_type="text/plain")
        self.bus.publish(self.dlq, b"y" * 17_000_000, content_type="text/plain")
        self.bus.publish(self.dlq, {"n": 1})
        wait_until(lambda: self.bus.depth(self.dlq) == 3)
        source = self.another(mode="drain")
        reports, _ = read(source)
        assert [one.is_raw_complete for one in reports] == [True, False, True]
        assert all(len(one.raw) < 2**24 for one in reports)
        source.close()
        wait_until(lambda: self.bus.depth(self.dlq) == 1)
        source = self.another(mode="drain")
        assert [name(one) for one in read(source)[0]] == [name(reports[1])]
        assert source.send("r", [build_message(reports[0])]) == {1: "sent"}

    def test_what_a_copy_of_would_go_elsewhere_goes_nowhere_else(self):
        other = f"{self.queue}.copy"
        self.bus.declare(other)
        self.bus.publish(self.dlq, {"n": 1}, application_headers={"CC": [other]}, expiration="3600000")
        self.bus.channel.queue_purge(other)
        source = self.another()
        (report,) = read(source)[0]
        source.send("r", [build_message(report)])
        (message,) = self.bus.bodies(self.queue)
        assert "CC" not in message.headers and "expiration" not in message.properties and self.bus.depth(other) == 0


class TestCopies(Queues):
    def test_its_copy_goes_once_the_replay_is_confirmed_and_others_stay(self, source):
        self.bury(3)
        reports, after = read(source)
        self.another().send("r", [build_message(reports[1])])  # by the process that sends
        assert self.bus.depth(self.dlq) == 3
        assert read(source, after)[0] == []
        assert [one.message_id for one in self.bus.bodies(self.dlq)] == ["m-0", "m-2"]
        assert source.check_jobs([ref(one) for one in reports]).gone == {}

    def test_copies_in_the_middle_of_a_deep_queue_go_in_one_pass(self, source):
        for n in range(1_000):
            self.bus.publish(self.dlq, {"n": n}, message_id=f"m-{n}")
        wait_until(lambda: self.bus.depth(self.dlq) == 1_000)
        reports, after = read(source)
        source.send("r", [build_message(one, n) for n, one in enumerate(reports) if n % 3 == 0])
        wait_until(lambda: (read(source, after), self.bus.depth(self.dlq) == 666)[1])
        assert [one.message_id for one in self.bus.bodies(self.dlq)] == [f"m-{n}" for n in range(1_000) if n % 3]

    def test_the_copy_of_what_is_in_doubt_stays_and_is_not_reported_again(self, source):
        self.bury(2)
        reports, after = read(source)
        road = Road(self.node.url)
        try:
            far = self.another(url=road.url, confirm_within_s=1)
            road.sees = lambda sent: setattr(road, "hears_nothing", road.hears_nothing or b"sent_as" in sent)
            with pytest.raises(SourceUnreachable):
                far.send("r", [build_message(reports[0], 7)])
            assert source.in_doubt("r", [7]) == {7} and source.was_sent("r", [7]) == set()
            with pytest.raises(SourceUnreachable):
                self.another().send("r", [build_message(reports[0], 7)])
        finally:
            road.close()
        read(source, after)
        assert self.bus.depth(self.dlq) == 2
        again = read(self.another())[0]
        assert {name(one) for one in again} == {name(one) for one in reports}

    @pytest.mark.parametrize("mode", ["mirror", "drain"])
    def test_what_dies_again_is_another_run_of_the_same_failure(self, mode):
        source = self.another(mode=mode)
        self.bury(1)
        (report,), after = read(source)
        source.send("r", [build_message(report, 7)])
        _, after = read(source, after)
        self.bus.consume(self.queue, self.dlq, broken)
        (again,), after = read(source, after)
        assert (again.lineage.run, again.lineage.item, again.lineage.job_id) == (2, 7, report.job_id)
        assert again.job_id == "new-7" and again.kind == "exception"
        source.send("s", [build_message(again, 8)])
        self.bus.consume(self.queue, self.dlq, broken)
        (third,), _ = read(source, after)
        assert (third.lineage.run, third.lineage.job_id) == (3, report.job_id)
        (message,) = self.bus.bodies(self.dlq) or [None] if mode == "mirror" else [None]
        assert message is None or message.headers["redrive"]["sent_as"] == "new-8"

    def test_a_header_of_ours_on_another_job_is_not_believed(self, source):
        self.bury(1)
        (report,), after = read(source)
        source.send("r", [build_message(report, 7)])
        (sent,) = self.bus.bodies(self.queue)
        self.bus.publish(self.dlq, {"n": "another job"}, application_headers=sent.headers)
        wait_until(lambda: self.bus.depth(self.dlq) == 2)
        (other,), _ = read(source, after)
        assert other.lineage is None and other.job_id != "new-7"


class TestWhatBreaks(Queues):
    def test_a_drain_that_is_cut_off_reports_the_same_again_and_loses_nothing(self):
        self.bury(5)
        road = Road(self.node.url)
        try:
            source = self.another(url=road.url, mode="drain")
            pulled = source.dead_letters("")
            road.cut()
            with pytest.raises(SourceUnreachable):
                source.confirm_filed(pulled)
            wait_until(lambda: self.bus.depth(self.dlq) == 5)
            again, _ = read(source, pulled.after)
        finally:
            road.close()
        assert [name(one) for one in again] == [name(one) for one in pulled.reports]
        assert self.bus.depth(self.dlq) == 0

    @pytest.mark.long("Kills a RabbitMQ of its own and waits until it is back.")
    def test_a_server_that_is_killed_loses_nothing_that_was_not_filed(self, tmp_path):
        node = rabbitmq.Node(tmp_path / "killed").start()
        more = {"dead_letter_queues": [{"name": self.dlq, "of": self.queue}], "mode": "drain"}
        source = connect("shop", "rabbitmq", node.url, (), more, store=lambda: self.store)
        try:
            bus = Bus(node.url)
            bus.declare(self.queue)
            bus.declare(self.dlq)
            for n in range(300):
                bus.publish(self.dlq, {"n": n}, message_id=f"m-{n}")
            with bus.channel.connection.channel() as channel:
                amqp.Channel.confirm_select(channel)
                for _ in range(10):
                    channel.basic_publish_confirm(amqp.Message(b"{}", delivery_mode=2), routing_key=self.dlq)
            wait_until(lambda: bus.depth(self.dlq) == 310)
            first = source.dead_letters("")
            source.confirm_filed(first)
            half = source.dead_letters(first.after)
            for process in node._processes:
                process.kill()
                process.wait()
            with pytest.raises(SourceUnreachable):
                source.confirm_filed(half)
            with pytest.raises(SourceUnreachable):
                source.send("r", [build_message(half.reports[0])])
            assert source.was_sent("r", [1]) == set() == source.in_doubt("r", [1])
            node._processes.clear()
            node.start()
            rest, _ = read(source, half.after)
            reports = [name(one) for one in first.reports] + [name(one) for one in rest]
            assert len({name(one) for one in half.reports} - set(reports)) == 0
            assert len(set(reports)) == 310
            assert source.send("r", [build_message(half.reports[0])]) == {1: "sent"}
        finally:
            source.close()
            node.stop()
