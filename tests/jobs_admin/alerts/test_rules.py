from __future__ import annotations

import math

import pytest
from django.contrib.auth import get_user_model

from jobs_admin import alerts
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.models import Alert, AlertEvent, AuditEvent, Channel, Notice, Rule, SavedView
from jobs_admin.models.access import Viewer
from tests.kit.alerts import DEAD, create_alert
from tests.kit.people import ANN, BEA, LOU, SAM

pytestmark = pytest.mark.django_db


def refused(document, viewer=ANN, pk=None):
    with pytest.raises(Refused) as caught:
        alerts.save_rule(viewer, document, pk)
    return caught.value


def test_a_new_desk_watches_its_dead_jobs_its_quarantine_and_its_sources(first_rules):
    assert [(r.name, r.metric, r.threshold, r.for_s, r.severity) for r in alerts.rules(ANN)] == [
        ("Dead Letter Queue Growing", "dead", 100, 60, "warning"),
        ("No Progress", "stalled_s", 40, 15, "critical"),
        ("Quarantine", "quarantined", 0, 0, "critical"),
        ("Source Unreachable", "unreachable", 45, 0, "critical"),
    ]


def test_a_rule_is_made_changed_and_deleted_and_each_is_audited(rule):
    Channel.objects.create(name="pager", kind="webhook")
    made = rule(channels=["pager"])
    changed = alerts.save_rule(ANN, {**alerts.document(made), "threshold": 7}, made.pk)
    assert (changed.pk, changed.threshold, [c.name for c in changed.channels.all()]) == (made.pk, 7, ["pager"])
    alerts.delete_rule(ANN, made.pk)
    assert alerts.rules(ANN) == []
    acts = AuditEvent.objects.order_by("pk").values_list("act", "source", "before", "after")
    assert [a[0] for a in acts] == ["rule.create", "rule.change", "rule.delete"]
    assert acts[1][1:] == ("shop", {"name": DEAD["name"], "threshold": 100}, {"name": DEAD["name"], "threshold": 7})


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("threshold", math.nan, "number from 0 to 1,000,000,000,000"),
        ("threshold", math.inf, "number from 0 to"),
        ("threshold", -1, "number from 0 to"),
        ("threshold", 1e300, "number from 0 to"),
        ("threshold", 10**400, "number from 0 to"),
        ("threshold", True, "number from 0 to"),
        ("threshold", "many", "number from 0 to"),
        ("clear", 101, "Use the threshold or less"),
        ("clear", math.nan, "number from 0 to"),
        ("for_s", 86_401, "86,400 seconds, a day"),
        ("for_s", -1, "from 0 to 86,400"),
        ("for_s", 1.5, "whole number"),
        ("for_s", 1e300, "whole number"),
        ("keep_firing_s", 10**9, "a day"),
        ("renotify_s", 1, "from 60"),
        ("escalate_s", 59, "from 60"),
        ("metric", "mood", "one of dead"),
        ("no_data", "guess", "one of keep, fire, clear"),
        ("severity", "fatal", "one of info, warning, critical"),
        ("runbook_url", "javascript:alert(1)", "http or https"),
        ("runbook_url", "https://" + "a" * 500, "the limit is 500"),
        ("channels", ["nobody"], "No channel 'nobody'"),
        ("channels", "pager", "a list of channel names"),
        ("enabled", "yes", "true or false"),
        ("name", "", "1 to 100 characters"),
        ("name", "x" * 101, "the limit is 100"),
        ("queue", "q" * 201, "the limit is 200"),
        ("view", 4711, "No such saved view"),
        ("colour", "red", "Unknown field 'colour'"),
    ],
)
def test_what_is_absurd_is_refused_with_the_bound(desk, field, value, words):
    why = refused({**DEAD, field: value})
    assert (why.code, why.field) == ("invalid", field) and words in why.message
    assert why.message.endswith("Nothing was changed.") and not Rule.objects.exists()


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"metric": "failure_rate", "threshold": 50}, "threshold"),
        ({"metric": "failure_rate", "threshold": 1}, "threshold"),
        ({"metric": "unreachable", "queue": "emails"}, "queue"),
        ({"metric": "ingest_lag_s", "queue": "emails"}, "queue"),
        ({"metric": "growth_per_minute", "task": "shop.send"}, "task"),
        ({"metric": "view"}, "view"),
        ({"metric": "view", "threshold": 10_000}, "view"),
        ({"metric": "dead", "tenant": "acme", "threshold": 20_000}, "threshold"),
        ({"metric": "quarantined", "tenant": "a*", "threshold": 1e12}, "threshold"),
        ({"metric": "oldest_dead_s", "threshold": 10**9}, "threshold"),
    ],
)
def test_what_does_not_go_with_the_metric_is_refused(desk, fields, field):
    why = refused({**DEAD, "source": "*", **fields})
    assert field in why.details["problems"]


def test_a_document_that_is_no_object_and_all_that_is_wrong_at_once(desk):
    assert refused(["x"]).code == "invalid"
    assert set(refused({"metric": "dead", "threshold": -1, "for_s": -1}).details["problems"]) == {
        "name",
        "threshold",
        "for_s",
    }


def test_a_name_is_taken_until_its_rule_is_deleted(rule):
    made = rule()
    assert refused(DEAD).code == "taken"
    alerts.delete_rule(ANN, made.pk)
    assert alerts.save_rule(ANN, DEAD).pk != made.pk


def test_an_edit_of_what_a_person_changed_since_is_refused(rule):
    made = rule()
    began = {**alerts.document(made), "changed_at": made.changed_at.isoformat()}
    alerts.save_rule(SAM, {**began, "threshold": 5}, made.pk)
    why = refused({**began, "threshold": 9}, pk=made.pk)
    assert why.code == "stale" and why.message.startswith("sam changed this rule at")
    assert alerts.rule(ANN, made.pk).threshold == 5


def test_a_rule_belongs_to_the_operators_of_its_source_and_one_with_a_pattern_to_those_of_all(rule):
    ours = rule()
    everywhere = rule(name="everywhere", source="*")
    assert alerts.may_change(SAM, ours) and not alerts.may_change(SAM, everywhere)
    assert not alerts.may_change(LOU, ours)
    assert refused(DEAD | {"name": "mine"}, LOU).code == "forbidden"
    assert refused(DEAD | {"name": "all", "source": "sh*"}, SAM).code == "forbidden"
    assert refused(DEAD, SAM, everywhere.pk).code == "forbidden"
    with pytest.raises(NotFound):
        alerts.save_rule(BEA, DEAD, ours.pk)
    assert [one.name for one in alerts.rules(BEA)] == ["everywhere"]
    assert AuditEvent.objects.filter(allowed=False).count() == 3


def test_no_one_moves_a_rule_onto_a_source_that_is_not_theirs(rule):
    ours = rule()
    assert refused({**DEAD, "source": "bank"}, SAM, ours.pk).code == "forbidden"
    assert alerts.rule(ANN, ours.pk).source == "shop"


def test_a_rule_on_a_view_is_seen_by_who_sees_the_view(rule):
    owner = get_user_model().objects.create(username="olga")
    view = SavedView.objects.create(name="mine", query="state:dead", owner=owner)
    olga = Viewer("olga", {"*": "operator"}, user_id=owner.pk)
    made = rule(olga, metric="view", source="shop", view=view.pk, threshold=3)
    assert alerts.rules(SAM) == [] and alerts.rule(olga, made.pk).view == view
    assert refused({**DEAD, "metric": "view", "view": view.pk}, SAM).field == "view"


@pytest.mark.parametrize("is_account", [True, False])
def test_deleting_a_view_or_an_account_deletes_no_alert_and_switches_the_rule_off(rule, is_account):
    owner = get_user_model().objects.create(username="olga")
    view = SavedView.objects.create(name="slow", query="state:dead", owner=owner, is_shared=True)
    made = rule(metric="view", source="shop", view=view.pk, threshold=3)
    another = rule(name="another")
    one = create_alert(made, subject="slow")
    Notice.objects.create(key=f"alert-{one.pk}-1", type="alert.firing", alert=one, body={"reason": "fired"})
    if is_account:
        owner.delete()
    else:
        SavedView.objects.filter(pk=view.pk).delete()
    made.refresh_from_db(), another.refresh_from_db(), one.refresh_from_db()
    assert (made.enabled, made.view, another.enabled, one.state) == (False, None, True, "resolved")
    assert "view of the rule was deleted" in one.events.get().reason
    assert Notice.objects.latest("pk").type == "alert.resolved"
    event = AuditEvent.objects.get(object=f"alert-rule:{made.pk}", act="rule.change")
    assert (event.actor, event.source, event.after["enabled"]) == ("redrive", "shop", False)
    assert alerts.rule(SAM, made.pk).pk == made.pk
    assert refused({**alerts.document(made), "enabled": True}, pk=made.pk).field == "view"


def test_a_rule_that_is_switched_off_or_deleted_closes_its_alerts_and_reports_why(rule):
    made = rule()
    one, other = create_alert(made), create_alert(made, "pending", subject="webhooks")
    alerts.save_rule(ANN, {**DEAD, "enabled": False}, made.pk)
    one.refresh_from_db()
    assert (one.state, one.events.get().reason) == ("resolved", "Rule disabled by ann.")
    assert not Alert.objects.filter(pk=other.pk).exists()  # it never fired
    two = create_alert(made)
    alerts.delete_rule(ANN, made.pk)
    assert AlertEvent.objects.get(alert=two).reason == "Rule deleted by ann."
    assert alerts.get(ANN, two.pk).rule.name == DEAD["name"]


def test_alerts_that_a_changed_rule_does_not_check_are_closed_and_the_others_stay(rule):
    made = rule()
    create_alert(made), create_alert(made, subject="webhooks")
    alerts.save_rule(ANN, {**DEAD, "queue": "web*"}, made.pk)
    assert dict(Alert.objects.values_list("subject", "state")) == {"emails": "resolved", "webhooks": "firing"}


def test_a_read_only_desk_changes_no_rule(rule, settings):
    made = rule()
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert refused(DEAD, pk=made.pk).code == "read_only" and not alerts.may_change(ANN, made)


def test_checking_a_rule_saves_nothing(desk):
    assert alerts.check_rule(ANN, DEAD).threshold == 100 and not Rule.objects.exists()
