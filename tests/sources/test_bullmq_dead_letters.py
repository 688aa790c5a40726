"""Dead-letter queues of BullMQ, whoever fills them: filed once under the job they carry, sent in the step that takes every copy out."""

from __future__ import annotations

import json
import time

import pytest

from jobs_admin import config, replays
from jobs_admin.models import Failure, Replay
from jobs_admin.replays.options import Options
from jobs_admin.retries import pulling
from jobs_admin.sources.base import OutgoingMessage, Ref, SourceRefused
from tests.kit import node
from tests.kit.bullmq import Bull
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until
from tests.sources.pulled_contract import read, read_until, ref

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def bull(server):
    with node.Bullmq(6, server.url, broken=["partner"]) as running:
        yield running


def outgoing_message(report, token=1, queue=None, run=2, **changes):
    lineage = {
        "queue": report.queue,
        "job_id": report.job_id,
        "run": run,
        "item": token,
        "replay": "r",
        "sent_as": report.job_id,
    }
    return OutgoingMessage(
        **{
            "token": token,
            "raw": report.raw,
            "queue": queue or report.queue,
            "job_id": report.job_id,
            "lineage": lineage,
        }
        | changes
    )


class TestDeadLetterQueues(Bull):
    """Each test has a queue of its own and one for its dead letters."""

    @pytest.fixture(autouse=True)
    def _dead(self, _place):
        self.dead = f"{self.queue}-dead"

    def desk(self, **options):
        return self.another_of([self.queue, self.dead], **options)

    def copy(self, job_id, **changes):
        """As a listener (tests/node/forwarders) leaves one; a value of None is left out."""
        fields = {
            "originalQueue": self.queue,
            "originalJobId": job_id,
            "originalJobName": "welcome",
            "originalData": {"n": 1, "needs": "partner"},
            "originalOptions": {"attempts": 1},
            "failureReason": "the partner is down",
            "failureStack": "PartnerDown: the partner is down\n    at run (/srv/worker.js:4:2)",
            "attemptsMade": 1,
            "failedAt": self.now(),
        } | changes
        return self.bull.add(
            self.dead, "failed-job", {name: value for name, value in fields.items() if value is not None}
        )

    def now(self, ahead_s=0.0):
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + ahead_s)) + ".000Z"

    def pill(self, job_id):
        record = {"jobId": job_id, "crashCount": 3, "firstCrashAt": self.now(), "lastCrashAt": self.now()}
        nothing = dict.fromkeys(
            ("originalJobName", "originalOptions", "failureReason", "failureStack", "attemptsMade", "failedAt")
        )
        return self.copy(job_id, **nothing, poisonPillRecord=record, quarantinedAt=self.now())

    def as_json(self, job_id, **changes):
        """As a worker that forwards (tests/node/forwarders) leaves one, by this job's own `asJSON`."""
        job = self.bull.job(self.queue, job_id, "asJSON")
        return self.bull.add(
            self.dead, "failed-job", {"originalJob": job | changes, "error": "no", "failedAt": self.now()}, priority=1
        )

    def copies(self):
        return sorted(
            self.client.lrange(self.key("wait", self.dead), 0, -1)
            + self.client.zrange(self.key("prioritized", self.dead), 0, -1)
        )

    def trimmed(self, job_id):
        """As `removeOnFail: {count: …}` does, when others fail."""
        self.client.zrem(self.key("failed"), job_id)
        self.client.delete(self.key(job_id))

    def ran(self, job_id):
        self.bull.fix("partner")
        self.bull.work(self.queue)
        line = self.bull.wait_for_event("completed", queue=self.queue, id=job_id)
        self.bull.rest(self.queue)
        self.bull.break_("partner")
        return line

    # Filed once

    @pytest.mark.parametrize("first", ["queue", "dead"])
    def test_a_job_and_its_copies_are_one_failure_whichever_is_read_first(self, first):
        job_id = self.die(1)
        self.let_fail()
        for _ in range(3):
            self.copy(job_id)
        one = {"queue": self.queue, "dead": self.dead}[first]
        reports = read(self.another_of([one]))[0] + read(self.desk())[0]
        assert {(r.queue, r.job_id, r.attempt, r.kind, r.error_type, r.task) for r in reports} == {
            (self.queue, job_id, 1, "exception", "PartnerDown", "welcome")
        }

    def test_a_queue_is_known_by_what_waits_in_it_and_others_are_left_alone(self):
        self.bull.add(self.queue, "welcome", {"originalQueue": "x", "n": 1})
        source = self.desk()
        assert read(source)[0] == []
        self.copy("7")
        assert [r.job_id for r in read(source)[0]] == ["7"]

    # What comes from outside

    def forged(self, name="deliver", **options):
        """As a person writes who may choose the body of a request, which is a job's data."""
        fields = {
            "originalQueue": "payments",
            "originalJobId": "777",
            "originalJobName": "payout",
            "originalData": {"to": "them"},
            "failureReason": "the partner is down",
            "failedAt": self.now(),
            "needs": "partner",
        }
        return self.bull.add(self.queue, name, fields, **options)

    def suspected(self, source):
        return [one for one in source.findings() if one.id == "looks-like-dead-letter-queue" and self.queue in one.text]

    def test_data_alone_makes_no_queue_one_of_dead_letters(self):
        job_id = self.forged()
        source = self.another()
        assert read(source)[0] == [] and self.suspected(source)
        assert [(one.waiting, one.source_dead) for one in source.depths()] == [(1, 0)]
        assert source.remove([Ref("payments", "777")]) == set()
        assert self.client.lrange(self.key("wait"), 0, -1) == [job_id]

    def test_a_queue_with_a_worker_is_no_dead_letter_queue_whatever_its_jobs_are_called(self):
        self.bull.work(self.queue)
        self.forged("failed-job", delay=3_600_000)
        self.bull.wait_for_event("completed", queue=self.queue, id=self.bull.add(self.queue, "failed-job", {}))
        source = self.another()
        wait_until(lambda: self.queue in source.workers())
        self.client.lpush(self.key("paused"), self.forged("failed-job", delay=3_600_000))
        assert read(source)[0] == [] and self.suspected(source)
        self.bull.rest(self.queue)
        self.client.delete(self.key("completed"), self.key("stalled-check"))
        assert read(self.another())[0] == []  # its events tell that somebody did

    def test_a_queue_that_was_taken_for_one_is_none_any_more_when_a_person_works_there(self):
        self.copy("7")
        source = self.desk()
        assert [r.job_id for r in read(source)[0]] == ["7"]
        self.client.zadd(self.key("completed", self.dead), {"x": 1})
        self.copy("8")
        read(source)
        assert not source._dead.is_one(self.dead) and [r for r in source.findings() if self.dead in r.text]

    def test_a_job_that_failed_in_a_queue_is_reported_as_itself(self):
        job_id = self.forged("failed-job")
        source = self.another()
        read(source)
        self.let_fail()
        assert {(r.queue, r.job_id, r.task) for r in read(source)[0]} == {(self.queue, job_id, "failed-job")}

    def test_among_dead_letters_only_those_by_name_are_read_where_no_one_configured_the_queue(self):
        self.copy("7")
        self.bull.add(self.dead, "deliver", json.loads(self.client.hget(self.key(self.forged()), "data")))
        self.copy("8")
        assert {r.job_id for r in read(self.another_of([self.dead]))[0]} == {"7", "8"}

    def test_what_carries_nothing_is_no_failure_until_it_fails(self):
        self.copy("7")
        self.bull.add(self.dead, "note", {"hello": 1})
        assert [r.job_id for r in read(self.desk(dead_letter_queues=[self.dead]))[0]] == ["7"]

    def test_what_failed_in_a_dead_letter_queue_is_reported_as_the_job_that_it_carries(self):
        copy = self.copy("7")
        self.let_fail_all(copy)
        assert {(r.queue, r.job_id) for r in read(self.desk(dead_letter_queues=[self.dead]))[0]} == {(self.queue, "7")}

    def let_fail_all(self, copy):
        self.client.lrem(self.key("wait", self.dead), 1, copy)
        self.client.zadd(self.key("failed", self.dead), {copy: time.time() * 1000})
        self.client.hset(
            self.key(copy, self.dead), mapping={"failedReason": "x", "finishedOn": round(time.time() * 1000), "atm": 1}
        )

    def test_a_long_queue_is_read_page_by_page_and_each_is_reported_once_although_others_are_taken_out(self):
        for n in range(450):
            self.copy(f"j{n}")
        source = self.desk()
        pulled = source.dead_letters("")
        assert pulled.is_more and 0 < len(pulled.reports) < 450
        source.confirm_filed(pulled)
        reports, oldest = list(pulled.reports), self.client.lrange(self.key("wait", self.dead), -30, -1)
        for copy in oldest:
            self.client.lrem(self.key("wait", self.dead), -1, copy)
        self.copy("late")
        reports += read(source, pulled.after)[0]
        assert sorted(r.job_id for r in reports) == sorted(["late", *(f"j{n}" for n in range(450))])

    def test_a_queue_that_was_emptied_and_counts_again_is_read_from_its_beginning(self):
        for n in range(3):
            self.copy(f"before-{n}")
        source = self.desk()
        _, after = read(source)
        self.bull.queue(self.dead, "obliterate", {"force": True})
        for n in range(5):
            self.copy(f"now-{n}")
        assert sorted(r.job_id for r in read(source, after)[0]) == [f"now-{n}" for n in range(5)]

    def test_what_was_read_and_not_filed_is_reported_again(self):
        self.copy("7")
        source = self.desk()
        source.dead_letters("")
        assert [r.job_id for r in self.desk().dead_letters("").reports] == ["7"]
        assert [r.job_id for r in read(source)[0]] == ["7"] and source.dead_letters("").reports

    def test_those_of_a_priority_and_of_a_paused_queue_are_read_too(self):
        job_id = self.die(1)
        self.let_fail()
        self.as_json(job_id)
        self.copy("8")
        source = self.desk()
        reports, after = read(source)
        assert {r.job_id for r in reports} == {job_id, "8"}
        self.client.rename(self.key("wait", self.dead), self.key("paused", self.dead))  # as BullMQ up to 5 pauses one
        self.copy("9")
        assert "9" in {r.job_id for r in read(source, after)[0]}

    def test_a_copy_of_many_megabytes_breaks_nothing(self):
        self.copy("7")
        self.copy("8", originalData={"text": "x" * 3_000_000})
        self.client.hset(self.key(self.copy("9"), self.dead), "data", b'{"originalData": "' + b"x" * 20_000_000)
        assert sorted(r.job_id for r in read(self.desk())[0]) == ["7", "8"]

    def test_a_detector_that_runs_wild_leaves_one_failure_and_no_long_step(self):
        """As a detector of crashes (tests/node/forwarders) does where the job that it removes is still locked: it fails, takes that for a crash, and quarantines again."""
        pill = self.pill("7")
        fields = self.client.hgetall(self.key(pill, self.dead))
        with self.client.pipeline() as pipe:
            for n in range(3_000):
                pipe.hset(self.key(f"{n + 10}", self.dead), mapping=fields)
                pipe.lpush(self.key("wait", self.dead), f"{n + 10}")
            pipe.incrby(self.key("id", self.dead), 3_010)
            pipe.execute()
        source = self.desk(dead_letter_queues=[{"name": self.dead, "job_name": "explode"}])
        (report,), _ = read(source)
        assert self.client.hstrlen("redrive:{shop}:copies", f"{self.queue}:7") < 10_000
        assert source.send("r", [outgoing_message(report)]) == {1: "sent"} and 2_000 < len(self.copies()) < 2_900

    # Sent

    def test_a_job_that_only_its_copies_still_have_is_sent_from_them_and_all_leave(self):
        job_id = self.die(1, attempts=1, priority=3)
        self.let_fail()
        for _ in range(3):
            self.copy(job_id, originalOptions={"attempts": 1, "priority": 3})
        self.trimmed(job_id)
        source = self.desk()
        report = read(source)[0][-1]
        assert source.send("r", [outgoing_message(report)]) == {1: "sent"} and source.send(
            "r", [outgoing_message(report)]
        ) == {1: "already"}
        assert self.copies() == [] and self.ran(job_id)["name"] == "welcome"
        assert [r.kind for r in read(source)[0] if r.lineage] == ["success"]

    def test_copies_that_came_after_the_report_leave_too(self):
        job_id = self.die(1)
        self.let_fail()
        source = self.desk()
        (report,), after = read(source)
        self.copy(job_id), self.copy(job_id)
        read(source, after)
        source.send("r", [outgoing_message(report)])
        assert self.copies() == []

    def test_another_dead_letter_that_was_given_the_id_of_a_copy_stays_when_that_is_sent(self):
        copy = self.copy("7")
        source = self.desk()
        (report,), after = read(source)
        self.bull.job(self.dead, copy, "remove")
        self.client.delete(self.key("id", self.dead))  # the queue counts anew
        assert self.copy("8") == copy
        (other,), _ = read(source, after)
        assert source.send("r", [outgoing_message(report)]) == {1: "sent"} and self.copies() == [copy]
        refs = [ref(report), ref(other)]
        assert source.check_jobs([ref(other)]).gone == {} and ref(other) not in source.check_jobs(refs).gone

    def test_a_job_is_not_held_to_lie_in_a_dead_letter_queue_by_another_that_was_given_the_id_of_its_copy(self):
        copy = self.copy("7")
        source = self.desk()
        (report,), _ = read(source)
        self.bull.job(self.dead, copy, "remove")
        self.client.delete(self.key("id", self.dead))
        assert self.copy("8") == copy
        reference = Ref(report.queue, report.job_id, "dead", report.at)
        assert set(source.check_jobs([reference]).gone) == {reference}

    def test_what_is_refused_leaves_every_copy_where_it_is(self):
        job_id = self.die(1)
        self.let_fail()
        self.copy(job_id)
        source = self.desk()
        report = read(source)[0][0]
        self.bull.job(self.queue, job_id, "retry", "failed")
        with pytest.raises(SourceRefused):
            source.send("r", [outgoing_message(report)])
        assert len(self.copies()) == 1

    def test_a_second_death_is_reported_by_its_copy_where_the_job_itself_is_dropped_at_once(self):
        self.copy("again", originalOptions={"attempts": 1, "removeOnFail": True})
        source = self.desk()
        (report,), after = read(source)
        source.send("r", [outgoing_message(report)])
        place = self.bull.place()
        self.bull.work(self.queue)
        self.bull.wait_for_event("failed", place, queue=self.queue, id="again")
        self.bull.rest(self.queue)
        self.copy("again", failedAt=self.now(ahead_s=1))
        reports, _ = read_until(source, lambda seen: [r for r in seen if r.raw], after)
        assert {(r.lineage.run, r.attempt, r.kind) for r in reports} == {(2, 1, "exception")}

    def test_a_copy_of_before_reports_nothing_of_the_run_that_was_sent_since(self):
        self.copy("once")
        source = self.desk()
        (report,), after = read(source)
        source.send("r", [outgoing_message(report)])
        self.copy("once", failedAt=self.now(ahead_s=-60))  # by a watcher that was slow
        reports, _ = read(source, after)
        assert [r for r in reports if r.job_id == "once"] == []

    # Where nothing goes

    @pytest.mark.parametrize(
        "job_id", ["wait", "marker", "active", "delayed", "stalled", "failed", "id", "a:lock", "a\nb", "a\0"]
    )
    def test_an_id_that_is_none_of_a_job_is_refused(self, job_id):
        self.bull.add(self.queue, "welcome", {})
        self.client.delete(self.key("marker"))
        copy, source = self.copy(job_id), self.desk()
        report = [r for r in read(source)[0] if r.queue == self.queue][-1]
        before = sorted(self.client.scan_iter(f"bull:{self.queue}:*"))
        with pytest.raises(SourceRefused, match=r"own keys|no id of a job"):
            source.send("r", [outgoing_message(report, job_id=job_id)])
        assert sorted(self.client.scan_iter(f"bull:{self.queue}:*")) == before and self.copies() == [copy]

    @pytest.mark.parametrize(
        ("queue", "why"),
        [
            (None, "in which it lies"),
            ("a:b:c", "no name"),
            ("a\0b", "no name"),
            ("a\nb", "no name"),
            ("not-there", "not exist"),
        ],
    )
    def test_a_queue_that_cannot_be_its_own_is_refused(self, queue, why):
        copy, source = self.copy("7", originalQueue=queue or self.dead), self.desk()
        read(source)
        report = [r for r in read(source)[0] if r.job_id == "7"][-1]
        with pytest.raises(SourceRefused, match=why):
            source.send("r", [outgoing_message(report)])
        assert self.copies() == [copy] and not source.was_sent("r", [1])

    def test_a_priority_that_is_no_number_is_refused_before_anything_is_done_and_can_be_chosen(self):
        self.copy("6"), self.copy("7", originalOptions={"priority": "high"})
        source = self.desk()
        well, report = sorted(read(source)[0], key=lambda r: r.job_id)
        with pytest.raises(SourceRefused, match="priority") as refused:
            source.send("r", [outgoing_message(well, 1), outgoing_message(report, 2)])
        assert refused.value.tokens == {2} and len(self.copies()) == 2 and not source.was_sent("r", [1, 2])
        assert not self.client.exists(self.key("6"), self.key("7"))
        assert source.send("r", [outgoing_message(well, 1), outgoing_message(report, 2, priority=1)]) == {
            1: "sent",
            2: "sent",
        }

    # What does not say all

    @pytest.mark.parametrize("is_there", [True, False])
    def test_one_that_fits_two_queues_is_sent_to_neither_by_guess(self, is_there):
        twin = f"{self.queue}-twin"
        job_id = self.die(1)
        self.let_fail()
        fields = {"originalJob": self.bull.job(self.queue, job_id, "asJSON"), "error": "the partner is down"}
        self.bull.add(self.dead, "failed-job", fields | {"failedAt": self.now()})
        for name in (job_id, "events", "meta"):
            self.client.copy(self.key(name), self.key(name, twin))
        if not is_there:
            self.trimmed(job_id)
            self.client.delete(self.key(job_id, twin))
        source = self.another_of([self.queue, twin, self.dead])
        reports = [one for one in read(source)[0] if "deadLetterQueue" in one.headers]
        assert {one.queue for one in reports} == {self.dead} and len(reports) == 1
        with pytest.raises(SourceRefused, match="does not say which queue"):
            source.send("r", [outgoing_message(reports[0])])

    def test_a_copy_on_which_a_person_works_is_left_to_them(self):
        copy = self.copy("7")
        source = self.desk()
        (report,), _ = read(source)
        self.client.set(self.key(f"{copy}:lock", self.dead), "a worker")
        assert source.send("r", [outgoing_message(report)]) == {1: "sent"} and self.copies() == [copy]

    def test_one_that_names_no_queue_is_of_the_one_that_has_that_very_job(self):
        job_id = self.die(1)
        self.let_fail()
        self.as_json(job_id)
        assert {(r.queue, r.job_id) for r in read(self.desk())[0]} == {(self.queue, job_id)}

    def test_one_that_failed_in_its_dead_letter_queue_is_still_of_the_one_that_has_that_very_job(self):
        job_id = self.die(1)
        self.let_fail()
        copy = self.as_json(job_id)
        self.client.zrem(self.key("prioritized", self.dead), copy)
        self.let_fail_all(copy)
        reports = read(self.desk(dead_letter_queues=[self.dead]))[0]
        assert {(r.queue, r.job_id) for r in reports} == {(self.queue, job_id)}

    def test_one_of_which_no_one_has_the_job_any_more_is_filed_apart_and_sent_by_choosing_a_queue(self):
        job_id = self.die(1)
        self.let_fail()
        copy = self.as_json(job_id)
        self.trimmed(job_id)
        source = self.another_of([self.dead], dead_letter_queues=[self.dead])
        (report,), _ = read(source)
        assert (report.queue, report.job_id, report.task) == (self.dead, f"{job_id}.{self.dead}.{copy}", "welcome")
        (finding,) = [one for one in source.findings() if "unclear" in one.id]
        assert "choosing a queue" in finding.text and f'name = "{self.dead}"' in finding.fix
        with pytest.raises(SourceRefused, match="Choose a queue"):
            source.send("r", [outgoing_message(report)])
        assert source.send("r", [outgoing_message(report, queue=self.queue)]) == {1: "sent"}
        assert self.copies() == [] and self.ran(report.job_id)["name"] == "welcome"

    def test_with_the_queue_in_the_configuration_it_is_filed_there(self):
        job_id = self.die(1)
        self.let_fail()
        self.as_json(job_id)
        self.trimmed(job_id)
        source = self.desk(dead_letter_queues=[{"name": self.dead, "of": self.queue}])
        reports = read(source)[0]
        assert {(r.queue, r.job_id) for r in reports} == {(self.queue, job_id)}
        assert source.send("r", [outgoing_message(reports[-1])]) == {1: "sent"} and self.copies() == []

    def test_other_jobs_go_to_no_other_queue(self):
        self.copy("7")
        source = self.desk()
        (report,), _ = read(source)
        with pytest.raises(SourceRefused, match="its own queue"):
            source.send("r", [outgoing_message(report, queue="elsewhere")])
        assert len(self.copies()) == 1

    def test_the_name_of_a_pill_is_read_from_the_events_else_it_is_requested(self):
        job_id = self.bull.add(self.queue, "explode", {"n": 1})
        self.pill(job_id)
        self.bull.job(self.queue, job_id, "remove")
        (report,), _ = read(self.desk())
        assert (report.task, report.kind, len(json.loads(report.crashes))) == ("explode", "worker_lost", 3)
        self.client.delete(self.key("events"))
        source = self.desk()
        (report,), _ = read(source)
        assert report.task == "" and [one for one in source.findings() if "nameless" in one.id]
        with pytest.raises(SourceRefused, match="job_name"):
            source.send("r", [outgoing_message(report)])
        source = self.desk(dead_letter_queues=[{"name": self.dead, "job_name": "explode"}])
        (report,), _ = read(source)
        assert source.send("r", [outgoing_message(report)]) == {1: "sent"} and self.ran(job_id)["name"] == "explode"

    @pytest.mark.parametrize("options", [5, [{"of": "x"}], [{"name": "x", "off": "y"}], [["x"]], [{"name": 5}]])
    def test_an_option_that_makes_no_sense_is_refused_by_a_sentence(self, options):
        with pytest.raises(SourceRefused, match="dead_letter_queues is a list"):
            self.desk(dead_letter_queues=options)

    # What others do

    def test_a_job_that_was_moved_into_quarantine_is_not_gone_until_its_copy_is(self):
        job_id = self.bull.add(self.queue, "explode", {"n": 1})
        copy = self.pill(job_id)
        self.bull.job(self.queue, job_id, "remove")  # as the detector does
        source = self.desk()
        (report,), _ = read(source)
        refs = [Ref(report.queue, report.job_id, "quarantined", report.at - 1)]
        assert source.check_jobs(refs).gone == {}
        self.bull.job(self.dead, copy, "remove")
        assert set(source.check_jobs(refs).gone) == {ref(report)}

    def test_a_job_that_was_moved_into_quarantine_is_sent_from_there_although_events_report_that_it_was_removed(self):
        job_id = self.bull.add(self.queue, "explode", {"n": 1})
        self.pill(job_id)
        self.bull.job(self.queue, job_id, "remove")
        source = self.desk()
        (report,), _ = read(source)
        assert source.send("r", [outgoing_message(report)]) == {1: "sent"} and self.copies() == []

    def test_what_is_discarded_leaves_its_queue_and_the_dead_letter_queue(self):
        job_id = self.die(1)
        self.let_fail()
        self.copy(job_id), self.copy(job_id)
        source = self.desk()
        (report, *_), _ = read(source)
        assert source.remove([ref(report)]) == {ref(report)} and source.remove([ref(report)]) == set()
        assert self.copies() == [] and self.failed() == 0

    def test_what_is_discarded_leaves_no_other_dead_letter_with_its_id_out(self):
        copy = self.copy("7")
        source = self.desk()
        (report,), _ = read(source)
        self.bull.job(self.dead, copy, "remove")
        others = ("8", {}), ("7", {"originalQueue": "other"}), ("7", {"failedAt": self.now(3600)})
        for other, changes in others:  # another job, one of another queue, and a later failure of one with the same id
            self.client.delete(self.key("id", self.dead))  # the queue counts anew
            assert self.copy(other, **changes) == copy
            assert source.remove([ref(report)]) == set() and self.copies() == [copy], (other, changes)
            self.bull.job(self.dead, copy, "remove")

    def test_a_dead_letter_that_is_given_the_id_of_one_in_the_moment_in_which_that_is_discarded_stays(self):
        copy = self.copy("7")
        source = self.desk()
        (report,), _ = read(source)
        meant = source._dead.find_targets

        def meanwhile(*given):
            found = meant(*given)
            self.bull.job(self.dead, copy, "remove")
            self.client.delete(self.key("id", self.dead))
            assert self.copy("8") == copy
            return found

        source._dead.find_targets = meanwhile  # between the look at the copy and the step that takes it out
        assert source.remove([ref(report)]) == set() and self.copies() == [copy]

    def test_many_megabytes_are_read_some_at_a_time(self):
        copies = [self.copy(str(n), originalData={"text": "x" * 3_000_000}) for n in range(4)]
        source, after, reports = self.desk(dead_letter_queues=[self.dead]), "", []
        while len(reports) < len(copies):
            pulled = source.dead_letters(after)
            assert 1 <= len(pulled.reports) <= 2 and (pulled.is_more or len(reports) >= 2)
            reports += [one.job_id for one in pulled.reports]
            after = pulled.after
            source.confirm_filed(pulled)
        assert reports == ["0", "1", "2", "3"]

    def test_what_a_server_lost_is_not_gone(self):
        self.copy("7")
        source = self.desk()
        (report,), after = read(source)
        for key in (*self.client.scan_iter(f"bull:{self.dead}:*"), *self.client.scan_iter("redrive:*")):
            self.client.delete(key)
        read(source, after)
        assert source.check_jobs([Ref(report.queue, report.job_id, "dead", report.at)]).gone == {}
        wait_until(lambda: source.send("r", [outgoing_message(report)]) == {1: "sent"})

    # Flows

    def test_parent_and_children_of_a_flow_are_reported_in_words(self):
        parts = self.dead  # here only the name of another queue
        child = {
            "name": "part",
            "queueName": parts,
            "data": {"needs": "partner"},
            "opts": {"failParentOnFailure": True},
        }
        well = {"name": "part", "queueName": parts, "data": {}}
        made = self.bull.flow({"name": "order", "queueName": self.queue, "data": {}, "children": [child, well]})
        self.bull.work(parts), self.bull.work(self.queue)
        source = self.desk()
        reports, _ = read_until(source, lambda seen: {r.task for r in seen} >= {"order", "part"})
        self.bull.rest(parts), self.bull.rest(self.queue)
        by_task = {r.task: json.loads(r.headers) for r in [*reports, *read(source)[0]]}
        parent_id = made["job"] if isinstance(made, dict) else made
        assert by_task["part"]["parent"] == {"queue": self.queue, "id": parent_id}
        children = {id for kind in by_task["order"]["children"].values() for id in kind["some"]}
        assert f"{parts}:{made['children'][0]['job']}" in children, by_task["order"]

    # What BullMQ drops

    def test_what_is_exhausted_is_stored_before_bullmq_drops_it(self):
        """A watch is the dead-letter step: three are kept in Redis, all of them here."""
        source, reports, after = self.desk(), [], ""
        self.bull.work(self.queue)
        for n in range(8):
            place = self.bull.place()
            job_id = self.die(n, removeOnFail={"count": 3})
            self.bull.wait_for_event("failed", place, queue=self.queue, id=job_id)
            more, after = read_until(source, lambda seen, job_id=job_id: job_id in {r.job_id for r in seen}, after)
            reports += more
        self.bull.rest(self.queue)
        assert self.failed() == 3 and len({r.job_id for r in reports if r.is_raw_complete}) == 8
        oldest = reports[0]
        assert (
            source.send("r", [outgoing_message(oldest)]) == {1: "sent"} and self.ran(oldest.job_id)["name"] == "welcome"
        )

    # Through the desk

    @pytest.mark.django_db
    def test_a_person_chooses_the_queue_of_one_that_reports_none(self, store, settings, tmp_path):
        job_id = self.die(1)
        self.let_fail()
        self.as_json(job_id)
        self.trimmed(job_id)
        self.client.delete(self.key("events"))  # nobody knows any more whose it is
        file = tmp_path / "sources.toml"
        file.write_text(
            f'[sources.shop]\nbackend = "bullmq"\nurl = "{self.server.url}"\nqueues = ["{self.dead}", "{self.queue}"]\n'
        )
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        forget_configuration(config)
        pulling.pull("shop", "test")
        failure = Failure.objects.get()
        assert (failure.queue, failure.state) == (self.dead, "dead")

        def replayed(**more):
            begun = replays.start(
                ANN, replays.draft(ANN, selection=[failure.pk], pace={"style": "at_once"}, reason="mended", **more)
            )

            def ended():
                (
                    pulling.pull("shop", "test"),
                    replays.create_items(),
                    replays.send(f"chosen {begun.key}"),
                    replays.settle(),
                )
                return Replay.objects.get(pk=begun.pk).state == "done"

            wait_until(ended)
            return begun.items.get()

        refused = replayed()
        assert "Choose a queue" in refused.outcome and Failure.objects.get().state == "dead"
        self.bull.fix("partner")
        self.bull.work(self.queue)
        replayed(options=Options(to_queue=self.queue))
        self.bull.rest(self.queue)
        self.bull.break_("partner")
        assert Failure.objects.get().state == "recovered" and self.copies() == []
        config.adapter("shop").close()
        forget_configuration(config)
