"""Messages that are missing in a queue of RabbitMQ, and who took it: gone only with evidence, and nothing equal is taken for it."""

from __future__ import annotations

import amqp
import pytest
import redis

from dashboard.setup.engine import free_port
from jobs_admin.core import keys
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage, SourceRefused, SourceUnreachable
from jobs_admin.sources.rabbitmq import death as rabbitmq_death
from jobs_admin.sources.rabbitmq import messages as rabbitmq_messages
from jobs_admin.sources.rabbitmq.copies import Owed, _owed
from jobs_admin.sources.rabbitmq.death import RawMessage
from jobs_admin.sources.rabbitmq.reading import DeadQueue, Mirrored, Pass, find_removed_by_others
from tests.kit.rabbit_bus import Queues, build_message
from tests.kit.waiting import wait_until
from tests.sources.pulled_contract import name, read, ref


@pytest.mark.parametrize("value", [b"", b"?", b"[]", b'["7"]', b'["7", "8"]', b'["7", true]', b"[7, 8]", b'{"7": 8}'])
def test_a_record_of_a_copy_that_another_program_wrote_owes_nothing(value):
    assert _owed(value) is None and _owed(b'["7", 8]') == Owed("7", 8)


class MirroredQueue:
    """A mirrored queue as pass after pass finds it, and RabbitMQ's count of what was acknowledged there."""

    def __init__(self, *names, acknowledged=0, expiring=0):
        self.known, self.now, self.settings = Mirrored(DeadQueue("dlq")), 1000.0, {}
        self.acknowledged = acknowledged
        self.passed(*names, expiring=expiring)
        assert self.find_removed() == set()

    def passed(self, *names, took=(), expiring=0, is_complete=True):
        done = Pass(present=set(names), taken=set(took), expiring=expiring, is_complete=is_complete)
        self.known.record_pass(done, len(names), self.now)

    def find_removed(self, after_s=13.0):
        self.now += after_s
        return find_removed_by_others(self.known, self.acknowledged, self.settings, self.now)


def test_what_others_acknowledged_is_gone():
    contents = MirroredQueue("a", "b", "c")
    contents.passed("a")
    assert contents.find_removed() == set()  # a count that is late
    contents.acknowledged += 1
    assert contents.find_removed() == set()  # one of the two; nobody knows which
    contents.acknowledged += 1
    assert contents.find_removed() == {"b", "c"}
    assert contents.find_removed() == set()


@pytest.mark.parametrize(
    ("rules", "is_gone"),
    [
        ({"message-ttl": 1000}, False),
        ({"expires": 1000}, False),
        ({"max-length": 1}, False),
        ({"max-length-bytes": 1}, False),
        ({"max-length": 1, "overflow": "drop-head"}, False),
        ({"max-length": 1, "overflow": "reject-publish"}, True),
        ({"message-ttl": 1000, "overflow": "reject-publish"}, False),
        ({"queue-mode": "lazy"}, True),
    ],
)
def test_where_rabbitmq_itself_drops_nothing_is_gone(rules, is_gone):
    contents = MirroredQueue("a")
    contents.passed()
    contents.settings, contents.acknowledged = rules, 1
    assert contents.find_removed() == ({"a"} if is_gone else set())


def test_nothing_is_gone_where_messages_expire():
    contents = MirroredQueue("a", "b", expiring=1)
    contents.passed("a", expiring=1)
    contents.acknowledged += 1
    assert contents.find_removed() == set()


def test_what_expired_is_not_gone_though_a_person_took_another_which_was_never_seen():
    contents = MirroredQueue("a", expiring=1)
    contents.passed()  # its time is over
    contents.acknowledged += 1
    assert contents.find_removed() == set()
    contents.passed("b")  # nothing expires any more
    contents.acknowledged += 1
    assert contents.find_removed() == set()


def test_what_expires_deeper_than_a_pass_reached_is_remembered():
    contents = MirroredQueue("a", "b", expiring=1)
    contents.passed("a", is_complete=False)
    contents.passed("a")
    contents.acknowledged += 1
    assert contents.find_removed() == set()


def test_what_was_purged_is_not_gone_by_what_others_acknowledge_later():
    contents = MirroredQueue("a", "b")
    contents.passed()
    for _ in range(8):
        assert contents.find_removed() == set()
    contents.acknowledged += 2  # messages that came and went between two passes
    assert contents.find_removed() == set()
    contents.passed("c")
    assert contents.find_removed() == set()
    contents.passed()
    contents.acknowledged += 1
    assert contents.find_removed() == {"c"}


def test_what_we_took_out_ourselves_is_no_evidence():
    contents = MirroredQueue("a", "b")
    contents.passed(took=["a"])  # and b was purged meanwhile
    contents.acknowledged += 1
    assert contents.find_removed() == set()


def test_the_count_is_not_queried_so_soon_after_we_took_some_that_it_may_be_late():
    contents = MirroredQueue("a", "b", "c")
    contents.passed("b", "c", took=["a"])
    contents.passed("c")
    assert contents.find_removed(after_s=5) == set() == contents.find_removed(after_s=5)
    contents.acknowledged += 1  # only now it is counted, and it was ours
    assert contents.find_removed(after_s=5) == set()
    contents.acknowledged += 1
    assert contents.find_removed() == {"b"}


def test_who_counts_from_the_beginning_again_knows_nothing_of_before():
    contents = MirroredQueue("a", "b", acknowledged=7)
    contents.passed("b")
    contents.acknowledged = 2  # the statistics began anew
    assert contents.find_removed() == set()
    contents.acknowledged += 1
    assert contents.find_removed() == set()  # a is none of these
    contents.passed()
    contents.acknowledged += 1
    assert contents.find_removed() == {"b"}


@pytest.mark.parametrize("is_complete", [True, False])
def test_what_is_there_again_is_not_gone(is_complete):
    contents = MirroredQueue("a", "b")
    contents.passed("a")  # a consumer has b in hand
    contents.passed("a", "b", is_complete=is_complete)  # and gave it back
    contents.acknowledged += 1
    assert contents.find_removed() == set()


class TestLineages:
    """Jobs that a replay sent and that died again."""

    LINEAGE = {"queue": "emails", "job_id": "j1", "run": 2, "item": 7, "replay": "r", "sent_as": "new-7"}

    def stored_message(self, body=b'{"n": 1}'):
        properties = amqp.Message(b"", content_type="application/json")._serialize_properties()
        return rabbitmq_messages.pack("dlq", "emails", "j1|1", "", "dlq", properties, body)

    def read(self, state, body):
        properties = amqp.Message(b"", application_headers={"redrive": state})._serialize_properties()
        return rabbitmq_death.parse(RawMessage(properties, body, "", "dlq"), "dlq", "emails")

    def test_what_was_edited_is_known_by_the_body_that_went(self):
        written = rabbitmq_messages.build_message(
            OutgoingMessage(7, self.stored_message(), "emails", "new-7", self.LINEAGE, kwargs={"n": 41}), ()
        )  # fmt: skip
        found = RawMessage(written._serialize_properties(), written.body, "", "dlq")
        read = rabbitmq_death.parse(found, "dlq", "emails")
        assert written.body == b'{"n": 41}' and read.lineage and read.base == "new-7"

    def test_arguments_that_a_body_cannot_have_are_refused_before_anything_is_sent(self):
        source = connect("shop", "rabbitmq", "amqp://127.0.0.1:1//", (), {"dead_letter_queues": ["dlq"]})
        source.check_arguments(self.stored_message(), [], {"n": 2})
        with pytest.raises(SourceRefused, match="keyword arguments alone"):
            source.check_arguments(self.stored_message(), [1], {"n": 2})

    def test_of_two_that_are_equal_the_first_is_the_run_that_was_sent(self):
        body = b"{}"
        read = self.read(self.LINEAGE | {"body": rabbitmq_messages.digest_of(body)}, body)
        results = [
            rabbitmq_death.build_envelope(read, job_id, "shop", "dlq", rabbitmq_death.HeaderNames(), 1.0)
            for job_id in ("new-7", "new-7~2")
        ]
        assert [one.lineage is not None for one in results] == [True, False]

    @pytest.mark.parametrize("sent_as", ["x" * 1_000, "a\nb", "a\0b", "", None])
    def test_an_id_that_is_none_makes_no_lineage(self, sent_as):
        body = b"{}"
        read = self.read(self.LINEAGE | {"body": rabbitmq_messages.digest_of(body), "sent_as": sent_as}, body)
        assert read.lineage is None and len(read.base) == 32


@pytest.mark.server
class TestWhoDiesMeanwhile(Queues):
    def publish(self):
        self.bus.publish(self.dlq, {"n": 1}, message_id="always the same")
        wait_until(lambda: self.bus.depth(self.dlq) == 1)

    def take_out(self):
        assert self.bus.channel.basic_get(self.dlq, no_ack=True)

    def test_after_a_drain_that_acknowledged_and_died_what_comes_and_is_equal_is_another(self):
        self.publish()
        source = self.another(mode="drain")
        pulled = source.dead_letters("")
        (report,) = pulled.reports
        # Filed and acknowledged; before it is noted the process dies.
        pulled.receipt.drain.acknowledge(pulled.receipt.going, {})
        source.close()
        wait_until(lambda: self.bus.depth(self.dlq) == 0)
        self.publish()
        (other,) = read(self.another(mode="drain"))[0]
        assert name(other) != name(report)

    def test_after_a_mirror_that_took_out_a_copy_and_died_what_comes_and_is_equal_stays(self, source):
        self.publish()
        (report,), after = read(source)
        source.send("r", [build_message(report)])
        source._copies.begin_taking(self.dlq, [f"{report.job_id}|{report.attempt}"])
        source.close()
        self.take_out()  # out, and not noted
        self.publish()
        read(self.another(), after)
        assert self.bus.depth(self.dlq) == 1

    def test_a_store_that_is_away_for_a_moment_leaves_nothing_in_the_hands_of_a_drain(self):
        self.publish()
        source, store = self.another(mode="drain"), self.store
        (first,), after = read(source)
        self.publish()
        self.store = redis.Redis(port=free_port())
        for _ in range(2):
            with pytest.raises(SourceUnreachable):
                source.dead_letters(after)
        self.store, taking = store, keys.dead_letters("shop", "taking", self.dlq)
        store.set(taking, "not a set")  # it takes nothing down, though it answers
        with pytest.raises(SourceUnreachable):
            source.dead_letters(after)
        store.delete(taking)
        (second,), _ = read(source, after)
        assert second.job_id == f"{first.job_id}~2" and self.bus.depth(self.dlq) == 0

    def test_what_a_mirror_took_out_as_the_store_went_away_is_noted_when_that_is_back(self, source):
        self.publish()
        (report,), after = read(source)
        source.send("r", [build_message(report)])
        store, took = self.store, source._copies.finish_taking

        def just_now(*given):
            self.store = redis.Redis(port=free_port())
            took(*given)

        source._copies.finish_taking = just_now
        with pytest.raises(SourceUnreachable):
            read(source, after)
        source._copies.finish_taking, self.store = took, store
        wait_until(lambda: self.bus.depth(self.dlq) == 0)
        self.publish()
        (other,), _ = read(source, after)
        assert other.job_id == f"{report.job_id}~2"

    def test_where_others_took_out_the_copy_of_what_was_sent_one_that_comes_later_and_is_equal_stays(self, source):
        self.publish()
        (report,), after = read(source)
        source.send("r", [build_message(report)])
        self.take_out()
        wait_until(lambda: self.bus.depth(self.dlq) == 0)
        _, after = read(source, after)
        self.publish()
        read(source, after)
        assert self.bus.depth(self.dlq) == 1

    def test_what_a_person_took_out_and_dies_again_is_not_gone_any_more(self, source):
        self.publish()
        (report,), after = read(source)
        self.take_out()
        wait_until(lambda: self.broker.queue(self.dlq).get("message_stats", {}).get("get_no_ack"))
        _, after = read(source, after)
        assert set(source.check_jobs([ref(report)]).gone) == {ref(report)}
        self.bus.publish(self.dlq, {"n": 1}, message_id="always the same", application_headers={"x-attempts": 2})
        wait_until(lambda: self.bus.depth(self.dlq) == 1)
        (again,), _ = read(source, after)
        assert (again.job_id, again.attempt) == (report.job_id, 2)
        assert source.check_jobs([ref(again)]).gone == {}

    def test_a_queue_whose_name_is_longer_than_what_is_stored_of_it_gets_its_jobs_back(self):
        long = self.queue + "-" * 210
        self.bus.declare(long)
        self.publish()
        source = self.another(dead_letter_queues=[{"name": self.dlq, "of": long}])
        (report,), _ = read(source)
        assert source.send("r", [build_message(report, queue=long[:200])]) == {1: "sent"} and self.bus.depth(long) == 1

    def test_nothing_is_sent_into_a_queue_of_dead_letters(self):
        more = f"{self.dlq}.more"
        source = self.another(dead_letter_queues=[self.dlq, more])
        self.publish()
        (report,), _ = read(source)
        for queue in (self.dlq, more):
            with pytest.raises(SourceRefused, match="where dead letters lie"):
                source.send("r", [build_message(report, queue=queue)])
        with pytest.raises(SourceRefused, match="where dead letters lie"):  # also where it is not configured any more
            self.another(dead_letter_queues=[more]).send("r", [build_message(report, queue=self.dlq)])
        assert source.was_sent("r", [1]) == set()

    def test_none_waits_for_a_queue_that_never_ends(self):
        more = f"{self.dlq}.more"
        self.bus.declare(more)
        both = [{"name": self.dlq, "of": self.queue}, {"name": more, "of": "more"}]
        source, after, names = self.another(mode="drain", dead_letter_queues=both), "", set()
        for _ in range(4):
            for queue in (self.dlq, more):
                self.bus.publish(queue, {"n": 1})
            wait_until(lambda: self.bus.depth(self.dlq) and self.bus.depth(more))
            pulled = source.dead_letters(after)
            source.confirm_filed(pulled)
            after = pulled.after
            names |= {one.queue for one in pulled.reports}
        assert names == {self.queue, "more"}

    def test_who_is_started_again_reports_all_of_a_queue_that_changed_and_nothing_of_one_that_did_not(self, source):
        self.publish()
        _, after = read(source)
        source.close()
        assert read(self.another(), after)[0] == []
        self.take_out()
        self.bus.publish(self.dlq, {"n": 2})
        wait_until(lambda: self.bus.depth(self.dlq) == 1)
        (report,) = read(self.another(), after)[0]
        assert "2" in report.args + report.kwargs
