"""BullMQ 4, 5 and 6: real workers on Node, a real server, and what people do with BullMQ's own means."""

from __future__ import annotations

import json

import pytest

from jobs_admin.sources.base import Ref
from tests.kit.bullmq import Bull
from tests.kit.waiting import wait_until
from tests.sources.pulled_contract import PulledContract, read, ref

pytestmark = pytest.mark.server


class TestContract(Bull, PulledContract):
    def bury(self, count):
        ids = [self.die(n) for n in range(count)]
        self.let_fail(more=count)
        # Each in another moment, as `PulledContract` expects.
        return [self._ref_of(job_id) for job_id in ids]

    def _ref_of(self, job_id):
        return Ref(self.queue, job_id, "dead", self.client.zscore(self.key("failed"), job_id) / 1000)

    def waiting(self, queue):
        lists = [one for state in ("wait", "paused") for one in self.client.lrange(self.key(state, queue), 0, -1)]
        return [one for one in lists if not one.startswith("0:")] + self.client.zrange(
            self.key("prioritized", queue), 0, -1
        )

    def waiting_data(self, queue):
        found = [json.loads(self.client.hget(self.key(job_id, queue), "data")) for job_id in self.waiting(queue)]
        return [{"n": one["n"]} for one in found]

    def work(self, queue):
        self.bull.fix("partner")
        self.bull.work(queue)
        wait_until(lambda: not self.waiting(queue) and not self.client.llen(self.key("active", queue)))
        self.bull.rest(queue)
        self.bull.break_("partner")

    def fail_again(self, queue):
        self.let_fail(queue)

    def revive(self, job):
        self.bull.job(job.queue, job.job_id, "retry", "failed")

    def take_out(self, job):
        self.bull.job(job.queue, job.job_id, "remove")

    def trim(self, job):
        """As `removeOnFail: {count: …}` does, when others fail."""
        self.client.zrem(self.key("failed"), job.job_id)
        self.client.delete(self.key(job.job_id))

    def lose_everything(self):
        self.client.flushall()

    def become_unknown(self):
        self.client.hset(self.key("meta"), "version", "bullmq:99.0.0")


class TestDeadLetterQueues(Bull):
    def test_what_a_dead_letter_queue_carries_is_filed_once_under_its_own_queue_and_its_copy_goes_with_it(self, source):
        job_id, copies = self.die(1), f"{self.queue}-dead"
        self.let_fail()
        copy = {
            "originalQueue": self.queue, "originalJobId": job_id, "originalJobName": "welcome",
            "originalData": {"n": 1, "needs": "partner"}, "originalOptions": {"attempts": 1}, "failureReason": "the partner is down",
            "attemptsMade": 1, "failedAt": "2026-11-20T10:00:00.000Z",
        }  # fmt: skip
        self.bull.add(copies, "failed-job", copy)
        self.bull.add(copies, "failed-job", {**copy, "originalJobId": "trimmed"})
        both = self.another_of([self.queue, copies], dead_letter_queues=[copies])
        reports, _ = read(both)
        assert {(one.queue, one.job_id, one.attempt) for one in reports} == {
            (self.queue, job_id, 1),
            (self.queue, "trimmed", 1),
        }
        assert next(depth for depth in both.depths() if depth.queue == copies).source_dead == 2
        messages = [
            PulledContract.outgoing_message(self, one, n)
            for n, one in enumerate(sorted(reports, key=lambda one: one.job_id))
        ]
        assert both.send("r", messages[:1]) == {0: "sent"}
        assert next(depth for depth in both.depths() if depth.queue == copies).source_dead <= 1
        assert both.remove([ref(one) for one in reports if one.job_id == "trimmed"]) == {Ref(self.queue, "trimmed")}
        assert both.depths()[0].waiting == 1

    next_id = PulledContract.next_id

    @property
    def can(self):
        return self.another().can
