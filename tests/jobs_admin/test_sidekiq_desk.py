"""Sidekiq's failures on a whole desk: real processes, some of them killed."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter

import pytest
import redis

from dashboard.setup.engine import Engine
from jobs_admin import config, replays
from jobs_admin.failures import triage
from jobs_admin.models import Attempt, Failure
from jobs_admin.retries import pulling, rechecking
from tests.kit import shops
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.server]
QUEUES = ("emails", "hooks", "low")
THREADS = 4


class TestADesk:
    @pytest.fixture(autouse=True)
    def _desk(self, settings, tmp_path, store):
        shops.need("sidekiq")
        engine = Engine(tmp_path / "redis").start()
        self.url, self.processes = engine.url, []
        self.client = redis.Redis.from_url(engine.url)
        self.shop = shops.Shop("sidekiq", engine.url)
        file = tmp_path / "sources.toml"
        file.write_text(f'[sources.rails]\nbackend = "sidekiq"\nurl = "{engine.url}"\n')
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        forget_configuration(config)
        yield
        config.adapter("rails").close()
        for one in self.processes:
            one.kill()
            one.wait()
        self.shop.stop()
        self.client.close()
        engine.stop()

    def start(self):
        command = ["sidekiq", "-r", str(shops.FOREIGN / "sidekiq_shop.rb"), "-c", str(THREADS)]
        command += [part for queue in QUEUES for part in ("-q", queue)]
        out = subprocess.DEVNULL
        self.processes.append(
            subprocess.Popen(command, env=os.environ | {"REDIS_URL": self.url}, stdout=out, stderr=out)
        )

    def pull(self):
        rechecking._rested.clear()
        while pulling.pull("rails", "one"):
            pass

    def ran(self):
        return self.client.llen("ran")

    def stored(self):
        """Ids of the dead jobs and retries in Sidekiq."""
        return Counter(json.loads(one)["jid"] for of in ("dead", "retry") for one in self.client.zrange(of, 0, -1))

    @pytest.mark.long("Real processes of Sidekiq are started and killed.")
    def test_failures_are_filed_once_while_processes_are_killed_and_dead_ones_are_sent_once(self):
        self.client.set("broken", "fail")
        ids: list[str] = []
        for queue in QUEUES:
            ids += self.shop.do(["add", queue, [{"args": [{"n": n}], "retry": n % 2 * 3} for n in range(40)]])[0]
        self.start(), self.start()
        for killed in range(2):
            wait_until(lambda least=(killed + 1) * 20: self.ran() >= least, progress=self.ran, meanwhile=self.pull)
            self.processes[killed].kill()
            self.start()
        waiting = lambda: sum(self.client.llen(f"queue:{queue}") for queue in QUEUES)  # noqa: E731
        wait_until(lambda: waiting() == 0, progress=self.ran, meanwhile=self.pull)
        # Sidekiq itself loses what a killed process had fetched.
        wait_until(lambda: len(self.stored()) >= len(ids) - 2 * THREADS, progress=self.ran, meanwhile=self.pull)
        for one in self.processes[2:]:
            one.terminate()
            one.wait(90)
        stored = self.stored()
        # The retry set is read once a second.
        wait_until(lambda: Failure.objects.count() >= len(stored), progress=Failure.objects.count, meanwhile=self.pull)
        assert set(stored.values()) == {1} and stored.keys() <= set(ids)
        rows = Failure.objects.values_list("job_id", "queue", "state", "error_type")
        assert Counter(job_id for job_id, *_ in rows) == stored
        assert {(state, error) for _, _, state, error in rows} == {("dead", "PartnerDown"), ("retrying", "PartnerDown")}
        assert {queue for _, queue, *_ in rows} == set(QUEUES)
        assert Failure.objects.filter(state="dead").count() == self.client.zcard("dead")
        self.replay_all_dead()

    def replay_all_dead(self):
        """Each is sent and runs once."""
        dead = {json.loads(one)["jid"] for one in self.client.zrange("dead", 0, -1)}
        self.client.delete("ran")
        self.client.set("broken", "ok")
        replay = replays.draft(ANN, query="state:dead", pace={"style": "at_once"}, reason="a test")
        replays.start(ANN, replay)

        def count_sent():
            replays.create_items()
            replays.send("one")
            replay.refresh_from_db()
            return replay.sent

        wait_until(lambda: count_sent() >= len(dead), progress=count_sent)
        assert not self.client.exists("dead")
        self.start()
        wait_until(lambda: self.ran() >= len(dead), progress=self.ran)
        self.processes[-1].terminate()
        self.processes[-1].wait(90)
        assert Counter(one.decode() for one in self.client.lrange("ran", 0, -1)) == dict.fromkeys(dead, 1)
        self.pull()
        replays.settle()
        assert not Failure.objects.filter(state="dead").exists()
        assert set(Failure.objects.filter(state="gone").values_list("job_id", flat=True)) == dead

    def test_a_discarded_job_is_removed_there_and_can_be_restored_and_sent(self):
        self.client.set("broken", "fail")
        ids = self.shop.do(["add", "emails", [{"args": [n]} for n in range(2)]], ["work", "emails"])[0]
        self.pull()
        pk = Failure.objects.values_list("pk", flat=True).get(job_id=ids[0])
        triage.discard(ANN, selection=[pk], reason="not wanted")
        wait_until(lambda: self.stored() == {ids[1]: 1}, meanwhile=self.pull)
        triage.restore(ANN, selection=[pk])
        self.pull()
        assert Failure.objects.filter(state="dead").count() == 2
        self.client.delete("ran")
        self.client.set("broken", "ok")
        replay = replays.draft(ANN, selection=[pk], pace={"style": "at_once"}, reason="a test")
        replays.start(ANN, replay)
        wait_until(
            lambda: self.client.llen("queue:emails"), meanwhile=lambda: (replays.create_items(), replays.send("one"))
        )
        self.shop.do(["work", "emails"])
        assert self.client.lrange("ran", 0, -1) == [ids[0].encode()]

    def test_a_job_that_is_retried_in_sidekiq_is_gone_and_dead_again_as_another_run(self):
        self.client.set("broken", "fail")
        (job_id,) = self.shop.do(["add", "emails", [{"args": [1]}]], ["work", "emails"])[0]
        self.pull()
        self.shop.do(["requeue", job_id])
        self.pull()
        assert Failure.objects.get().state == "gone"
        self.shop.do(["work", "emails"])
        self.pull()
        assert Failure.objects.values_list("job_id", "state", "run").get() == (job_id, "dead", 2)
        assert sorted(Attempt.objects.values_list("run", "attempt")) == [(1, 1), (2, 1)]

    def test_a_retry_that_is_killed_and_brought_back_is_retrying_again(self):
        self.client.set("broken", "fail")
        (job_id,) = self.shop.do(["add", "emails", [{"args": [1], "retry": 3}]], ["work", "emails"])[0]
        self.pull()
        self.shop.do(["kill", job_id])
        self.pull()
        assert Failure.objects.values_list("state", "run", "attempts").get() == ("dead", 1, 1)
        self.shop.do(["requeue", job_id], ["work", "emails"])
        wait_until(lambda: Failure.objects.get().state == "retrying", meanwhile=self.pull)
        assert Failure.objects.values_list("state", "run", "attempts").get() == ("retrying", 2, 1)
