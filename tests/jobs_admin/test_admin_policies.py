"""Policies in Django's admin: published in the place of the version that was opened, put back, withdrawn."""

from __future__ import annotations

import json

import pytest

from jobs_admin import policies
from jobs_admin.models import AuditEvent, PolicyVersion
from jobs_admin.models.access import OPERATOR, Viewer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]

LIST = "/admin/jobs_admin/policyversion/"
ANN = Viewer("ann", {"*": OPERATOR})
EMAILS = {"match": {"source": "shop", "task": "shop.mail"}, "max_attempts": 4}


@pytest.fixture
def emails():
    """Two versions; the second is in force."""
    policies.publish(ANN, "emails", EMAILS)
    return policies.publish(ANN, "emails", EMAILS | {"max_attempts": 9}, expected_version=1)


def html_of(response):
    return response.content.decode()


def change(version):
    return f"{LIST}{version.pk}/change/"


def attempts(name="emails"):
    return policies.get(ANN, name).policy.max_attempts


def test_a_policy_is_added_and_in_force(as_):
    client = as_("operator")
    client.post(f"{LIST}add/", {"called": "emails", "document": json.dumps(EMAILS), "reason": "first"})
    made = policies.get(ANN, "emails")
    assert (made.version, made.published_by, made.reason) == (1, "staff-operator-shop", "first")


def test_saving_publishes_the_next_version_and_leaves_the_one_before(as_, emails):
    client = as_("operator")
    sent = {"document": json.dumps(EMAILS | {"max_attempts": 6}), "reason": "calmer", "expected_version": "2"}
    answer = client.post(change(emails), sent, follow=True)
    assert attempts() == 6 and policies.version(ANN, "emails", 2).policy.max_attempts == 9
    assert "emails@3" in html_of(answer)


def test_a_form_that_was_opened_before_anothers_change_is_refused(as_, emails):
    policies.publish(ANN, "emails", EMAILS | {"max_attempts": 7}, expected_version=2)
    client = as_("operator")
    sent = {"document": json.dumps(EMAILS), "reason": "", "expected_version": "2"}
    client.post(change(emails), sent)
    assert attempts() == 7


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"max_attempts": 10**9}, "1,000"),
        ({"cap_s": -1}, "cap_s"),
        ({"cap_s": float("nan")}, "cap_s"),
        ({"backoff": {"kind": "x"}}, "exponential"),
        ({"name": "other"}, "other"),
        ("x", "object"),
    ],
)
def test_an_absurd_policy_is_refused_with_field_and_bound(as_, emails, document, message):
    client = as_("operator")
    answer = client.post(change(emails), {"document": json.dumps(document), "expected_version": "2"})
    assert answer.status_code == 200 and message in html_of(answer)
    assert attempts() == 9


@pytest.mark.parametrize(
    "typed",
    ['{"a":' * 3_000 + "1" + "}" * 3_000, '{"max_attempts":' + "9" * 5_000 + "}", r'{"note":"\ud800"}', "{", "[\x00]"],
)
def test_what_cannot_be_read_or_shown_as_json_is_refused_and_is_as_it_was_typed(as_, emails, typed):
    answer = as_("operator").post(change(emails), {"document": typed, "expected_version": "2"})
    assert answer.status_code == 200 and answer.context["errors"] and attempts() == 9
    assert answer.context["adminform"].form["document"].value() == typed


def test_an_equal_match_is_refused(as_, emails):
    client = as_("operator")
    answer = client.post(f"{LIST}add/", {"called": "others", "document": json.dumps(EMAILS)})
    assert "emails matches the same jobs" in html_of(answer) and PolicyVersion.objects.count() == 2


def test_a_former_version_is_put_back_by_its_button(as_, emails):
    client, first = as_("operator"), policies.version(ANN, "emails", 1)
    assert "_put_back" in html_of(client.get(change(first)))
    client.post(change(first), {"_put_back": "1"})
    assert attempts() == 4
    assert AuditEvent.objects.latest("pk").act == "policy.put_back"


@pytest.mark.parametrize(("action", "left"), [("put_back", [(3, 4)]), ("withdraw", [])])
def test_one_chosen_version_is_put_back_or_withdrawn(as_, emails, action, left):
    chosen = policies.version(ANN, "emails", 1) if action == "put_back" else emails
    as_("operator").post(LIST, {"action": action, "_selected_action": [chosen.pk]})
    assert [(one.version, one.policy.max_attempts) for one in policies.published(ANN)] == left


@pytest.mark.parametrize("action", ["put_back", "withdraw"])
def test_who_may_only_view_changes_nothing(as_, emails, action):
    client, first = as_("viewer"), policies.version(ANN, "emails", 1)
    assert "_put_back" not in html_of(client.get(change(first)))
    client.post(LIST, {"action": action, "_selected_action": [first.pk]})
    client.post(change(first), {"_put_back": "1"})
    assert client.post(change(emails), {"document": json.dumps(EMAILS)}).status_code == 403
    assert attempts() == 9 and PolicyVersion.objects.count() == 2


def test_a_policy_for_every_source_is_not_changed_by_the_operator_of_one(as_):
    wide = policies.publish(ANN, "wide", {})
    client = as_("operator")
    assert "wide" in html_of(client.get(LIST))
    client.post(change(wide), {"document": "{}", "expected_version": "1"})
    client.post(LIST, {"action": "withdraw", "_selected_action": [wide.pk]})
    client.post(f"{LIST}add/", {"called": "all", "document": json.dumps({"match": {"queue": "x"}})})
    assert [str(one) for one in policies.published(ANN)] == ["wide@1"]


def test_a_policy_out_of_sight_is_not_listed(as_):
    policies.publish(ANN, "bills", {"match": {"source": "bank"}})
    assert "bills" not in html_of(as_("admin").get(LIST))
