from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.models import DepthSample, ReplayItem
from jobs_admin.replays.outcomes import UNATTENDED_AFTER, find_unattended
from tests.kit.replays import came_home, sent_all, start_replay

pytestmark = pytest.mark.django_db


@pytest.fixture
def replay(shop, bury):
    """Two jobs of e-mails and one of bills were sent two minutes ago, and wait on their queues."""
    replay = start_replay([*bury(2), *bury(queue="bills")])
    sent_all()
    replay.items.update(sent_at=timezone.now() - 2 * UNATTENDED_AFTER)
    replay.refresh_from_db()
    sample_queue(waiting=2), sample_queue("bills", waiting=1)
    return replay


def sample_queue(queue="emails", at=None, **numbers):
    at = at or timezone.now()
    DepthSample.objects.create(source="shop", queue=queue, at=at, step=10, **numbers)


def places(replay, now=None):
    found = find_unattended(replay, now or timezone.now())
    return found and [queue for _, queue in found.queues]


def test_jobs_that_no_one_takes_are_reported_with_their_queues_and_since_when(replay):
    now = timezone.now()
    found = find_unattended(replay, now)
    assert found.queues == [("shop", "bills"), ("shop", "emails")]
    assert found.since == ReplayItem.objects.first().sent_at
    replay.items.update(sent_at=now - UNATTENDED_AFTER)
    assert find_unattended(replay, now) is None, "a worker may have a moment"


def test_where_one_was_heard_of_lately_a_person_takes_them(replay):
    came_home(replay.items.order_by("n").first(), "success")
    replays.settle()
    replay.refresh_from_db()
    now = timezone.now()
    assert places(replay) is None
    sample_queue(at=now + 2 * UNATTENDED_AFTER, waiting=1)
    found = find_unattended(replay, now + 2 * UNATTENDED_AFTER)
    assert found.since >= now - timedelta(seconds=10), "heard of since the others were sent"


@pytest.mark.parametrize(
    "numbers",
    [
        {"waiting": 0},  # taken: one that is acknowledged early is nowhere while it runs
        {"waiting": None},
        {"waiting": 2, "active": 1},
        {"waiting": 2, "workers": 1},
        {"waiting": 2, "guarded_workers": 1},
    ],
)
def test_where_nothing_waits_or_a_person_is_there_silence_is_no_sign(replay, numbers):
    sample_queue(**numbers)
    assert places(replay) == ["bills"]
    DepthSample.objects.filter(queue="bills").update(at=timezone.now() - UNATTENDED_AFTER)
    assert places(replay) is None, "nobody has looked lately"


def test_a_job_that_is_tried_again_was_taken_and_one_that_is_done_waits_for_no_one(replay):
    replay.running, replay.sent = 1, 2
    assert places(replay) is None
    replay.running, replay.state = 0, "done"
    assert places(replay) is None
    replay.state = "running"
    assert places(replay) == ["bills", "emails"]
