"""An act is taken back after the message that offered it has gone."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.urls import reverse

from jobs_admin import alerts, policies
from jobs_admin.db import audit
from jobs_admin.models import Channel, Failure, GroupRule, Rule, Runbook, SavedView
from jobs_admin.models.access import ENGINE, viewer_of
from tests.kit.alerts import typed
from tests.kit.failures import bury, dead
from tests.kit.groups import group

pytestmark = pytest.mark.django_db


def discard(client, ids, reason="tests"):
    return client.post(
        reverse("redrive:failure-bulk"), {"act": "discard", "selection": ",".join(map(str, ids)), "reason": reason}
    )


def take_back(client, offer):
    return client.post(offer.url, dict(offer.fields), follow=True)


def test_another_page_offers_the_latest_act_with_its_number_and_takes_it_back(ann, shop):
    discard(ann, dead(3))
    answer = ann.get(reverse("redrive:undo"), {"back": "/groups/"})
    assert "You discarded 3 jobs" in answer.content.decode() and "Undo 3 jobs" in answer.content.decode()
    done = take_back(ann, answer.context["offer"])
    assert done.redirect_chain[-1][0] == "/groups/" and "Undid 3 jobs." in done.content.decode()
    assert "Nothing to undo" in ann.get(reverse("redrive:undo")).content.decode()


def test_one_job_is_taken_back_without_confirmation_and_many_are_confirmed(ann, shop):
    discard(ann, dead(1))
    assert "data-at-once" in ann.get(reverse("redrive:undo")).content.decode()
    discard(ann, dead(2))
    assert "data-at-once" not in ann.get(reverse("redrive:undo")).content.decode()


def test_a_change_of_groups_is_taken_back_from_anywhere(ann):
    lines = [group(), group("KeyError")]
    for one in lines:
        bury(group=one)
    ann.post(reverse("redrive:group-bulk"), {"act": "resolve", "groups": [one.fingerprint for one in lines]})
    answer = ann.get(reverse("redrive:undo"))
    assert "You changed 2 groups" in answer.content.decode()
    take_back(ann, answer.context["offer"])
    for one in lines:
        one.refresh_from_db()
        assert one.state == "new"


def test_the_audit_offers_what_is_ones_own_and_shows_how_many_jobs(ann, otto, shop):
    ids = dead(3)
    discard(ann, ids[:2])
    discard(otto, ids[2:])
    answer = ann.get(reverse("redrive:audit-list"))
    text = answer.content.decode()
    assert "2 jobs</a>" in text and f'href="/failures/{ids[0]}/"' in text
    (offer,) = [line.undo for line in answer.context["lines"] if line.undo]
    assert "Undid 2 jobs." in take_back(ann, offer).content.decode()
    assert Failure.objects.filter(state="dead").count() == 2
    assert "Undo this action" not in ann.get(reverse("redrive:audit-list")).content.decode()


def test_a_merge_is_confirmed_by_its_name_and_taken_back_where_one_is(ann, shop):
    discard(ann, dead(1), reason="earlier")
    lines = [group(), group("KeyError")]
    for one in lines:
        bury(group=one)
    names = ",".join(one.fingerprint for one in lines)
    ann.post(reverse("redrive:group-rule-save"), {"kind": "merge", "groups": names})
    answer = ann.get(reverse("redrive:undo"), {"back": "/queues/"})
    text = answer.content.decode()
    assert "merge 1 group into" in text and "Undo the rule" in text and "data-at-once" not in text
    done = take_back(ann, answer.context["offer"])
    assert done.redirect_chain[-1][0] == "/queues/" and GroupRule.objects.get().is_withdrawn
    assert Failure.objects.filter(state="discarded").count() == 1
    assert "earlier" in ann.get(reverse("redrive:undo")).content.decode()


def test_the_start_of_a_replay_is_shown_as_final_and_linked(ann, shop):
    discard(ann, dead(1))
    with transaction.atomic():
        audit.record(viewer_of(get_user_model().objects.get(username="ann")), "replay.start", "replay:7", source="shop")
    answer = ann.get(reverse("redrive:undo"))
    text = answer.content.decode()
    assert answer.context["offer"] is None and "You started replay #7" in text and 'href="/replays/7/"' in text


def press_undo(client, answer):
    """Press Undo in the toast of the answer, as a browser does."""
    toast = answer.content.decode().partition("data-toast")[2].partition("data-dismiss")[0]
    url = re.search(r'<form action="([^"]+)"', toast)
    assert url, toast
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'name="([^"]+)"\s+value="([^"]*)"', toast):
        fields.setdefault(name, []).append(html.unescape(value))
    return client.post(html.unescape(url[1]), fields, follow=True)


def test_a_saved_view_and_its_change_are_undone_from_their_message(ann):
    saved = ann.post(
        reverse("redrive:view-save"), {"name": "Tonight", "query": "queue:a", "is_shared": "1"}, follow=True
    )
    view = SavedView.objects.get()
    changed = ann.post(
        reverse("redrive:view-change", args=[view.pk]), {"name": "Later", "query": "x", "shares": "1"}, follow=True
    )
    press_undo(ann, changed)
    view.refresh_from_db()
    assert (view.name, view.query, view.is_shared) == ("Tonight", "queue:a", True)
    press_undo(ann, saved)
    assert not SavedView.objects.exists()


def test_a_runbook_and_its_new_address_are_undone_from_their_message(ann):
    first = ann.post(reverse("redrive:runbook-save"), {"task": "shop.*", "url": "https://a.example/1"}, follow=True)
    second = ann.post(reverse("redrive:runbook-save"), {"task": "shop.*", "url": "https://a.example/2"}, follow=True)
    press_undo(ann, second)
    assert Runbook.objects.get().url == "https://a.example/1"
    press_undo(ann, first)
    assert not Runbook.objects.exists()


def test_an_alert_rule_its_change_and_its_deletion_are_undone_from_their_message(ann, watched):
    Channel.objects.create(name="ops", kind="webhook", url="https://hooks.example/x")
    document = {"name": "Webhooks die", "metric": "oldest_dead_s", "source": "shop", "threshold": "90", "for_s": "120"}
    made = ann.post(
        reverse("redrive:alert-rule-create"), typed(**document, channels="ops", severity="critical"), follow=True
    )
    rule = Rule.objects.get(name="Webhooks die")
    before = alerts.document(rule)
    changed = ann.post(
        reverse("redrive:alert-rule-change", args=[rule.pk]), typed(**document | {"threshold": "5 min"}), follow=True
    )
    rule.refresh_from_db()
    assert rule.threshold == 300
    press_undo(ann, changed)
    rule.refresh_from_db()
    assert alerts.document(rule) == before
    deleted = ann.post(reverse("redrive:alert-rule-delete", args=[rule.pk]), follow=True)
    press_undo(ann, deleted)
    assert alerts.document(Rule.objects.get(name="Webhooks die", deleted_at=None)) == before
    press_undo(ann, made)  # a rule that is gone is not found: nothing is deleted in its place
    assert Rule.objects.filter(name="Webhooks die", deleted_at=None).count() == 1


def test_a_restored_version_of_a_policy_is_undone_from_its_message(ann, watched):
    match = {"source": "shop", "task": "shop.deliver"}
    for number, attempts in enumerate((6, 9)):
        document = {"name": "hooks", "match": match, "max_attempts": attempts}
        policies.publish(ENGINE, "hooks", document, expected_version=number or None)
    restored = ann.post(reverse("redrive:policy-put-back", args=["hooks", 1]), {"begun": "2"}, follow=True)
    assert policies.get(ENGINE, "hooks").document["max_attempts"] == 6
    press_undo(ann, restored)
    assert policies.get(ENGINE, "hooks").document["max_attempts"] == 9
