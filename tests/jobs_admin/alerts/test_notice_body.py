"""The fields of a notice about an alert."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.alerts import affected_groups
from jobs_admin.core.alert_metrics import METRICS, Subject
from jobs_admin.models import Alert, Failure, Group, GroupCounter, Notice, Rule
from jobs_admin.notices import wording
from tests.kit.alerts import NOW
from tests.kit.counts import bury
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db
S = timedelta(seconds=1)


def group(name, **more):
    now = timezone.now()
    return Group.objects.create(
        fingerprint=f"v1-{name}", error_type=name, message="gone", first_seen=now, last_seen=now, **more
    )


def body():
    return Notice.objects.latest("pk").body


def test_the_notice_reports_how_many_are_dead_of_which_queue_and_where_to_check(rule):
    rule(name="Dead Letter Queue Growing", for_s=300, severity="warning", runbook_url="https://wiki.example/dlq")
    slow, refused = group("TimeoutError"), group("ConnectionError")
    bury(1_100, group=slow), bury(143, group=refused)
    for at in (0, 300):
        alerts.judge(NOW + at * S)
    body_, alert = body(), Alert.objects.get()
    assert body_["message"] == "emails has 1,243 dead jobs (threshold: 100) for 5 min"
    assert {name: body_[name] for name in ("severity", "title", "runbook", "source", "queue", "metric")} == {
        "severity": "warning", "title": "Dead Letter Queue Growing", "runbook": "https://wiki.example/dlq",
        "source": "shop", "queue": "emails", "metric": "dead",
    }  # fmt: skip
    assert (body_["alert_id"], body_["value"], body_["threshold"]) == (str(alert.pk), 1243, 100)
    assert body_["since"] == NOW.isoformat()
    assert [(one["title"], one["count"]) for one in body_["top_groups"]] == [
        ("TimeoutError: gone", 1100), ("ConnectionError: gone", 143),
    ]  # fmt: skip
    assert body_["top_groups"][0]["url"].endswith("/groups/v1-TimeoutError/")
    assert body_["url"].endswith(f"/alerts/{alert.pk}/") and "/failures/?q=" in body_["failures_url"]
    assert "/replays/new/?q=" in body_["replay_url"]


def test_a_group_is_counted_over_its_tasks_and_only_the_large_are_added_up(rule, monkeypatch):
    monkeypatch.setattr(affected_groups, "_MOST_COUNTERS", 3)
    rule(for_s=0, threshold=5)
    one, two, small = group("A"), group("B"), group("C")
    bury(4, group=one, task="x"), bury(4, group=one, task="y"), bury(6, group=two), bury(1, group=small)
    alerts.judge(NOW)
    assert [(g["title"], g["count"]) for g in body()["top_groups"]] == [("A: gone", 8), ("B: gone", 6)]


@pytest.mark.parametrize(
    "of_rule, of_group, expected",
    [
        ("https://rule.example/", "https://group.example/", "https://rule.example/"),
        ("", "https://group.example/", "https://group.example/"),
        ("", "", "https://task.example/"),
    ],
)
def test_the_runbook_of_the_rule_goes_before_that_of_the_group_and_that_before_the_tasks(
    rule, of_rule, of_group, expected
):
    rule(for_s=0, runbook_url=of_rule)
    alerts.save_runbook(ANN, "se*", "https://task.example/")
    bury(101, group=group("E", runbook_url=of_group))
    alerts.judge(NOW)
    assert body()["runbook"] == expected


def test_a_changed_rule_is_reported_with_its_new_threshold(rule):
    made = rule(for_s=0, renotify_s=60)
    bury(150)
    alerts.judge(NOW)
    alerts.save_rule(ANN, {**alerts.document(made), "threshold": 120, "severity": "critical"}, made.pk)
    alerts.judge(NOW + 60 * S)
    assert (body()["threshold"], body()["severity"], body()["reason"]) == (120, "critical", "reminder")


def test_what_rules_query_is_read_once_however_many_rules_there_are(rule, django_assert_max_num_queries):
    bury(10)
    of_queues = [metric.name for metric in METRICS.values() if metric.subject is Subject.QUEUE]
    Rule.objects.bulk_create(
        Rule(name=f"r{n} {metric}", metric=metric, queue="*" if metric == "unreachable" else f"q{n}*", threshold=0.9)
        for n in range(10)
        for metric in (*of_queues, "unreachable")
    )
    with django_assert_max_num_queries(6 + len(of_queues)):
        alerts.judge(NOW)


def test_the_alerts_page_counts_groups_as_its_notice_does(rule):
    """Not the attempts that failed, of which a job may have several, nor what the group counts in other queues."""
    rule(for_s=0, threshold=100, keep_firing_s=0)
    slow = group("TimeoutError")
    bury(334, group=slow), bury(60, group=slow, queue="orders")
    Group.objects.filter(pk=slow.pk).update(count=394)
    GroupCounter.objects.create(group=slow, step=60, at=NOW, failed=334, retried=60)
    alerts.judge(NOW)
    (top,) = body()["top_groups"]
    alert = Alert.objects.get()
    (shown,) = alerts.groups_behind(alert)
    assert (shown.count, shown.title, shown.fingerprint) == (top["count"], top["title"], "v1-TimeoutError") == (
        334, "TimeoutError: gone", "v1-TimeoutError",
    )  # fmt: skip
    Failure.objects.filter(queue="emails").update(state="recovered")
    alerts.judge(NOW + 10 * S)
    alert.refresh_from_db()
    assert alert.state == "resolved" and [one.count for one in alerts.groups_behind(alert)] == [334]


def test_groups_of_an_alert_are_of_its_own_queue_where_its_notice_covers_several(rule):
    rule(for_s=0, threshold=5)
    shared, other = group("TimeoutError"), group("CardDeclined")
    bury(7, group=shared, queue="webhooks"), bury(20, group=shared, queue="payments")
    bury(30, group=other, queue="payments")
    alerts.judge(NOW)
    mine = Alert.objects.get(subject="webhooks")
    assert [(one.title, one.count) for one in alerts.groups_behind(mine)] == [("TimeoutError: gone", 7)]
    assert [one["count"] for one in body()["top_groups"]] == [30, 27]


def test_groups_of_an_alert_on_a_tenant_are_those_of_its_jobs(rule):
    rule(for_s=0, threshold=5, tenant="acme")
    slow, other = group("TimeoutError"), group("CardDeclined")
    bury(7, group=slow, tenant="acme"), bury(20, group=slow, tenant="bob"), bury(30, group=other, tenant="bob")
    alerts.judge(NOW)
    assert [(one.title, one.count) for one in alerts.groups_behind(Alert.objects.get())] == [("TimeoutError: gone", 7)]
    assert [one["count"] for one in body()["top_groups"]] == [7]


def test_a_notice_of_the_quarantine_opens_its_jobs_and_drafts_no_replay(rule):
    rule(for_s=0, metric="quarantined", threshold=0)
    bury(1, state="quarantined")
    alerts.judge(NOW)
    message = wording.build_text(Notice.objects.get())
    assert message.links[0] == ("Open quarantined jobs", body()["failures_url"])
    assert [words for words, _ in message.links] == ["Open quarantined jobs", "Open alert"]
    assert body()["replay_url"] == "" and "state%3Aquarantined" in body()["failures_url"]
