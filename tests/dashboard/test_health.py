from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.db import audit, audit_anchor
from jobs_admin.management.commands.token import create
from jobs_admin.models import AuditEvent, RefusedReports, Source
from jobs_admin.models.access import ENGINE

pytestmark = pytest.mark.django_db


@pytest.fixture
def watched(store):
    store.hset(keys.steps(), "ingest", json.dumps({"at": time.time()}))
    return store


def test_healthz_answers_anybody_and_queries_nothing(client, django_assert_num_queries):
    with django_assert_num_queries(0):
        response = client.get("/healthz")
    assert (response.status_code, response.content) == (200, b"ok")


def test_ready_when_all_is_watched_and_details_only_with_a_token(client, watched):
    assert client.get("/readyz").json() == {"ready": True}
    headers = {"Authorization": f"Bearer {create('probe', 'viewer')}"}
    checks = client.get("/readyz", headers=headers).json()["checks"]
    assert set(checks) == {"database", "redis", "ingest", "watch"} and checks["ingest"]["lag_s"] == 0


def _entry_id(age_s):
    return f"{int((time.time() - age_s) * 1000)}-0"


@pytest.mark.parametrize("broken", ["redis", "watch", "ingest"])
def test_not_ready_when_a_part_is_down(client, watched, settings, broken):
    if broken == "redis":
        settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
        config.store.cache_clear()
    elif broken == "watch":
        watched.hset(keys.steps(), "ingest", json.dumps({"at": time.time() - 600}))
    else:
        Source.objects.create(name="shop")
        watched.xadd(keys.failures("shop"), {"v": "1"}, id=_entry_id(600))
    headers = {"Authorization": f"Bearer {create('probe', 'viewer')}"}
    response = client.get("/readyz", headers=headers)
    assert response.status_code == 503 and response.json()["checks"][broken]["ok"] is False
    assert client.get("/readyz").json() == {"ready": False}


def test_a_report_that_is_left_in_its_stream_without_room_does_not_make_the_desk_unready(client, watched):
    Source.objects.create(name="shop")
    watched.xadd(keys.failures("shop"), {"v": "1"}, id=_entry_id(600))
    now = timezone.now()
    left = RefusedReports.objects.create(source="shop", cause="", first_at=now, last_at=now, why="", refused=1)
    assert client.get("/readyz").status_code == 200 and client.get("/readyz?strict=1").status_code == 503
    RefusedReports.objects.filter(pk=left.pk).update(last_at=now - timedelta(hours=1))  # it is not even tried
    assert client.get("/readyz").status_code == 503


def test_not_ready_while_round_after_round_of_filing_fails(client, watched):
    watched.hset(keys.steps(), "ingest", json.dumps({"at": time.time(), "failed_rounds": 3, "error": "boom"}))
    assert client.get("/readyz").status_code == 503
    watched.hset(keys.steps(), "ingest", json.dumps({"at": time.time(), "failed_rounds": 1, "error": "once"}))
    assert client.get("/readyz").status_code == 200


def test_strictly_ready_only_while_every_source_is_read(client, watched):
    now = timezone.now()
    shop = Source.objects.create(
        name="shop", is_configured=True, is_reachable=True, sampled_at=now, progress_due_at=now
    )
    assert client.get("/readyz?strict=1").json() == {"ready": True}
    broken = (
        {"is_reachable": False, "why_unreachable": "no route"},
        {"is_reachable": True, "why_not_pulled": "no such table", "not_pulled_since": now},
        {"is_reachable": True, "sampled_at": now - timedelta(seconds=60)},
    )
    headers = {"Authorization": f"Bearer {create('probe', 'viewer')}"}
    for changes in broken:
        before = Source.objects.filter(pk=shop.pk).values().get()
        Source.objects.update(**changes)
        assert client.get("/readyz?strict=1").json() == {"ready": False}
        answer = client.get("/readyz?strict=1", headers=headers)
        assert answer.status_code == 503 and set(answer.json()["checks"]["sources"]["not_read"]) == {"shop"}
        assert (
            client.get("/readyz").status_code == 200
        )  # a source that is away is no reason to start this process again
        Source.objects.filter(pk=shop.pk).update(**before)
    Source.objects.create(name="web")
    watched.xadd(keys.failures("web"), {"v": "1"}, id=_entry_id(1))
    watched.xadd(keys.failures("shop"), {"v": "1"}, id=_entry_id(600))
    answer = client.get("/readyz?strict=1", headers=headers)
    assert answer.status_code == 503 and set(answer.json()["checks"]["sources"]["not_read"]) == {"shop"}
    assert client.get("/readyz").status_code == 200, "reports of another source are filed in time"
    watched.delete(keys.failures("shop"), keys.failures("web"))
    Source.objects.update(is_configured=False, is_reachable=False)
    assert client.get("/readyz?strict=1").status_code == 200


def test_strictly_ready_only_while_the_audit_has_its_anchored_end(client, watched):
    with transaction.atomic():
        row = audit.record(ENGINE, "failure.discard", "failure:1")
    audit_anchor.advance()
    assert client.get("/readyz?strict=1").status_code == 200
    headers = {"Authorization": f"Bearer {create('probe', 'viewer')}"}
    AuditEvent.objects.filter(pk__gte=row.pk).delete()
    answer = client.get("/readyz?strict=1", headers=headers)
    assert answer.status_code == 503 and f"entry {row.pk} of" in answer.json()["checks"]["audit"]["why"]
    assert client.get("/readyz?strict=1").json() == {"ready": False}
    assert client.get("/readyz").status_code == 200


@pytest.mark.django_db(transaction=True)
def test_not_ready_without_the_tables(client, watched):
    with connection.execute_wrapper(_refuse):
        assert client.get("/readyz").status_code == 503


def _refuse(run, sql, params, many, context):
    return run("SELECT 1 FROM no_such_table" if "failurecount" in sql else sql, params, many, context)
