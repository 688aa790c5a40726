"""Bull where it differs from BullMQ, on Bull 4: no stream of events, no version, its own retry and rights."""

from __future__ import annotations

import time

import pytest
import redis

from jobs_admin.core.lint import curve
from jobs_admin.core.lint.options import EXPONENTIAL_OF_BULL
from jobs_admin.sources import connect
from jobs_admin.sources.base import READ_ONLY, Ref, SourceRefused
from tests.kit import bullmq_scripts, node
from tests.kit.bullmq import LegacyBull
from tests.kit.waiting import wait_until
from tests.sources.pulled_contract import PulledContract, read, ref

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def bull(server):
    with node.Bullmq("bull4", server.url, broken=["partner"]) as running:
        yield running


class Legacy(LegacyBull):
    def message(self, report, token=1, **changes):
        return PulledContract.outgoing_message(self, report, token, **changes)

    next_id = PulledContract.next_id

    @property
    def can(self):
        return self.another().can

    def dead(self, source, **options):
        """One dead job and its report."""
        self.die(1, **options)
        self.let_fail()
        (report,), _ = read(source)
        return report


class TestAnAbsentJob(Legacy):
    def test_one_that_someone_removed_or_ran_stays_dead_and_is_refused_by_name(self, source):
        removed, ran, there = (self.die(n, removeOnComplete=True) for n in range(3))
        self.let_fail(more=3)
        reports, after = read(source)
        self.bull.job(self.queue, removed, "remove")
        self.bull.job(self.queue, ran, "retry")
        self.let_run()
        assert not self.client.exists(self.key(ran))
        read(source, after)
        assert source.check_jobs([ref(one) for one in reports]).gone == {}  # Bull does not say who acted
        with pytest.raises(SourceRefused, match="no longer there") as refused:
            source.send("r", [self.message(one, int(one.job_id)) for one in reports])
        assert refused.value.tokens == {int(removed), int(ran)}
        assert self.waiting(self.queue) == [] and source.was_sent("r", [int(there)]) == set()

    def test_one_that_was_discarded_here_is_put_back_once(self, source):
        report = self.dead(source, removeOnComplete=True)
        assert source.remove([ref(report)]) == {ref(report)}
        assert not self.client.exists(self.key(report.job_id)) and not self.failed()
        with pytest.raises(SourceRefused):
            source.send("r", [self.message(report)])
        assert source.send("r", [self.message(report, was_removed=True)]) == {1: "sent"}
        self.let_run()
        with pytest.raises(SourceRefused, match="no longer there"):
            source.send("s", [self.message(report, was_removed=True)])

    def test_a_discard_that_removed_nothing_is_no_evidence(self, source):
        report = self.dead(source, removeOnComplete=True)
        self.bull.job(self.queue, report.job_id, "retry")
        assert source.remove([ref(report)]) == set()
        self.let_run()
        with pytest.raises(SourceRefused, match="no longer there"):
            source.send("r", [self.message(report, was_removed=True)])

    def test_after_a_loss_of_all_data_it_is_refused(self, source):
        self.die(1)
        self.let_fail()
        (report,), after = read(source)
        self.client.flushall()
        read(source, after)
        with pytest.raises(SourceRefused, match="no longer there"):
            source.send("r", [self.message(report)])
        assert not self.client.exists(self.key(report.job_id))

    def test_one_that_was_sent_and_removed_as_it_ended_is_gone_and_one_that_was_lost_is_not(self, source):
        report = self.dead(source, removeOnComplete=True)
        sent = Ref(self.queue, report.job_id, "replaying", report.at)
        source.send("r", [self.message(report)])
        assert source.check_jobs([sent]).gone == {}
        self.let_run()
        assert "removeOnFail if not" in source.check_jobs([sent]).gone[sent]
        self.client.flushall()
        assert source.check_jobs([sent]).gone == {}

    def test_a_retry_that_succeeds_and_is_removed_is_gone(self, source):
        self.die(1, attempts=2, backoff=3_600_000, removeOnComplete=True)
        self.bull.work(self.queue)
        wait_until(lambda: self.client.zcard(self.key("delayed")))
        self.bull.rest(self.queue)
        (report,), _ = read(source)
        assert report.kind == "retry" and report.due_at == pytest.approx(time.time() + 3_600, abs=60)
        waits = ref(report, "retrying")
        assert source.check_jobs([waits]).due == {waits: pytest.approx(report.due_at, abs=1)}
        self.bull.job(self.queue, report.job_id, "promote")
        self.let_run()
        assert set(source.check_jobs([waits]).gone) == {waits}


class TestSending(Legacy):
    def test_it_goes_as_by_bulls_own_retry(self, source):
        report = self.dead(source, priority=3)
        self.bull.queue(self.queue, "pause")
        with self.client.pubsub() as heard:
            heard.psubscribe(self.key("waiting@*"))
            heard.get_message(timeout=5)
            assert source.send("r", [self.message(report)]) == {1: "sent"}
            assert heard.get_message(timeout=5)["data"] == report.job_id
        assert self.client.lrange(self.key("paused"), 0, -1) == [report.job_id]
        job = self.client.hgetall(self.key(report.job_id))
        assert job["attemptsMade"] == "0" and job["retriedOn"] and "failedReason" not in job
        assert [one.id for one in source.findings()] == ["paused"]
        self.bull.queue(self.queue, "resume")
        self.let_run()
        assert self.client.zcard(self.key("completed")) == 1

    def test_one_that_a_worker_still_has_is_refused(self, source):
        report = self.dead(source)
        self.client.set(self.key(f"{report.job_id}:lock"), "token")
        with pytest.raises(SourceRefused, match="a worker still has it"):
            source.send("r", [self.message(report)])
        assert source.remove([ref(report)]) == set() and self.failed() == 1

    @pytest.mark.parametrize("denied", ["-lpush", "-hset", "resetchannels", "%R~bull:*"])
    def test_a_right_that_a_send_needs_is_missing_and_nothing_is_sent(self, source, denied):
        report = self.dead(source)
        rights = ["~redrive:*", "+@all"] + (["allchannels"] if denied != "resetchannels" else [])
        rights += ["~bull:*"] if denied != "%R~bull:*" else []
        mine = self._as(*rights, denied)
        assert READ_ONLY in {one.id for one in mine.findings()}
        for act in (lambda: mine.send("r", [self.message(report)]), lambda: mine.remove([ref(report)])):
            with pytest.raises(SourceRefused):
                act()
        assert self.failed() == 1 and source.was_sent("r", [1]) == set() and self.waiting(self.queue) == []

    def test_a_right_that_is_missing_in_one_queue_is_found_in_the_step_that_sends(self, source):
        report = self.dead(source)
        mine = self._as("~redrive:*", "+@all", "allchannels", "%R~bull:*", "~bull:aaa:*", queues=["aaa", self.queue])
        with pytest.raises(SourceRefused, match="may not run all commands") as refused:
            mine.send("r", [self.message(report)])
        assert refused.value.tokens == {1} and source.was_sent("r", [1]) == set() and self.failed() == 1

    def _as(self, *rights, queues=()):
        self.client.execute_command("ACL", "SETUSER", "some", "reset", "on", ">word", *rights)
        host = self.server.url.rpartition("@")[2].removeprefix("redis://")
        mine = connect("shop", "bull", f"redis://some:word@{host}", queues or [self.queue])
        self.made.append(mine)
        return mine


class TestItsNeighbour(Legacy):
    def test_queues_of_bullmq_are_named_and_left_to_it(self, source):
        report = self.dead(source)
        self.client.hset(self.key("meta"), "version", "bullmq:5.81.5")
        (finding,) = [one for one in source.findings() if one.severity == "high"]
        assert finding.id == READ_ONLY and 'backend = "bullmq"' in finding.fix
        with pytest.raises(SourceRefused, match="BullMQ, not Bull"):
            source.send("r", [self.message(report)])
        assert source.remove([ref(report)]) == set()
        every = self.another_of([])
        assert self.queue not in {one.queue for one in every.depths()}

    def test_a_source_of_bullmq_names_bull(self, source):
        report = self.dead(source)
        for queues in ([self.queue], []):
            with redis.Redis.from_url(self.server.url) as client:
                for key in client.scan_iter("bull:*:meta"):
                    client.delete(key)
            theirs = connect("node", "bullmq", self.server.url, queues)
            self.made.append(theirs)
            (finding,) = [one for one in theirs.findings() if one.severity == "high"]
            assert 'backend = "bull"' in finding.fix
        with pytest.raises(SourceRefused, match="Bull, not BullMQ"):
            theirs.send("r", [self.message(report)])
        assert self.failed() == 1 and self.waiting(self.queue) == []

    def test_how_jobs_are_retried_is_read_as_bull_does_it(self, source):
        backoff = {"type": "exponential", "delay": 1_000}
        self.bull.add(self.queue, "welcome", {}, attempts=4, backoff=backoff, priority=1)
        found = source.found_options()
        (options,) = found.options
        assert (options.backoff, options.attempts, options.first_priority) == (EXPONENTIAL_OF_BULL, 4, 0)
        assert curve.of_options(options, found).envelope[:3] == (1.0, 3.0, 7.0)  # as backoffs.js of Bull


def test_the_script_of_its_retry_is_bulls_own():
    """Bull 4's script: Bull 3 adds a job to `wait` also while its queue is paused."""
    try:
        theirs = node.packages() / "node_modules/bull4/lib/commands/reprocessJob-6.lua"
    except node.OutOfReach as error:
        pytest.skip(str(error))
    assert (bullmq_scripts.OURS / "bull/reprocessJob.lua").read_text() == theirs.read_text()
