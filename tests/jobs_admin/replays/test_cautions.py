from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.models import Attempt, Group, GroupCounter, QueueCounter
from jobs_admin.replays.options import Options
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db

NOW = timezone.now().replace(second=30, microsecond=0)


def warnings(**options):
    return replays.preview(ANN, now=NOW, **options).warnings


def test_what_is_harmless_is_not_warned_of(shop, bury):
    bury(3)
    assert warnings() == []


def test_an_error_that_still_happens(shop, bury):
    group = Group.objects.create(fingerprint="v1-a", error_type="E", message="m", first_seen=NOW, last_seen=NOW)
    other = Group.objects.create(fingerprint="v1-b", error_type="E", message="n", first_seen=NOW, last_seen=NOW)
    bury(2, group=group)
    for of, minutes, n in ((group, 1, 100), (group, 3, 20), (group, 30, 999), (other, 1, 999)):
        at = (NOW - timedelta(minutes=minutes)).replace(second=0)
        GroupCounter.objects.create(group=of, step=60, at=at, failed=n - 1, retried=1)
    (text,) = warnings()
    assert text == "The error is still happening: 120 times in the last 5 minutes, 22/min."


def test_few_jobs_are_replayed_carefully_if_the_preview_warns_of_them(shop, bury):
    group = Group.objects.create(fingerprint="v1-a", error_type="E", message="m", first_seen=NOW, last_seen=NOW)
    bury(40, group=group)
    assert replays.preview(ANN, now=NOW).pace["style"] == "steady"
    GroupCounter.objects.create(group=group, step=60, at=(NOW - timedelta(minutes=1)).replace(second=0), failed=9)
    seen = replays.preview(ANN, now=NOW)
    assert "still happening" in seen.warnings[0] and seen.pace["style"] == "careful"
    assert replays.preview(ANN, now=NOW, pace={"rate": 5}).pace["style"] == "steady"
    assert replays.draft(ANN, reason="fixed", now=NOW).pace["style"] == "careful"


def test_few_jobs_that_are_likely_to_fail_again_are_replayed_carefully(shop, bury):
    group = Group.objects.create(
        fingerprint="v1-a", error_type="builtins.TypeError", message="m", first_seen=NOW, last_seen=NOW
    )
    bury(40, group=group)
    assert replays.preview(ANN, now=NOW).pace["style"] == "careful"


def test_an_error_of_a_group_with_another_source_counts_only_what_is_replayed_from(shop, bury):
    group = Group.objects.create(fingerprint="v1-a", error_type="E", message="m", first_seen=NOW, last_seen=NOW)
    bury(2, group=group, failed_at=NOW - timedelta(minutes=1))
    bury(7, group=group, failed_at=NOW - timedelta(minutes=1), source="web")
    GroupCounter.objects.create(group=group, step=60, at=(NOW - timedelta(minutes=1)).replace(second=0), failed=9)
    assert any("happening: 2 times in" in text for text in warnings(query="source:shop"))


def test_more_a_second_than_these_queues_managed(shop, bury):
    bury(90)
    at = (NOW - timedelta(minutes=4)).replace(second=0)
    QueueCounter.objects.create(source="shop", queue="emails", step=60, at=at, succeeded=240)
    (text,) = warnings(pace={"rate": 50})
    assert "up to 50/s" in text and "finished 4/s" in text
    assert warnings(pace={"rate": 7}) == []
    # Whole jobs fall into a second: one of these two is not too fast.
    QueueCounter.objects.update(succeeded=58)
    assert warnings(pace={"rate": 0.97}) == []


def test_jobs_that_were_at_work_before_they_failed_or_were_replayed_before(shop, bury):
    ids = [*bury(3), *bury(2, run=2)]
    for pk, seconds in zip(ids, (0.2, 1.5, 40, 0.1, None), strict=True):
        Attempt.objects.create(
            failure_id=pk, run=1, attempt=1, kind="exception", job_id="j", ended_at=NOW, received_at=NOW,
            duration_s=seconds,
        )  # fmt: skip
    again, worked = warnings()
    assert again == "2 of 5 were replayed before and failed again."
    assert worked.startswith("2 of 5 were running for more than 1 s when an attempt failed")


def test_a_change_of_arguments_where_some_are_hidden(shop, bury):
    bury(3)
    bury(1, redacted=2)
    assert warnings() == []
    hidden, unchecked = warnings(options=Options(patch={"kwargs": {"dry_run": True}}))
    assert hidden.startswith("1 of 4 has redacted values.")
    assert "report no signature" in unchecked
