from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.models import Failure, Group, QueueCounter, Source
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.replays import preview_warnings, previewing
from tests.kit.people import ANN, EVE

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
    bury(4, is_complete=False)
    bury(5, payload=False)
    bury(6, source="unknown")
    bury(7, source="web")
    Source.objects.create(name="web", is_configured=True, is_reachable=False)
    seen = replays.preview(ANN)
    assert (seen.matched, seen.replayable) == (28, 1)
    assert blocked(seen) == {
        "retrying automatically": 2,
        "in quarantine": 3,
        "truncated": 4,
        "no message was stored": 5,
        "source unknown is not configured here (CELERY_BROKER_URL or REDRIVE_SOURCES)": 6,
        "source web cannot be reached": 7,
    }


def test_jobs_in_another_replay_report_whose(shop, bury):
    ids = bury(3)
    other = replays.start(ANN, replays.draft(ANN, selection=ids[:2], reason="mine"))
    seen = replays.preview(ANN)
    assert seen.replayable == 1
    (row,) = seen.blocked
    assert (row["code"], row["count"], row["replay"]) == ("open", 2, other.pk)
    assert row["reason"] == f"already in replay #{other.pk} of ann"


def test_a_preview_matches_what_start_then_sends(shop, bury):
    bury(5)
    bury(2, is_complete=False)
    bury(1, state="recovered")
    seen = replays.preview(ANN, query="queue:emails")
    replay = replays.start(ANN, replays.draft(ANN, query=seen.query, snapshot=seen.snapshot, reason="fixed"))
    assert replay.total == seen.replayable == 5


def test_time_and_peak_come_from_the_pace(shop, bury):
    bury(101)
    seen = replays.preview(ANN, pace={"rate": 10})
    assert (seen.duration_s, seen.peak_per_second) == (10, 10)
    assert (seen.ends_at - seen.starts_at).total_seconds() == 10
    assert seen.pace | {"stop": None} == {"style": "steady", "rate": 10, "stop": None}


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
    with django_assert_max_num_queries(31):
        replays.preview(ANN)
    assert set(Failure.objects.values_list("state", flat=True)) == {"dead"}


def test_a_pace_that_cannot_be_is_refused_beside_its_field(shop):
    with pytest.raises(Refused) as refused:
        replays.preview(ANN, pace={"style": "hasty"})
    assert (refused.value.code, refused.value.field) == ("bad_pace", "pace.style")


def test_more_than_a_hundred_jobs_go_carefully_unless_a_person_reports_otherwise(shop, bury):
    bury(100)
    assert replays.preview(ANN).pace["style"] == "steady"
    bury(1)
    seen = replays.preview(ANN)
    assert seen.pace["style"] == "careful"
    # Nothing is left open: what runs is what was shown.
    assert seen.pace["canary"]["jobs"] == 50 and seen.pace["ramp"] == {"from": 5, "to": 1000}
    assert replays.preview(ANN, pace={"style": "at_once"}).pace["style"] == "at_once"


def test_a_careful_pace_climbs_to_what_the_queues_managed_in_minutes_in_which_anything_ran(shop, bury):
    now = timezone.now()
    bury(200)
    for minute, n in ((5, 600), (6, 1200), (7, 2400)):
        at = (now - timedelta(minutes=minute)).replace(second=0, microsecond=0)
        QueueCounter.objects.create(source="shop", queue="emails", step=60, at=at, succeeded=n)
        QueueCounter.objects.create(source="shop", queue="other", step=60, at=at, succeeded=9 * n)
    seen = replays.preview(ANN, now=now)
    assert seen.throughput_per_s == 20 and seen.pace["ramp"]["to"] == 20
    assert seen.peak_per_second <= 20


def test_where_nothing_ran_in_the_last_hour_no_throughput_is_reported(shop, bury):
    bury()
    assert replays.preview(ANN).throughput_per_s is None


def test_what_came_after_the_snapshot_is_counted_and_not_added(shop, bury):
    bury(3)
    first = replays.preview(ANN, query="queue:emails")
    bury(2)
    bury(4, queue="webhooks")
    again = replays.preview(ANN, query=first.query, snapshot=first.snapshot)
    assert (again.matched, again.replayable, again.arrived_since) == (3, 3, 2)
    assert again.snapshot == first.snapshot
    fresh = replays.preview(ANN, query=first.query)
    assert (fresh.matched, fresh.arrived_since) == (5, 0)


def test_a_snapshot_of_another_search_is_refused(shop, bury):
    bury()
    seen = replays.preview(ANN, query="queue:emails")
    with pytest.raises(Refused, match="another search"):
        replays.preview(ANN, query="queue:other", snapshot=seen.snapshot)


def test_a_preview_reports_that_a_second_person_is_needed(shop, bury, settings):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "2"}
    bury(2)
    assert replays.preview(ANN).needs_approval == ""
    bury(1)
    assert "above 2" in replays.preview(ANN).needs_approval


def test_a_partial_breakdown_shows_of_how_many(shop, bury, monkeypatch):
    monkeypatch.setattr(previewing, "SAMPLED", 4)
    bury(3, tenant="old")
    bury(5, tenant="new", queue="webhooks")
    seen = replays.preview(ANN)
    # Counters know queues and tasks of any number; tenants are looked at.
    assert seen.by_queue == [("webhooks", 5), ("emails", 3)] and seen.by_tenant == [("new", 4)]
    assert seen.counted_over == {"source": None, "queue": None, "task": None, "group": None, "tenant": 4}
    of_kind = replays.preview(ANN, query="kind:exception")
    assert (of_kind.replayable, of_kind.by_queue) == (8, [("webhooks", 4)])
    assert of_kind.counted_over["queue"] == 4


def test_after_a_restore_the_jobs_of_before_come_with_a_warning(shop, bury):
    bury(2)
    audit.record(ANN, preview_warnings.RESTORE_ACT, "desk", after={"made_at": "2026-11-20T00:00:00+00:00"})
    (warning,) = (one for one in replays.preview(ANN).warnings if "restored" in one)
    assert "Jobs that were replayed in between are shown as dead" in warning
    Failure.objects.update(failed_at=timezone.now())
    assert not any("restored" in one for one in replays.preview(ANN).warnings)


def count_obstacle_queries(act):
    """Queries for the obstacles of an act: each time begins with the places of all that are dead."""
    with CaptureQueriesContext(connection) as queries:
        act()
    sql = [one["sql"] for one in queries if one["sql"].startswith("SELECT DISTINCT")]
    return sum("queue" in one and "task" in one and "failurecount" in one for one in sql)


@pytest.mark.parametrize("blocked", [0, 4])
@pytest.mark.parametrize(("sampled", "over"), [(2, 2), (3, None), (4, None)])
def test_a_sample_knows_whether_it_has_all_jobs(shop, bury, monkeypatch, sampled, over, blocked):
    bury(blocked, is_complete=False)
    bury(3, tenant="acme")
    monkeypatch.setattr(previewing, "SAMPLED", sampled)
    for query in ("queue:emails", "queue:emails since:1d"):
        seen = replays.preview(ANN, query=query)
        assert (seen.replayable, seen.counted_over["tenant"]) == (3, over)
        assert seen.by_tenant == [("acme", over or 3)]


def test_a_start_goes_on_with_what_its_draft_counted(shop, bury):
    bury(3)
    assert count_obstacle_queries(lambda: replays.preview(ANN, query="queue:emails")) == 1
    assert count_obstacle_queries(lambda: replays.draft(ANN, query="queue:emails", reason="why")) == 1
    assert count_obstacle_queries(lambda: replays.launch(ANN, query="queue:emails", reason="why")) == 1
