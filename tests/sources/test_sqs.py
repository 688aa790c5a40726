"""Dead-letter queues of Amazon SQS, on a server that speaks its protocol: drained, and sent again."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
import redis

from jobs_admin.sources.base import READ_ONLY, OutgoingMessage, SourceRefused, SourceUnreachable
from jobs_admin.sources.sqs import messages
from tests.kit.sqs import Gate, Shop
from tests.sources.contract import SourceContract
from tests.sources.pulled_contract import PulledContract, name, read

pytestmark = pytest.mark.server


class TestReading(Shop, PulledContract):
    def lose_everything(self):
        for queue in (self.queue, self.dlq):
            self.client.delete_queue(QueueUrl=self.url_of(queue))
        self.declare()


class TestSending(Shop, SourceContract):
    @pytest.fixture(autouse=True)
    def _set_up_message(self, source):
        self.elsewhere = f"{self.queue}-elsewhere"
        self.client.create_queue(QueueName=self.elsewhere)
        self.raw = messages.pack(messages.StoredMessage(self.dlq, self.queue, "old", {}, {}, '{"n": 1}'))

    def lose_everything(self):
        self.store.flushall()


def outgoing_message(report, token=1, **changes):
    job_id = f"new-{report.job_id}"
    lineage = {
        "queue": report.queue,
        "job_id": report.job_id,
        "run": 2,
        "item": token,
        "replay": "r",
        "sent_as": job_id,
    }
    values = {"token": token, "raw": report.raw, "queue": report.queue, "job_id": job_id, "lineage": lineage}
    return OutgoingMessage(**values | changes)


class TestDraining(Shop):
    def test_queues_of_every_size_are_emptied_and_each_message_is_reported_once(self):
        sizes = {f"{self.queue}-{size}": size for size in (0, 1, 9, 10, 11, 101)}
        buried = {}
        for queue, size in sizes.items():
            self.declare(queue, f"{queue}-dead")
            buried[queue] = set(self.send_all(f"{queue}-dead", [{"n": n} for n in range(size)]))
        source = self.another(queues=(), prefix=self.queue)
        assert {one.queue: one.source_dead for one in source.depths()} == {self.queue: 0, **sizes}
        reports, _ = read(source)
        assert len(reports) == sum(sizes.values())
        assert {queue: {one.job_id for one in reports if one.queue == queue} for queue in sizes} == buried
        assert {self.count_in(f"{queue}-dead") for queue in sizes} == {0}

    def test_a_reader_that_is_killed_at_any_moment_loses_and_doubles_nothing(self):
        random, buried, filed = Random(7), set(), {}
        for _ in range(8):
            buried |= set(self.send_all(self.dlq, [{"n": n} for n in range(random.randrange(15))]))
            reader = self.another()
            for _ in range(random.randrange(1, 4)):
                pulled = reader.dead_letters("")
                if random.random() < 0.3:
                    break  # killed before it filed them
                for report in pulled.reports:
                    filed.setdefault(name(report), set()).add(report.raw)
                if random.random() < 0.3:
                    break  # killed before it deleted what is filed
                reader.confirm_filed(pulled)
        for report in read(self.another())[0]:
            filed.setdefault(name(report), set()).add(report.raw)
        assert {job_id for _, job_id, *_ in filed} == buried and len(filed) == len(buried) > 30
        assert {len(raws) for raws in filed.values()} == {1} and self.count_in(self.dlq) == 0

    def test_what_is_not_filed_is_left_in_its_queue_which_then_rests(self, source):
        sent = [self.send(self.dlq, {"n": n}) for n in range(3)]
        pulled = source.dead_letters("")
        left = {n for n, report in enumerate(pulled.reports) if report.job_id == sent[1]}

        def leave(page, left):
            source.confirm_in_part(page, left)
            for n in left:  # it is visible again before its time
                handle = page.receipt.handles[n]
                url = self.url_of(self.dlq)
                self.client.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)

        leave(pulled, left)
        assert self.count_in(self.dlq) == 1
        again = source.dead_letters("")
        assert [one.job_id for one in again.reports] == [sent[1]]
        assert "Dead letters left here: 1" in again.failing[self.dlq]
        leave(again, {0})
        assert not source.dead_letters("").reports  # no other was received, so the queue is not read for a while
        source._paused.clear()
        source.confirm_filed(source.dead_letters(""))
        assert self.count_in(self.dlq) == 0

    def test_one_that_dies_again_is_the_same_job_and_a_copy_of_it_is_another(self, source):
        self.bury(1)
        (report,), _ = read(source)
        source.send("r", [outgoing_message(report, 7)])
        (sent,) = self.work(self.queue)
        for _ in range(2):  # a consumer that sends what it cannot do again, twice
            self.send(self.queue, sent["Body"], MessageAttributes=sent["MessageAttributes"])
        self.fail_again(self.queue)
        store, self.store = self.store, redis.Redis(port=1)
        with pytest.raises(SourceUnreachable, match="REDRIVE_REDIS_URL"):
            source.dead_letters("")
        self.store = store  # what was received meanwhile is still hidden
        again, _ = read(source)
        (second,) = [one for one in again if one.lineage]
        assert (second.job_id, second.lineage.run, second.lineage.item) == (f"new-{report.job_id}", 2, 7)
        assert len({name(one) for one in again}) == 2

    def test_what_a_message_carries_survives_a_replay_without_the_error_of_the_run_before(self, source):
        attributes = {
            "tenant": {"DataType": "String", "StringValue": "acme"},
            "picture": {"DataType": "Binary", "BinaryValue": b"\x80\0"},
            "ErrorMessage": {"DataType": "String", "StringValue": "SMTPError: refused"},
        }
        self.send(self.queue, "plain text", MessageAttributes=attributes)
        self.fail_again(self.queue)
        (report,), _ = read(source)
        assert report.message == "SMTPError: refused" and json.loads(report.args) == ["plain text"]
        source.send("r", [outgoing_message(report)])
        (received,) = self.work(self.queue)
        found = received["MessageAttributes"]
        assert received["Body"] == "plain text" and set(found) == {"tenant", "picture", "redrive"}
        assert found["picture"]["BinaryValue"] == b"\x80\0"

    def test_read_only_counts_and_touches_nothing(self):
        (ref,) = self.bury(1)
        source = self.another(read_only=True)
        assert not source.dead_letters("").reports and self.count_in(self.dlq) == 1
        assert [one.source_dead for one in source.depths()] == [1]
        assert READ_ONLY in {one.id for one in source.findings()}
        (report,), _ = read(self.another())
        with pytest.raises(SourceRefused, match="read_only"):
            source.send("r", [outgoing_message(report)])
        assert report.job_id == ref.job_id and self.count_in(self.queue) == 0

    @pytest.mark.parametrize("by", ["prefix", "source queue", "all queues"])
    def test_a_retry_queue_is_not_drained_where_a_redrive_policy_names_it(self, by):
        retry = f"{self.queue}-retry"
        self.declare(retry, self.dlq)
        self.point(self.queue, retry)
        self.send(retry, {"n": 1})  # a job that waits there
        self.send(self.dlq, {"n": 2})
        queues = {"prefix": (), "source queue": (self.queue,), "all queues": (self.queue, retry)}[by]
        source = self.another(queues=queues, **({"prefix": self.queue} if by == "prefix" else {}))
        reports, _ = read(source)
        assert [one.queue for one in reports] == ([] if by == "source queue" else [retry])
        assert self.count_in(retry) == 1
        assert {one.queue: one.waiting for one in source.depths()} == {self.queue: 0, retry: 1}
        assert retry in {one.id: one.text for one in source.findings()}["live-target"]

    def test_a_target_without_a_policy_is_not_drained_where_queues_name_it_or_once_it_gets_one(self, source):
        job_id = self.send(self.dlq, {"n": 1})
        assert not read(self.another(queues=(self.queue, self.dlq)))[0]
        source.depths()  # it is found as one of dead letters
        self.client.create_queue(QueueName=f"{self.dlq}-2")
        self.point(self.dlq, f"{self.dlq}-2")
        pulled = source.dead_letters("")
        assert not pulled.reports and "its own redrive policy" in pulled.failing[self.dlq]
        named = self.another(queues=(), dead_letter_queues=[self.dlq])
        assert [one.job_id for one in read(named)[0]] == [job_id]
        assert not {"live-target", "foreign-queue"} & {one.id for one in named.findings()}

    def test_a_message_of_aws_that_no_policy_moved_has_no_source_queue(self, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", self.url)
        source = self.another(endpoint_url="")
        self.send(self.dlq, {"n": 1})
        (report,), _ = read(source)
        assert report.queue == self.dlq and "no reason" in report.message
        with pytest.raises(SourceRefused, match="Choose a queue"):
            source.send("r", [outgoing_message(report)])
        assert source.send("r", [outgoing_message(report, queue=self.queue)]) == {1: "sent"}

    def test_another_queue_that_is_drained_is_no_target_and_those_of_others_are_findings(self):
        other = f"{self.queue}-other"
        self.declare(other, f"{other}-dlq")
        foreign = f"foreign-{self.queue}"
        self.declare(foreign, self.dlq)
        source = self.another(queues=(self.queue, other))
        self.bury(1, other)
        (report,), _ = read(source)
        with pytest.raises(SourceRefused, match="Choose another queue"):
            source.send("r", [outgoing_message(report, queue=self.dlq)])
        assert source.send("r", [outgoing_message(report)]) == {1: "sent"}
        assert foreign in {one.id: one.text for one in source.findings()}["foreign-queue"]

    def test_a_message_for_which_the_attribute_is_too_large_is_sent_without_it(self, source):
        self.client.set_queue_attributes(QueueUrl=self.url_of(self.queue), Attributes={"MaximumMessageSize": "1024"})
        self.send(self.queue, "x" * 1000)
        self.fail_again(self.queue)
        (report,), _ = read(source)
        assert source.send("r", [outgoing_message(report)]) == {1: "sent"}
        (received,) = self.work(self.queue)
        assert "MessageAttributes" not in received

    def test_settings_that_lose_messages_are_findings(self):
        bare = f"{self.queue}-bare"
        self.client.create_queue(QueueName=bare)
        source = self.another(queues=(self.queue, bare, "nothing-here"))
        texts = {one.id: one.text for one in source.findings()}
        assert set(source.dead_letters("").failing) == {"nothing-here"}
        self.bury(1)
        pulled = source.dead_letters("")
        assert pulled.reports and set(pulled.failing) == {"nothing-here"}
        assert set(texts) == {"unread-queue", "no-redrive-policy", "dead-letter-retention", "max-receive-count"}
        assert bare in texts["no-redrive-policy"] and "nothing-here" in texts["unread-queue"]


class TestFifo(Shop):
    suffix = ".fifo"

    def test_groups_stay_in_order_and_a_run_is_delivered_once(self, source):
        sent = [(group, f"{group}{n}") for n in range(6) for group in "ab"]
        for group, body in sent:
            self.send(self.queue, body, MessageGroupId=group, MessageDeduplicationId=body)
        self.fail_again(self.queue)
        reports, _ = read(source)
        assert len(reports) == len(sent) and {one.queue for one in reports} == {self.queue}
        outgoing = [outgoing_message(one, n) for n, one in enumerate(reports)]
        assert set(source.send("r", outgoing).values()) == {"sent"}
        self.store.flushall()  # the ledger is lost: SQS itself knows the runs, for five minutes
        source.send("r", outgoing[:3])
        # Its next run is another message, though it dies again within those minutes.
        source.send("s", [replace(outgoing[0], lineage=outgoing[0].lineage | {"run": 3})])
        *received, (later, body) = [(one["Attributes"], one["Body"]) for one in self.work(self.queue)]
        by_group = {g: [body for one, body in received if one["MessageGroupId"] == g] for g in "ab"}
        assert by_group == {g: [f"{g}{n}" for n in range(6)] for g in "ab"}
        ids = {one["MessageDeduplicationId"] for one, _ in received}
        assert len(ids) == 12 and all(one.startswith("redrive-") for one in ids)
        assert body == messages.unpack(outgoing[0].raw).body and later["MessageDeduplicationId"] not in ids

    def test_what_follows_a_message_that_was_not_taken_waits(self, source, sqs_server):
        for n in range(3):
            self.send(self.queue, f"{n}", MessageGroupId="a", MessageDeduplicationId=f"{n}")
        self.fail_again(self.queue)
        reports, _ = read(source)
        gate = Gate(sqs_server)
        away = self.another(endpoint_url=gate.url)
        gate.faults["SendMessage"] = "lost"
        with pytest.raises(SourceUnreachable):
            away.send("r", [outgoing_message(one, n) for n, one in enumerate(reports)])
        gate.faults["SendMessage"] = [None, (400, "InvalidMessageContents")]
        with pytest.raises(SourceRefused, match="Sent before it: 1") as refused:
            away.send("another", [outgoing_message(one, n) for n, one in enumerate(reports[1:], 1)])
        assert refused.value.tokens == {2}
        gate.close()
        assert away.in_doubt("r", [0, 1, 2]) == {0} and self.count_in(self.queue) == 2

    def test_a_job_without_a_group_is_refused(self, source):
        raw = messages.pack(messages.StoredMessage("x", "y", "id", {}, {}, "text"))
        with pytest.raises(SourceRefused, match="no group ID"):
            source.send("r", [OutgoingMessage(1, raw, self.queue, "new", {})])


class TestFaults(Shop):
    """Calls that SQS refuses, does not answer, or answers into the void."""

    @pytest.fixture(autouse=True)
    def _gate(self, _place):
        self.gate = Gate(self.url)
        yield
        self.gate.close()

    @pytest.fixture
    def source(self, _gate):
        return self.another(endpoint_url=self.gate.url)

    def test_what_sqs_refuses_may_be_sent_again(self, source):
        self.bury(1)
        (report,), _ = read(source)
        self.gate.faults["SendMessageBatch"] = (400, "RequestThrottled")
        with pytest.raises(SourceUnreachable, match="throttles requests"):
            source.send("r", [outgoing_message(report)])
        self.gate.faults["SendMessageBatch"] = (400, "KmsAccessDenied")
        with pytest.raises(SourceRefused, match="does not allow kms:Decrypt"):
            source.send("r", [outgoing_message(report)])
        self.gate.faults["SendMessageBatch"] = (403, "AccessDenied")
        with pytest.raises(SourceRefused, match="does not allow sqs:SendMessage ") as refused:
            source.send("r", [outgoing_message(report)])
        assert refused.value.tokens == {1} and not source.in_doubt("r", [1])
        self.gate.faults.clear()
        assert source.send("r", [outgoing_message(report)]) == {1: "sent"}

    @pytest.mark.parametrize("fault", ["lost", (503, "ServiceUnavailable")])
    def test_what_sqs_may_have_taken_is_in_doubt_and_never_sent_again(self, source, fault):
        self.bury(1)
        (report,), _ = read(source)
        self.gate.faults["SendMessageBatch"] = fault
        for _ in range(2):
            with pytest.raises(SourceUnreachable):
                source.send("r", [outgoing_message(report)])
            self.gate.faults.clear()
        assert source.in_doubt("r", [1]) == {1} and self.gate.calls.count("SendMessageBatch") == 1
        assert self.count_in(self.queue) == (1 if fault == "lost" else 0)

    @pytest.mark.parametrize(
        ("fault", "text"),
        [
            ((403, "AccessDeniedException"), "does not allow sqs:DeleteMessage "),
            ((400, "InvalidAddress"), "refused DeleteMessage "),
            ({"Failed": [{"Id": "0", "SenderFault": False, "Code": "InternalError"}]}, "did not delete 1 filed"),
        ],
    )
    def test_where_nothing_may_be_deleted_the_queue_is_left_alone_after_a_page(self, source, fault, text):
        self.bury(3)
        self.gate.faults["DeleteMessageBatch"] = fault
        assert len(read(source)[0]) == 3
        self.become_visible(source)
        received = self.gate.calls.count("ReceiveMessage")
        pulled = source.dead_letters("")
        assert text in pulled.failing[self.dlq] and not pulled.reports
        assert self.gate.calls.count("ReceiveMessage") == received and self.count_in(self.dlq) == 3

    def test_a_receive_that_is_refused_loses_no_page_that_is_in_hand(self, source):
        self.bury(11)
        self.gate.faults["ReceiveMessage"] = [None, (403, "AccessDenied")]
        assert len(read(source)[0]) == 10
        assert "does not allow sqs:ReceiveMessage" in source.dead_letters("").failing[self.dlq]
        self.gate.faults.clear()
        assert len(read(source)[0]) == 1

    def test_credentials_that_were_renewed_are_used_after_a_refusal(self, source, monkeypatch):
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(variable)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        with pytest.raises(SourceUnreachable, match="finds no AWS credentials"):
            source.depths()
        for key in ("first", "second"):
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
            self.gate.faults.clear()
            assert source.depths() and f"Credential={key}/" in self.gate.login
            self.gate.faults |= dict.fromkeys(["GetQueueAttributes", "GetQueueUrl"], (403, "ExpiredToken"))
            with pytest.raises(SourceUnreachable, match="refused the credentials"):
                source.depths()

    def test_a_queue_that_was_deleted_keeps_no_other_from_being_read(self, source):
        other = f"{self.queue}-other"
        self.declare(other, f"{other}-dead")
        source = self.another(queues=(self.queue, other), endpoint_url=self.gate.url)
        self.bury(2, other)
        source.depths()
        self.client.delete_queue(QueueUrl=self.url_of(self.dlq))
        reports, _ = read(source)
        assert {one.queue for one in reports} == {other} and len(reports) == 2
        assert f"has no queue {self.dlq!r}" in source.dead_letters("").failing[self.dlq]

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("hang", "did not answer within"),
            ((403, "ExpiredToken"), r"refused the credentials \(ExpiredToken\)"),
            ((500, "InternalError"), r"failed \(InternalError\)"),
        ],
    )
    def test_a_server_that_does_not_serve_is_unreachable(self, source, fault, message):
        self.gate.faults |= dict.fromkeys(["GetQueueAttributes", "GetQueueUrl"], fault)
        with pytest.raises(SourceUnreachable, match=message):
            source.depths()
