"""The demo's desk knows whom to call from its first start."""

from __future__ import annotations

import pytest

from demo import first_start, pager
from jobs_admin.models import Channel, Rule

pytestmark = pytest.mark.django_db

HERE, MOVED = "http://127.0.0.1:9001", "http://127.0.0.1:9002"


@pytest.fixture(autouse=True)
def allow_local_webhooks(settings, first_rules):
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": ["127.0.0.1"]}


def test_every_rule_calls_the_pager_and_one_watches_the_customer_of_the_incident():
    first_start.create_alerts(HERE, pager.new_secret())
    channel = Channel.objects.get()
    assert channel.url == f"{HERE}/pager"
    assert {rule.name for rule in channel.rules.all()} == {
        "Dead Letter Queue Growing",
        "No Progress",
        "Quarantine",
        "Source Unreachable",
        first_start.RULE["name"],
    }


def test_what_its_owner_changed_or_deleted_stays_so():
    first_start.create_alerts(HERE, pager.new_secret())
    Rule.objects.filter(name=first_start.RULE["name"]).delete()
    Channel.objects.all().delete()
    first_start.create_alerts(HERE, pager.new_secret())
    assert not Channel.objects.exists()
    assert not Rule.objects.filter(name=first_start.RULE["name"]).exists()


def test_a_partner_on_another_port_takes_its_pager_along_and_keeps_the_secret():
    first_start.create_alerts(HERE, pager.new_secret())
    before = Channel.objects.get()
    first_start.create_alerts(MOVED, pager.new_secret())
    after = Channel.objects.get()
    assert (after.url, after.secrets) == (f"{MOVED}/pager", before.secrets)


def test_a_read_only_desk_is_left_as_it_is(settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    first_start.create_alerts(HERE, pager.new_secret())
    assert not Channel.objects.exists()
