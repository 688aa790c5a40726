"""The whole way with a real worker: a job dies, is replayed, and the same failure shows how that ended."""

from __future__ import annotations

import json

import pytest
from celery import chain

from jobs_admin import config, ingest, replays
from jobs_admin.failures import triage
from jobs_admin.models import Failure, Replay
from jobs_admin.replays import messages
from tests.kit.people import ANN
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db]


def desk_until(worker, reached, what):
    """Run the desk's steps until it is so."""

    def steps():
        ingest.step("test"), replays.send("test"), replays.settle()

    return wait_until(reached, what, progress=worker.text, meanwhile=steps, text=worker.text)


def dead(worker):
    return desk_until(worker, lambda: Failure.objects.filter(state="dead").first(), "a dead job")


def replayed(worker, failure, **more):
    replay = replays.start(ANN, replays.draft(ANN, selection=[failure.pk], **more))
    desk_until(worker, lambda: Replay.objects.filter(pk=replay.pk, state="done").exists(), "the replay to end")
    replay.refresh_from_db()
    failure.refresh_from_db()
    return replay


def test_an_edited_job_runs_and_the_same_failure_has_recovered(worker):
    worker.send("slow", "not a number", queue="emails")
    failure = dead(worker)
    replay = replayed(worker, failure, edit={"args": [0]})
    assert (replay.succeeded, failure.state, failure.run) == (1, "recovered", 2)
    assert Failure.objects.count() == 1


def test_a_job_that_fails_again_is_the_same_dead_letter(worker):
    worker.send("fail", "still down", queue="emails")
    failure = dead(worker)
    replay = replayed(worker, failure)
    assert (replay.failed_again, failure.state, failure.run) == (1, "dead", 2)
    assert Failure.objects.filter(state="dead").count() == Failure.objects.count() == 1
    assert "PartnerDown: still down" in replay.items.get().outcome
    assert replayed(worker, failure).items.get().run == 3


def test_the_rest_of_a_chain_runs_after_the_replay(worker):
    app = worker.app
    chain(
        app.signature("slow", ("not a number",), queue="emails"), app.signature("ok", ("after",), immutable=True)
    ).apply_async()
    replayed(worker, dead(worker), edit={"args": [0]})
    worker.wait(lambda: worker.marks("ok") == [str(("after",))], what="the rest of the chain")


def test_hidden_arguments_reach_the_worker_as_they_were(worker):
    worker.send("fail", "down", queue="emails", kwargs={"token": "s3cret-value", "to": "ann"})
    failure = dead(worker)
    shown = json.loads(failure.kwargs)
    assert shown["token"] == "[redacted]"
    replays.start(ANN, replays.draft(ANN, selection=[failure.pk], edit={"kwargs": shown | {"to": "bob"}}))
    desk_until(worker, lambda: Failure.objects.filter(run=2, state="dead").exists(), "the second run")
    args, kwargs = config.adapter("shop").arguments(raw_of_run_2(failure))
    assert (args, kwargs) == (["down"], {"token": "s3cret-value", "to": "bob"})


def raw_of_run_2(failure):
    return messages.opened(failure.payloads.get(run=2))


def test_a_discarded_job_that_is_restored_is_replayed(worker):
    worker.send("slow", "not a number", queue="emails")
    failure = dead(worker)
    discarded = triage.discard(ANN, selection=[failure.pk], reason="a test")
    ingest.step("test")
    triage.undo(ANN, discarded.key)
    replay = replayed(worker, failure, edit={"args": [0]})
    assert (replay.succeeded, failure.state, failure.run) == (1, "recovered", 2)
