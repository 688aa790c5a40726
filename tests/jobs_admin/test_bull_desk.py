"""Bull's failures on a desk: real workers, some of which are killed."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from dashboard.setup.engine import Engine
from jobs_admin import config, replays
from jobs_admin.models import Failure
from jobs_admin.retries import pulling, rechecking
from tests.kit import node
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.server]
QUEUES = ("emails", "hooks", "low")
EACH = 60


class TestADesk:
    @pytest.fixture(autouse=True)
    def _desk(self, settings, tmp_path, store):
        try:
            node.packages()
        except node.OutOfReach as error:
            pytest.skip(str(error))
        engine = Engine(tmp_path / "redis").start()
        self.url, self.client = engine.url, redis.Redis.from_url(engine.url)
        file = tmp_path / "sources.toml"
        file.write_text(f'[sources.node]\nbackend = "bull"\nurl = "{engine.url}"\n')
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        forget_configuration(config)
        yield
        config.adapter("node").close()
        self.client.close()
        engine.stop()

    def pull(self):
        rechecking._rested.clear()
        while pulling.pull("node", "one"):
            pass

    def count(self, state):
        return sum(self.client.zcard(f"bull:{queue}:{state}") for queue in QUEUES)

    def start(self, broken):
        # A job whose worker was killed is taken up after a second.
        options = {
            "concurrency": 3,
            "settings": {"stalledInterval": 1_000, "lockDuration": 1_000, "maxStalledCount": 9},
        }
        return node.Bullmq("bull4", self.url, work=QUEUES, broken=broken, options=options).start()

    @pytest.mark.long("Real workers are started and killed.")
    def test_failures_are_filed_once_while_workers_are_killed_and_each_is_replayed_once(self):
        jobs = EACH * len(QUEUES)
        workers = self.start(["partner"])
        for queue in QUEUES:
            for n in range(EACH):
                workers.add(queue, "welcome", {"n": n, "needs": "partner", "sleep": 5})
        for _ in range(2):
            before = self.count("failed")
            wait_until(lambda least=before + 20: self.count("failed") >= least or self.count("failed") == jobs)
            workers.script.kill()
            workers = self.start(["partner"])
        wait_until(lambda: self.count("failed") == jobs, progress=lambda: self.count("failed"), meanwhile=self.pull)
        workers.stop()
        self.pull()
        found = Counter(Failure.objects.values_list("queue", "job_id"))
        assert len(found) == jobs and set(found.values()) == {1}
        assert set(Failure.objects.values_list("state", "error_type")) == {("dead", "PartnerDown")}
        self.replay(jobs)

    def replay(self, jobs):
        replay = replays.draft(ANN, query="state:dead error:PartnerDown", pace={"style": "at_once"}, reason="a test")
        replays.start(ANN, replay)

        def count_sent():
            replays.create_items()
            replays.send("one")
            replay.refresh_from_db()
            return replay.sent

        wait_until(lambda: count_sent() >= jobs, progress=count_sent)
        workers = self.start([])
        wait_until(lambda: self.count("completed") == jobs, progress=lambda: self.count("completed"))
        ran = Counter((one["queue"], one["id"]) for one in workers.list_events("completed"))
        workers.stop()
        assert len(ran) == jobs and set(ran.values()) == {1}
        recovered = Failure.objects.filter(state="recovered", run=2).count
        # Some of what was sent is checked at each reading.
        wait_until(lambda: recovered() == jobs, progress=recovered, meanwhile=lambda: (self.pull(), replays.settle()))
