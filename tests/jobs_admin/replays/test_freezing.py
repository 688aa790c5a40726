from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobs_admin.models import Failure, FrozenBatch
from jobs_admin.replays.freezing import BATCH, FIRST, freeze, pack_ids, unpack_ids

pytestmark = pytest.mark.databases


def owned(ready):
    return ready.order_by("pk").values_list("pk", "tenant", "source")


def order(ready, shuffle=""):
    got = freeze(owned(ready), shuffle)
    return [*got.first, *(pk for _, ids in got.rest for pk in unpack_ids(FrozenBatch(ids=ids)))]


@given(some.lists(some.integers(1, 2**62)))
def test_what_is_packed_comes_out_as_it_was(ids):
    assert unpack_ids(FrozenBatch(ids=pack_ids(ids))) == ids


def is_fair(tenants):
    """Return whether no tenant waits for more than one job of each other between two of its own, while it has any."""
    left, gone = Counter(tenants), Counter()
    for tenant in tenants:
        waiting = [gone[other] for other in left if gone[other] < left[other]]
        if gone[tenant] > min(waiting):
            return False
        gone[tenant] += 1
    return True


@pytest.mark.django_db
@pytest.mark.parametrize("shuffle", ["", "seed"])
@pytest.mark.parametrize("shape", [{"acme": 40, "cobalt": 3, "": 7}, {"": 12}, {"a": 1, "b": 1, "c": 30}])
def test_no_tenant_starves(bury, shape, shuffle):
    for tenant, count in shape.items():
        bury(count, payload=False, tenant=tenant)
    of = dict(Failure.objects.values_list("pk", "tenant"))
    got = order(Failure.objects.all(), shuffle)
    assert sorted(got) == sorted(of)
    assert is_fair([of[pk] for pk in got])
    if not shuffle:
        assert all([pk for pk in got if of[pk] == t] == sorted(pk for pk in of if of[pk] == t) for t in shape)


@pytest.mark.django_db
def test_a_shuffled_order_is_another_for_each_seed_and_the_same_for_one(bury):
    ids = bury(60, payload=False)
    one, again, two = (order(Failure.objects.all(), seed) for seed in ("a", "a", "b"))
    assert one == again != two and sorted(one) == sorted(two) == ids and one != ids


@pytest.mark.django_db
def test_many_come_in_batches_that_one_transaction_lays_out(bury):
    ids = bury(2 * (FIRST + BATCH) + 5, payload=False)
    got = freeze(owned(Failure.objects.all()))
    assert got.total == len(ids) and got.first == ids[:FIRST] and got.sources == ["shop"]
    assert max(count for count, _ in got.rest) <= FIRST + BATCH
    assert order(Failure.objects.all()) == ids


@pytest.mark.django_db
def test_of_nothing_nothing_is_frozen():
    assert freeze([]).total == 0
