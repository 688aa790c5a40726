"""Liveness of the desk itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import redis

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.models import RefusedReports, Source
from jobs_admin.queues import liveness
from jobs_admin.trust import Cause

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)


@pytest.fixture(autouse=True)
def watched(store):
    """Every step of the watch ended a round a second ago."""
    for name in ("ingest", "sample"):
        store.hset(keys.steps(), name, json.dumps({"at": (NOW - timedelta(seconds=1)).timestamp()}))
    return store


def test_a_step_that_is_late_is_named(watched):
    assert liveness.find_stale(NOW) is None
    watched.hset(keys.steps(), "ingest", json.dumps({"at": (NOW - timedelta(minutes=20)).timestamp()}))
    late = liveness.find_stale(NOW)
    assert late.steps == ("ingest",) and late.text == "Not watching since 01:54 UTC: ingest is late."


def test_what_is_late_since_another_day_names_it(watched):
    watched.hset(keys.steps(), "ingest", json.dumps({"at": (NOW - timedelta(hours=3)).timestamp()}))
    assert liveness.find_stale(NOW).text == "Not watching since 20 Nov 23:14 UTC: ingest is late."


def test_a_store_that_does_not_answer_is_reported_and_has_no_lag(settings):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    assert "No answer" in liveness.find_stale(NOW).text
    with pytest.raises(redis.RedisError):
        liveness.ingest_lags_s(NOW)


def test_the_ingest_lag_is_the_age_of_the_oldest_report(watched):
    Source.objects.create(name="shop")
    assert liveness.ingest_lags_s(NOW) == {"shop": 0, "": 0} and liveness.late_sources(NOW) == {}
    watched.xadd(keys.failures("shop"), {"v": "1"}, id=f"{int(NOW.timestamp() * 1000) - 90_000}-0")
    assert liveness.ingest_lags_s(NOW) == {"shop": 90, "": 0}
    assert liveness.late_sources(NOW) == {"shop": "The oldest report of shop has been waiting to be filed for 90 s."}


@pytest.mark.parametrize(
    ("entry_id", "lag"),
    [
        ("1-1", None),
        (f"{int(NOW.timestamp() * 1000) - 366 * 86_400_000}-0", None),
        (f"{int(NOW.timestamp() * 1000) + 61_000}-0", None),
        (f"{2**64 - 1}-1", None),
        (f"{int(NOW.timestamp() * 1000) + 59_000}-0", 0),
        (f"{int(NOW.timestamp() * 1000) - 7 * 86_400_000}-0", 7 * 86_400),
    ],
)
def test_a_forged_id_changes_the_lag_of_its_own_source_alone(watched, entry_id, lag):
    for source in ("evil", "shop"):
        Source.objects.create(name=source)
    watched.xadd(keys.failures("evil"), {"v": "1"}, id=entry_id)
    watched.xadd(keys.failures("stranger"), {"v": "1"}, id="1-1")
    watched.xadd(keys.failures("shop"), {"v": "1"}, id=f"{int(NOW.timestamp() * 1000) - 5_000}-0")
    assert liveness.ingest_lags_s(NOW) == {"evil": lag, "shop": 5, "": 0}
    assert set(liveness.late_sources(NOW)) == ({"evil"} if lag != 0 else set())


def test_a_full_shared_stream_is_not_counted_as_late_and_an_unknown_time_only_if_wanted(watched):
    for source in ("evil", "shop"):
        Source.objects.create(name=source)
    watched.xadd(keys.failures("evil"), {"v": "1"}, id="1-1")
    for stream in (keys.failures("shop"), keys.shared("failures")):
        watched.xadd(stream, {"v": "1"}, id=f"{int(NOW.timestamp() * 1000) - 61_000}-0")
    assert liveness.late_streams(NOW, with_unknown=True) == {"evil", "shop", ""}
    assert liveness.late_streams(NOW, with_unknown=False) == {"shop", ""}
    RefusedReports.objects.create(source="", cause=Cause.UNFILED, first_at=NOW, last_at=NOW)
    assert liveness.late_streams(NOW, with_unknown=True) == {"evil", "shop"}
