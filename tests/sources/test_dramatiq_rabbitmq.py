"""Dramatiq on RabbitMQ: its own producer and worker, and a real node."""

from __future__ import annotations

import json
from itertools import count

import amqp
import pytest
import redis

from dashboard.setup.engine import Engine
from jobs_admin.sources import connect
from jobs_admin.sources.amqp.management import QueueState
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.dramatiq.on_rabbitmq import DramatiqOnRabbitMQ
from jobs_admin.sources.rabbitmq import findings as rabbitmq_findings
from jobs_admin.sources.rabbitmq import messages as rabbitmq_messages
from jobs_admin.sources.rabbitmq.settings import find_dead_queues
from tests.kit import shops
from tests.kit.rabbit_bus import Broker, Bus, be_patient
from tests.kit.waiting import wait_until
from tests.sources.contract import SourceContract
from tests.sources.pulled_contract import PulledContract, name, read, ref

pytestmark = pytest.mark.server
_numbers = count(1)
URL = "amqp://ann:pass-word@127.0.0.1:1//"
ONE_ATTEMPT = {"max_retries": 0}


@pytest.mark.parametrize(
    ("queues", "options", "message"),
    [
        ((), {}, "name its queues"),
        (("mails.XQ",), {}, "Name the queue itself: mails."),
        (("x" * 201,), {}, "at most 200 characters"),
        (("mails",), {"namespace": "dramatiq"}, "unknown option 'namespace'"),
        (("mails",), {"confirm_within_s": 0}, "confirm_within_s"),
        (("mails",), {"tenant": 3}, "tenant"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(queues, options, message):
    with pytest.raises(SourceRefused, match=message) as refused:
        connect("shop", "dramatiq", URL, queues, options)
    assert "pass-word" not in str(refused.value)


def states(*names):
    settings = {f"{one}.XQ": {"message-ttl": 604_800_000} for one in names}
    for one in names:
        to = {"dead-letter-exchange": "", "dead-letter-routing-key": f"{one}.XQ"}
        settings |= {one: to, f"{one}.DQ": to}
    return {one: QueueState(0, True, 0, found) for one, found in settings.items()}


def test_a_rabbitmq_source_leaves_the_queues_of_dramatiq_to_their_own():
    found = states("mails", "bills")
    assert find_dead_queues(found, [], True) == ()
    del found["mails.DQ"]
    assert [one.name for one in find_dead_queues(found, [], True)] == ["mails.XQ"]


def test_a_name_that_the_desk_cannot_store_is_reported():
    source = connect("shop", "dramatiq", URL, (), {"management_url": "http://127.0.0.1:1"})
    assert isinstance(source, DramatiqOnRabbitMQ)
    found = source._find_dead_queues(source._management, states("m" * 200, "m" * 201))
    assert [one.of for one in found] == ["m" * 200] and source._too_long == ("m" * 201,)


@pytest.fixture(scope="module")
def shop(tmp_path_factory, rabbit_node):
    shops.need("dramatiq")
    shops.need_pika()
    engine = Engine(tmp_path_factory.mktemp("dramatiq")).start()
    running = shops.Shop("dramatiq", engine.url, rabbit_node.url)
    running.plans = engine.url
    yield running
    running.stop()
    engine.stop()


class Queues:
    """A queue of a test's own, with the queues that Dramatiq declares beside it."""

    @pytest.fixture(autouse=True)
    def _place(self, shop, rabbit_node, store, monkeypatch):
        be_patient(monkeypatch)
        self.shop, self.node, self.store, self.made = shop, rabbit_node, store, []
        self.plans = redis.Redis.from_url(shop.plans)
        self.plans.flushall()
        self.plans.set("broken", "fail")
        self.queue = f"dramatiq-{next(_numbers)}"
        self.bus, self.broker = Bus(rabbit_node.url), Broker(rabbit_node)
        self.shop.do(["declare", self.queue])
        yield
        for one in (*self.made, self.bus, self.plans):
            one.close()

    def another(self, queues=None, **options):
        chosen = (self.queue,) if queues is None else queues
        url = options.pop("url", self.node.url)
        self.made.append(connect("shop", "dramatiq", url, chosen, options, store=lambda: self.store))
        return self.made[-1]

    @pytest.fixture
    def source(self, _place):
        return self.another()

    def add(self, *jobs):
        """Messages that a worker runs at once. Return their ids."""
        ids, _ = self.shop.do(["add", self.queue, list(jobs)], ["work", self.queue])
        return ids

    def bury(self, count):
        self.add(*({"args": [{"n": n}]} for n in range(count)))
        return []

    def messages(self, queue):
        return [json.loads(message.body) for message in self.bus.bodies(queue)]

    def waiting(self, queue):
        return [one["message_id"] for one in self.messages(queue)]

    def waiting_data(self, queue):
        return [one["args"][0] for one in self.messages(queue)]

    def work(self, queue, outcome="ok"):
        self.plans.set("broken", outcome)
        self.shop.do(["work", queue])
        self.plans.set("broken", "fail")

    def lose_everything(self):
        for queue in (self.queue, f"{self.queue}.DQ", f"{self.queue}.XQ"):
            self.bus.channel.queue_delete(queue)
        self.shop.do(["renew"], ["declare", self.queue])

    def unplug(self, source):
        source.close()
        source._sender.url = "amqp://redrive:secret@127.0.0.1:1//"


class TestReading(Queues, PulledContract):
    def test_each_dead_letter_is_reported_once_with_what_it_takes_to_send_it_again(self, source):
        self.bury(3)
        reports, after = read(source)
        assert sorted(self.data(one) for one in reports) == [0, 1, 2] and read(source, after)[0] == []
        for one in reports:
            assert one.is_raw_complete and (one.kind, one.attempt, one.queue) == ("exception", 2, self.queue)
            assert (one.error_type, one.message, one.task) == ("PartnerDown", "the partner is down", "send")
            assert "Traceback" in one.trace
        assert self.bus.depth(f"{self.queue}.XQ") == 0

    def test_who_is_started_again_in_the_middle_misses_nothing(self, source):
        self.bury(5)
        pulled = source.dead_letters("")
        source.close()  # it dies before it could tell that these were filed
        wait_until(lambda: self.bus.depth(f"{self.queue}.XQ") == 5)
        again, _ = read(self.another(), "")
        assert sorted(map(name, again)) == sorted(map(name, pulled.reports)) and len(again) == 5
        assert self.bus.depth(f"{self.queue}.XQ") == 0

    def test_a_job_without_retries_has_a_message_instead_of_an_error(self, source):
        (job_id,) = self.add({"args": [1], "options": ONE_ATTEMPT})
        (report,), _ = read(source)
        assert report.job_id.startswith(f"{job_id}.") and (report.attempt, report.error_type) == (1, "")
        assert report.message.startswith("Dramatiq stores no error of the last attempt")

    def test_a_replayed_job_that_dies_again_is_the_next_run_after_retries_too(self, source):
        self.add({"args": [{"n": 1}], "options": {"max_retries": 1, "min_backoff": 1, "max_backoff": 1}})
        (report,), after = read(source)
        assert source.send("r", [self.outgoing_message(report, 7)]) == {7: "sent"}
        (message,) = self.messages(self.queue)
        assert message["message_id"] == f"new-{report.job_id}" and message["queue_name"] == self.queue
        assert not {"retries", "traceback", "eta", "requeue_timestamp"} & message["options"].keys()
        self.work(self.queue, "fail")
        (again,), _ = read(source, after)
        assert (again.lineage.run, again.lineage.item, again.lineage.job_id) == (2, 7, report.job_id)
        assert (again.attempt, again.job_id) == (2, f"new-{report.job_id}")

    def test_what_others_enqueue_again_and_dies_at_a_lower_attempt_is_another_job(self, source):
        (job_id,) = self.add({"args": [{"n": 1}]})
        (first,), after = read(source)
        self.add({"args": [{"n": 1}], "id": job_id, "options": ONE_ATTEMPT})
        (second,), _ = read(source, after)
        assert first.job_id.startswith(f"{job_id}.") and second.job_id.startswith(f"{job_id}.")
        assert (first.attempt, second.attempt, second.lineage) == (2, 1, None) and first.job_id != second.job_id

    def test_two_deaths_of_one_id_are_distinguished_by_a_drain_that_died(self, source):
        (job_id,) = self.add({"args": [{"n": 1}]})
        (first,), _ = read(source)
        self.add({"args": [{"n": 1}], "id": job_id, "options": ONE_ATTEMPT})
        pulled = source.dead_letters("")
        source.close()  # after it fetched the second, while the name of the first is still known as just removed
        wait_until(lambda: self.bus.depth(f"{self.queue}.XQ") == 1)
        (second,), _ = read(self.another(), "")
        assert name(second) == name(pulled.reports[0]) and second.job_id != first.job_id

    def test_a_replay_has_the_priority_and_durability_of_its_job(self, source):
        self.add({"args": [{"n": 1}], "options": {**ONE_ATTEMPT, "broker_priority": 7}})
        (report,), _ = read(source)
        assert report.priority == 7
        source.send("r", [self.outgoing_message(report)])
        (message,) = self.bus.bodies(self.queue)
        assert (message.properties["priority"], message.properties["delivery_mode"]) == (7, 2)

    @pytest.mark.parametrize("suffix", [".DQ", ".XQ"])
    def test_nothing_is_sent_where_nothing_runs(self, source, suffix):
        self.bury(1)
        (report,), _ = read(source)
        with pytest.raises(SourceRefused):
            source.send("r", [self.outgoing_message(report, queue=f"{self.queue}{suffix}")])
        assert self.messages(f"{self.queue}{suffix}") == []

    @pytest.mark.parametrize(
        "body",
        [b"\x80\x04pickle", b"", b"[]", b'{"actor_name": 3, "options": {}}', b'{"options": 1, "actor_name": "a"}',
         b'{"actor_name": "a", "options": {"traceback": [1], "retries": "x"}, "message_id": 3, "args": {}}'],
    )  # fmt: skip
    def test_what_is_no_message_of_dramatiq_is_stored_and_not_sent(self, source, body):
        self.bus.publish(f"{self.queue}.XQ", body)
        wait_until(lambda: self.bus.depth(f"{self.queue}.XQ") == 1)
        (report,), _ = read(source)
        assert report.raw.endswith(body) and report.queue == self.queue and report.message
        assert not source.is_chord_member(report.raw) and source.expires_at(report.raw) is None
        with pytest.raises(SourceRefused) as refused:
            source.send("r", [self.outgoing_message(report, 1)])
        assert refused.value.blames(1) and self.messages(self.queue) == []

    def test_what_rabbitmq_itself_took_out_has_its_reason(self, source):
        body = {"queue_name": self.queue, "actor_name": "send", "args": [], "kwargs": {}, "options": {}}
        body |= {"message_id": "late", "message_timestamp": 1}
        self.bus.publish(self.queue, body, expiration="1")
        wait_until(lambda: self.bus.depth(f"{self.queue}.XQ") == 1)
        (report,), _ = read(source)
        assert (report.kind, report.error_type, report.job_id[:5]) == ("expired", "Expired", "late.")

    def test_queues_are_found_by_the_management_with_what_is_delayed(self):
        self.shop.do(["add", self.queue, [{"args": [1], "delay": 10**8}, {"args": [1], "delay": 10**8}]])
        self.bury_without_work(3)
        wait_until(lambda: self.broker.queue(f"{self.queue}.DQ"))
        source = self.another((), management_url=self.node.management_url)

        def depth():
            return next((one for one in source.depths() if one.queue == self.queue), None)

        wait_until(lambda: depth() and depth().delayed == 2)
        assert depth().source_dead == 3 and self.another().depths()[0].delayed is None
        assert source.findings() == [] and self.another().findings() == []
        bus = connect("bus", "rabbitmq", self.node.url, (), {"management_url": self.node.management_url})
        self.made.append(bus)
        assert [one.id for one in bus.findings() if one.id == "dramatiq-queues"]
        assert self.queue not in {one.of for one in bus._dead_queues()[0]}

    def bury_without_work(self, count):
        for n in range(count):
            self.bus.publish(f"{self.queue}.XQ", {"n": n})
        wait_until(lambda: self.bus.depth(f"{self.queue}.XQ") == count)

    def test_a_queue_that_is_not_there_is_a_finding(self):
        assert [one.id for one in self.another(("no-such",)).findings()] == ["queue-missing"]

    def test_checking_what_is_dead_reports_nothing_gone(self, source):
        self.bury(2)
        reports, _ = read(source)
        assert source.check_jobs([ref(one) for one in reports]).gone == {}


class TestSending(Queues, SourceContract):
    @pytest.fixture(autouse=True)
    def _set_up_message(self, source):
        self.queue = "emails"
        for queue in ("emails", "webhooks"):
            self.bus.declare(queue)
            self.bus.channel.queue_purge(queue)
        body = {"queue_name": self.queue, "actor_name": "send", "args": [], "kwargs": {}, "options": {}}
        body |= {"message_id": "m", "message_timestamp": 1}
        properties = amqp.Message(b"", delivery_mode=2)._serialize_properties()
        packed = ("emails.XQ", self.queue, "m|1", "", "emails.XQ", properties, json.dumps(body).encode())
        self.raw = rabbitmq_messages.pack(*packed)

    def another(self, queues=("emails",), **options):
        return super().another(queues, **options)

    def lose_everything(self):
        self.store.flushall()


def test_a_finding_names_the_queues_of_dramatiq():
    assert rabbitmq_findings.unread_dramatiq([]) == []
    assert "mails.XQ" in rabbitmq_findings.unread_dramatiq(["mails"])[0].text
