"""The real `watch`, whose settling process is killed while a canary is out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import redis

from jobs_admin.core import keys
from tests.kit.celery import RealWorker
from tests.kit.desks import ROOT, Desk

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]

JOBS = 250
CANARY = 100  # 15 s of it are left when the last is killed, for a machine that is busy
BEGIN = f"""
bury({JOBS})
pace = {{"style": "careful", "ramp": {{"from": 5, "to": 400}}, "canary": {{"jobs": {CANARY}}}}}
say(replays.start(ANN, replays.draft(ANN, query="queue:emails", pace=pace, reason="mended")).pk)
"""
REPORT = """
r = Replay.objects.get()
say({"state": r.state, "succeeded": r.succeeded, "well": sum(one[1] for one in r.controller["core"]["groups"][0]), "now": r.controller["core"]["state"]})
"""


@pytest.fixture
def store(engine):
    client = redis.Redis.from_url(engine.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def worker(engine, store):
    running = RealWorker(engine.url, engine.url).start()
    yield running
    running.kill()


@pytest.fixture
def desk(tmp_path, engine, store):
    return Desk(tmp_path, engine.url)


@pytest.mark.long("Starts watch and a worker, and kills three processes that settle.")
def test_who_steers_may_be_killed_in_the_canary_and_the_next_goes_on(desk, worker, store):
    desk.run(BEGIN)
    watch = subprocess.Popen([sys.executable, "manage.py", "watch"], cwd=ROOT, env=desk.environment)
    try:
        killed = set()
        for ran in (3, 12, 25):
            worker.wait(lambda n=ran: len(worker.marks("ok")) >= n, what=f"{ran} jobs to run")
            pid = worker.wait(lambda: settling(store, killed), 60, "another process to settle")
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        assert len(worker.marks("ok")) <= CANARY
        worker.wait(lambda: len(worker.marks("ok")) >= JOBS, 90, "all to have run")
        result, ends = desk.run(REPORT), time.monotonic() + 60
        while result["state"] != "done" and time.monotonic() < ends:
            result = desk.run(REPORT)
    finally:
        watch.terminate()
        watch.wait(60)
    assert result == {"state": "done", "succeeded": JOBS, "well": result["well"], "now": result["now"]}
    assert result["well"] >= CANARY and result["now"] in ("ramping", "running")
    assert len(worker.marks("ok")) == len(set(worker.marks("ok"))) == JOBS


def settling(store, killed):
    noted = json.loads(store.hget(keys.steps(), "settle") or "{}")
    return noted.get("pid") if noted.get("pid") not in killed else None
