from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import policies, replays
from jobs_admin.models import Attempt, Failure, QueueCounter, Worker
from jobs_admin.replays import capacity
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db

NOW = timezone.now()


def attempted(failure, seconds):
    Attempt.objects.create(
        failure_id=failure, run=1, attempt=1, kind="exception", job_id="j", ended_at=NOW, received_at=NOW,
        duration_s=seconds,
    )  # fmt: skip


def test_a_job_takes_what_jobs_took_in_the_last_hour(shop, bury):
    ids = bury(3)
    for pk, took in zip(ids, (0.1, 0.2, 30), strict=True):
        attempted(pk, took)
    assert capacity.runtime_s(ANN, ["emails"], ids, NOW) == 0.2
    for hours, busy in ((0.5, 20), (2, 9000)):
        at = NOW - timedelta(hours=hours)
        QueueCounter.objects.create(source="shop", queue="emails", step=60, at=at, started=10, busy_s=busy)
    assert capacity.runtime_s(ANN, ["emails"], ids, NOW) == 2
    assert capacity.runtime_s(ANN, ["other"], [], NOW) is None


def test_workers_that_live_and_consume_one_of_the_queues_are_counted_once():
    def worker(name, queues, seconds_ago=1, **more):
        seen_at = NOW - timedelta(seconds=seconds_ago)
        Worker.objects.create(source="shop", name=name, boot="b", queues=queues, seen_at=seen_at, **more)

    assert capacity.concurrency(["shop"], ["emails"], NOW) is None
    worker("a", ["emails", "webhooks"], concurrency=8)
    worker("b", ["emails"], concurrency=4)
    worker("c", ["other"], concurrency=16)
    worker("d", ["emails"], 60, concurrency=32)
    worker("e", ["emails"], concurrency=None)
    assert capacity.concurrency(["shop"], ["emails", "webhooks"], NOW) == 12
    assert capacity.concurrency(["web"], ["emails"], NOW) is None


def test_a_preview_plays_the_replay_with_these_numbers(store, shop, bury):
    for pk in bury(40):
        attempted(pk, 0.5)
    Worker.objects.create(source="shop", name="w", boot="b", queues=["emails"], seen_at=NOW, concurrency=2)
    preview = replays.preview(ANN, pace={"rate": 100}, now=NOW)
    assert preview.slowed_by[-1:] == ["The workers handle about 4 jobs/s: jobs that are sent faster wait in the queue."]
    played = preview.simulation
    # Two at once of half a second each are four a second.
    assert played.as_planned.peak_per_second <= 5 and 9 <= played.as_planned.ends_after_s <= 12
    assert any("0.5 s" in text for text in played.assumptions) and any(
        "2 jobs at once" in text for text in played.assumptions
    )


def test_a_preview_of_nothing_plays_nothing(shop, bury):
    assert replays.preview(ANN).simulation.as_planned.sent == 0


def test_the_outlook_counts_what_policies_let_start(store, shop, bury):
    ids = bury(40)
    for pk in ids:
        attempted(pk, 2.0)
    Worker.objects.create(source="shop", name="w", boot="b", queues=["emails"], seen_at=NOW, concurrency=100)
    task = Failure.objects.get(pk=ids[0]).task
    document = {"match": {"task": task}, "mode": "enforce", "concurrency": {"key": "task", "limit": 2}}
    before = replays.preview(ANN, pace={"rate": 100}, now=NOW).simulation.as_planned.ends_after_s
    policies.publish(ANN, "two-at-once", document, reason="it bears two")
    played = replays.preview(ANN, pace={"rate": 100}, now=NOW).simulation
    # Two at once of two seconds each are one a second.
    assert before < 5 and 38 <= played.as_planned.ends_after_s <= 45
    assert f"A policy limits {task} to 1 starts/s." in played.assumptions


def test_a_quiet_hour_is_no_measure_and_workers_bound_the_pace_instead(store, shop, bury):
    ids = bury(200)
    for pk in ids:
        attempted(pk, 0.5)
    Worker.objects.create(source="shop", name="w", boot="b", queues=["emails"], seen_at=NOW, concurrency=10)
    last = NOW.replace(second=0, microsecond=0)
    for minutes in (5, 20, 40):
        at = last - timedelta(minutes=minutes)
        QueueCounter.objects.create(source="shop", queue="emails", step=60, at=at, succeeded=1)
    quiet = replays.preview(ANN, selection=ids, now=NOW)
    assert quiet.throughput_per_s < 0.02 and quiet.plan.ramp.start == 2 and quiet.plan.ramp.to == 20
    for minutes in range(2, 50):
        at = last - timedelta(minutes=minutes)
        QueueCounter.objects.update_or_create(
            source="shop", queue="emails", step=60, at=at, defaults={"succeeded": 900}
        )
    busy = replays.preview(ANN, selection=ids, now=NOW)
    assert busy.throughput_per_s == busy.plan.ramp.to == 15
