"""Programs that put BullMQ jobs aside (tests/node/forwarders): what they leave in Redis is read, found and replayed.

Two processes watch the same queue, a detector quarantines, and a worker's own handler keeps what is exhausted; the desk reads by `pulling`.
"""

from __future__ import annotations

import json
import shutil

import pytest
import redis

from dashboard.setup.engine import Engine
from jobs_admin import config, failures, replays
from jobs_admin.failures import triage
from jobs_admin.models import Attempt, Failure, Replay
from jobs_admin.retries import pulling
from tests.kit import node
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db]

ORDERS = 4


class Process:
    """One process of tests/node/forwarders/run.ts."""

    def __init__(self, home, url, **role):
        self.script = node.Script(home / "forwarders/run.ts", json.dumps({"url": url, **role}), typescript=True).start()
        self.asked = 0

    def ready(self):
        self.script.wait_for('{"say":"ready"')
        return self

    def request(self, do, **more):
        self.asked += 1
        self.script.write(json.dumps({"n": self.asked, "do": do, **more}))
        mine = tuple(f'{{"say":"{kind}","n":{self.asked},' for kind in ("done", "error"))
        data = json.loads(self.script.wait_for(lambda line: line.startswith(mine)))
        assert data["say"] == "done", data
        return data["answer"]

    def completed(self):
        lines = [json.loads(line) for line in list(self.script.lines) if line.startswith('{"say":"completed"')]
        return sorted((one["queue"], one["id"], one["name"]) for one in lines)


class World:
    """A Redis with these programs on it. Nothing of it outlives the module."""

    def __init__(self, folder, major):
        self.engine = Engine(folder / "engine").start()
        self.redis = redis.Redis.from_url(self.engine.url)
        self.home = node.project(folder / "project", major)
        shutil.copytree(node.HOME / "forwarders", self.home / "forwarders")
        self.processes = []
        self.watchers = [self.process(role="watch"), self.process(role="watch")]
        self.worker, self.forwarder = self.process(role="work"), self.process(role="forward")
        for process in self.processes:
            process.ready()
        # What happened before they listen, they never hear of.
        until(lambda: sum(client["cmd"] == "xread" for client in self.redis.client_list()) == 2, "watchers that listen")

    def process(self, **role):
        self.processes.append(Process(self.home, self.engine.url, **role))
        return self.processes[-1]

    def waiting(self, queue):
        listed = self.redis.lrange(f"bull:{queue}:wait", 0, -1)
        # Up to BullMQ 4 a mark for workers stands in the list, `0:` and a time.
        return sum(b":" not in one for one in listed) + self.redis.zcard(f"bull:{queue}:prioritized")

    def close(self):
        for process in self.processes:
            process.script.stop()
        self.engine.stop()


@pytest.fixture(params=node.MAJORS)
def world(request, tmp_path):
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    made = World(tmp_path, request.param)
    yield made
    made.close()


@pytest.fixture
def desk(world, store, settings, tmp_path):
    """The desk that reads it, as its thread does round by round. What it finds is discovered: no queue is named."""

    def configured(more=""):
        file = tmp_path / "sources.toml"
        file.write_text(f'[sources.shop]\nbackend = "bullmq"\nurl = "{world.engine.url}"\n{more}')
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        forget_configuration(config)

    configured()
    yield configured
    config.adapter("shop").close()
    forget_configuration(config)


def until(reached, what):
    return wait_until(reached, what, progress=states, text=states)


def pull():
    while pulling.pull("shop", "test"):
        pass


def states():
    return {(f.queue, f.job_id): f.state for f in Failure.objects.all()}


def die(world):
    """Jobs that fail for good, each handled by one of the programs: (queue, id) -> its name."""
    jobs = {}
    for n in range(ORDERS):
        opts = {"attempts": 1 + n % 2, "priority": n}
        job_id = world.worker.request("add", queue="webhooks", name="deliver", data={"order": n, "at": 1.5}, opts=opts)
        jobs["webhooks", job_id] = "deliver"
    for name, data, opts in (
        ("sync-availability", {"unitId": 7, "syncType": "availability"}, {"attempts": 2, "backoff": 10, "priority": 3}),
        # Of this one BullMQ keeps nothing: what is known of it are its events and the dead letter.
        ("sync-pricing", {"unitId": 8, "syncType": "pricing"}, {"attempts": 1, "removeOnFail": True}),
    ):
        jobs["sync", world.forwarder.request("sync", name=name, data=data, opts=opts)] = name
    pill = world.worker.request("add", queue="reports", name="explode", data={"month": 11})
    assert [world.worker.request("crashed", id=pill, queue="reports") for _ in range(3)] == [False, False, True]
    jobs["reports", pill] = "explode"
    both = len(world.watchers)
    until(lambda: world.waiting("dead-letter") == ORDERS * both, "dead letters")
    until(lambda: world.waiting("channel-dead-letter") == 2 and world.waiting("quarantine") == 1, "dead letters")
    return jobs


def replay(ids):
    pace = {"style": "at_once"}
    begun = replays.start(ANN, replays.draft(ANN, selection=ids, pace=pace, reason="the partner is back"))

    def ended():
        pull(), replays.create_items(), replays.send(f"test {begun.key}"), replays.settle()
        return Replay.objects.get(pk=begun.pk).state == "done"

    until(ended, "end of the replay")
    return Replay.objects.get(pk=begun.pk)


def test_what_forwarders_leave_is_listed_once_found_by_its_error_and_replayed_to_success(world, desk):
    jobs = die(world)
    until(lambda: pull() or len(states()) >= len(jobs), "failures")
    pull()
    # Of each job there is one copy or two, and of most the job itself in its failed set besides.
    assert states() == {job: "quarantined" if job[0] == "reports" else "dead" for job in jobs}
    assert {(f.queue, f.job_id): f.task for f in Failure.objects.all()} == jobs
    assert "cannot be sent" not in Failure.objects.get(task="sync-pricing").reason
    assert (
        Attempt.objects.filter(kind="exception").count() == ORDERS + 2
        and Attempt.objects.filter(kind="worker_lost").count() == 1
    )

    def tasks_found_by(text):
        return sorted(row.task for row in failures.search(ANN, text).rows)

    assert tasks_found_by("refused order") == ["deliver"] * ORDERS and tasks_found_by(
        "error:PartnerRefused kwargs.order:2"
    ) == ["deliver"]
    assert tasks_found_by("ChannelDown calendar") == ["sync-availability"] and tasks_found_by("price list") == [
        "sync-pricing"
    ]
    assert tasks_found_by("state:quarantined") == ["explode"] and tasks_found_by("trace:pushCalendar") == [
        "sync-availability"
    ]

    for process in (world.worker, world.forwarder):
        process.request("mend")
    world.worker.request("run", queue="reports")
    triage.readmit(ANN, selection=[Failure.objects.get(queue="reports").pk], reason="the report is mended")
    done = replay(list(Failure.objects.values_list("pk", flat=True)))
    assert (done.succeeded, set(states().values())) == (len(jobs), {"recovered"})

    # Each ran once, under its own name and id; and no copy is left, nor comes a failure back.
    def ended():
        return world.worker.completed() + world.forwarder.completed()

    until(lambda: len(ended()) >= len(jobs), "word of all from the workers, who say it after Redis knows")
    ran = ended()
    assert sorted(ran) == sorted((*job, name) for job, name in jobs.items())
    assert [world.waiting(name) for name in ("dead-letter", "channel-dead-letter", "quarantine")] == [0, 0, 0]
    pull()
    assert set(states()) == set(jobs) and set(states().values()) == {"recovered"}
