"""The shop's policies: published once, and kept as a person left them."""

from __future__ import annotations

import re
from random import Random

import httpx
import pytest

from demo import first_start as shop
from demo import orders
from demo.first_start import POLICIES
from demo.shop import app
from jobs_admin import policies
from jobs_admin.core.matching import chosen, class_of, names_of
from jobs_admin.core.policy import parse
from jobs_admin.models.access import ENGINE

pytestmark = pytest.mark.django_db


def in_force():
    return {one.name: one.version for one in policies.published(ENGINE)}


@pytest.mark.usefixtures("store")
def test_the_example_of_an_automation_is_created_once_in_dry_run(settings):
    from jobs_admin import automations
    from jobs_admin.models import Automation, Source

    Source.objects.create(name="shop", is_configured=True)
    shop.create_automation()
    assert [(one.name, one.mode) for one in automations.listing(ENGINE)] == [("partner-is-back", "dry_run")]
    Automation.objects.all().delete()
    shop.create_automation()
    assert not Automation.objects.exists()


def test_they_are_published_once():
    shop.publish_policies()
    shop.publish_policies()
    assert in_force() == dict.fromkeys(POLICIES, 1)


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_purpose_stays_true_when_its_policy_is_enforced(name):
    assert not re.search(r"(?i)observ|enforc", POLICIES[name]["note"])


def test_what_was_changed_or_withdrawn_stays_so():
    shop.publish_policies()
    policies.withdraw(ENGINE, "payments")
    policies.publish(ENGINE, "webhooks", {**POLICIES["webhooks"], "max_attempts": 9}, expected_version=1)
    shop.publish_policies()
    assert in_force() == {"newsletters": 1, "scans": 1, "warehouse": 1, "webhooks": 2}


def test_a_policy_of_ones_own_for_the_same_jobs_goes_first():
    policies.publish(ENGINE, "mine", {"match": POLICIES["payments"]["match"]})
    shop.publish_policies()
    assert "payments" not in in_force()


def test_a_desk_that_is_read_only_starts_without_them(settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    shop.publish_policies()
    assert in_force() == {}


def test_the_shops_pill_is_taken_out_of_the_way_by_a_policy():
    pill = orders.pill(Random(1))
    app.loader.import_default_modules()
    task = app.tasks[pill.task]
    decides = chosen([parse({"name": n, **d}) for n, d in POLICIES.items()], shop.SOURCE, "reports", pill.task)
    assert decides is not None and decides.poison is not None and decides.mode == "enforce"
    # Its soft limit, which the task swallows, comes first; what ends the process is the hard one.
    assert task.soft_time_limit < task.time_limit < pill.kwargs["pages"] * 0.05


@pytest.mark.parametrize("error", [httpx.HTTPStatusError, httpx.ReadError, httpx.ConnectError, httpx.ReadTimeout])
def test_an_outage_is_transient_in_the_worker_and_by_the_name_that_the_desk_stores(error):
    policy = parse({"name": "newsletters", **POLICIES["newsletters"]})
    names = names_of(error)
    assert class_of(policy, names) == class_of(policy, names[:1]) == "transient"
    assert class_of(policy, names_of(FileNotFoundError)) == "permanent"
