"""Replays over the API beyond the plain start: options, approval, resuming without a group."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import trust
from jobs_admin.management.commands.token import create
from jobs_admin.models import Group, RefusedReports, Replay, Source, UnsignedReports
from tests.kit.failures import STARTED_AT, dead_emails

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]


@pytest.fixture
def group():
    return Group.objects.create(
        fingerprint="v1-a", error_type="KeyError", message="x", first_seen=STARTED_AT, last_seen=STARTED_AT
    )


def started(call_api, **more):
    dead_emails(3)
    answer = call_api("POST", "replays", {"q": "queue:emails", "reason": "r", **more})
    assert answer.status_code == 201, answer.json()
    return answer.json()


def test_the_options_of_a_replay_are_stored_and_shown(call_api):
    made = started(call_api, attempts=3, patch={"kwargs": {"dry_run": True}}, accept_unguarded=True, accept=["expired"])
    assert made["options"] == {
        "attempts": 3,
        "patch": {"kwargs": {"dry_run": True}},
        "accept": ["unguarded", "expired"],
    }


@pytest.mark.parametrize(
    "body, field",
    [
        ({"attempts": 0}, "attempts"),
        ({"attempts": "few"}, "attempts"),
        ({"accept": ["everything"]}, "accept"),
        ({"patch": {"headers": {}}}, "patch"),
        ({"to_queue": "no such queue"}, "to_queue"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name_and_nothing_starts(call_api, body, field):
    dead_emails(1)
    refused = call_api("POST", "replays", {"q": "queue:emails", "reason": "r", **body})
    assert (refused.status_code, Replay.objects.exists()) == (422, False)
    assert field in refused.json()["error"]["field"]


def test_a_held_replay_goes_on_without_the_group_that_is_named(call_api, group):
    replay = Replay.objects.get(pk=started(call_api)["id"])
    Replay.objects.filter(pk=replay.pk).update(state="held", held_because="6 of 10", evidence={"kind": "canary"})
    waiting = call_api("GET", f"failures/{replay.items.filter(state='planned').first().failure_id}").json()["waits_in"]
    assert (waiting["replay"], waiting["state"], waiting["reason"]) == (replay.pk, "held", "6 of 10")
    assert waiting["url"].endswith(f"/replays/{replay.pk}/")
    assert call_api("GET", f"replays/{replay.pk}").json()["evidence"] == {"kind": "canary"}
    resumed = call_api("POST", f"replays/{replay.pk}/resume", {"without_groups": [group.fingerprint]})
    assert resumed.status_code == 200 and resumed.json()["without_groups"] == [group.fingerprint]
    assert resumed.json()["state"] != "held"
    unknown = call_api("POST", f"replays/{replay.pk}/resume", {"without_groups": ["v1-nobody"]})
    assert unknown.status_code == 422 and unknown.json()["error"]["field"] == "without_groups"


@pytest.mark.parametrize("role, source", [("operator", "*"), ("viewer", "shop")])
def test_a_list_of_replays_costs_the_same_queries_however_many_there_are(call_api, group, role, source):
    reported = {"group": group.pk, "phase": "run", "code": "failed_again", "reason": "5 of 5", "by": "controller"}
    aside = [reported | {"at": STARTED_AT.isoformat(), "jobs": None}]
    taken, token = [], create("reader", role, source)
    for count in (2, 7):
        for _ in range(count):
            dead_emails(1), dead_emails(1, source="bank")
            call_api("POST", "replays", {"q": "queue:emails", "reason": "r"})
        Replay.objects.update(state="running", without_groups=[group.pk], set_aside=aside)
        trust.forget()  # both lists read the keys of sources: otherwise the one that comes seconds later reads them alone
        with CaptureQueriesContext(connection) as requested:
            listed = call_api("GET", "replays", token=token).json()["items"]
        taken.append(len(requested))
        assert not [query for query in requested.captured_queries if '"set_aside"' in query["sql"]]
        assert [row["total"] for row in listed] == [2 if source == "*" else 1] * len(listed)
    assert len(listed) == 9 and taken[0] == taken[1], taken
    assert call_api("GET", f"replays/{listed[0]['id']}").json()["set_aside"][0]["reason"] == "5 of 5"


def test_items_are_counted_as_far_as_they_are_seen(call_api):
    dead_emails(2, source="bank")
    pk = started(call_api)["id"]
    for source, count in (("*", 5), ("shop", 3), ("bank", 2)):
        listed = call_api("GET", f"replays/{pk}/items", role="viewer", source=source, state="planned").json()
        assert (listed["count"], len(listed["items"]), listed["count_is_capped"]) == (count, count, False)


def test_another_operator_approves_what_waits_for_it(call_api):
    pk = started(call_api)["id"]
    Replay.objects.filter(pk=pk).update(state="awaiting_approval", approval_because="It has 3 jobs.")
    own = call_api("POST", f"replays/{pk}/approve", {})
    assert own.status_code == 403 and "yourself" in own.json()["error"]["message"]
    theirs = call_api("POST", f"replays/{pk}/approve", {"reason": "looked"}, role="operator", source="shop")
    assert theirs.status_code == 200 and theirs.json()["approver"] and theirs.json()["state"] != "awaiting_approval"


def test_a_replay_whose_outcomes_would_be_refused_is_answered_with_that(call_api):
    assert started(call_api)["warnings"] == []
    now = timezone.now()
    Source.objects.get_or_create(name="shop")
    UnsignedReports.objects.update(until=now)
    RefusedReports.objects.create(
        source="shop", cause="unsigned", refused=1, first_at=now, last_at=now, why="not signed"
    )
    trust.forget()
    dead_emails(2, queue="orders")
    seen = call_api("POST", "replays/preview", {"q": "queue:orders"}).json()["warnings"]
    assert len(seen) == 1 and "Reports of shop are refused" in seen[0] and "source-key create shop" in seen[0]
    made = call_api("POST", "replays", {"q": "queue:orders", "reason": "r"}).json()
    assert made["warnings"] == call_api("GET", f"replays/{made['id']}").json()["warnings"] == seen
