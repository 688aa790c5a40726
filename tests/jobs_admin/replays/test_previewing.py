from __future__ import annotations

import pytest
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.models import Failure, Group, Source
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from tests.jobs_admin.replays.conftest import ANN, EVE

pytestmark = pytest.mark.django_db


def blocked(seen):
    return {row["reason"].split(":")[0]: row["count"] for row in seen.blocked}


def test_what_matches_is_counted_by_queue_task_and_tenant(shop, bury):
    bury(3, tenant="acme")
    bury(2, queue="webhooks", task="shop.call")
    seen = replays.preview(ANN, query="")
    assert (seen.matched, seen.replayable, seen.blocked) == (5, 5, [])
    assert seen.by_queue == [("emails", 3), ("webhooks", 2)]
    assert seen.by_task == [("shop.send", 3), ("shop.call", 2)]
    assert seen.by_tenant == [("acme", 3)]
    assert [f.pk for f in seen.sample] == sorted((f.pk for f in seen.sample), reverse=True)


def test_groups_come_with_title_and_fingerprint(shop, bury):
    now = timezone.now()
    group = Group.objects.create(
        fingerprint="v1-a", error_type="Timeout", message="slow", first_seen=now, last_seen=now
    )
    bury(2, group=group)
    seen = replays.preview(ANN)
    assert seen.by_group == [("Timeout: slow", 2)] and seen.groups == [("v1-a", "Timeout: slow", 2)]


def test_everything_left_out_has_its_reason(shop, bury):
    bury(1)
    bury(2, state="retrying")
    bury(3, state="quarantined")
    bury(4, whole=False)
    bury(5, payload=False)
    bury(6, source="unknown")
    bury(7, source="web")
    Source.objects.create(name="web", is_configured=True, is_reachable=False)
    seen = replays.preview(ANN)
    assert (seen.matched, seen.replayable) == (28, 1)
    assert blocked(seen) == {
        "retrying by themselves": 2,
        "in quarantine": 3,
        "truncated": 4,
        "no message was kept": 5,
        "source unknown is not configured here (CELERY_BROKER_URL or REDRIVE_SOURCES)": 6,
        "source web cannot be reached": 7,
    }


def test_jobs_in_another_replay_say_whose(shop, bury):
    ids = bury(3)
    other = replays.start(ANN, replays.draft(ANN, selection=ids[:2], reason="mine"))
    seen = replays.preview(ANN)
    assert seen.replayable == 1
    assert seen.blocked == [{"reason": f"already in replay #{other.pk} of ann", "count": 2, "replay": other.pk}]


def test_a_preview_matches_what_start_then_sends(shop, bury):
    bury(5)
    bury(2, whole=False)
    bury(1, state="recovered")
    seen = replays.preview(ANN, query="queue:emails")
    replay = replays.start(ANN, replays.draft(ANN, query=seen.query, snapshot=seen.snapshot, reason="fixed"))
    assert replay.total == seen.replayable == 5


def test_time_and_peak_come_from_the_pace(shop, bury):
    bury(101)
    seen = replays.preview(ANN, pace={"rate": 10})
    assert (seen.duration_s, seen.peak_per_second) == (10, 10)
    assert (seen.ends_at - seen.starts_at).total_seconds() == 10
    assert seen.pace == {"style": "steady", "rate": 10}


def test_a_relative_time_is_pinned(shop, bury):
    bury()
    seen = replays.preview(ANN, query="age:<2d")
    assert "age" not in seen.query and "since:20" in seen.query


def test_sources_without_the_right_are_not_in_the_scope(shop, bury):
    bury(2)
    bury(3, source="web")
    seen = replays.preview(Viewer("w", {"web": OPERATOR, "shop": VIEWER}))
    assert seen.matched == seen.replayable == 3
    assert replays.preview(EVE).matched == 0


def test_a_preview_changes_nothing_and_costs_the_same_for_many(shop, bury, django_assert_max_num_queries):
    bury(300)
    with django_assert_max_num_queries(12):
        replays.preview(ANN)
    assert set(Failure.objects.values_list("state", flat=True)) == {"dead"}


def test_a_pace_that_cannot_be_is_refused_beside_its_field(shop):
    with pytest.raises(replays.ReplayRefused, match="Choose") as refused:
        replays.preview(ANN, pace={"style": "reckless"})
    assert (refused.value.code, refused.value.field) == ("bad_pace", "pace.style")


def test_a_member_of_a_group_is_warned_about(shop, bury):
    bury(headers='{"group": "g", "group_index": 3}')
    bury(headers='{"group": null, "group_index": null}')
    (warning,) = replays.preview(ANN).warnings
    assert warning.startswith("1 belongs to a Celery group")
