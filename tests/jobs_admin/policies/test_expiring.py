"""A version for a time: what comes back after it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import policies
from jobs_admin.core import keys
from jobs_admin.models import AuditEvent, PolicyVersion
from tests.kit.people import ANN

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def after(**length):
    return timezone.now() + timedelta(**length)


def attempts():
    return policies.get(ANN, "emails").policy.max_attempts


def test_the_version_before_is_in_force_again_as_the_next_one(publish):
    publish(max_attempts=3)
    publish(expected=1, max_attempts=9, expires_at=after(hours=1).isoformat())
    assert not policies.expire(after(minutes=59))
    assert policies.expire(after(minutes=61))
    now = policies.get(ANN, "emails")
    assert (now.version, now.policy.max_attempts, now.expires_at) == (3, 3, None)
    assert now.reason == "Version 2 has expired; version 1 restored."


def test_a_policy_that_was_only_for_a_time_is_withdrawn(publish):
    publish(expires_at=after(hours=1).isoformat())
    assert policies.expire(after(hours=2))
    assert policies.published(ANN) == []
    assert PolicyVersion.objects.get().ended_at is not None


def test_what_has_expired_itself_is_passed_over(publish):
    publish(max_attempts=3)
    publish(expected=1, max_attempts=6, expires_at=after(hours=2).isoformat())
    publish(expected=2, max_attempts=9, expires_at=after(hours=3).isoformat())
    policies.expire(after(hours=4))
    assert attempts() == 3


def test_what_comes_back_for_a_time_ends_at_its_own(publish):
    publish(max_attempts=3)
    publish(expected=1, max_attempts=6, expires_at=after(hours=3).isoformat())
    publish(expected=2, max_attempts=9, expires_at=after(hours=1).isoformat())
    policies.expire(after(hours=2))
    assert attempts() == 6
    policies.expire(after(hours=4))
    assert attempts() == 3


def test_a_version_without_an_end_stays_whatever_the_one_before_it_reported(publish):
    publish(max_attempts=3)
    publish(expected=1, max_attempts=6, expires_at=after(hours=1).isoformat())
    publish(expected=2, max_attempts=9)
    assert not policies.expire(after(hours=2))
    assert attempts() == 9


def test_an_expiry_is_in_the_audit_as_the_machines(publish):
    publish()
    publish(expected=1, max_attempts=9, expires_at=after(hours=1).isoformat())
    policies.expire(after(hours=2))
    event = AuditEvent.objects.latest("pk")
    assert (event.actor, event.act, event.source) == ("redrive", "policy.expire", "shop")
    assert (event.before, event.after) == ({"version": 2}, {"version": 3})


def test_a_version_that_has_expired_is_put_back_without_its_end(publish):
    publish()
    publish(expected=1, max_attempts=9, expires_at=after(hours=1).isoformat())
    PolicyVersion.objects.filter(version=2).update(
        document={**policies.version(ANN, "emails", 2).document, "expires_at": "2020-01-01T00:00:00Z"}
    )
    publish(expected=2, max_attempts=5)
    back = policies.put_back(ANN, "emails", 2, expected_version=3)
    assert (back.policy.max_attempts, back.expires_at) == (9, None)


def test_one_whose_version_before_cannot_be_read_keeps_no_other_from_ending(publish, caplog):
    for name, task in (("emails", "shop.mail"), ("webhooks", "shop.deliver")):
        publish(name, match={"task": task}, max_attempts=3)
        publish(name, match={"task": task}, expected=1, max_attempts=9, expires_at=after(hours=1).isoformat())
    first = PolicyVersion.objects.get(name="emails", version=1)
    PolicyVersion.objects.filter(pk=first.pk).update(document={**first.document, "of_a_newer_redrive": 1})
    assert policies.expire(after(hours=2))
    assert policies.get(ANN, "webhooks").policy.max_attempts == 3
    assert policies.get(ANN, "emails").version == 2 and "emails has expired and stays in force" in caplog.text
    assert not policies.expire(after(hours=2))  # nothing more to do: `watch` may sleep


@pytest.mark.server
def test_what_cannot_end_does_not_keep_others_from_the_workers(publish, store):
    publish(max_attempts=3)
    publish(expected=1, expires_at=after(hours=1).isoformat())
    PolicyVersion.objects.filter(version=1).delete()
    publish("webhooks", match={"task": "shop.deliver"})
    store.delete(keys.policies())
    assert policies.step(after(hours=2))
    assert set(store.hkeys(keys.policies())) == {b"emails", b"webhooks"}
