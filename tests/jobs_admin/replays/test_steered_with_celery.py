"""Careful replays with a real worker that keeps its native retries, to a partner that breaks and is fixed."""

from __future__ import annotations

import base64
import json
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import ingest, replays
from jobs_admin.models import AuditEvent, DepthSample, Failure
from jobs_admin.queues import sampling
from tests.kit.people import ANN
from tests.kit.replays import buried, died_of
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db]

CAREFUL = {"style": "careful", "ramp": {"from": 50, "to": 400}, "canary": {"jobs": 40}}


def message(customer):
    """As Celery wrote it: two attempts were spent."""
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    body = base64.b64encode(json.dumps([[customer], {}, embed]).encode()).decode()
    headers = {
        "lang": "py", "task": "deliver", "id": "old", "retries": 5, "eta": None, "expires": None, "root_id": "old",
        "parent_id": None, "group": None, "timelimit": [None, None], "argsrepr": "()", "kwargsrepr": "{}",
    }  # fmt: skip
    properties = {
        "correlation_id": "old", "delivery_mode": 2, "priority": 0, "body_encoding": "base64", "delivery_tag": "t",
        "delivery_info": {"exchange": "", "routing_key": "emails"},
    }  # fmt: skip
    complete = {"body": body, "content-type": "application/json", "content-encoding": "utf-8"}
    return json.dumps(complete | {"headers": headers, "properties": properties}).encode()


class Incident:
    """Jobs that died at the partner, and the desk's steps in one process. Its time runs `ahead` of ours."""

    def __init__(self, worker):
        self.worker = worker
        self.ahead = timedelta(0)

    def now(self):
        return timezone.now() + self.ahead

    def until(self, reached, what, steps=("ingest", "lay", "send", "settle")):
        text = self.worker.text
        wait_until(reached, what, progress=text, within_s=120, meanwhile=lambda: self.step(*steps), text=text)

    def step(self, *steps):
        for step in steps:
            match step:
                case "ingest":
                    ingest.step("test")
                case "lay":
                    replays.create_items()
                case "send":
                    replays.send("test", self.now())
                case "settle":
                    replays.settle(self.now())
                case "sample":
                    sampling.sample(self.now())

    def died(self, customer, count=1):
        """One job really died, and others of the same error: their group, and all of them."""
        self.worker.send("deliver", customer, queue="emails", retries=5)
        known = Failure.objects.count()
        self.until(lambda: Failure.objects.filter(state="dead").count() > known, "a death")
        first = Failure.objects.latest("pk")
        return first.group, [first.pk, *self.more(customer, first.group, count - 1)]

    def more(self, customer, group, count):
        return died_of(buried(count, raw=message(customer), task="deliver"), group)

    def begin(self, ids, pace=CAREFUL):
        return replays.start(ANN, replays.draft(ANN, selection=ids, reason="mended", pace=pace), self.now())

    def reaches(self, replay, *states, **more):
        def is_reached():
            replay.refresh_from_db()
            return replay.state in states

        self.until(is_reached, f"the replay to be {' or '.join(states)}", **more)
        return replay


@pytest.fixture
def incident(worker):
    return Incident(worker)


@pytest.mark.long("Runs a Celery worker against a partner that fails.")
def test_while_the_partner_is_broken_a_replay_queries_it_little_and_is_held_naming_the_error(incident):
    worker = incident.worker
    worker.break_("partner")
    _, ids = incident.died("acme", 300)
    before = len(worker.marks("requests"))
    replay = incident.reaches(incident.begin(ids), "held")
    # The native retries of what was sent run on.
    incident.until(lambda: not (replay.refresh_from_db() or replay.sent or replay.running), "the retries to end")
    assert len(worker.marks("requests")) - before <= 250
    assert replay.state == "held" and "canary jobs failed again with PartnerDown at" in replay.held_because
    assert replay.evidence["groups"][0]["same"] == replay.evidence["groups"][0]["count"]
    again = replay.failed_again
    assert Failure.objects.filter(state="dead").count() == 300 and 0 < again == len(ids) - replay.planned

    worker.fix("partner")
    replays.resume(ANN, replay)
    incident.reaches(replay, "done")
    assert (replay.succeeded, replay.failed_again) == (300 - again, again)
    assert len(worker.marks("delivered")) == 300 - again
    assert list(AuditEvent.objects.filter(actor="controller").values_list("act", flat=True)) == [
        "replay.hold",
        "replay.done",
    ]


def test_a_mixed_queue_comes_back_without_another_act_and_what_fails_again_is_named(incident):
    """From an alert: the curable jobs are recovered, the group that fails again is left dead and named."""
    worker = incident.worker
    worker.break_("partner")
    down, ids = incident.died("acme")
    worker.fix("partner")
    worker.break_("cobalt")
    odd, more = incident.died("cobalt")
    more += incident.more("cobalt", odd, 119)  # the oldest, so that they would be all of the canary
    ids += incident.more("acme", down, 119)
    options = {"query": "queue:emails", "reason": "the partner is back", "pace": CAREFUL}
    replay = replays.launch(ANN, **options, options=replays.Options(without_groups=()), now=incident.now())
    incident.reaches(replay, "done")
    assert worker.marks("delivered") == ["acme"] * 120 and replay.succeeded == 120
    aside = replay.items.filter(outcome__startswith="Set aside with its group")
    assert replay.cancelled == aside.count() == 120 - replay.failed_again > 60
    assert set(aside.values_list("failure__group", flat=True)) == {odd.pk}
    (group_aside,) = replays.groups_aside(ANN, replay)
    assert (group_aside.group, group_aside.jobs) == (
        odd,
        replay.cancelled,
    ) and "failed with the same error" in group_aside.reason
    assert Failure.objects.filter(group=odd, state="dead").count() == 120
    assert Failure.objects.filter(group=down, state="recovered").count() == 120
    # Nobody did anything but start it.
    acts = AuditEvent.objects.filter(act__startswith="replay.").order_by("pk").values_list("act", "actor")
    assert list(acts) == [
        ("replay.draft", "ann"), ("replay.start", "ann"), ("replay.set_aside", "controller"), ("replay.done", "controller"),
    ]  # fmt: skip
    # The next preview knows it.
    seen = replays.preview(ANN, query="queue:emails state:dead")
    assert seen.replayable == 120  # one group alone: who asks for it means it


def test_errors_that_are_new_in_it_hold_a_steady_replay_and_are_named(incident):
    worker = incident.worker
    worker.break_("partner")
    down, ids = incident.died("acme")
    worker.fix("partner")
    for _ in range(40):  # two of five now fail with another error than they died of
        ids += incident.more("acme", down, 3) + incident.more("cobalt", down, 2)
    worker.break_("cobalt")
    # Not all go before the first news are there, however slow the machine is: then nothing would be left to hold.
    replay = incident.begin(ids, {"rate": 60, "in_flight": 80, "stop": {"failed": 0.5}})
    incident.reaches(replay, "held")
    assert replay.evidence["kind"] == "new_groups" and replay.planned > 0
    assert "failed in a way not seen before with OddCustomer at " in replay.held_because
    assert [one["is_new"] for one in replay.evidence["groups"]] == [True]


def test_a_queue_that_live_workers_do_not_drain_holds_it(incident):
    worker = incident.worker
    worker.break_("partner")
    _, ids = incident.died("acme", 30)
    worker.fix("partner")
    for _ in range(4):
        worker.send("slow", 600, queue="emails")  # every process of the worker, and what it fetches ahead
    replay = incident.begin(ids, {"rate": 200, "in_flight": 10})
    incident.until(lambda: not (replay.refresh_from_db() or replay.sent < 10), "ten to be sent")

    def stuck():
        incident.ahead += timedelta(seconds=5)
        incident.step("settle")
        return not (replay.refresh_from_db() or replay.state != "held")

    incident.until(stuck, "the replay to be held", steps=())
    assert (replay.evidence["kind"], replay.sent, replay.planned) == ("not_draining", 10, 20)
    assert replay.held_because == "10 jobs were sent and none has settled for 5 min: the queue is not draining."


def test_workers_that_vanish_hold_it_and_it_goes_on_when_they_are_back(incident):
    worker = incident.worker
    worker.break_("partner")
    _, ids = incident.died("acme", 30)
    worker.fix("partner")
    incident.until(is_staffed, "a heartbeat", steps=("sample",))
    replay = incident.begin(ids)
    incident.step("settle")
    worker.stop()
    incident.step("send")

    def is_on_hold():
        incident.ahead += timedelta(seconds=5)
        incident.step("sample", "settle")
        replay.refresh_from_db()
        return replay.state == "held"

    incident.until(is_on_hold, "the replay to be held", steps=())
    assert replay.held_because.startswith("No live worker has taken jobs from emails since ")
    assert f"and {replay.sent} jobs are sent and not settled." in replay.held_because

    worker.start()
    replays.resume(ANN, replay)
    incident.reaches(replay, "done")
    assert replay.succeeded == 30 and worker.marks("delivered") == ["acme"] * 30


def is_staffed():
    return DepthSample.objects.filter(queue="emails", guarded_workers=1).exists()
