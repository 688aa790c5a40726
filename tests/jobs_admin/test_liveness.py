"""Whether the desk itself is alive."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import redis

from jobs_admin import config, liveness
from jobs_admin.core import keys

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)


@pytest.fixture(autouse=True)
def watched(store):
    """Every step of the watch ended a round a second ago."""
    for name in ("ingest", "sample"):
        store.hset(keys.steps(), name, json.dumps({"at": (NOW - timedelta(seconds=1)).timestamp()}))
    return store


def test_a_step_that_is_late_is_named(watched):
    assert liveness.stale(NOW) is None
    watched.hset(keys.steps(), "ingest", json.dumps({"at": (NOW - timedelta(minutes=20)).timestamp()}))
    late = liveness.stale(NOW)
    assert late.steps == ("ingest",) and late.text == "Not watching since 01:54: ingest is late."


def test_what_is_late_since_another_day_names_it(watched):
    watched.hset(keys.steps(), "ingest", json.dumps({"at": (NOW - timedelta(hours=3)).timestamp()}))
    assert liveness.stale(NOW).text == "Not watching since 20 Nov 23:14: ingest is late."


def test_a_store_that_does_not_answer_is_said_and_has_no_lag(settings):
    settings.REDRIVE_REDIS_URL = "redis://127.0.0.1:1/0"
    config.store.cache_clear()
    assert "does not answer" in liveness.stale(NOW).text
    with pytest.raises(redis.RedisError):
        liveness.ingest_lag_s(NOW)


def test_the_ingest_lag_is_the_age_of_the_oldest_report(watched):
    assert liveness.ingest_lag_s(NOW) == 0
    watched.xadd(keys.failures(), {"v": "1"}, id=f"{int(NOW.timestamp() * 1000) - 90_000}-0")
    assert liveness.ingest_lag_s(NOW) == 90
