"""Effects of SIGKILL and of a race, with processes that really die and a queue that really keeps."""

from __future__ import annotations

import json
import time

import pytest
import redis

from tests.kit.desks import SENDER, Desk
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]

BEGIN = """
bury({count})
replay = replays.start(ANN, replays.draft(ANN, query="queue:emails", pace={pace}, reason="fixed"))
say(replay.pk)
"""
COUNTS = """
r = Replay.objects.get()
say({"state": r.state, "planned": r.planned, "sent": r.sent, "uncertain": r.uncertain,
     "jobs": sorted(ReplayItem.objects.values_list("job_id", flat=True)),
     "failures": sorted(set(Failure.objects.values_list("state", "run")))})
"""


@pytest.fixture
def broker(engine):
    client = redis.Redis.from_url(engine.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def desk(tmp_path, engine, broker):
    return Desk(tmp_path, engine.url)


def wait(reached, process):
    def still_sends():
        assert process.poll() in (None, 0), "the sender ended"
        time.sleep(0.002)

    wait_until(reached, "jobs on the queue", meanwhile=still_sends)


@pytest.mark.long("Starts several senders as processes of their own.")
def test_a_sender_killed_again_and_again_sends_each_job_once(desk, broker):
    desk.run(BEGIN.format(count=2_000, pace={"rate": 1_500}))
    for reached in (1, 500, 1_300):
        sender = desk.start(SENDER)
        try:
            wait(lambda n=reached: broker.llen("emails") >= n, sender)
        finally:
            sender.kill()
            sender.wait()
    last = desk.start(SENDER)
    last.wait(120)
    sent = [json.loads(m)["headers"]["id"] for m in broker.lrange("emails", 0, -1)]
    counts = desk.run(COUNTS)
    assert len(sent) == len(set(sent)) == 2_000 and sorted(sent) == counts["jobs"]
    assert (counts["planned"], counts["sent"], counts["uncertain"]) == (0, 2_000, 0)
    assert counts["failures"] == [["replaying", 2]]


def test_two_senders_at_once_send_each_job_once_and_pace_it_once(desk, broker):
    desk.run(BEGIN.format(count=300, pace={"rate": 100}))
    senders = [desk.start(SENDER) for _ in range(2)]
    try:
        wait(lambda: broker.llen("emails"), senders[0])
        begun, gone = time.monotonic(), broker.llen("emails")  # in this order: none of these is counted as paced
        wait(lambda: broker.llen("emails") >= 300, senders[0])
        took = time.monotonic() - begun
    finally:
        for sender in senders:
            sender.wait(90)
    assert took > (299 - gone) / 100 / 1.1
    sent = [json.loads(m)["headers"]["id"] for m in broker.lrange("emails", 0, -1)]
    counts = desk.run(COUNTS)
    assert sorted(sent) == counts["jobs"] and len(set(sent)) == 300
    assert (counts["planned"], counts["sent"], counts["uncertain"]) == (0, 300, 0)


START_AT = """
try:  # who comes too late even for a draft, on a busy machine, takes nothing either
    draft = replays.draft(ANN, query="queue:emails", pace={"style": "at_once"}, reason="race")
    time.sleep(max(0, RACE_AT - time.time()))
    replay = replays.start(ANN, draft)
    while replays.create_items(): pass
    replay.refresh_from_db()
    assert replay.total + replay.taken == 400, replay.blocked
    say(replay.total)
except Refused as refused:
    assert refused.code == "nothing_to_replay", refused
    say(0)
"""


@pytest.mark.long("Starts several senders as processes of their own.")
def test_four_operators_with_the_same_scope_take_each_job_once(desk):
    desk.run("bury(400)")
    code = START_AT.replace("RACE_AT", str(time.time() + 3))
    racers = [desk.start(code) for _ in range(4)]
    totals = [int(racer.communicate(timeout=60)[0].split()[-1]) for racer in racers]
    assert sum(totals) == 400
    each = "say([ReplayItem.objects.count(), ReplayItem.objects.values('failure').distinct().count()])"
    assert desk.run(each) == [400, 400]
