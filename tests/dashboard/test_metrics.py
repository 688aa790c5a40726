"""The metrics of a Prometheus scrape, by token."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dashboard.web import metrics
from jobs_admin import config, policies
from jobs_admin.db import counters
from jobs_admin.db.counters import Counted
from jobs_admin.management.commands.token import create
from jobs_admin.models import Source
from jobs_admin.models.access import ENGINE
from tests.kit.metrics import LINE, samples, scrape

pytestmark = [pytest.mark.django_db, pytest.mark.server]


def test_it_needs_a_token_and_a_login_is_none(client, ann):
    for asker in (client, ann):
        response = asker.get("/metrics")
        assert response.status_code == 401 and b"#" not in response.content


def test_it_shows_what_remains_of_budgets_what_waits_and_who_runs_which_version(client, fleet):
    response = scrape(client)
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    reported = samples(response)
    assert reported["job_retry_budget_remaining"] == {
        'policy="mail",source="bank"': 10,
        'policy="mail",source="shop"': 9,
    }
    assert reported["redrive_policy_workers"] == {'policy="mail",version="1"': 2}
    assert reported["job_queue_dlq_depth"] == {'queue="emails",source="bank"': 3, 'queue="emails",source="shop"': 3}
    assert reported["job_queue_depth"]['queue="emails",source="shop",state="waiting"'] == 7
    assert reported["job_queue_oldest_dead_seconds"]['queue="emails",source="shop"'] < 60
    assert reported["redrive_store_up"] == {"": 1} and reported["redrive_ingest_lag_seconds"]['source="shop"'] == 0


def test_a_token_of_one_source_is_shown_nothing_of_another(client, fleet):
    reported = samples(response := scrape(client, "shop"))
    assert "bank" not in response.text
    assert reported["job_retry_budget_remaining"] == {'policy="mail",source="shop"': 9}
    assert reported["redrive_policy_workers"] == {'policy="mail",version="1"': 1}


def test_it_shows_what_was_counted(client, history):
    reported = samples(scrape(client))
    assert reported["job_queue_dlq_jobs_total"]['job_name="mail",source="bank",source_queue="emails"'] == 6
    escaped = r'error="Time\"out\\\n",queue="emails",source="shop",task="mail"'
    assert reported["job_failures_total"][escaped] == 7
    shop = 'queue="emails",source="shop"'
    counted = ("job_retries_total", "job_recovered_total", "job_completed_total", "job_duration_seconds_sum")
    assert [reported[name][shop] for name in counted] == [4, 2, 90, 12.5] and reported["job_duration_seconds_count"][
        shop
    ] == 97
    assert reported["redrive_refused_reports_total"] == {
        'cause="unknown",source=""': 3, 'cause="unsigned",source="bank"': 8, 'cause="unsigned",source="shop"': 4,
    }  # fmt: skip


def test_it_shows_the_state_of_the_desk(client, history):
    reported = samples(scrape(client))
    assert (
        reported["redrive_replay_items"]['state="planned"'] == 4
        and reported["redrive_replay_items"]['state="sent"'] == 3
    )
    assert reported["redrive_alerts"] == {
        'state="pending"': 0, 'state="firing"': 2, 'state="acknowledged"': 0, 'state="silenced"': 0,
    }  # fmt: skip
    assert reported["redrive_deliveries"] == {'state="waiting"': 0, 'state="sending"': 0, 'state="parked"': 2}
    assert reported["redrive_source_up"] == {'source="bank"': 0, 'source="shop"': 1}
    assert 5 <= reported["redrive_sample_age_seconds"]['source="shop"'] < 60
    assert reported["redrive_workers"] == {'source="bank"': 1, 'source="shop"': 1}
    assert reported["redrive_watch_step_age_seconds"].keys() == {'step="ingest"', 'step="sample"'}
    assert reported["redrive_unfiled_reports"] == {"": 0}


def test_a_token_of_one_source_is_shown_its_share_of_all_that_was_counted(client, history):
    counters.add_totals({Counted(counters.RETRIES, "", counters.OTHER): 5})
    reported = samples(response := scrape(client, "shop"))
    assert "bank" not in response.text and "redrive_unfiled_reports" not in reported
    assert reported["job_retries_total"] == {'queue="emails",source="shop"': 4}
    assert reported["redrive_refused_reports_total"] == {'cause="unsigned",source="shop"': 4}
    assert reported["redrive_replay_items"]['state="planned"'] == 3, "the other replay's planned one is the bank's"
    assert reported["redrive_replay_items"]['state="sent"'] == 3
    assert reported["redrive_alerts"]['state="firing"'] == 1 and reported["redrive_deliveries"]['state="parked"'] == 1


def test_the_reader_of_prometheus_own_client_takes_all_of_it(client, history):
    response = scrape(client)
    theirs = {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(response.text)
        for one in family.samples
    }
    assert len(theirs) == sum(map(len, samples(response).values()))
    labels = {"source": "shop", "queue": "emails", "task": "mail", "error": 'Time"out\\\n'}
    assert theirs["job_failures_total", tuple(sorted(labels.items()))] == 7


def test_ten_thousand_errors_are_shown_within_the_bound(client, watched):
    Source.objects.create(name="shop")
    for start in range(0, 10_000, 1_000):
        counters.add_totals(
            {Counted(counters.FAILURES, "shop", "q", f"t{n % 50}", f"E{n}"): 1 for n in range(start, start + 1_000)}
        )
    reported = samples(scrape(client))["job_failures_total"]
    assert len(reported) <= counters.MOST_SETS and sum(reported.values()) == 10_000


def test_checking_spends_nothing_of_a_budget(client, fleet):
    token = create("scraper", "viewer")
    lines = [samples(client.get("/metrics", headers={"Authorization": f"Bearer {token}"})) for _ in range(3)]
    assert lines[0]["job_retry_budget_remaining"] == lines[2]["job_retry_budget_remaining"]


def test_what_is_not_known_without_the_store_is_left_out_and_the_rest_is_shown(client, fleet, settings):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    reported = samples(scrape(client))
    assert reported["redrive_store_up"] == {"": 0} and reported["job_queue_dlq_depth"]
    assert not reported.keys() & {"job_retry_budget_remaining", "redrive_policy_workers", "redrive_ingest_lag_seconds"}


def test_a_scrape_costs_the_database_the_same_however_many_policies_have_budgets(client, fleet):
    headers = {"Authorization": f"Bearer {create('scraper', 'viewer')}"}
    with CaptureQueriesContext(connection) as with_one:
        client.get("/metrics", headers=headers)
    for n in range(20):
        rule = {"match": {"task": f"mail{n}"}, "mode": "enforce", "budget": {"per_minute": 1, "burst": 5}}
        policies.publish(ENGINE, f"mail{n}", rule, expected_version=0)
    with CaptureQueriesContext(connection) as with_all:
        reported = samples(client.get("/metrics", headers=headers))
    assert len(reported["job_retry_budget_remaining"]) == 42 and len(with_all) == len(with_one)


class Depths:
    """One metric of one queue."""

    def __init__(self, labels, value):
        self.metric = metrics._gauge("job_queue_depth", "Depth.", [(labels, value)])

    def collect(self):
        yield self.metric


@pytest.mark.parametrize("message", ['a"b', "a\\b", "a\nb", 'x"} 1\njob_queue_dlq_depth 99', "ü€"])
def test_what_a_message_named_its_queue_stays_one_label(message):
    lines = generate_latest(Depths({"queue": message}, 1.0)).decode().splitlines()
    assert len(lines) == 3 and LINE.match(lines[2])


def test_a_large_number_is_shown_as_it_is():
    line = generate_latest(Depths({}, 1_234_567.0)).decode().splitlines()[-1]
    assert float(line.removeprefix("job_queue_depth ")) == 1_234_567
