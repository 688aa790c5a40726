"""Pools that the guard does not work in are refused by name, and their workers run as without it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from jobs_admin.worker.celery import GREEN_POOLS
from tests.kit.streams import reports

pytestmark = pytest.mark.server


@pytest.mark.parametrize("pool", GREEN_POOLS[:1])  # the other one goes by the same list
def test_a_green_pool_is_refused_by_name_and_its_worker_works(start, own_store, pool):
    if find_spec(pool) is None:
        pytest.skip(f"no {pool} here: pip install -r requirements-strict.txt")
    worker = start(own_store.url, pool=pool)
    failed = worker.send("fail")
    worker.send("ok", "all the same")
    worker.wait(lambda: worker.marks("ok") and f"{failed}] raised" in worker.text(), what="both jobs")
    assert f"Redrive's guard is not installed: the pool {pool} is not supported" in worker.text()
    assert reports(own_store) == []
