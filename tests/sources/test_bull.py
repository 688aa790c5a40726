"""Bull 3 and 4: real workers on Node, a real server, and what people do with Bull's own means."""

from __future__ import annotations

import json

import pytest

from jobs_admin.sources.base import READ_ONLY, Ref, SourceRefused
from tests.kit import node
from tests.kit.bullmq import LegacyBull
from tests.sources.pulled_contract import PulledContract, read, ref

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=node.BULL)
def bull(request, server):
    """A producer and worker of one major, for all tests; what jobs need is broken, so they die."""
    with node.Bullmq(request.param, server.url, broken=["partner"]) as running:
        yield running


class TestContract(LegacyBull, PulledContract):
    def bury(self, count):
        ids = [self.die(n) for n in range(count)]
        self.let_fail(more=count)
        return [Ref(self.queue, one, "dead", self.client.zscore(self.key("failed"), one) / 1000) for one in ids]

    def waiting_data(self, queue):
        found = [json.loads(self.client.hget(self.key(job_id, queue), "data")) for job_id in self.waiting(queue)]
        return [{"n": one["n"]} for one in found]

    def work(self, queue):
        self.let_run()

    def fail_again(self, queue):
        self.let_fail(queue)

    def revive(self, job):
        self.bull.job(job.queue, job.job_id, "retry")

    def lose_everything(self):
        self.client.flushall()

    def become_unknown(self):
        """As by Bull 2, whose failed jobs have no time."""
        self.client.rename(self.key("failed"), "aside")
        self.client.sadd(self.key("failed"), "1")

    def test_a_version_that_is_not_known_is_read_and_nothing_is_sent(self, source):
        self.bury(1)
        (report,), _ = read(source)
        self.become_unknown()
        assert [one.id for one in source.findings() if one.severity == "high"] == [READ_ONLY]
        assert "before Bull 3" in source.findings()[0].text
        with pytest.raises(SourceRefused, match="only Bull 3 and 4 are known"):
            source.send("r", [self.outgoing_message(report)])
        assert source.remove([ref(report)]) == set()
        assert source.was_sent("r", [1]) == set() and self.waiting(self.queue) == []
