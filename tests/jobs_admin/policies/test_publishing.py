"""Publishing: what is put in force, and what is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import policies
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.models import AuditEvent, PolicyVersion
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from tests.kit.people import ANN, LOU, SAM
from tests.kit.policies import EMAILS

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def publish(name="emails", viewer=ANN, expected=None, **fields):
    return policies.publish(viewer, name, {**EMAILS, **fields}, expected_version=expected)


def refusal(*args, **kwargs):
    with pytest.raises(Refused) as refused:
        publish(*args, **kwargs)
    return refused.value


def test_the_first_version_of_a_name_is_1_and_in_force():
    made = publish()
    assert (str(made), made.is_published, made.match_task, made.published_by) == ("emails@1", True, "shop.mail", "ann")
    assert policies.get(LOU, "emails") == made


def test_the_next_version_takes_the_place_of_the_one_before():
    publish()
    made = publish(expected=1, max_attempts=5)
    assert made.version == 2
    assert [(v.version, v.is_published) for v in policies.versions(ANN, "emails").rows] == [(2, True), (1, False)]


def test_what_is_in_force_already_is_not_published_again():
    first = publish()
    assert publish(expected=1) == first
    assert PolicyVersion.objects.count() == 1


def test_an_edit_of_another_version_than_the_one_in_force_is_refused_with_the_difference():
    publish()
    publish(expected=1, max_attempts=7)
    with pytest.raises(Refused) as stale:
        publish(expected=1, cap_s=90)
    assert stale.value.code == "stale"
    assert stale.value.details["current"]["version"] == 2
    assert [(c.field, c.was, c.now, c.yours) for c in stale.value.details["difference"]] == [
        ("max_attempts", 4, 7, 4),
        ("cap_s", 60, 60, 90),
    ]


def test_a_name_that_is_taken_is_not_overwritten_by_who_thinks_it_new():
    publish()
    assert refusal(cap_s=90).code == "stale"


def test_all_that_is_wrong_with_a_document_is_reported_at_once_with_its_bounds():
    refused = refusal(max_attempts=10**9, cap_s=-1)
    assert refused.code == "invalid"
    assert {p.field for p in refused.details["problems"]} == {"max_attempts", "cap_s"}
    assert all(p.bound for p in refused.details["problems"])


@pytest.mark.parametrize("task", ["shop.mail", "shop.*"])
def test_two_policies_that_match_equally_are_refused(task):
    publish(match={"source": "shop", "task": task})
    with pytest.raises(Refused) as equal:
        publish("others", match={"source": "shop", "task": task})
    assert equal.value.code == "equal_match"
    assert equal.value.details["policy"] == "emails"


def test_a_match_that_comes_back_when_another_expires_is_taken_too():
    later = (timezone.now() + timedelta(hours=1)).isoformat()
    publish()
    publish(expected=1, match={"source": "shop", "task": "elsewhere"}, expires_at=later)
    assert "when its current version expires" in refusal("others").message


def test_an_expiry_that_has_passed_is_refused():
    assert refusal(expires_at="2020-01-01T00:00Z").field == "expires_at"


def test_the_names_of_pages_are_refused():
    assert refusal("new").field == "name"


def test_a_document_of_another_name_is_refused():
    with pytest.raises(Refused, match="has the name 'other'"):
        policies.publish(ANN, "emails", {**EMAILS, "name": "other"})


def test_a_former_version_is_put_back_as_the_next_one():
    publish()
    publish(expected=1, max_attempts=9)
    back = policies.put_back(ANN, "emails", 1, expected_version=2)
    assert (back.version, back.policy.max_attempts, back.reason) == (3, 4, "Version 1 restored.")


def test_what_is_in_force_cannot_be_put_back():
    publish()
    with pytest.raises(Refused, match="is already in force"):
        policies.put_back(ANN, "emails", 1, expected_version=1)


def test_a_withdrawn_policy_is_not_in_force_and_can_be_put_back():
    publish()
    policies.withdraw(ANN, "emails", expected_version=1)
    with pytest.raises(NotFound):
        policies.get(ANN, "emails")
    assert policies.put_back(ANN, "emails", 1).version == 2


def test_a_withdrawal_of_another_version_is_refused():
    publish()
    publish(expected=1, max_attempts=9)
    with pytest.raises(Refused) as refused:
        policies.withdraw(ANN, "emails", expected_version=1)
    assert refused.value.code == "stale"
    assert policies.get(ANN, "emails").version == 2


def test_a_version_of_a_source_out_of_sight_is_not_reported_by_a_stale_edit_that_names_it():
    publish("bills", match={"source": "billing", "task": "bank.transfer"}, note="in billing")
    publish("bills", expected=1)  # moved to the shop
    with pytest.raises(Refused) as stale:
        publish("bills", viewer=SAM, expected=1, max_attempts=9)
    assert stale.value.code == "stale"
    difference = [(c.field, c.was) for c in stale.value.details["difference"]]
    assert "bank.transfer" not in str(difference) and all(was is None for _, was in difference)
    with pytest.raises(Refused) as seen:
        publish("bills", expected=1, max_attempts=9)
    assert seen.value.code == "stale"
    assert ("match.task", "bank.transfer") in [(c.field, c.was) for c in seen.value.details["difference"]]


def test_a_withdrawn_policy_of_a_source_out_of_sight_is_not_reported_either():
    publish("bills", match={"source": "billing", "task": "bank.transfer"})
    policies.withdraw(ANN, "bills", expected_version=1)
    with pytest.raises(Refused) as stale:
        publish("bills", viewer=SAM, expected=1)
    assert stale.value.code == "stale"
    assert "bank.transfer" not in str([(c.field, c.was, c.now) for c in stale.value.details["difference"]])


def unreadable(name, version=1):
    """As a newer Redrive, or a hand in the database, may have written it."""
    odd = PolicyVersion.objects.get(name=name, version=version)
    PolicyVersion.objects.filter(pk=odd.pk).update(document={**odd.document, "of_a_newer_redrive": 1})


def test_a_version_that_cannot_be_read_is_not_put_back_and_what_is_wrong_with_it_is_reported():
    publish()
    publish(expected=1, max_attempts=9)
    unreadable("emails")
    with pytest.raises(Refused, match="Nothing was changed") as refused:
        policies.put_back(ANN, "emails", 1, expected_version=2)
    assert (refused.value.code, refused.value.field) == ("invalid", "of_a_newer_redrive")
    assert policies.get(ANN, "emails").version == 2


def test_also_what_no_one_can_read_matches_and_is_not_doubled():
    publish()
    unreadable("emails")
    assert refusal("others").code == "equal_match"


def test_documents_of_others_are_not_read_while_others_wait_to_publish():
    for n in range(3):
        publish(f"p{n}", match={"task": f"t{n}"})
    with CaptureQueriesContext(connection) as queries:
        publish()
    over_all = [
        q["sql"] for q in queries if "is_published" in q["sql"] and "WHERE" in q["sql"] and "SELECT" in q["sql"]
    ]
    assert over_all and not [sql for sql in over_all if "document" in sql.partition("FROM")[0] and 'name" =' not in sql]


def test_every_change_is_in_the_audit_with_what_differs():
    publish()
    policies.publish(ANN, "emails", {**EMAILS, "cap_s": 90}, expected_version=1, reason="partner is slow")
    event = AuditEvent.objects.latest("pk")
    assert (event.act, event.object, event.source, event.reason) == (
        "policy.publish",
        "policy:emails",
        "shop",
        "partner is slow",
    )
    assert (event.before, event.after) == ({"version": 1, "cap_s": 60}, {"version": 2, "cap_s": 90})


def test_each_source_is_notified_of_its_own_side_of_a_policy_that_moved():
    publish()
    policies.publish(ANN, "emails", {**EMAILS, "match": {"source": "billing"}, "cap_s": 90}, expected_version=1)
    came, went = (AuditEvent.objects.filter(source=source).latest("pk") for source in ("billing", "shop"))
    assert came.before is None and came.after["cap_s"] == 90
    assert went.before["cap_s"] == 60 and went.after is None


def test_a_viewer_may_read_but_not_publish_and_the_attempt_is_audited():
    assert refusal(viewer=LOU).code == "forbidden"
    assert AuditEvent.objects.get().allowed is False


def test_a_policy_for_more_than_one_source_takes_the_role_on_every_source():
    publish(viewer=SAM)
    assert refusal("wide", viewer=SAM, match={"source": "sh*"}).code == "forbidden"
    assert publish("wide", match={"source": "sh*"}).version == 1


def test_a_policy_is_moved_away_only_by_who_may_change_both_sources():
    publish("bills", match={"source": "billing"})
    both = Viewer("bea", {"shop": OPERATOR, "billing": VIEWER})
    assert refusal("bills", viewer=both, expected=1).code == "forbidden"


def test_a_name_that_is_taken_out_of_sight_is_answered_like_what_is_not_there_and_noted():
    publish("bills", match={"source": "billing"})
    with pytest.raises(NotFound):
        publish("bills", viewer=SAM, expected=1)
    event = AuditEvent.objects.latest("pk")
    assert (event.source, event.allowed) == ("billing", False)


def test_a_policy_of_a_source_out_of_sight_does_not_exist():
    publish("bills", match={"source": "billing"})
    assert policies.published(SAM) == []
    with pytest.raises(NotFound):
        policies.versions(SAM, "bills")


def test_a_policy_for_every_source_is_seen_by_all():
    publish("wide", match={})
    assert [p.name for p in policies.published(LOU)] == ["wide"]


def test_nothing_is_published_while_the_desk_is_read_only(settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert refusal().code == "read_only"
    assert not PolicyVersion.objects.exists()
