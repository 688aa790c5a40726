"""The shop's policies: published once, and kept as somebody left them."""

from __future__ import annotations

import pytest

from demo import policies as shop
from demo.policies import POLICIES
from jobs_admin import policies
from jobs_admin.models.access import ENGINE

pytestmark = pytest.mark.django_db


def in_force():
    return {one.name: one.version for one in policies.published(ENGINE)}


def test_they_are_published_once():
    shop.publish()
    shop.publish()
    assert in_force() == dict.fromkeys(POLICIES, 1)


def test_what_was_changed_or_withdrawn_stays_so():
    shop.publish()
    policies.withdraw(ENGINE, "payments")
    policies.publish(ENGINE, "webhooks", {**POLICIES["webhooks"], "max_attempts": 9}, expected_version=1)
    shop.publish()
    assert in_force() == {"newsletters": 1, "webhooks": 2}


def test_a_policy_of_ones_own_for_the_same_jobs_goes_first():
    policies.publish(ENGINE, "mine", {"match": POLICIES["payments"]["match"]})
    shop.publish()
    assert "payments" not in in_force()


def test_a_desk_that_is_read_only_starts_without_them(settings):
    settings.REDRIVE_READ_ONLY = True
    shop.publish()
    assert in_force() == {}
