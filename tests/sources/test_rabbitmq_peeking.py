"""Reading RabbitMQ's dead letters in place changes nothing for anybody else; and what is reported is reported once, under one name."""

from __future__ import annotations

import json
import random
import threading

import amqp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs_admin.sources.amqp import fields as amqp_fields
from jobs_admin.sources.base import READ_ONLY, Ref, SourceRefused
from jobs_admin.sources.rabbitmq import death as rabbitmq_death
from jobs_admin.sources.rabbitmq import reading as rabbitmq_reading
from jobs_admin.sources.rabbitmq import source as rabbitmq_source
from jobs_admin.sources.rabbitmq.copies import Copies
from jobs_admin.sources.rabbitmq.death import RawMessage, name_of
from jobs_admin.sources.rabbitmq.reading import Numbering
from tests.kit.endurance import times
from tests.kit.network import Road
from tests.kit.rabbit_bus import Queues
from tests.kit.waiting import wait_until
from tests.sources.pulled_contract import name, read, ref

pytestmark = pytest.mark.server


def everything(source, rounds=5):
    """All that a desk asks, again and again."""
    after = ""
    for _ in range(rounds):
        source.depths()
        source.findings()
        source.workers()
        source.waiting([one.name for one in source._dead_queues()[0]])
        reports, after = read(source, after)
        jobs = [ref(one) for one in reports] or [Ref("emails", "somebody")]
        source.check_jobs(jobs)
    return after


class TestAQuorumQueue(Queues):
    """A queue that counts each delivery, and drops a message at the third (`delivery-limit`)."""

    def declare(self):
        self.bus.declare(self.dlq, queue_type="quorum", delivery_limit=2)
        self.bus.declare(self.queue, dead_letter_exchange="", dead_letter_routing_key=self.dlq)
        wait_until(lambda: self.broker.queue(self.dlq))

    def bury(self, count):
        for n in range(count):
            self.bus.publish(self.dlq, {"n": n}, message_id=f"m-{n}")
        wait_until(lambda: self.bus.depth(self.dlq) == count)

    def delivery_counts(self):
        """Deliveries of each by the queue, before this."""
        found = self.bus.bodies(self.dlq)
        return [(json.loads(one.body)["n"], one.headers["x-delivery-count"]) for one in found]

    @pytest.mark.parametrize("management", [True, False])
    def test_no_check_counts_as_a_delivery_or_hides_a_message(self, management):
        self.bury(3)
        source = self.another() if management else self.another(management_url="")
        everything(source)
        source.remove([Ref(self.queue, "m-0")])
        assert self.bus.depth(self.dlq) == 3
        assert self.delivery_counts() == [(0, 0), (1, 0), (2, 0)]

    def test_it_is_counted_and_reported_why_it_is_not_read(self):
        self.bury(3)
        source = self.another()
        assert read(source)[0] == []
        (depth,) = [one for one in source.depths() if one.queue == self.queue]
        assert depth.source_dead == 3
        (finding,) = [one for one in source.findings() if one.id == "never-peeked"]
        assert "quorum" in finding.text and 'mode = "drain"' in finding.fix

    def test_a_drain_that_is_only_checked_counts_nothing(self):
        self.bury(2)
        source = self.another(mode="drain")
        for _ in range(5):
            source.depths()
            source.findings()
            source.waiting([self.dlq])
        assert self.delivery_counts() == [(0, 0), (1, 0)]

    def test_a_drain_whose_reports_cannot_be_filed_hands_out_the_same_and_counts_once(self):
        self.bury(2)
        source = self.another(mode="drain")
        first = source.dead_letters("")
        for _ in range(5):  # the database is away, longer than the limit would stand
            assert source.dead_letters("") is first
        source.confirm_filed(first)
        assert self.bus.depth(self.dlq) == 0 and len(first.reports) == 2

    def test_where_no_one_reports_what_kind_it_is_it_is_not_checked_into(self):
        self.bury(2)
        self.broker.request("PUT", "/api/users/reader", {"password": "secret", "tags": ""})
        self.broker.request("PUT", "/api/permissions/%2F/reader", {"configure": "", "write": "", "read": ".*"})
        url = self.node.url.replace(f"redrive:{self.node._password}", "reader:secret")
        source = self.another(url=url, management_url="")
        everything(source, rounds=2)
        assert self.delivery_counts() == [(0, 0), (1, 0)]
        found = {one.id: one for one in source.findings()}
        assert "The type of queue" in found["never-peeked"].text and found[READ_ONLY].severity == "high"
        with pytest.raises(SourceRefused, match="lets this user send nothing"):
            source.send("r", [OutgoingMessages.build_for(self)])


class OutgoingMessages:
    @staticmethod
    def build_for(test, token=1):
        from jobs_admin.sources.base import OutgoingMessage
        from jobs_admin.sources.rabbitmq import messages as rabbitmq_messages

        raw = rabbitmq_messages.pack(test.dlq, test.queue, "x|1", "", "", b"\0\0", b"{}")
        lineage = {
            "queue": test.queue,
            "job_id": "x",
            "run": 2,
            "item": token,
            "replay": "r",
            "sent_as": f"new-{token}",
        }
        return OutgoingMessage(token, raw, test.queue, f"new-{token}", lineage)


class TestAClassicQueue(Queues):
    def test_others_find_the_same_messages_in_the_same_order(self, source):
        self.bury(50)
        before = [one.message_id for one in self.bus.bodies(self.dlq)]
        everything(source)
        assert [one.message_id for one in self.bus.bodies(self.dlq)] == before == [f"m-{n}" for n in range(50)]

    def test_who_consumes_meanwhile_gets_each_once(self, source, monkeypatch):
        monkeypatch.setattr(rabbitmq_reading, "_SHORT_S", 0.2)  # as on a desk: without pauses the consumer starves
        for n in range(2_000):
            self.bus.publish(self.dlq, {"n": n}, message_id=f"m-{n}")
        got, is_over = [], threading.Event()

        def consume():
            with self.bus.connection.clone() as other:
                channel = other.default_channel
                while len(got) < 2_000 and not is_over.is_set():
                    if message := channel.basic_get(self.dlq):
                        got.append(json.loads(message.body)["n"])
                        channel.basic_ack(message.delivery_tag)

        consumer = threading.Thread(target=consume)
        consumer.start()
        try:
            after = ""
            wait_until(lambda: (read(source, after), len(got) == 2_000)[1], progress=lambda: len(got))
        finally:
            is_over.set()
            consumer.join()
        assert sorted(got) == list(range(2_000))

    def test_a_queue_as_it_was_is_not_read_again(self, source, monkeypatch):
        monkeypatch.setattr(rabbitmq_source, "_HEAD_EVERY_S", 3600.0)  # twenty reads may take longer than 10 s
        self.bury(20)
        _, after = read(source)
        road = Road(self.node.url)
        try:
            source = self.another(url=road.url)
            read(source, after)
            seen = bytearray()
            road.sees = seen.extend
            for _ in range(20):
                read(source, after)
            assert seen.count(b"\x00\x3c\x00\x46") == 0  # basic.get
        finally:
            road.close()

    def test_what_a_person_purged_is_not_gone(self, source):
        self.bury(3)
        reports, after = read(source)
        self.bus.channel.queue_purge(self.dlq)
        wait_until(lambda: self.broker.queue(self.dlq).get("messages") == 0)
        read(source, after)
        assert source.check_jobs([ref(one) for one in reports]).gone == {}

    def test_without_a_management_nothing_is_gone_and_that_is_reported(self):
        source = self.another(management_url="")
        self.bury(2)
        reports, after = read(source)
        self.bus.channel.basic_get(self.dlq, no_ack=True)
        read(source, after)
        assert source.check_jobs([ref(one) for one in reports]).gone == {}
        assert "no-management" in {one.id for one in source.findings()}

    def test_equal_messages_are_distinguished_and_each_keeps_its_name(self, source):
        for _ in range(3):
            self.bus.publish(self.dlq, {"n": 1}, message_id="always the same")
        wait_until(lambda: self.bus.depth(self.dlq) == 3)
        reports, _ = read(source)
        assert len({name(one) for one in reports}) == 3
        again, _ = read(self.another())
        assert [name(one) for one in again] == [name(one) for one in reports]
        assert source.remove([ref(reports[0])]) == {ref(reports[0])}
        assert {name(one) for one in read(self.another())[0]} == {name(one) for one in reports[1:]}
        self.bus.publish(self.dlq, {"n": 1}, message_id="always the same")
        wait_until(lambda: self.bus.depth(self.dlq) == 3)
        later = {name(one) for one in read(self.another())[0]} - {name(one) for one in reports}
        assert len(later) == 1

    def test_settings_by_which_dead_letters_vanish_are_findings(self):
        self.bus.channel.queue_delete(self.dlq)
        self.bus.declare(self.dlq, message_ttl=3_600_000, max_length=5)
        for source in (self.another(management_url=""), self.another()):
            wait_until(lambda source=source: "dead-letters-vanish" in {one.id for one in source.findings()})

    def test_who_may_not_read_is_reported_and_the_dead_are_counted(self):
        self.bury(2)
        self.broker.request("PUT", "/api/users/counter", {"password": "secret", "tags": ""})
        self.broker.request("PUT", "/api/permissions/%2F/counter", {"configure": ".*", "write": ".*", "read": ""})
        source = self.another(url=self.node.url.replace(f"redrive:{self.node._password}", "counter:secret"))
        assert read(source)[0] == []
        assert {"unreadable"} <= {one.id for one in source.findings()}
        (depth,) = [one for one in source.depths() if one.queue == self.queue]
        assert depth.source_dead == 2 and self.bus.depth(self.dlq) == 2

    def test_a_version_that_is_not_known_is_read_only(self):
        self.bury(2)
        road = Disguised(self.node.url)
        source = self.another(url=road.url)
        try:
            reports, _ = read(source)
            assert len(reports) == 2
            assert [one.id for one in source.findings() if one.severity == "high"] == [READ_ONLY]
            for act in (
                lambda: source.send("r", [OutgoingMessages.build_for(self)]),
                lambda: source.remove([ref(reports[0])]),
            ):
                with pytest.raises(SourceRefused, match=r"RabbitMQ 9\."):
                    act()
            drains = self.another(url=road.url, mode="drain")
            assert read(drains)[0] == [] and self.bus.depth(self.dlq) == 2
        finally:
            road.close()

    def test_the_dead_letter_queues_are_found_by_the_management(self):
        found = self.another(dead_letter_queues=[])
        # The management's list of queues may be some moments old, and there are those of other tests.
        assert wait_until(lambda: {one.name: one.of for one in found._dead_queues()[0]}.get(self.dlq)) == self.queue
        self.bury(1)
        assert self.queue in {one.queue for one in read(found)[0]}


class Disguised(Road):
    """A road over which RabbitMQ says that it is of another version."""

    def _pass(self, source, target, are_answers):
        if not are_answers:
            return super()._pass(source, target, are_answers)
        try:
            while got := source.recv(65536):
                target.sendall(got.replace(b"\x07versionS\x00\x00\x00\x063.", b"\x07versionS\x00\x00\x00\x069."))
        except OSError:
            pass


def dead(n, message_id, attempt):
    headers = {"x-attempts": attempt}
    properties = {"application_headers": headers, **({"message_id": message_id} if message_id else {})}
    raw = amqp.Message(b"", **properties)._serialize_properties()
    return rabbitmq_death.parse(RawMessage(raw, b'{"n": %d}' % n, "", "q"), "dlq", "emails")


MESSAGES = st.builds(dead, st.integers(0, 1), st.sampled_from(["", "a"]), st.integers(1, 2))
_rounds = iter(range(10**9))


@settings(max_examples=times(20, 60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(MESSAGES, max_size=12), st.lists(MESSAGES, max_size=6), st.randoms())
def test_names_are_stable_distinct_and_never_given_again(store, lying, coming, chance: random.Random):
    """Whatever lies there, some of it equal: read again it has the same names; what is taken out gives its name to no one."""
    copies, queue = Copies("shop", lambda: store, "redrive"), f"dlq-{next(_rounds)}"

    def names(messages):
        names = Numbering(copies, queue).assign_names([(one, False) for one in messages])
        return [name_of(one.job_id, one.read.attempt) for one in names]

    first = names(lying)
    assert len(set(first)) == len(first) and names(lying) == first
    taken = {n for n in range(len(lying)) if chance.random() < 0.4}
    copies.finish_taking(queue, [first[n] for n in taken])
    stay = [one for n, one in enumerate(lying) if n not in taken]
    after = names(stay)
    gone = {first[n] for n in taken}
    assert sorted(after) == sorted(set(first) - gone)
    assert names(stay + coming)[: len(stay)] == after and not gone & set(names(stay + coming))


def test_a_message_handed_out_before_may_be_what_a_person_had_in_hand_and_a_new_one_is_not(store):
    copies = Copies("shop", lambda: store, "redrive")
    one = dead(1, "a", 1)
    (name,) = Numbering(copies, "dlq").assign_names([(one, False)])
    copies.begin_taking("dlq", [name.name])
    left = copies.taking("dlq")
    again, new = Numbering(copies, "dlq", left).assign_names([(one, True), (one, False)])
    assert again.name == name.name and new.name != name.name
    (only_new,) = Numbering(copies, "dlq", left).assign_names([(one, False)])
    assert only_new.name != name.name


@given(st.binary(max_size=200))
def test_no_bytes_hurt_who_reads_properties(octets):
    for raw in (octets, b"\x20\x00" + len(octets).to_bytes(4, "big") + octets, b"\xff\xfe" + octets):
        read = rabbitmq_death.parse(RawMessage(raw, octets, "", ""), "dlq", "")
        envelope = rabbitmq_death.build_envelope(read, read.base, "shop", "dlq", rabbitmq_death.HeaderNames(), 1.0)
        assert envelope.raw is not None and envelope.raw.endswith(octets)
        if not read.why_unread:
            assert amqp_fields.join(amqp_fields.split(raw)) == raw[: len(amqp_fields.join(read.parts))]
