"""Episodes: from a depth over the threshold to the notices of it."""

from __future__ import annotations

import itertools
import json
from importlib import import_module

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import connection

from jobs_admin import alerts
from jobs_admin.alerts import measuring, narrowing, places
from jobs_admin.alerts.measuring import Measured
from jobs_admin.core import keys
from jobs_admin.models import (
    Alert,
    AlertEvent,
    Channel,
    DepthSample,
    Failure,
    Group,
    GroupAlias,
    Notice,
    Pause,
    QueueCounter,
    Role,
    Rule,
    SavedView,
    Source,
)  # fmt: skip
from jobs_admin.models.access import Viewer
from jobs_admin.queues import liveness
from tests.kit.alerts import NOW, S, create_alert, judged
from tests.kit.breakers import create_policy, opened
from tests.kit.breakers import store as put
from tests.kit.counts import bury
from tests.kit.depths import build_sample
from tests.kit.people import ANN, SAM

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
FIRES = {"for_s": 0, "keep_firing_s": 0, "threshold": 5}


def recover(n=None, **which):
    """`n` dead jobs, or all, succeeded."""
    found = Failure.objects.filter(**which, state="dead").values("pk")
    Failure.objects.filter(pk__in=found[:n] if n is not None else found).update(state="recovered")


def states():
    return dict(Alert.objects.order_by("subject").values_list("subject", "state"))


def notices_sent():
    return [(n.key.rpartition("-")[2], n.type, n.body["reason"]) for n in Notice.objects.order_by("pk")]


def test_an_episode_is_pending_then_fires_then_is_over_and_is_reported_twice(rule):
    rule(for_s=60, keep_firing_s=30)
    bury(101)
    judged(0, 30)
    assert states() == {"emails": "pending"} and notices_sent() == []
    judged(60, 65)
    assert states() == {"emails": "firing"}
    recover(50)
    judged(70, 95)
    assert states() == {"emails": "firing"}
    judged(100)
    assert states() == {"emails": "resolved"}
    assert notices_sent() == [("1", "alert.firing", "fired"), ("2", "alert.resolved", "resolved")]
    events = AlertEvent.objects.order_by("n")
    assert [(e.n, e.to, e.value, bool(e.notice)) for e in events] == [
        (1, "pending", 101, False), (2, "firing", 101, True), (3, "resolved", 51, True),
    ]  # fmt: skip
    assert events[2].reason == "At 51, at or below 100 for 30 s."
    one = Alert.objects.get()
    assert (one.peak, one.opened_at, one.fired_at, one.resolved_at) == (101, NOW, NOW + 60 * S, NOW + 100 * S)


def test_what_passes_before_it_fires_leaves_nothing(rule):
    rule()
    bury(101)
    judged(0)
    recover()
    judged(30)
    assert not Alert.objects.exists() and notices_sent() == []


def test_flapping_by_one_for_ten_minutes_is_reported_at_most_twice_and_a_breach_after_it_in_time(rule):
    rule(for_s=60, keep_firing_s=120)
    bury(101)
    flapping = Failure.objects.order_by("-pk").values_list("pk", flat=True)[0]
    for second in range(600):
        Failure.objects.filter(pk=flapping).update(state="recovered" if second % 2 else "dead")
        judged(second)
    assert len(notices_sent()) <= 2
    bury(50)
    judged(*range(600, 680))
    assert Notice.objects.filter(type="alert.firing", created_at__isnull=False).exists()
    assert Alert.objects.get(state="firing").fired_at <= NOW + (600 + 60 + 15) * S


def test_several_queues_of_a_source_are_reported_in_one_notice_and_end_in_one(rule):
    rule(**FIRES)
    bury(10), bury(30, queue="webhooks"), bury(20, source="bank")
    judged(0)
    assert notices_sent() == [("1", "alert.firing", "fired")]
    body = Notice.objects.get().body
    assert (body["queue"], body["value"], [(o["queue"], o["value"]) for o in body["also"]]) == (
        "webhooks", 30, [("emails", 10)],
    )  # fmt: skip
    assert "and 1 more: emails 10" in body["message"]
    recover(queue="webhooks")
    judged(5)
    assert len(notices_sent()) == 1  # one of them goes on
    recover()
    judged(10)
    assert notices_sent()[1:] == [("2", "alert.resolved", "resolved")]
    assert len({n.body["dedup_key"] for n in Notice.objects.all()}) == 1


def test_what_joins_later_is_reported_under_the_same_key_and_the_first_may_end_before(rule):
    rule(**FIRES)
    bury(10)
    judged(0)
    bury(10, queue="webhooks")
    judged(5)
    recover(queue="emails")
    judged(10)
    assert notices_sent() == [("1", "alert.firing", "fired"), ("2", "alert.firing", "joined")]
    recover()
    judged(15)
    keys = [n.key for n in Notice.objects.order_by("pk")]
    first = Alert.objects.get(subject="emails")
    assert keys == [f"alert-{first.pk}-{n}" for n in (1, 2, 3)] and notices_sent()[2][1] == "alert.resolved"
    bury(10)
    judged(20)
    assert Notice.objects.latest("pk").key.endswith("-1")  # another story


def test_many_that_join_one_by_one_are_reported_a_few_times_and_then_once_a_minute_but_all_are_reported(rule):
    rule(**FIRES)
    for n in range(60):
        bury(6, queue=f"q{n:02}")
        judged(5 * n)
    assert len(notices_sent()) <= 5 + 5
    recover()
    judged(400)
    fired = AlertEvent.objects.filter(to="firing")
    assert fired.count() == 60 and not fired.filter(notice=None).exists()
    assert notices_sent()[-1][1] == "alert.resolved" and len(notices_sent()) <= 11


def test_two_watches_at_once_make_one_episode_and_one_notice(rule):
    rule(**FIRES)
    bury(10)
    judged(0, 0, 1, 2)
    recover()
    judged(5, 5, 6)
    assert len(notices_sent()) == 2 and AlertEvent.objects.count() == 2


def test_a_watch_that_paused_changes_nothing_with_what_it_read(rule):
    rule(**FIRES)
    bury(10)
    judged(20)
    before = list(Alert.objects.values())
    recover()
    judged(15, 20)  # what it read is older than what is known
    assert list(Alert.objects.values()) == before
    alerts.judge(NOW + 25 * S, clock=lambda: NOW + 60 * S)  # it was frozen before it could write
    assert list(Alert.objects.values()) == before
    alerts.judge(NOW + 25 * S, clock=lambda: NOW + 26 * S)
    assert states() == {"emails": "resolved"}


def test_an_old_check_opens_no_episode_after_a_younger_one_ended_it(rule):
    rule(**FIRES)
    bury(10)
    judged(0)
    recover()
    judged(10)
    bury(10)
    judged(5)
    assert states() == {"emails": "resolved"} and len(notices_sent()) == 2


def test_a_clock_that_was_set_back_goes_on_judging(rule):
    rule(**FIRES)
    bury(10)
    judged(3600)
    recover()
    judged(0)
    assert states() == {"emails": "resolved"}


def test_after_the_clock_was_set_back_by_an_hour_what_waits_fires_and_what_fires_ends_in_time(rule):
    rule(for_s=60, keep_firing_s=30, threshold=5, renotify_s=60)
    bury(10, queue="fires")
    judged(3600 - 60, 3600)
    bury(10)
    recover(queue="fires")
    judged(3605)
    assert states() == {"emails": "pending", "fires": "firing"}
    judged(0, 30)
    assert states() == {"emails": "pending", "fires": "resolved"}
    judged(60)
    assert states() == {"emails": "firing", "fires": "resolved"}
    before = len(notices_sent())
    judged(65, 200)
    assert len(notices_sent()) > before  # reminders too


@pytest.mark.server
def test_a_rule_that_cannot_be_judged_ends_no_other_ones_judging_and_is_reported_once_and_shown(rule, caplog, store):
    bad = rule(**FIRES, name="bad", queue="emails")
    rule(**FIRES, name="good", queue="webhooks")
    one = create_alert(bad, source="shop", subject="emails")
    values = {"type": "alert.firing", "severity": "info", "source": "shop", "body": {}}
    Notice.objects.create(key=f"alert-{one.pk}-1", alert=one, **values)
    Notice.objects.create(key=f"alert-{one.pk}-2", **values)  # of another alert of this number, in a restored table
    bury(10, queue="webhooks")
    judged(5, 10, 15)
    assert Alert.objects.get(rule__name="good").state == "firing"
    assert len([one for one in caplog.messages if "“bad” could not be judged" in one]) == 1
    assert list(liveness.unjudged_rules()) == ["bad"]
    Notice.objects.filter(alert=None).delete()
    judged(20)
    assert Alert.objects.get(rule__name="bad").state == "resolved"


def test_the_rule_on_quarantine_of_a_new_desk_does_not_flap(db):
    found = import_module("jobs_admin.migrations.0010_alerts_and_history")
    Rule.objects.all().delete()
    found._begin(apps, connection.schema_editor())
    bury(1, state="quarantined")
    pk = Failure.objects.get().pk
    for n in range(120):
        Failure.objects.filter(pk=pk).update(state="recovered" if n % 2 else "quarantined")
        judged(5 * n)
    assert len(notices_sent()) <= 2 and notices_sent()[0] == ("1", "alert.firing", "fired")


def test_what_is_left_open_of_a_rule_that_is_gone_or_switched_off_is_closed_and_reported_once(rule):
    made, off = rule(**FIRES), rule(**FIRES, name="off")
    bury(10)
    judged(0)
    Rule.objects.filter(pk=made.pk).update(deleted_at=NOW, enabled=False)
    Rule.objects.filter(pk=off.pk).update(enabled=False)
    judged(5, 10)
    assert set(Alert.objects.values_list("state", flat=True)) == {"resolved"}
    assert sorted(AlertEvent.objects.filter(to="resolved").values_list("reason", flat=True)) == [
        "The rule was deleted.", "The rule was disabled.",
    ]  # fmt: skip
    assert [kind for _, kind, _ in notices_sent()].count("alert.resolved") == 2


def test_alerts_on_a_source_that_was_taken_out_of_the_configuration_are_over_with_that_reason(rule):
    watching(rule, "unreachable", 60)
    watching(rule, "oldest_dead_s", 60, name="old", no_data="fire")
    watching(rule, "dead", 5, name="dead")
    shop = {"is_reachable": False, "changed_at": NOW - 90 * S, "sampled_at": NOW}
    Source.objects.create(name="shop", is_configured=True, is_reachable=True, sampled_at=NOW, changed_at=NOW - 90 * S)
    DepthSample.objects.create(source="shop", queue="emails", at=NOW, dead=10, oldest_dead_at=NOW - 90 * S)
    bury(10)
    judged(0)
    Source.objects.update(**shop)
    judged(5)
    assert Alert.objects.filter(state="firing").count() == 3
    assert Alert.objects.exclude(held_because="").count() == 2
    Source.objects.update(is_configured=False)
    judged(65, 70, 400)
    by_rule = dict(Alert.objects.values_list("rule__name", "state"))
    assert by_rule == {"Too many dead": "resolved", "old": "resolved", "dead": "firing"}  # its dead jobs are still here
    over = AlertEvent.objects.filter(to="resolved").values_list("reason", flat=True)
    assert set(over) == {"shop was removed from the configuration."} and len(over) == 2
    assert not Alert.objects.filter(state="firing").exclude(held_because="").exists()


def test_what_a_rule_does_not_check_any_more_is_closed_by_the_next_round(rule):
    made = rule(**FIRES)
    bury(10)
    judged(0)
    Rule.objects.filter(pk=made.pk).update(queue="webhooks")
    judged(5)
    assert states() == {"emails": "resolved"} and notices_sent()[1:] == [("2", "alert.resolved", "resolved")]


def test_an_unreachable_source_that_no_one_checked_for_a_minute_holds_nothing(rule):
    rule(**FIRES)
    Source.objects.create(name="shop", is_configured=True, is_reachable=False, sampled_at=NOW, changed_at=NOW)
    bury(10)
    judged(55)
    assert states() == {"emails": "pending"}
    judged(65)
    assert states() == {"emails": "firing"}


def test_while_a_source_cannot_be_reached_its_depths_neither_fire_nor_end(rule):
    rule(**FIRES | {"for_s": 30})
    shop = Source.objects.create(name="shop", is_configured=True, is_reachable=True, sampled_at=NOW, changed_at=NOW)
    bury(10)
    judged(0, 30)
    Source.objects.filter(pk=shop.pk).update(is_reachable=False)
    recover()
    bury(10, queue="webhooks")
    judged(35, 40)
    Source.objects.filter(pk=shop.pk).update(sampled_at=NOW + 195 * S)
    judged(200)
    assert states() == {"emails": "firing", "webhooks": "pending"}
    assert set(Alert.objects.values_list("held_because", flat=True)) == {
        "shop has been unreachable since 02:00 UTC: the depths of its queues are unknown."
    }
    Source.objects.filter(pk=shop.pk).update(is_reachable=True)
    judged(205)
    assert states() == {"emails": "resolved", "webhooks": "firing"}
    assert list(AlertEvent.objects.filter(alert__subject="emails").order_by("n").values_list("to", flat=True)) == [
        "pending", "firing", "firing", "resolved",
    ]  # fmt: skip


def test_dead_jobs_of_a_queue_whose_jobs_a_breaker_or_a_pause_holds_are_no_news(rule, store):
    rule(**FIRES | {"queue": "webhooks"})
    create_policy(task="shop.send")
    put(store, opened(at=NOW.timestamp()))
    bury(10, queue="webhooks", task="shop.send", failed_at=NOW)
    bury(5, queue="webhooks", task="shop.other", failed_at=NOW)
    judged(0, 30)
    assert states() == {"webhooks": "pending"} and not Notice.objects.exists()
    assert Alert.objects.get().held_because == "Breaker partner is open: jobs are held."
    bury(1, queue="webhooks", task="shop.other", failed_at=NOW)  # more than the threshold died of what starts
    judged(60)
    assert states() == {"webhooks": "firing"} and Alert.objects.get().held_because == ""
    pause_webhooks()
    judged(90)
    assert Alert.objects.get().held_because == "This queue is paused: its jobs are held."
    recover()
    judged(120)  # no pause keeps it open
    assert states() == {"webhooks": "resolved"}


def pause_webhooks():
    Pause.objects.create(source="shop", queue="webhooks", reason="x", created_at=NOW, created_by="sam")


@pytest.mark.parametrize(
    "start",
    ["by a more particular policy", "as the guard is off", "in a worker without the guard", "anyway, in some worker"],
)
def test_dead_jobs_that_no_worker_holds_are_news(rule, store, start):
    rule(**FIRES | {"queue": "webhooks"})
    bury(10, queue="webhooks", failed_at=NOW + 20 * S if start.startswith(("in", "any")) else NOW)
    if start.startswith("in"):
        pause_webhooks()
        build_sample(NOW, queue="webhooks", workers=1, guarded_workers=1).save()
        judged(0)
        assert Alert.objects.get().held_because == "This queue is paused: its jobs are held."
        build_sample(NOW + 25 * S, queue="webhooks", workers=2, guarded_workers=1).save()
    else:
        create_policy("default")
        if start.startswith("by"):
            create_policy("other", queue="webhooks")
        put(store, opened("default", at=NOW.timestamp()))
        if start.startswith("as"):
            store.set(keys.switch(), "drain")
    judged(30)
    assert states() == {"webhooks": "firing"}


def test_a_silence_keeps_quiet_what_fires_and_when_it_ends_that_is_reported(rule):
    rule(**FIRES)
    alerts.silence(SAM, {"source": "shop", "queue": "em*"}, ends_at=NOW + 60 * S, comment="known", now=NOW)
    bury(10)
    judged(0, 30)
    assert states() == {"emails": "silenced"} and notices_sent() == []
    assert AlertEvent.objects.get().reason == "Silenced by sam until 22 Nov 02:01 UTC: known"
    judged(60)
    assert states() == {"emails": "firing"} and notices_sent() == [("1", "alert.firing", "fired")]


def test_what_was_reported_before_a_silence_is_reported_again_after_it_and_ends_in_any_case(rule):
    rule(**FIRES)
    bury(10)
    judged(0)
    alerts.silence(SAM, {"source": "shop"}, ends_at=NOW + 60 * S, comment="known", now=NOW)
    judged(5, 60)
    assert [r for _, _, r in notices_sent()] == ["fired", "silence ended"]
    alerts.silence(SAM, {"source": "shop"}, ends_at=NOW + 600 * S, comment="known", now=NOW + 61 * S)
    judged(65)
    recover()
    judged(70)
    assert [r for _, _, r in notices_sent()][2:] == ["resolved"]  # the pager would ring for ever


def test_what_began_and_ended_in_silence_is_never_reported(rule):
    rule(**FIRES)
    alerts.silence(ANN, {"rule": "Too*"}, ends_at=NOW + 60 * S, comment="known", now=NOW)
    bury(10)
    judged(0)
    recover()
    judged(5)
    assert states() == {"emails": "resolved"} and notices_sent() == []


def test_no_one_acknowledges_so_others_are_reported_once_and_reminders_come(rule):
    Channel.objects.bulk_create(Channel(name=name, kind="webhook") for name in ("pager", "boss"))
    rule(**FIRES, renotify_s=300, escalate_s=600, channels=["pager"], escalate_to=["boss"])
    bury(10)
    judged(0, 295, 300, 595, 600, 700, 905)
    assert notices_sent() == [
        ("1", "alert.firing", "fired"), ("2", "alert.firing", "reminder"), ("3", "alert.firing", "reminder"),
        ("4", "alert.firing", "escalated"), ("5", "alert.firing", "reminder"),
    ]  # fmt: skip
    went = [[c.name for c in n.channels.all()] for n in Notice.objects.order_by("pk")]
    assert went == [["pager"], ["pager"], ["pager"], ["boss"], ["pager"]]
    assert Notice.objects.order_by("pk")[3].body["message"].startswith("Not acknowledged for 10 min: emails has")


def test_acknowledging_stops_reminders_and_escalation(rule):
    rule(**FIRES, renotify_s=300, escalate_s=600)
    bury(10)
    judged(0)
    alerts.acknowledge(ANN, Alert.objects.get().pk)
    judged(300, 600, 1200)
    assert len(notices_sent()) == 1 and states() == {"emails": "acknowledged"}
    recover()
    judged(1205)
    assert states() == {"emails": "resolved"} and len(notices_sent()) == 2


def test_a_rule_that_is_deleted_reports_the_end(rule):
    made = rule(**FIRES)
    bury(10)
    judged(0)
    alerts.delete_rule(ANN, made.pk)
    assert notices_sent()[1:] == [("2", "alert.resolved", "resolved")]
    assert Notice.objects.latest("pk").body["message"].endswith("Rule deleted by ann.")
    judged(5)
    assert len(notices_sent()) == 2


def test_open_alerts_of_a_rule_are_bounded_and_what_is_left_out_is_counted(rule, monkeypatch):
    monkeypatch.setattr(places, "MOST_OPEN", 10)
    rule(**FIRES)
    for n in range(30):
        bury(6 + n, queue=f"q{n:02}")
    judged(0)
    assert Alert.objects.count() == 10 and Alert.objects.filter(subject="q29").exists()
    body = Notice.objects.get().body
    assert (body["queue"], body["more"], len(body["also"])) == ("q29", 20, 9)


def test_a_source_that_is_full_takes_no_other_sources_places(rule, monkeypatch):
    monkeypatch.setattr(places, "MOST_OPEN", 5)
    rule(**FIRES, source="*")
    for n in range(9):
        bury(6, source="noisy", queue=f"q{n}")
    judged(0)
    bury(50)
    judged(5)
    assert Alert.objects.get(source="shop").state == "firing"
    assert Alert.objects.filter(source="noisy").count() == 5
    assert set(Notice.objects.values_list("source", flat=True)) == {"noisy", "shop"}


def test_nor_do_many_full_sources_leave_one_without_a_place(rule, monkeypatch):
    monkeypatch.setattr(places, "MOST_OPEN", 5)
    monkeypatch.setattr(places, "MOST_OF_RULE", 10)
    rule(**FIRES, source="*")
    for n in range(20):
        bury(6, source=f"s{n % 4}", queue=f"q{n}")
    judged(0)
    assert Alert.objects.count() == 8
    bury(50)
    judged(5)
    assert Alert.objects.get(source="shop").state == "firing"


def test_in_a_full_source_what_is_far_worse_takes_the_place_of_the_least_and_no_place_changes_twice(rule, monkeypatch):
    monkeypatch.setattr(places, "MOST_OPEN", 5)
    rule(**FIRES)
    for n in range(5):
        bury(7 + n, queue=f"q{n}")
    judged(0)
    bury(8, queue="little"), bury(5000, queue="worst")
    judged(5, 10, 15)
    assert states() == dict.fromkeys(["q1", "q2", "q3", "q4", "worst"], "firing") | {"q0": "resolved"}
    gone = AlertEvent.objects.get(alert__subject="q0", to="resolved")
    assert gone.reason.startswith("Replaced by worst, which is far worse")
    assert notices_sent() == [("1", "alert.firing", "fired"), ("2", "alert.firing", "joined")]
    last = Notice.objects.latest("pk").body
    assert (last["queue"], last["value"], last["left_out"]) == ("worst", 5000, 2)
    recover()
    judged(20)
    assert notices_sent()[2:] == [("3", "alert.resolved", "resolved")]


def test_how_many_are_left_out_is_reported_once_and_again_when_they_have_doubled(rule, monkeypatch):
    monkeypatch.setattr(places, "MOST_OPEN", 5)
    rule(**FIRES)
    for n in range(5):
        bury(50, queue=f"q{n}")
    judged(0)
    bury(50, queue="sixth")
    judged(5, 10, 15)
    bury(50, queue="seventh")
    judged(20, 25)
    bury(50, queue="eighth")
    judged(30, 35)
    assert [n.body["left_out"] for n in Notice.objects.order_by("pk")] == [0, 1, 2]


def test_what_is_silenced_keeps_no_place_from_what_is_not(rule, monkeypatch):
    monkeypatch.setattr(places, "MOST_OPEN", 5)
    rule(**FIRES)
    alerts.silence(SAM, {"source": "shop", "queue": "q*"}, ends_at=NOW + 600 * S, comment="known", now=NOW)
    for n in range(9):
        bury(50, queue=f"q{n}")
    judged(0)
    bury(6)
    judged(5, 10)
    assert Alert.objects.get(subject="emails").state == "firing" and notices_sent() == [("1", "alert.firing", "fired")]


def test_hostile_names_keep_the_notice_below_its_bound(rule):
    rule(**FIRES, task="*", runbook_url="https://run.example/")
    for n in range(30):
        bury(6, queue=("💥\u202e\n<script>" * 20)[:190] + str(n), task="ü" * 255)
    judged(0)
    notice = Notice.objects.get()
    assert len(json.dumps(notice.body)) < 20_000 - 500 and notice.body["replay_url"].startswith("http")
    assert "\n" not in notice.body["message"] and "\u202e" not in notice.body["message"]


# -- the metrics ----------------------------------------------------------------------------------------------------


def watching(rule, metric, threshold, **fields):
    rule(metric=metric, threshold=threshold, for_s=0, keep_firing_s=0, **fields)


def values():
    return {(a.source, a.subject): a.value for a in Alert.objects.all()}


def test_what_a_replay_has_sent_still_counts_as_dead(rule):
    watching(rule, "dead", 5)
    bury(10)
    judged(0)
    Failure.objects.update(state="replaying")
    judged(5)
    assert values() == {("shop", "emails"): 10} and states() == {"emails": "firing"}


@pytest.mark.parametrize("narrow", [{"task": "shop.*"}, {"tenant": "acme"}, {"task": "shop.*", "tenant": "acme"}])
def test_nor_does_a_narrow_count_dip_between_two_attempts_of_a_replay(rule, narrow):
    watching(rule, "dead", 5, **narrow)
    bury(10, task="shop.send", tenant="acme")
    judged(0)
    Failure.objects.filter(pk__in=Failure.objects.values("pk")[:6]).update(state="retrying", run=2)
    judged(5)
    assert values() == {("shop", "emails"): 10} and states() == {"emails": "firing"}
    Failure.objects.update(run=1)  # a job that its worker retries has not died
    judged(10)
    assert states() == {"emails": "resolved"}


def test_dead_jobs_of_a_task_a_group_or_a_tenant(rule):
    watching(rule, "dead", 2, task="shop.*")
    watching(rule, "dead", 3, task="*", tenant="acme", name="of acme")
    bury(3, task="shop.send"), bury(9, task="other", queue="webhooks"), bury(4, task="other", tenant="acme", queue="x")
    judged(0)
    found = {(a.rule.name, a.subject): a.value for a in Alert.objects.select_related("rule")}
    assert found == {("Too many dead", "emails"): 3, ("of acme", "x"): 4}


def test_what_many_narrow_rules_query_is_read_once_and_is_the_same_as_requested_one_by_one(
    rule, monkeypatch, django_assert_max_num_queries
):
    groups = [Group.objects.create(fingerprint=f"{n}a{n}", first_seen=NOW, last_seen=NOW) for n in range(3)]
    GroupAlias.objects.create(fingerprint="old1", group=groups[1])
    for n in range(30):
        bury(1 + n % 4, queue=f"q{n % 5}", task=f"shop.t{n % 7}", group=groups[n % 4] if n % 4 < 3 else None)
    Failure.objects.filter(pk__in=Failure.objects.order_by("pk").values("pk")[:5]).update(state="retrying", run=2)
    Failure.objects.filter(pk__in=Failure.objects.order_by("-pk").values("pk")[:9]).update(state="quarantined")
    some = [
        Rule(name=str(n), metric=metric, task=task, group=group, threshold=0, no_data="keep")
        for n, (metric, task, group) in enumerate(
            itertools.product(
                ("dead", "quarantined"), ("*", "shop.t1", "shop.*", "*3", "no"), ("*", "0a0", "*a*", "old1", "o*", "no")
            )
        )
        if (task, group) != ("*", "*")
    ]
    with django_assert_max_num_queries(8):
        measured = Measured(NOW)
        together = [dict(measured.read(one)) for one in some]
    monkeypatch.setattr(narrowing, "MOST_KINDS", 0)
    assert together == [dict(Measured(NOW).read(one)) for one in some] and sum(map(len, together)) > 50


def test_of_a_tenant_only_what_the_rule_checks_is_counted_towards_the_bound(rule, monkeypatch):
    monkeypatch.setattr(measuring, "MOST_ONE_BY_ONE", 10)
    watching(rule, "dead", 5, tenant="acme", queue="emails")
    bury(50, queue="other", tenant="acme"), bury(8, tenant="acme")
    judged(0)
    assert values() == {("shop", "emails"): 8}


def test_growth_is_of_five_minutes_of_samples_and_is_held_by_a_replay(rule):
    watching(rule, "growth_per_minute", 10)
    for back, dead in ((300, 100), (0, 200)):
        DepthSample.objects.create(source="shop", queue="emails", at=NOW - back * S, dead=dead)
    DepthSample.objects.create(source="shop", queue="new", at=NOW, dead=60)
    judged(0)
    assert values() == {("shop", "emails"): 20, ("shop", "new"): 12}
    QueueCounter.objects.create(source="shop", queue="emails", at=NOW.replace(second=0), sent=5)
    DepthSample.objects.filter(at=NOW).update(dead=0)
    judged(5)
    assert states() == {"emails": "firing", "new": "resolved"}
    assert "replay" in Alert.objects.get(subject="emails").held_because


def test_the_age_of_the_oldest_dead_job(rule):
    watching(rule, "oldest_dead_s", 3600)
    DepthSample.objects.create(source="shop", queue="emails", at=NOW, dead=1, oldest_dead_at=NOW - 7200 * S)
    judged(0)
    assert values() == {("shop", "emails"): 7200}
    assert Notice.objects.get().body["message"] == ("emails has a job that has been dead for 2 h (threshold: 1 h)")


def test_rates_are_shares_and_too_few_jobs_report_nothing(rule):
    watching(rule, "failure_rate", 0.5)
    watching(rule, "retry_rate", 0.25, name="retries")
    at = NOW.replace(second=0) - 60 * S
    QueueCounter.objects.create(source="shop", queue="emails", at=at, failed=6, succeeded=4, retried=10)
    QueueCounter.objects.create(source="shop", queue="few", at=at, failed=9)
    judged(0)
    assert {(a.rule.metric, a.subject): a.value for a in Alert.objects.select_related("rule")} == {
        ("failure_rate", "emails"): 0.6, ("retry_rate", "emails"): 0.5,
    }  # fmt: skip
    assert (
        "emails loses 60 % of its jobs (threshold: 50 %)"
        in Notice.objects.get(alert__rule__metric="failure_rate").body["message"]
    )


def test_jobs_in_quarantine(rule):
    watching(rule, "quarantined", 0)
    bury(2, state="quarantined")
    judged(0)
    assert values() == {("shop", "emails"): 2}
    assert Notice.objects.get().body["message"].startswith("emails has 2 jobs in quarantine (threshold: 0)")


def test_seconds_for_which_a_source_cannot_be_reached(rule):
    watching(rule, "unreachable", 60)
    Source.objects.create(name="shop", is_configured=True, is_reachable=False, changed_at=NOW - 90 * S, sampled_at=NOW)
    judged(0)
    assert values() == {("shop", ""): 90}
    assert Notice.objects.get().body["message"] == "shop has been unreachable for 1 min 30 s (threshold: 1 min)"
    Source.objects.update(is_reachable=True, changed_at=NOW + 4 * S)
    judged(5)
    assert states() == {"": "resolved"}


def test_no_one_samples_is_no_data_and_the_rule_reports_what_that_means(rule):
    watching(rule, "unreachable", 60, no_data="fire")
    Source.objects.create(name="shop", is_configured=True, is_reachable=True, sampled_at=NOW - 600 * S)
    judged(0)
    assert states() == {"": "firing"}


@pytest.mark.server
def test_how_long_reports_wait(rule, store):
    watching(rule, "ingest_lag_s", 60, source="*")
    for source in ("shop", "evil"):
        Source.objects.get_or_create(name=source)
    store.xadd(keys.failures("shop"), {"x": "1"}, id=f"{int((NOW - 90 * S).timestamp() * 1000)}-0")
    store.xadd(keys.failures("evil"), {"x": "1"}, id="1-1")
    judged(0)
    assert values() == {("shop", ""): 90}


def test_a_view_is_counted_with_the_eyes_of_its_owner(rule, monkeypatch):
    monkeypatch.setattr(measuring, "VIEWS_S", 60)  # on a busy machine the second has its turn in the next round
    owner = get_user_model().objects.create(username="olga")
    Role.objects.create(user=owner, source="shop", role="operator")
    view = SavedView.objects.create(name="slow", query="state:dead task:send", owner=owner, is_shared=True)
    olga = Viewer("olga", {"shop": "operator"}, user_id=owner.pk)
    rule(olga, name="slow ones", metric="view", view=view.pk, source="shop", **FIRES)
    rule(name="all slow ones", metric="view", view=view.pk, source="*", **FIRES)
    bury(10), bury(90, source="bank")
    judged(0)
    assert values() == {("shop", "slow"): 10, ("", "slow"): 10}
    assert [a.source for a in alerts.listing(SAM).rows] == ["shop"]  # the other is of several sources


def test_rules_of_one_desk_do_not_hinder_each_other(rule):
    watching(rule, "dead", 5)
    watching(rule, "dead", 5, name="also")
    bury(10)
    judged(0)
    assert Alert.objects.count() == Notice.objects.count() == 2


def ended(at, *, failed=0, succeeded=0, queue="emails"):
    fields = {"source": "shop", "queue": queue, "step": 60, "failed": failed, "succeeded": succeeded}
    QueueCounter.objects.create(at=NOW + at * S, **fields)


def test_a_share_of_a_queue_that_went_quiet_is_over_after_an_hour(rule):
    rule(**FIRES | {"threshold": 0.1, "metric": "failure_rate"})
    ended(-60, failed=20)
    judged(0)
    judged(600, 3300)
    assert states() == {"emails": "firing"}
    judged(3600, 3605)
    assert states() == {"emails": "resolved"}
    assert notices_sent()[-1][1:] == ("alert.resolved", "resolved")


def test_until_then_it_is_judged_by_what_little_ends(rule):
    rule(**FIRES | {"threshold": 0.1, "metric": "failure_rate"})
    ended(-60, failed=20)
    judged(0)
    ended(3300, failed=2, succeeded=2)
    judged(3900)
    assert states() == {"emails": "firing"} and Alert.objects.get().value == 0.5
    ended(4000, succeeded=9)
    judged(7000, 7005)
    assert states() == {"emails": "resolved"}


def test_too_little_begins_nothing_and_a_source_that_does_not_answer_ends_nothing(rule):
    rule(**FIRES | {"threshold": 0.1, "metric": "failure_rate"})
    ended(-60, failed=9)
    judged(0)
    assert states() == {}
    ended(60, failed=9)
    judged(65)
    assert states() == {"emails": "firing"}
    Source.objects.update_or_create(name="shop", defaults={"is_configured": True, "is_reachable": False})
    for second in (4000, 90_000):
        Source.objects.update(sampled_at=NOW + second * S)
        judged(second)
    assert states() == {"emails": "firing"}
