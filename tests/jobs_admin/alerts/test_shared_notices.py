"""Alerts that share a notice, alerts that are an episode of their own, and which is named first."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.alerts import notice_body
from jobs_admin.models import Alert, AlertEvent, Channel, Failure, Notice, Source
from tests.kit.alerts import NOW
from tests.kit.counts import bury
from tests.kit.people import ANN, SAM

pytestmark = pytest.mark.django_db
S = timedelta(seconds=1)
FIRES = {"for_s": 0, "keep_firing_s": 0, "threshold": 0}
DAY = 86_400


def judged(*seconds):
    for at in seconds:
        alerts.judge(NOW + at * S)


def recover(**which):
    Failure.objects.filter(**which, state="dead").update(state="recovered")


def notices_sent():
    return [(n.body["queue"], n.body["reason"]) for n in Notice.objects.order_by("pk")]


def acknowledge(subject):
    alerts.acknowledge(ANN, Alert.objects.get(subject=subject).pk)


def test_what_joins_is_named_first_however_much_was_reported_before(rule):
    rule(**FIRES)
    for n in range(30):
        bury(50, queue=f"old{n:02}")
    judged(0)
    bury(1, queue="payments"), bury(2, queue="refunds")
    judged(5)
    body = Notice.objects.latest("pk").body
    assert (body["reason"], body["queue"], body["value"]) == ("joined", "refunds", 2)
    assert body["also"][0]["queue"] == "payments" and body["message"].startswith("refunds has 2 dead jobs")
    assert "payments 1, old" in body["message"] and body["more"] == 31 - 20
    query = parse_qs(urlsplit(body["replay_url"]).query)["q"][0]
    assert "queue:refunds,payments " in query


def test_who_is_silenced_does_not_speak_and_what_is_taken_comes_last(rule):
    rule(**FIRES)
    bury(9, queue="quiet"), bury(8, queue="taken"), bury(2, queue="new"), bury(1, queue="still")
    alerts.judge(NOW)
    Alert.objects.filter(subject="taken").update(state="acknowledged")
    alerts.silence(SAM, {"source": "shop", "queue": "quiet"}, ends_at=NOW + DAY * S, comment="known", now=NOW)
    bury(1, queue="later")
    judged(5)
    body = Notice.objects.latest("pk").body
    assert [body["queue"], *(one["queue"] for one in body["also"])] == ["later", "new", "still", "taken"]


def test_who_joins_after_an_escalation_is_escalated_too(rule):
    Channel.objects.bulk_create(Channel(name=name, kind="webhook") for name in ("pager", "boss"))
    rule(**FIRES, escalate_s=60, channels=["pager"], escalate_to=["boss"])
    bury(10)
    judged(0, 60)
    bury(1, queue="payments")
    judged(65, 120, 125, 130, 600)
    assert [reason for _, reason in notices_sent()] == ["fired", "escalated", "joined", "escalated"]
    assert {c.name for c in Notice.objects.latest("pk").channels.all()} == {"boss"}


def test_what_is_not_acknowledged_of_a_notification_is_still_reminded_of_and_escalated(rule):
    rule(**FIRES, renotify_s=300, escalate_s=600)
    bury(1, queue="emails"), bury(1, queue="webhooks")
    judged(0)
    one = Alert.objects.get(subject="emails")
    alerts.acknowledge(ANN, one.pk, only_this=True)
    judged(300, 600)
    assert [reason for _, reason in notices_sent()] == ["fired", "reminder", "reminder", "escalated"]
    alerts.acknowledge(ANN, Alert.objects.get(subject="webhooks").pk)
    judged(900, 1500)
    assert len(notices_sent()) == 4


def test_after_an_undo_reminders_resume_and_escalation_counts_from_it(rule, monkeypatch):
    rule(**FIRES, renotify_s=300, escalate_s=600)
    bury(1, queue="emails"), bury(1, queue="webhooks")
    judged(0)
    one = Alert.objects.get(subject="emails").pk
    monkeypatch.setattr(timezone, "now", lambda: NOW + 20 * S)
    alerts.acknowledge(ANN, one)
    judged(300, 600)
    monkeypatch.setattr(timezone, "now", lambda: NOW + 700 * S)
    alerts.unacknowledge(ANN, one)
    judged(705, 1005, 1295)
    assert [reason for _, reason in notices_sent()] == ["fired", "reminder", "reminder"]
    judged(1300)
    assert [reason for _, reason in notices_sent()][3:] == ["escalated"]


def test_a_story_that_a_person_took_is_not_joined_so_that_the_pager_calls_again(rule):
    rule(**FIRES, escalate_s=60)
    bury(10)
    judged(0, 60)
    acknowledge("emails")
    bury(1, queue="payments")
    judged(DAY, DAY + 55, DAY + 60)
    assert notices_sent() == [
        ("emails", "fired"),
        ("emails", "escalated"),
        ("payments", "fired"),
        ("payments", "escalated"),
    ]
    assert len({n.body["dedup_key"] for n in Notice.objects.all()}) == 2
    recover(queue="payments")
    judged(DAY + 65)
    recover()
    judged(DAY + 70)
    assert notices_sent()[4:] == [("payments", "resolved"), ("emails", "resolved")]


def test_what_fires_an_hour_later_is_a_story_of_its_own_and_each_ends_once(rule):
    rule(**FIRES, renotify_s=86_400)
    bury(10)
    judged(0)
    bury(10, queue="soon")
    judged(3595)
    bury(10, queue="late")
    judged(3595 + 3600)
    bury(10, queue="later")
    judged(3595 + 3605)
    assert notices_sent() == [("emails", "fired"), ("soon", "joined"), ("late", "fired"), ("later", "joined")]
    recover()
    judged(8000)
    keys = Counter(n.key.rpartition("-")[0] for n in Notice.objects.all())
    assert [r for _, r in notices_sent()][4:] == ["resolved", "resolved"] and sorted(keys.values()) == [3, 3]
    assert not AlertEvent.objects.filter(to__in=("firing", "resolved"), notice=None).exists()


def test_stories_that_are_open_together_cost_no_more_queries_each(rule, django_assert_max_num_queries):
    made = rule(**FIRES)
    for n in range(50):
        bury(1, queue=f"q{n:02}")
    judged(0)
    Alert.objects.update(told_with=None, told_at=NOW)
    bury(1, queue="new")
    with django_assert_max_num_queries(95):
        judged(5)
    assert made.alerts.filter(told_with=None).count() == 50 and notices_sent()[-1] == ("new", "fired")


def test_a_silence_of_a_notification_ends_with_its_alerts_and_a_new_alert_notifies(rule):
    rule(**FIRES)
    bury(10), bury(5, queue="sms")
    judged(0)
    leader = Alert.objects.get(subject="emails")
    alerts.silence(ANN, {"alert": leader.pk}, ends_at=NOW + DAY * S, comment="known", now=NOW + S)
    bury(2, queue="payments")
    judged(5)
    assert notices_sent() == [("emails", "fired"), ("payments", "fired")]
    recover(queue="sms")
    judged(10)
    bury(5, queue="sms")
    judged(15)
    assert notices_sent()[2:] == [("sms", "joined")]  # with payments, which no one acknowledged
    assert dict(Alert.objects.order_by("pk").values_list("subject", "state")) == {
        "emails": "silenced",
        "payments": "firing",
        "sms": "firing",
    }


def test_a_long_silence_that_ends_gives_people_their_time_before_it_is_escalated(rule):
    rule(**FIRES, escalate_s=600)
    alerts.silence(SAM, {"source": "shop"}, ends_at=NOW + 7200 * S, comment="known", now=NOW)
    bury(10)
    judged(0, 3600, 7200, 7200 + 595)
    assert [reason for _, reason in notices_sent()] == ["fired"]
    judged(7200 + 600, 7200 + 605)
    assert [reason for _, reason in notices_sent()] == ["fired", "escalated"]


def test_while_it_is_held_the_time_until_escalation_stops(rule):
    rule(**FIRES, escalate_s=600)
    shop = Source.objects.create(name="shop", is_configured=True, is_reachable=True, sampled_at=NOW, changed_at=NOW)
    bury(10)
    judged(0, 300)
    for second in (305, 3000):
        Source.objects.filter(pk=shop.pk).update(is_reachable=False, sampled_at=NOW + second * S)
        judged(second)
    Source.objects.filter(pk=shop.pk).update(is_reachable=True)
    judged(3005, 3295)
    assert [reason for _, reason in notices_sent()] == ["fired"]
    judged(3300)
    assert [reason for _, reason in notices_sent()] == ["fired", "escalated"]


@pytest.mark.parametrize("unit, is_cut", [("a:b/", False), ("ü💥:", True)])
def test_a_link_is_about_as_many_queues_as_fit_and_never_cut(rule, unit, is_cut):
    rule(**FIRES)
    for n in range(20):
        bury(20 - n, queue=unit * (60 if is_cut else 4) + f"{n:02}")
    judged(0)
    body, alert = Notice.objects.get().body, Alert.objects.get(told_with=None)
    for name in ("failures_url", "replay_url"):
        assert len(body[name]) <= notice_body.LONGEST_LINK
        if is_cut:
            assert body[name].endswith(f"/alerts/{alert.pk}/")
        else:
            query = parse_qs(urlsplit(body[name]).query)["q"][0]
            assert "state:dead" in query and "until:" in query and query.count("a:b/a:b/") > 2


def test_reminders_and_escalation_wait_for_no_hour_that_a_clock_was_set_back(rule):
    rule(**FIRES, renotify_s=300, escalate_s=600)
    bury(9)
    judged(3600)
    judged(0, 5, 10)
    assert [reason for _, reason in notices_sent()] == ["fired"]
    judged(300, 600)  # they count from when it was set back
    assert [reason for _, reason in notices_sent()] == ["fired", "reminder", "reminder", "escalated"]


def test_nor_for_one_that_a_silence_stored_before(rule):
    rule(**FIRES, escalate_s=600)
    alerts.silence(SAM, {"source": "shop"}, ends_at=NOW + 3600 * S, comment="known", now=NOW)
    bury(9)
    judged(3595, 3600)
    alerts.end_silence(SAM, alerts.silences(SAM, NOW)[0].pk, now=NOW)
    judged(0, 5, 595)
    assert [reason for _, reason in notices_sent()] == ["fired"]
    judged(600)
    assert [reason for _, reason in notices_sent()] == ["fired", "escalated"]
