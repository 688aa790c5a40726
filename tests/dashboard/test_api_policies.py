"""Policies through the API: published, refused, put back, withdrawn, tried out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs_admin.models import Attempt, AuditEvent, PolicyVersion
from tests.kit.failures import bury

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]

EMAILS = {"match": {"source": "shop", "task": "shop.mail"}, "max_attempts": 4, "cap_s": 60}
VECTORS = json.loads((Path(__file__).parents[1] / "jobs_admin/core/backoff.json").read_text())["vectors"]


@pytest.fixture
def publish_policy(call_api):
    def publish(name="emails", expected=None, role="operator", source="*", **fields):
        body = {**EMAILS, **fields, "expected_version": expected}
        return call_api("PUT", f"policies/{name}", body, role=role, source=source)

    return publish


def error(answer):
    return answer.status_code, answer.json()["error"]


def test_a_policy_is_made_read_and_changed(call_api, publish_policy):
    made = publish_policy()
    assert made.status_code == 201 and made.json()["version"] == 1
    changed = publish_policy(expected=1, max_attempts=6)
    assert changed.status_code == 200 and changed.json()["version"] == 2
    one = call_api("GET", "policies/emails", role="viewer").json()
    assert (one["max_attempts"], one["match"]["task"], one["workers"]["of"]) == (6, "shop.mail", 0)
    assert [row["name"] for row in call_api("GET", "policies").json()["items"]] == ["emails"]


def test_what_was_answered_can_be_changed_and_sent_back(call_api, publish_policy):
    publish_policy()
    one = call_api("GET", "policies/emails").json()
    sent = call_api("PUT", "policies/emails", one | {"max_attempts": 9, "expected_version": one["version"]})
    assert (sent.status_code, sent.json()["version"], sent.json()["max_attempts"]) == (200, 2, 9)


def test_a_policy_shows_whether_it_files_lost_jobs_also_where_it_does_not(call_api, publish_policy):
    assert publish_policy().json()["file_lost"] is False
    assert publish_policy(expected=1, file_lost=True).json()["file_lost"] is True
    one = call_api("GET", "policies/emails").json()
    assert (one["file_lost"], one["workers"]["unkept"]) == (True, 0)
    assert error(publish_policy(expected=2, file_lost="yes"))[1]["problems"][0]["field"] == "file_lost"
    back = call_api("PUT", "policies/emails", one | {"file_lost": False, "expected_version": 2})
    assert back.json()["file_lost"] is False and "file_lost" not in PolicyVersion.objects.get(version=3).document


def test_a_stale_edit_is_refused_with_the_difference(publish_policy):
    publish_policy()
    publish_policy(expected=1, max_attempts=7)
    status, refused = error(publish_policy(expected=1, cap_s=90))
    assert (status, refused["code"], refused["current"]["version"]) == (409, "stale", 2)
    assert {"field": "max_attempts", "was": 4, "now": 7, "yours": 4} in refused["difference"]


def test_a_policy_that_is_there_is_not_overwritten_without_its_version(publish_policy):
    publish_policy()
    assert error(publish_policy(cap_s=90))[1]["code"] == "stale"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 10**9),
        ("max_attempts", -1),
        ("max_attempts", 1.5),
        ("cap_s", 1e308),
        ("cap_s", float("nan")),
        ("cap_s", float("inf")),
        ("cap_s", 0.5),
        ("backoff.kind", "random"),
        ("jitter.kind", "some"),
        ("mode", "off"),
        ("spelled", 1),
    ],
)
def test_an_absurd_policy_is_refused_with_field_and_bound(publish_policy, field, value):
    name, _, inner = field.partition(".")
    status, refused = error(publish_policy(**{name: {inner: value} if inner else value}))
    assert (status, refused["code"], refused["field"]) == (422, "invalid", field)
    assert all(problem["bound"] and problem["message"] for problem in refused["problems"])
    assert not PolicyVersion.objects.exists()


def test_an_equal_match_is_refused_by_name(publish_policy):
    publish_policy()
    status, refused = error(publish_policy("others"))
    assert (status, refused["code"], refused["policy"]) == (409, "equal_match", "emails")


@pytest.mark.parametrize("body", ["[]", "5", '"x"', '{"policy": []}', '{"policy": null}', '{"expected_version": true}'])
def test_what_is_no_policy_is_refused(call_api, client, body):
    answer = call_api("PUT", "policies/emails", json.loads(body))
    assert answer.status_code == 422 and answer.json()["error"]["code"] == "invalid"
    assert not PolicyVersion.objects.exists()


def test_a_viewers_token_publishes_nothing(publish_policy):
    assert error(publish_policy(role="viewer"))[0] == 403
    assert AuditEvent.objects.filter(allowed=False).exists() and not PolicyVersion.objects.exists()


def test_an_operator_of_one_source_publishes_for_that_alone(publish_policy):
    assert publish_policy(source="shop").status_code == 201
    assert error(publish_policy("bills", source="shop", match={"source": "bank"}))[0] == 403
    assert error(publish_policy("all", source="shop", match={}))[0] == 403


def test_a_policy_out_of_sight_is_not_there(call_api, publish_policy):
    publish_policy("bills", match={"source": "bank"})
    for path in ("policies/bills", "policies/bills/versions", "policies/bills/budget"):
        assert call_api("GET", path, source="shop").status_code == 404
    assert call_api("GET", "policies", source="shop").json()["items"] == []
    assert publish_policy("bills", source="shop", expected=1).status_code == 404


def test_versions_are_leafed_through_and_put_back(call_api, publish_policy):
    publish_policy()
    publish_policy(expected=1, max_attempts=9)
    page = call_api("GET", "policies/emails/versions", limit=1).json()
    assert (page["items"][0]["version"], page["count"]) == (2, 2)
    rest = call_api("GET", "policies/emails/versions", limit=1, after=page["next"]).json()
    assert (rest["items"][0]["version"], rest["next"]) == (1, None)
    back = call_api("POST", "policies/emails/versions/1/put-back", {"expected_version": 2, "reason": "was better"})
    assert (back.status_code, back.json()["version"], back.json()["max_attempts"]) == (201, 3, 4)
    assert call_api("POST", "policies/emails/versions/9/put-back", {}).status_code == 404


def test_a_policy_is_withdrawn(call_api, publish_policy):
    publish_policy()
    assert error(call_api("DELETE", "policies/emails", expected_version=7))[0] == 409
    assert call_api("DELETE", "policies/emails", expected_version=1, reason="no more").status_code == 204
    assert call_api("GET", "policies/emails").status_code == 404
    assert call_api("GET", "policies/emails/versions").json()["count"] == 1


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_preview_gives_the_waits_of_the_vectors(call_api, vector):
    most = max(delay["attempt"] for delay in vector["delays"])
    draft = vector["policy"] | {"max_attempts": min(1_000, most + 1)}
    schedule = call_api("POST", "policies/preview", draft, role="viewer").json()["schedule"]
    for delay in vector["delays"]:
        if delay["attempt"] < 1_000:
            step = schedule[delay["attempt"] - 1]
            assert step["shortest_s"] == pytest.approx(delay["shortest_s"])
            assert step["longest_s"] == pytest.approx(delay["longest_s"])


def test_a_preview_is_beside_what_is_in_force_and_changes_nothing(call_api, publish_policy, settings):
    publish_policy()
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    found = call_api(
        "POST", "policies/preview", {"policy": EMAILS | {"name": "emails", "max_attempts": 2}, "jobs": 10}
    ).json()
    assert (len(found["schedule"]), len(found["current"]["schedule"])) == (1, 3)
    assert found["jobs"] == 10 and PolicyVersion.objects.count() == 1


def test_a_preview_of_too_many_jobs_is_refused_with_its_bound(call_api):
    status, refused = error(call_api("POST", "policies/preview", {"jobs": 10**9}))
    assert (status, refused["field"], refused["problems"][0]["bound"]) == (422, "jobs", "1 to 1,000,000")


def test_a_backtest_judges_the_failures_of_the_last_day(call_api):
    (failure,) = bury(1)
    times = {"ended_at": failure.failed_at, "received_at": failure.failed_at}
    Attempt.objects.create(failure=failure, run=1, attempt=1, kind="exception", error_type="TimeoutError", **times)
    found = call_api("POST", "policies/backtest", {"max_attempts": 1}, role="viewer").json()
    assert (found["looked_at"], found["dead"]) == (1, {"exhausted": 1})


def test_a_budget_is_shown_or_shown_to_be_none(call_api, publish_policy):
    publish_policy()
    assert call_api("GET", "policies/emails/budget").json()["per_minute"] is None
    publish_policy(expected=1, budget={"per_minute": 60, "burst": 10})
    bury(1)
    found = call_api("GET", "policies/emails/budget").json()
    assert (found["per_minute"], found["remaining"], found["by_source"]) == (60, 10, {"shop": 10})


def test_what_it_would_have_changed_is_shown(call_api, publish_policy):
    publish_policy(mode="observe")
    (failure,) = bury(1)
    times = {"ended_at": failure.failed_at, "received_at": failure.failed_at}
    message = {"policy": "emails@1", "reason": "would retry in 12 s", **times}
    Attempt.objects.create(failure=failure, run=1, attempt=1, kind="exception", **message)
    assert call_api("GET", "policies/emails/observed", role="viewer").json() == {
        "policy": "emails", "version": 1, "attempts": 1, "is_capped": False,
        "changed": 1, "tried_again": 1, "given_up": 0, "waited_otherwise": 0,
    }  # fmt: skip
