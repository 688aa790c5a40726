"""BullMQ 4, 5 and 6: real workers on Node, a real server, and what people do with BullMQ's own means."""

from __future__ import annotations

import json
import time
from itertools import count

import pytest
import redis

from dashboard.setup.engine import Engine, free_port
from jobs_admin.sources import connect
from jobs_admin.sources.base import Ref
from tests.kit import node
from tests.sources.pulled_contract import PulledContract, read, ref

pytestmark = pytest.mark.server

_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    running = Engine(tmp_path_factory.mktemp("bullmq")).start()
    yield running
    running.stop()


@pytest.fixture(scope="module", params=node.MAJORS)
def bull(request, server):
    """A producer and worker of one major, for all tests; what jobs need is broken, so they die."""
    with node.Bullmq(request.param, server.url, broken=["partner"]) as running:
        yield running


@pytest.fixture
def client(server):
    with redis.Redis.from_url(server.url, decode_responses=True) as made:
        yield made


def wait(until, deadline_s=90):
    ends = time.monotonic() + deadline_s
    while not (found := until()):
        assert time.monotonic() < ends, "it did not come to be"
        time.sleep(0.02)
    return found


class Bull:
    """What a test does on one queue of its own: BullMQ's keys outlive a test, and a worker of Node its queues."""

    @pytest.fixture(autouse=True)
    def _place(self, server, bull, client):
        self.server, self.bull, self.client = server, bull, client
        self.queue = f"emails-{next(_numbers)}"
        self.made = []
        for key in client.scan_iter("redrive:*"):
            client.delete(key)
        yield
        bull.break_("partner")
        bull.rest(self.queue)
        for one in self.made:
            one.close()

    def another(self, **options):
        return self.another_of([self.queue], **options)

    def another_of(self, queues, **options):
        made = connect("shop", "bullmq", self.server.url, queues, options)
        self.made.append(made)
        return made

    @pytest.fixture
    def source(self, _place):
        return self.another()

    def unplug(self, source):
        source._wire.client.connection_pool.reset()  # its connections know where they go
        source._wire.client.connection_pool.connection_kwargs["port"] = free_port()

    def key(self, name, queue=None):
        return f"bull:{queue or self.queue}:{name}"

    def die(self, n, **options):
        return self.bull.add(self.queue, "welcome", {"n": n, "needs": "partner"}, **options)

    def failed(self):
        return self.client.zcard(self.key("failed"))

    def let_fail(self, queue=None, more=1):
        """A worker runs what waits, until so many more are dead."""
        queue = queue or self.queue
        before = self.client.zcard(self.key("failed", queue))
        self.bull.work(queue)
        wait(lambda: self.client.zcard(self.key("failed", queue)) >= before + more)
        self.bull.rest(queue)


class TestContract(Bull, PulledContract):
    def bury(self, count):
        ids = [self.die(n) for n in range(count)]
        self.let_fail(more=count)
        # Each in another moment, as `PulledContract` expects.
        return [self.of(job_id) for job_id in ids]

    def of(self, job_id):
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
        self.bull.mend("partner")
        self.bull.work(queue)
        wait(lambda: not self.waiting(queue) and not self.client.llen(self.key("active", queue)))
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
        letters = [
            PulledContract.letter(self, one, n) for n, one in enumerate(sorted(reports, key=lambda one: one.job_id))
        ]
        assert both.send("r", letters[:1]) == {0: "sent"}
        assert next(depth for depth in both.depths() if depth.queue == copies).source_dead <= 1
        assert both.remove([ref(one) for one in reports if one.job_id == "trimmed"]) == {Ref(self.queue, "trimmed")}
        assert both.depths()[0].waiting == 1

    next_id = PulledContract.next_id

    @property
    def can(self):
        return self.another().can
