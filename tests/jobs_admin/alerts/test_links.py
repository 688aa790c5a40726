"""A link shows the failures that an alert was about, also when they are no longer dead."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from jobs_admin import alerts, failures
from jobs_admin.models import DepthSample, Failure, Replay, ReplayItem
from tests.kit.alerts import NOW, create_alert
from tests.kit.counts import bury
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db


def dead(n, minutes=1, **changes):
    at = NOW - timedelta(minutes=minutes)
    return [f.pk for f in bury(n, failed_at=at, first_failed_at=at, **changes)]


def find_failures(query):
    return {row.pk for row in failures.search(ANN, query).rows}


def test_a_link_is_a_search_with_absolute_times(rule):
    links = alerts.links(create_alert(rule()), NOW)
    assert links.failures_query == (
        "source:shop queue:emails since:2026-11-22T01:00:00Z "
        "(until:2026-11-22T02:00:01Z state:dead,discarded,gone) OR replay:>=1"
    )
    address = urlsplit(links.failures_url)
    assert address.path.endswith("/failures/") and parse_qs(address.query)["q"] == [links.failures_query]
    assert links.url.endswith(f"/alerts/{alerts.listing(ANN).rows[0].pk}/")


def test_it_reaches_back_to_the_oldest_dead_job_of_the_moment(rule):
    oldest = NOW - timedelta(hours=7)
    DepthSample.objects.create(source="shop", queue="emails", at=NOW, dead=120, oldest_dead_at=oldest)
    assert f"since:{oldest:%Y-%m-%dT%H:%M:%SZ}" in alerts.links(create_alert(rule()), NOW).failures_query


def test_it_shows_those_failures_whatever_has_become_of_them(rule):
    mine = dead(5)
    dead(1, queue="webhooks"), dead(2, state="recovered"), dead(1, minutes=600)
    query = alerts.links(create_alert(rule()), NOW).failures_query
    assert find_failures(query) == set(mine)
    ran, again, sent, thrown, quarantined = mine
    replay = Replay.objects.create(state="done", scope_max_id=quarantined, actor="ann")
    for n, pk in enumerate((ran, again, sent), 1):
        ReplayItem.objects.create(replay=replay, n=n, failure_id=pk, run=2, state="succeeded")
    Failure.objects.filter(pk=ran).update(state="recovered")
    Failure.objects.filter(pk=again).update(failed_at=NOW + timedelta(hours=1), run=2)
    Failure.objects.filter(pk=sent).update(state="replaying")
    Failure.objects.filter(pk=thrown).update(state="discarded")
    dead(3, minutes=-30)  # later, and others
    assert find_failures(query) == set(mine)


def test_the_draft_takes_what_is_still_dead_of_them(rule):
    (ran, again, third) = dead(3)
    query = parse_qs(urlsplit(alerts.links(create_alert(rule()), NOW).replay_url).query)["q"][0]
    replay = Replay.objects.create(state="done", scope_max_id=third, actor="ann")
    ReplayItem.objects.create(replay=replay, n=1, failure_id=again, run=2, state="failed_again")
    Failure.objects.filter(pk=ran).update(state="recovered")
    Failure.objects.filter(pk=again).update(failed_at=NOW + timedelta(hours=1), run=2)
    assert find_failures(query) == {again, third}


def test_a_link_to_what_failed_finds_it_when_it_has_recovered_too(rule):
    mine = [*dead(2), *dead(1, state="retrying"), *dead(1, state="recovered"), *dead(1, state="discarded")]
    dead(1, queue="webhooks"), dead(1, minutes=600), dead(1, minutes=-30)
    links = alerts.links(create_alert(rule(metric="retry_rate", threshold=0.5)), NOW)
    assert find_failures(links.failures_query) == set(mine) and find_failures(links.replay_query) == set(mine[:2])


@pytest.mark.parametrize("queue", ['a"b c', "state:dead OR x", "(", "ünï\u202e", "*"])
def test_a_hostile_name_stays_a_name(rule, queue):
    mine = dead(2, queue=queue)
    dead(1)
    assert find_failures(alerts.links(create_alert(rule(), subject=queue), NOW).failures_query) == set(mine)


def test_the_draft_of_an_alert_has_a_reason_so_that_it_starts_without_typing(rule):
    alert = create_alert(rule())
    query = parse_qs(urlsplit(alerts.links(alert, NOW).replay_url).query)
    assert query["reason"] == [f"Alert #{alert.pk}: {alert.rule.name}"]


def test_an_alert_of_the_quarantine_leads_to_its_jobs_and_drafts_no_replay(rule):
    quarantined = dead(2, minutes=600, state="quarantined")
    dead(3), dead(1, state="quarantined", queue="webhooks")
    links = alerts.links(create_alert(rule(metric="quarantined")), NOW)
    assert links.failures_query == "source:shop queue:emails state:quarantined"
    assert find_failures(links.failures_query) == set(quarantined) and links.replay_url == ""


@pytest.mark.parametrize("queues", [("emails", "webhooks"), ("webhooks", "emails")])
def test_links_of_several_queues_reach_back_to_the_oldest_job_of_any(rule, queues):
    for queue, minutes in zip(queues, (5, 50), strict=True):
        oldest = NOW - timedelta(minutes=minutes)
        DepthSample.objects.create(source="shop", queue=queue, at=NOW, dead=120, oldest_dead_at=oldest)
    mine = dead(2, minutes=5, queue=queues[0]) + dead(3, minutes=50, queue=queues[1])
    links = alerts.links(create_alert(rule()), NOW, queues=("emails", "webhooks"))
    draft = parse_qs(urlsplit(links.replay_url).query)["q"][0]
    assert find_failures(links.failures_query) == find_failures(draft) == set(mine)
