from __future__ import annotations

import json
import time

import pytest
from django.db import connection

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.management.commands.token import create

pytestmark = pytest.mark.django_db


@pytest.fixture
def watched(store):
    store.hset(keys.steps(), "ingest", json.dumps({"at": time.time()}))
    return store


def test_healthz_answers_anybody_and_asks_nothing(client, django_assert_num_queries):
    with django_assert_num_queries(0):
        response = client.get("/healthz")
    assert (response.status_code, response.content) == (200, b"ok")


def test_ready_when_all_is_watched_and_details_only_with_a_token(client, watched):
    assert client.get("/readyz").json() == {"ready": True}
    headers = {"Authorization": f"Bearer {create('probe', 'viewer')}"}
    checks = client.get("/readyz", headers=headers).json()["checks"]
    assert set(checks) == {"database", "redis", "ingest", "watch"} and checks["ingest"]["lag_s"] == 0


@pytest.mark.parametrize("broken", ["redis", "watch", "ingest"])
def test_not_ready_when_a_part_is_down(client, watched, settings, broken):
    if broken == "redis":
        settings.REDRIVE_REDIS_URL = "redis://127.0.0.1:1/0"
        config.store.cache_clear()
    elif broken == "watch":
        watched.hset(keys.steps(), "ingest", json.dumps({"at": time.time() - 600}))
    else:
        watched.xadd(keys.failures(), {"v": "1"}, id=f"{int((time.time() - 600) * 1000)}-0")
    headers = {"Authorization": f"Bearer {create('probe', 'viewer')}"}
    response = client.get("/readyz", headers=headers)
    assert response.status_code == 503 and response.json()["checks"][broken]["ok"] is False
    assert client.get("/readyz").json() == {"ready": False}


def test_not_ready_while_round_after_round_of_filing_fails(client, watched):
    watched.hset(keys.steps(), "ingest", json.dumps({"at": time.time(), "failed_rounds": 3, "error": "boom"}))
    assert client.get("/readyz").status_code == 503
    watched.hset(keys.steps(), "ingest", json.dumps({"at": time.time(), "failed_rounds": 1, "error": "once"}))
    assert client.get("/readyz").status_code == 200


@pytest.mark.django_db(transaction=True)
def test_not_ready_without_the_tables(client, watched):
    with connection.execute_wrapper(_refuse):
        assert client.get("/readyz").status_code == 503


def _refuse(run, sql, params, many, context):
    return run("SELECT 1 FROM no_such_table" if "failurecount" in sql else sql, params, many, context)
