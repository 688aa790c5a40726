from __future__ import annotations

import pytest

from jobs_admin import config, policies
from jobs_admin.core import keys
from jobs_admin.models import Source
from jobs_admin.worker import budget as counted
from tests.kit.people import ANN, LOU

pytestmark = [pytest.mark.django_db, pytest.mark.server]

HARDLY_ANY = 0.001  # a minute: nothing comes back while a test runs, however long it takes


@pytest.fixture(autouse=True)
def sources():
    Source.objects.bulk_create([Source(name="shop"), Source(name="billing")])


def spend(store, source, name, per_minute=HARDLY_ANY, burst=10, times=1):
    for _ in range(times):
        how = counted.arguments(name, per_minute, burst, spent=1)
        store.eval(counted.SCRIPT.text, 1, keys.budget(source), *how)


def test_what_workers_spent_is_not_left(store, publish):
    made = publish(budget={"per_minute": HARDLY_ANY, "burst": 10})
    spend(store, "shop", "emails", times=4)
    found = policies.budget(ANN, made)
    assert (found.name, found.left, found.least) == ("emails", {"shop": 6}, 6)


def test_checking_spends_nothing(store, publish):
    made = publish(budget={"per_minute": HARDLY_ANY, "burst": 10})
    assert [policies.budget(ANN, made).least for _ in range(3)] == [10, 10, 10]


def test_policies_of_a_group_share_what_is_left(store, publish):
    rule = {"per_minute": HARDLY_ANY, "burst": 10, "group": "partner"}
    first, other = publish(budget=rule), publish("others", match={"source": "shop", "task": "others"}, budget=rule)
    spend(store, "shop", "partner", times=3)
    assert policies.budget(ANN, first).left == policies.budget(ANN, other).left == {"shop": 7}


def test_each_source_counts_apart_and_only_those_in_sight_are_reported(store, publish):
    made = publish(match={}, budget={"per_minute": HARDLY_ANY, "burst": 10})
    spend(store, "billing", "emails", times=10)
    assert policies.budget(ANN, made).left == {"billing": 0, "shop": 10}
    assert policies.budget(LOU, made).left == {"shop": 10}


def test_a_key_of_another_type_hides_only_what_is_left_at_its_own_source(store, publish):
    made = publish(match={}, budget={"per_minute": HARDLY_ANY, "burst": 10})
    store.set(keys.budget("billing"), "x")
    found = policies.budget(ANN, made)
    assert found.is_known and found.left == {"shop": 10}


def test_a_policy_without_a_budget_has_none(store, publish):
    assert policies.budget(ANN, publish()) is None


def test_without_a_store_no_one_knows_what_is_left(settings, publish):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": ""}
    config.store.cache_clear()
    found = policies.budget(ANN, publish(budget={"per_minute": 60}))
    assert not found.is_known and found.least is None
