"""What Prometheus is told, and by which token."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.web.exposition import Metric, Sample
from jobs_admin import config, policies
from jobs_admin.core import keys
from jobs_admin.db import audit, totals
from jobs_admin.db.totals import Counted
from jobs_admin.fleet import heartbeats
from jobs_admin.ingest import uncaptured
from jobs_admin.management.commands.token import create
from jobs_admin.models import (
    Alert,
    Channel,
    Delivery,
    DepthSample,
    Failure,
    FailureCount,
    Notice,
    Replay,
    ReplayItem,
    Rule,
    Source,
    Total,
)
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
        watched.hset(keys.workers(source), f"{source}-1", json.dumps(said))
    heartbeats.fold(now)
    rule = {"match": {"task": "mail"}, "mode": "enforce", "budget": {"per_minute": 0.001, "burst": 10}}
    policies.publish(ENGINE, "mail", rule, expected_version=0)
    watched.eval(counted.SCRIPT.text, 1, keys.budget("shop"), *counted.arguments("mail", 0.001, 10, spent=1))
    return watched


@pytest.fixture
def history(fleet):
    """What was counted, replayed, told and could not be told at both sources."""
    now = timezone.now()
    for source in ("shop", "bank"):
        Total.objects.create(
            metric=uncaptured.METRIC, source=source, queue="web-3", task="a", error=now.isoformat(), value=5
        )
    channel = Channel.objects.create(name="chat", kind="webhook", url="https://chat.example/")
    rule = Rule.objects.create(name="many", metric="dead", threshold=1)
    for n, source in enumerate(("shop", "bank"), start=1):
        totals.add(
            {
                Counted(totals.DIED, source, "emails", "mail"): 3 * n,
                Counted(totals.FAILURES, source, "emails", "mail", 'Time"out\\\n'): 7 * n,
                Counted(totals.RETRIES, source, "emails"): 4 * n,
                Counted(totals.RECOVERED, source, "emails"): 2 * n,
                Counted(totals.COMPLETED, source, "emails"): 90 * n,
                Counted(totals.BUSY_S, source, "emails"): 12.5 * n,
                Counted(totals.ENDED, source, "emails"): 97 * n,
                Counted(totals.REFUSED, source, "unsigned"): 4 * n,
            }
        )
        Source.objects.filter(name=source).update(is_reachable=source == "shop", sampled_at=now - timedelta(seconds=5))
        alert = Alert.objects.create(
            rule=rule, source=source, subject="emails", state="firing", severity="warning", value=3, threshold=1,
            opened_at=now,
        )  # fmt: skip
        notice = Notice.objects.create(key=f"alert-{n}", type="alert.firing", source=source, alert=alert, body={})
        Delivery.objects.create(notice=notice, channel=channel, state="parked")
    totals.add({Counted(totals.REFUSED, "", "unknown"): 3})
    replayed(["shop"], sent=2, planned=3)
    replayed(["shop", "bank"], sent=1, planned=1)
    return fleet


def replayed(sources, **counts):
    """A replay that runs; the first source has all of its items but the last."""
    replay = Replay.objects.create(
        state="running", scope_max_id=0, actor="ann", started_at=timezone.now(), total=sum(counts.values()), **counts
    )
    states = [state for state, n in counts.items() for _ in range(n)]
    now = timezone.now()
    for n, state in enumerate(states, start=1):
        failure = Failure.objects.create(
            source=sources[0 if n < len(states) else -1], queue="old", task="mail", first_job_id=f"{replay.pk}-{n}",
            job_id=f"{replay.pk}-{n}", state="dead", kind="exception", first_failed_at=now, failed_at=now, received_at=now,
        )  # fmt: skip
        ReplayItem.objects.create(replay=replay, n=n, failure=failure, run=2, state=state)
    with transaction.atomic():
        for source in sources:
            audit.record(ENGINE, "replay.start", f"replay:{replay.pk}", source=source)


def scrape(client, source="*"):
    token = create(f"scraper of {source}", "viewer", source)
    return client.get("/metrics", headers={"Authorization": f"Bearer {token}"})


def samples(response) -> dict[str, dict[str, float]]:
    """Name -> labels -> value, of a page on which every line is in form and in its place."""
    found: dict[str, dict[str, float]] = {}
    types: dict[str, str] = {}
    latest = ""
    lines = response.text.split("\n")
    assert lines.pop() == "", "the last line ends too"
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, latest, kind = line.split()
            assert latest not in types, "a metric stands in one place"
            types[latest] = kind
        elif not line.startswith("# HELP "):
            name, labels, value = LINE.match(line).groups()
            ends = ("_sum", "_count") if types[latest] == "summary" else ("",)
            assert name in {latest + end for end in ends}, "its type comes first"
            assert (types[latest] == "counter") == name.endswith("_total")
            assert (labels or "") not in found.setdefault(name, {}), "no series comes twice"
            found[name][labels or ""] = float(value)
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
    assert told["redrive_store_up"] == {"": 1} and told["redrive_ingest_lag_seconds"]['source="shop"'] == 0


def test_a_token_of_one_source_is_told_nothing_of_another(client, fleet):
    told = samples(response := scrape(client, "shop"))
    assert "bank" not in response.text
    assert told["job_retry_budget_remaining"] == {'policy="mail",source="shop"': 9}
    assert told["redrive_policy_workers"] == {'policy="mail",version="1"': 1}


def test_it_tells_what_was_counted(client, history):
    told = samples(scrape(client))
    assert told["job_queue_dlq_jobs_total"]['source="bank",source_queue="emails",job_name="mail"'] == 6
    escaped = r'source="shop",queue="emails",task="mail",error="Time\"out\\\n"'
    assert told["job_failures_total"][escaped] == 7
    shop = 'source="shop",queue="emails"'
    counted = ("job_retries_total", "job_recovered_total", "job_completed_total", "job_duration_seconds_sum")
    assert [told[name][shop] for name in counted] == [4, 2, 90, 12.5] and told["job_duration_seconds_count"][shop] == 97
    assert told["redrive_refused_reports_total"] == {
        'source="",cause="unknown"': 3, 'source="bank",cause="unsigned"': 8, 'source="shop",cause="unsigned"': 4,
    }  # fmt: skip


def test_it_tells_how_the_desk_stands(client, history):
    told = samples(scrape(client))
    assert told["redrive_replay_items"]['state="planned"'] == 4 and told["redrive_replay_items"]['state="sent"'] == 3
    assert told["redrive_alerts"] == {
        'state="pending"': 0, 'state="firing"': 2, 'state="acknowledged"': 0, 'state="silenced"': 0,
    }  # fmt: skip
    assert told["redrive_deliveries"] == {'state="waiting"': 0, 'state="sending"': 0, 'state="parked"': 2}
    assert told["redrive_source_up"] == {'source="bank"': 0, 'source="shop"': 1}
    assert 5 <= told["redrive_sample_age_seconds"]['source="shop"'] < 60
    assert told["redrive_workers"] == {'source="bank"': 1, 'source="shop"': 1}
    assert told["redrive_watch_step_age_seconds"].keys() == {'step="ingest"', 'step="sample"'}
    assert told["redrive_unfiled_reports"] == {"": 0}


def test_a_token_of_one_source_is_told_its_share_of_all_that_was_counted(client, history):
    totals.add({Counted(totals.RETRIES, "", totals.OTHER): 5})
    told = samples(response := scrape(client, "shop"))
    assert "bank" not in response.text and "redrive_unfiled_reports" not in told
    assert told["job_retries_total"] == {'source="shop",queue="emails"': 4}
    assert told["redrive_refused_reports_total"] == {'source="shop",cause="unsigned"': 4}
    assert told["redrive_replay_items"]['state="planned"'] == 3, "the other replay's planned one is the bank's"
    assert told["redrive_replay_items"]['state="sent"'] == 3
    assert told["redrive_alerts"]['state="firing"'] == 1 and told["redrive_deliveries"]['state="parked"'] == 1


@pytest.mark.extras
def test_the_reader_of_prometheus_own_client_takes_all_of_it(client, history):
    try:
        from prometheus_client.parser import text_string_to_metric_families as read
    except ImportError:
        pytest.skip("prometheus-client is not installed: `python3 manage.py test --strict` installs it")
    response = scrape(client)
    theirs = {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in read(response.text)
        for one in family.samples
    }
    assert len(theirs) == sum(map(len, samples(response).values()))
    labels = {"source": "shop", "queue": "emails", "task": "mail", "error": 'Time"out\\\n'}
    assert theirs["job_failures_total", tuple(sorted(labels.items()))] == 7


def test_ten_thousand_errors_are_told_within_the_bound(client, watched):
    Source.objects.create(name="shop")
    for start in range(0, 10_000, 1_000):
        totals.add(
            {Counted(totals.FAILURES, "shop", "q", f"t{n % 50}", f"E{n}"): 1 for n in range(start, start + 1_000)}
        )
    told = samples(scrape(client))["job_failures_total"]
    assert len(told) <= totals.MOST_SETS and sum(told.values()) == 10_000


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
    lines = list(Metric("job_queue_depth", "gauge", "Depth.", [Sample({"queue": said}, 1.0)]).lines())
    assert len(lines) == 3 and "\n" not in lines[2] and LINE.match(lines[2])


def test_a_large_number_is_told_as_it_is():
    *_, line = Metric("job_queue_dlq_depth", "gauge", "Depth.", [Sample({}, 1_234_567.0)]).lines()
    assert line == "job_queue_dlq_depth 1234567"
