"""A person outside hears us each minute, as long as everything is watched."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import notices
from jobs_admin.core import keys
from jobs_admin.notices import heartbeat
from jobs_admin.queues import liveness
from tests.kit.endpoints import answering
from tests.kit.notices import deliver
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.server]


@pytest.fixture(autouse=True)
def beating(store, settings, endpoint):
    there = endpoint(answering(200, b"OK"))
    settings.REDRIVE = settings.REDRIVE | {"HEARTBEAT_URL": f"{there.url}/very-secret"}
    heartbeat._Last.began, heartbeat._Last.error = float("-inf"), ""
    liveness.forget()
    yield there
    heartbeat._Last.began = float("-inf")


def alive(store, *steps, seconds_ago=0.0):
    at = (timezone.now() - timedelta(seconds=seconds_ago)).timestamp()
    for step in steps:
        store.hset(keys.steps(), step, json.dumps({"at": at}))


def count_beats(there, within_s=90.0) -> int:
    ends = time.monotonic() + within_s
    deliver()
    while not there.seen and time.monotonic() < ends:
        time.sleep(0.02)
        notices.deliver(timezone.now())
    return len(there.seen)


def test_it_is_heard_once_a_minute_while_every_step_is_alive(store, beating):
    alive(store, "ingest", "sample", "judge")
    assert count_beats(beating) == 1 and beating.seen[0].method == "GET"
    deliver()
    assert len(beating.seen) == 1
    heartbeat._Last.began -= heartbeat.EVERY_S
    notices.deliver(timezone.now())
    wait_until(lambda: len(beating.seen) >= 2, "two beats", meanwhile=lambda: notices.deliver(timezone.now()))
    assert len(beating.seen) == 2


def test_it_is_silent_when_one_step_is_late_or_nothing_has_ever_run(store, beating):
    assert count_beats(beating, 0.3) == 0
    heartbeat._Last.began = float("-inf")
    alive(store, "ingest", "sample")
    alive(store, "judge", seconds_ago=60)
    assert count_beats(beating, 0.3) == 0


def test_a_url_that_is_not_public_is_refused_and_nothing_leaves(store, beating, settings, caplog):
    alive(store, "ingest")
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": []}
    assert count_beats(beating, 0.3) == 0
    assert "127.0.0.1 is not a public address (loopback)" in heartbeat.why_refused()
    assert "(REDRIVE_HEARTBEAT_URL) failed" in caplog.text and "very-secret" not in caplog.text


def test_without_a_url_nothing_is_queried(store, beating, settings):
    alive(store, "ingest")
    settings.REDRIVE = settings.REDRIVE | {"HEARTBEAT_URL": ""}
    assert count_beats(beating, 0.3) == 0 and heartbeat.why_refused() == ""
