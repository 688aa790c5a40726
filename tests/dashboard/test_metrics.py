"""What Prometheus is told, and by which token."""

from __future__ import annotations

import json
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.metrics import Gauge
from jobs_admin import config, heartbeats, policies
from jobs_admin.core import keys
from jobs_admin.management.commands.token import create
from jobs_admin.models import DepthSample, FailureCount, Source
from jobs_admin.models.access import ENGINE
from jobs_admin.worker import budget as counted

pytestmark = [pytest.mark.django_db, pytest.mark.server]

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+)\})? (-?[0-9.e+]+)\Z')


@pytest.fixture
def fleet(watched):
    """Two sources; a policy with a budget of ten in force on both, of which one retry was made at the shop."""
    heartbeats._heard.clear()
    now = timezone.now()
    for source in ("shop", "bank"):
        Source.objects.create(name=source)
        DepthSample.objects.create(
            source=source, queue="emails", at=now, waiting=7, active=2, delayed=0, oldest_dead_at=now
        )
        FailureCount.objects.create(source=source, queue="emails", task="mail", state="dead", count=3)
        said = {"source": source, "name": f"{source}-1", "boot": "b", "at": now.timestamp(), "queues": ["emails"],
                "mode": "enforce", "policies": {"mail": 1}}  # fmt: skip
        watched.hset(keys.workers(), f"{source}/{source}-1", json.dumps(said))
    heartbeats.fold(now)
    rule = {"match": {"task": "mail"}, "mode": "enforce", "budget": {"per_minute": 0.001, "burst": 10}}
    policies.publish(ENGINE, "mail", rule, expected_version=0)
    watched.eval(counted.SCRIPT.text, 1, keys.budget("shop"), *counted.arguments("mail", 0.001, 10, spent=1))
    return watched


def scrape(client, source="*"):
    token = create(f"scraper of {source}", "viewer", source)
    return client.get("/metrics", headers={"Authorization": f"Bearer {token}"})


def samples(response) -> dict[str, dict[str, float]]:
    """Name -> labels -> value, of a page on which every line is in form."""
    found: dict[str, dict[str, float]] = {}
    types = set()
    for line in response.text.splitlines():
        if line.startswith("# "):
            types |= {line.split()[2]} if line.startswith("# TYPE ") else set()
            continue
        name, labels, value = LINE.match(line).groups()
        assert name in types, "its type comes first"
        found.setdefault(name, {})[labels or ""] = float(value)
    return found


def test_it_needs_a_token_and_a_login_is_none(client, ann):
    for asker in (client, ann):
        response = asker.get("/metrics")
        assert response.status_code == 401 and b"#" not in response.content


def test_it_tells_what_remains_of_budgets_what_waits_and_who_runs_which_version(client, fleet):
    response = scrape(client)
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    told = samples(response)
    assert told["job_retry_budget_remaining"] == {'policy="mail",source="bank"': 10, 'policy="mail",source="shop"': 9}
    assert told["redrive_policy_workers"] == {'policy="mail",version="1"': 2}
    assert told["job_queue_dlq_depth"] == {'source="bank",queue="emails"': 3, 'source="shop",queue="emails"': 3}
    assert told["job_queue_depth"]['source="shop",queue="emails",state="waiting"'] == 7
    assert told["job_queue_oldest_dead_seconds"]['source="shop",queue="emails"'] < 60
    assert told["redrive_store_up"] == {"": 1} and told["redrive_ingest_lag_seconds"] == {"": 0}


def test_a_token_of_one_source_is_told_nothing_of_another(client, fleet):
    told = samples(response := scrape(client, "shop"))
    assert "bank" not in response.text
    assert told["job_retry_budget_remaining"] == {'policy="mail",source="shop"': 9}
    assert told["redrive_policy_workers"] == {'policy="mail",version="1"': 1}


def test_looking_spends_nothing_of_a_budget(client, fleet):
    token = create("scraper", "viewer")
    told = [samples(client.get("/metrics", headers={"Authorization": f"Bearer {token}"})) for _ in range(3)]
    assert told[0]["job_retry_budget_remaining"] == told[2]["job_retry_budget_remaining"]


def test_what_is_not_known_without_the_store_is_left_out_and_the_rest_is_told(client, fleet, settings):
    settings.REDRIVE_REDIS_URL = "redis://127.0.0.1:1/0"
    config.store.cache_clear()
    told = samples(scrape(client))
    assert told["redrive_store_up"] == {"": 0} and told["job_queue_dlq_depth"]
    assert not told.keys() & {"job_retry_budget_remaining", "redrive_policy_workers", "redrive_ingest_lag_seconds"}


def test_a_scrape_costs_the_database_the_same_however_many_policies_have_budgets(client, fleet):
    headers = {"Authorization": f"Bearer {create('scraper', 'viewer')}"}
    with CaptureQueriesContext(connection) as with_one:
        client.get("/metrics", headers=headers)
    for n in range(20):
        rule = {"match": {"task": f"mail{n}"}, "mode": "enforce", "budget": {"per_minute": 1, "burst": 5}}
        policies.publish(ENGINE, f"mail{n}", rule, expected_version=0)
    with CaptureQueriesContext(connection) as with_all:
        told = samples(client.get("/metrics", headers=headers))
    assert len(told["job_retry_budget_remaining"]) == 42 and len(with_all) == len(with_one)


@pytest.mark.parametrize("said", ['a"b', "a\\b", "a\nb", 'x"} 1\njob_queue_dlq_depth 99', "ü€"])
def test_what_a_message_named_its_queue_stays_one_label(said):
    lines = list(Gauge("job_queue_depth", "Depth.", [({"queue": said}, 1.0)]).lines())
    assert len(lines) == 3 and "\n" not in lines[2] and LINE.match(lines[2])


def test_a_large_number_is_told_as_it_is():
    *_, line = Gauge("job_queue_dlq_depth", "Depth.", [({}, 1_234_567.0)]).lines()
    assert line == "job_queue_dlq_depth 1234567"
