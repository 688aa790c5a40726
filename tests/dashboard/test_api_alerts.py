"""Alerts, rules, silences and runbooks through the API."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.models import Alert, AuditEvent, DepthSample, Rule
from tests.kit.alerts import create_alert
from tests.kit.failures import bury

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]
DEAD = {"name": "Emails die", "metric": "dead", "source": "shop", "threshold": 2, "for_s": 0}


@pytest.fixture(autouse=True)
def no_rules(db):
    Rule.objects.all().delete()


@pytest.fixture
def rule(call_api):
    return call_api("POST", "rules", DEAD).json()


@pytest.fixture
def alert(rule):
    bury(3)
    alerts.judge(timezone.now())
    return Alert.objects.get()


def test_a_rule_is_made_changed_sent_back_as_it_came_and_deleted(call_api, rule):
    assert (rule["for_s"], rule["keep_firing_s"], rule["may_change"]) == (0, 120, True)
    one = call_api("GET", f"rules/{rule['id']}").json()
    assert call_api("GET", "rules").json()["items"] == [one] == [rule]
    changed = call_api("PUT", f"rules/{rule['id']}", one | {"threshold": 9})
    assert (changed.status_code, changed.json()["threshold"]) == (200, 9)
    stale = call_api("PUT", f"rules/{rule['id']}", one | {"threshold": 11})
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale")
    assert call_api("DELETE", f"rules/{rule['id']}").status_code == 204
    assert call_api("GET", f"rules/{rule['id']}").status_code == 404


def test_an_absurd_rule_is_refused_with_every_bound(call_api):
    answer = call_api("POST", "rules", {**DEAD, "threshold": -1, "for_s": 10**6, "runbook_url": "javascript:x"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (422, "invalid", "threshold")
    assert set(error["problems"]) == {"threshold", "for_s", "runbook_url"} and not Rule.objects.exists()


def test_a_number_that_json_has_no_word_for_is_refused(call_api, client):
    for text in ("NaN", "Infinity", "1e999"):
        answer = call_api("POST", "rules", {**DEAD, "threshold": float(text)})
        assert answer.status_code in (400, 422), answer.content
    assert not Rule.objects.exists()


def test_an_alert_leads_to_its_failures_and_to_a_draft(call_api, alert):
    one = call_api("GET", f"alerts/{alert.pk}").json()
    assert (one["state"], one["queue"], one["value"]) == ("firing", alert.subject, 3)
    assert call_api("GET", "failures", q=one["failures_q"]).json()["count"] == 3
    assert one["replay_url"].startswith("http") and one["events"][0]["notice"] == f"alert-{alert.pk}-1"
    assert [row["id"] for row in call_api("GET", "alerts", state="open", source="shop").json()["items"]] == [alert.pk]
    assert call_api("GET", "alerts", role="viewer", source="bank").json()["items"] == []


def test_acknowledging_returns_which_alerts_it_covered_and_is_undone_by_the_same_token(call_api, alert):
    other = create_alert(alert.rule, subject="sms", told_with=alert)
    act = f"alerts/{alert.pk}/acknowledge"
    assert call_api("POST", act, {"only_this": True}).json()["changed"] == [alert.pk]
    undone = call_api("POST", f"alerts/{alert.pk}/unacknowledge").json()
    assert (undone["changed"], undone["state"], undone["acknowledged_at"]) == ([alert.pk], "firing", None)
    assert call_api("POST", act, {"comment": "all"}).json()["changed"] == [alert.pk, other.pk]
    theirs = call_api("POST", f"alerts/{alert.pk}/unacknowledge", role="operator", source="shop")
    assert theirs.status_code == 409 and "the alert is acknowledged by" in theirs.json()["error"]["message"]
    assert call_api("POST", act, {"only_this": "yes"}).status_code == 422


def test_the_second_who_acknowledges_is_shown_who_did(call_api, alert):
    first = call_api("POST", f"alerts/{alert.pk}/acknowledge", {"comment": "mine"}, role="operator", source="shop")
    assert (first.status_code, first.json()["state"]) == (200, "acknowledged")
    second = call_api("POST", f"alerts/{alert.pk}/acknowledge", {})
    assert (
        second.status_code == 409
        and "Already acknowledged by token operator of shop" in second.json()["error"]["message"]
    )
    assert call_api("POST", f"alerts/{alert.pk}/acknowledge", {}, role="operator", source="bank").status_code == 404


def test_a_silence_for_a_time_and_its_end(call_api, alert):
    message = {"matchers": {"alert": alert.pk}, "comment": "known"}
    assert call_api("POST", "silences", message).status_code == 422
    made = call_api("POST", "silences", message | {"for_s": 600}, role="operator", source="shop")
    assert made.status_code == 201 and made.json()["matchers"] == {"alert": alert.pk, "source": "shop"}
    alerts.judge(timezone.now() + timedelta(seconds=5))
    assert call_api("GET", f"alerts/{alert.pk}").json()["state"] == "silenced"
    assert call_api("DELETE", f"silences/{made.json()['id']}").status_code == 204
    assert call_api("GET", "silences").json()["items"] == []
    assert call_api("GET", "silences", over="true").json()["count"] == 1


def test_a_preview_is_drawn_on_history_and_changes_nothing(call_api, settings):
    now = timezone.now()
    rows = [(n, 0 if n < 10 else 50) for n in range(40)]
    DepthSample.objects.bulk_create(
        DepthSample(source="shop", queue="emails", step=60, at=now - timedelta(minutes=45 - n), dead=dead)
        for n, dead in rows
    )
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    found = call_api("POST", "rules/preview", {**DEAD, "days": 3}, role="viewer").json()
    assert (found["fired"], found["notices"], found["step_s"]) == (1, 1, 60)
    assert len(found["series"][0]["points"]) == 40 and not Rule.objects.exists()
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": False}
    assert call_api("POST", "rules/preview", {**DEAD, "metric": "quarantined"}).json()["untold"]
    assert not AuditEvent.objects.filter(act__startswith="rule").exists()


def test_runbooks_by_task(call_api):
    message = {"task": "shop.*", "url": "https://wiki.example/shop"}
    assert call_api("PUT", "runbooks", message, role="operator", source="shop").status_code == 403
    made = call_api("PUT", "runbooks", message, role="operator").json()
    assert call_api("GET", "runbooks", role="viewer").json()["items"] == [made]
    assert call_api("DELETE", f"runbooks/{made['id']}").status_code == 204
    assert call_api("DELETE", f"runbooks/{made['id']}").status_code == 404


def test_who_acknowledged_is_shown_also_where_a_token_did_it(call_api, alert):
    taken = call_api("POST", f"alerts/{alert.pk}/acknowledge", {}).json()
    assert taken["acknowledged_by"] == AuditEvent.objects.get(act="alert.acknowledge").actor != ""
