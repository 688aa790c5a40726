from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.alerts import Calling
from jobs_admin.alerts.runbooks import for_task
from jobs_admin.alerts.silencing import silenced_by
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.models import Alert, AlertEvent, AuditEvent, Rule
from tests.kit.alerts import NOW, create_alert
from tests.kit.people import ANN, BEA, LOU, SAM
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def test_alerts_are_listed_latest_first_in_pages(rule):
    made = rule()
    created = [create_alert(made, subject=f"q{n}") for n in range(5)]
    first = alerts.listing(ANN, limit=3)
    assert [row.pk for row in first.rows] == [row.pk for row in created[:1:-1]] and first.count == 5
    rest = alerts.listing(ANN, after=first.next, limit=3)
    assert [row.subject for row in rest.rows] == ["q1", "q0"] and rest.next is None


def test_alerts_are_found_by_state_source_queue_and_rule(rule):
    made, other = rule(), rule(name="other")
    create_alert(made), create_alert(other, "resolved", subject="webhooks", resolved_at=NOW)
    found = {
        key: [row.rule.name for row in alerts.listing(ANN, **options).rows]
        for key, options in {
            "open": {"state": "open"}, "over": {"state": "resolved"}, "queue": {"queue": "webhooks"},
            "rule": {"rule": "other"}, "number": {"rule": str(made.pk)}, "none": {"source": "bank"},
        }.items()
    }  # fmt: skip
    assert found == {
        "open": ["Too many dead"], "over": ["other"], "queue": ["other"], "rule": ["other"], "number": ["Too many dead"],
        "none": [],
    }  # fmt: skip


def test_what_is_out_of_sight_is_not_there(rule):
    one = create_alert(rule())
    assert alerts.listing(BEA).rows == [] and alerts.firing(BEA) == [] and alerts.times(BEA, NOW - HOUR).count == 0
    for act in (alerts.get, alerts.acknowledge):
        with pytest.raises(NotFound):
            act(BEA, one.pk)


def test_of_two_who_acknowledge_at_once_one_has_done_it_for_all_reported_together(rule):
    made = rule()
    one = create_alert(made)
    other = create_alert(made, subject="webhooks", told_with=one)
    alerts.acknowledge(SAM, one.pk, "looking")
    with pytest.raises(Refused, match="Already acknowledged by sam at"):
        alerts.acknowledge(ANN, one.pk)
    assert [row.state for row in alerts.listing(ANN).rows] == ["acknowledged"] * 2
    assert [(e.to, e.actor, e.reason) for e in alerts.events(LOU, other)] == [("acknowledged", "sam", "looking")] * 2
    assert AuditEvent.objects.get(act="alert.acknowledge").object == f"alert:{one.pk}"


def test_only_this_one_is_acknowledged_and_the_others_of_its_notification_stay(rule):
    made = rule()
    one = create_alert(made)
    create_alert(made, subject="webhooks", told_with=one), create_alert(made, "silenced", subject="sms", told_with=one)
    assert alerts.count_calling([one]) == {one.pk: Calling(2, 1)}
    assert alerts.acknowledge(SAM, one.pk, only_this=True).changed == [one.pk]
    assert [row.state for row in alerts.listing(ANN).rows] == ["silenced", "firing", "acknowledged"]
    assert alerts.count_calling([one]) == {one.pk: Calling(1, 1)}


def test_an_acknowledgement_leaves_silenced_alerts_of_its_notification_alone(rule):
    made = rule()
    one, other = create_alert(made), create_alert(made, subject="webhooks", told_with=None)
    Alert.objects.filter(pk=other.pk).update(told_with=one)
    quiet = create_alert(made, "silenced", subject="sms", told_with=one)
    assert alerts.count_calling([quiet]) == {quiet.pk: Calling(3, 0)}
    assert alerts.acknowledge(SAM, one.pk).changed == [one.pk, other.pk]
    assert Alert.objects.get(pk=quiet.pk).state == "silenced"
    assert alerts.acknowledge(SAM, quiet.pk).changed == [quiet.pk]


def test_an_acknowledgement_is_undone_for_all_that_it_covered_and_only_by_who_made_it(rule):
    made = rule()
    one = create_alert(made)
    quiet = create_alert(made, subject="sms", told_with=one)
    other = create_alert(made, subject="webhooks", told_with=one)
    alerts.acknowledge(SAM, other.pk, "looking")
    alerts.silence(SAM, {"source": "shop", "queue": "sms"}, ends_at=timezone.now() + HOUR, comment="known")
    with pytest.raises(Refused, match=r"Can’t undo: the alert is acknowledged by sam at .* Nothing was changed\."):
        alerts.unacknowledge(ANN, one.pk)
    with pytest.raises(Refused, match="role operator on shop"):
        alerts.unacknowledge(LOU, one.pk)
    assert alerts.unacknowledge(SAM, one.pk).changed == [one.pk, quiet.pk, other.pk]
    rows = {row.subject: (row.state, row.acknowledged_by, row.acknowledged_at) for row in alerts.listing(ANN).rows}
    assert rows == {"emails": ("firing", "", None), "sms": ("silenced", "", None), "webhooks": ("firing", "", None)}
    last = alerts.events(LOU, other)[-1]
    assert (last.actor, last.reason) == ("sam", "Acknowledgement undone.")
    # Under the alert from which it was acknowledged, so that the undo is found to be one of it.
    assert AuditEvent.objects.get(act="alert.unacknowledge", allowed=True).object == f"alert:{other.pk}"
    with pytest.raises(Refused, match="Can’t undo: the alert is not acknowledged"):
        alerts.unacknowledge(SAM, one.pk)


def test_a_comment_that_reads_like_an_undo_is_none(rule):
    one = create_alert(rule())
    alerts.acknowledge(SAM, one.pk, "Acknowledgement undone.")
    alerts.unacknowledge(SAM, one.pk)
    assert [event.is_undo for event in alerts.events(LOU, one)] == [False, True]


@pytest.mark.postgresql
@pytest.mark.databases
@pytest.mark.django_db(transaction=True)
def test_who_acknowledges_waits_for_the_judge_and_neither_locks_the_other_out(rule):
    made = rule()
    one = create_alert(made)
    other = create_alert(made, subject="webhooks", told_with=one)
    found: list[object] = []

    def acknowledge() -> None:
        try:
            found.append(alerts.acknowledge(SAM, one.pk).changed)
        except Exception as error:
            found.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=acknowledge)
    with transaction.atomic():  # as the judge does, in the order in which it read the alerts
        Rule.objects.select_for_update(of=("self",)).get(pk=made.pk)
        Alert.objects.filter(pk=other.pk).update(value=9)
        thread.start()
        wait_until(_is_one_waiting)
        Alert.objects.filter(pk=one.pk).update(value=9)
    thread.join(60)
    assert found == [[one.pk, other.pk]]


def _is_one_waiting() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = current_database()"
        )
        return cursor.fetchone() is not None


def test_what_was_resolved_meanwhile_stays_resolved_and_where_all_are_nothing_is_undone(rule):
    made = rule()
    one = create_alert(made)
    other = create_alert(made, subject="webhooks", told_with=one)
    alerts.acknowledge(SAM, one.pk)
    Alert.objects.filter(pk=one.pk).update(state="resolved", resolved_at=NOW)
    done = alerts.unacknowledge(SAM, one.pk)
    assert (done.changed, done.others) == ([other.pk], 1)
    alerts.acknowledge(SAM, other.pk)
    Alert.objects.update(state="resolved", resolved_at=NOW)
    with pytest.raises(Refused, match=r"Can’t undo: the alert was resolved at .* Nothing was changed\."):
        alerts.unacknowledge(SAM, other.pk)


@pytest.mark.parametrize("state, words", [("pending", "only firing alerts"), ("resolved", "was resolved at")])
def test_what_does_not_fire_is_not_acknowledged(rule, state, words):
    one = create_alert(rule(), state, resolved_at=NOW if state == "resolved" else None)
    with pytest.raises(Refused, match=words):
        alerts.acknowledge(ANN, one.pk)
    assert not AlertEvent.objects.exists()


def test_a_comment_is_stored_in_full_or_refused(rule):
    one = create_alert(rule())
    with pytest.raises(Refused, match="501 characters; the limit is 500"):
        alerts.acknowledge(ANN, one.pk, "x" * 501)
    alerts.acknowledge(ANN, one.pk, "x" * 500)
    assert AlertEvent.objects.get().reason == AuditEvent.objects.get(act="alert.acknowledge").reason == "x" * 500


def test_a_name_that_is_reported_as_exact_is_no_glob(rule):
    star, other = create_alert(rule(), subject="*"), create_alert(rule(name="other"), subject="emails")
    named = {"source": "shop", "queue": "*", "exact": ["queue"]}
    made = alerts.silence(SAM, named, ends_at=NOW + HOUR, comment="known", now=NOW)
    fits = [silenced_by([made], one, one.rule.name) is not None for one in (star, other)]
    assert fits == [True, False]
    for wrong in (["task"], "queue", [["queue"]], ["rule"]):
        with pytest.raises(Refused, match="exact must be a list"):
            alerts.silence(SAM, named | {"exact": wrong}, ends_at=NOW + HOUR, comment="known", now=NOW)


def test_a_viewer_acknowledges_nothing_and_that_is_written_down(rule):
    one = create_alert(rule())
    with pytest.raises(Refused, match="role operator on shop"):
        alerts.acknowledge(LOU, one.pk)
    assert AuditEvent.objects.filter(act="alert.acknowledge", allowed=False, source="shop").exists()


def test_the_gravest_of_what_fires_is_first_and_medians_are_of_people(rule):
    made, grave = rule(), rule(name="grave", severity="critical")
    create_alert(made, "acknowledged", acknowledged_at=NOW + timedelta(seconds=60)), create_alert(grave)
    create_alert(made, "resolved", subject="x", acknowledged_at=NOW + timedelta(seconds=20), resolved_at=NOW + HOUR)
    assert [row.rule.name for row in alerts.firing(ANN)] == ["grave", "Too many dead"]
    assert alerts.times(ANN, NOW - HOUR) == alerts.Times(40, 3600, 3)


def test_of_equal_severity_those_with_more_jobs_over_the_threshold_come_first(rule):
    made, slow = rule(), rule(name="slow", metric="oldest_dead_s", threshold=60)
    values = {"emails": 268, "webhooks": 1_752, "payments": 761}
    for subject, value in values.items():
        create_alert(made, subject=subject, value=value)
    create_alert(slow, subject="scans", value=90_000, threshold=60)  # seconds are no jobs
    create_alert(made, "acknowledged", subject="reports", value=9_000)
    order = ["webhooks", "payments", "emails", "scans", "reports"]
    assert [one.subject for one in alerts.firing(ANN)] == order
    assert [one.subject for one in alerts.firing(ANN, limit=2)] == order[:2]


def test_alerts_of_one_notification_fold_under_the_worst_and_states_stay_apart(rule):
    made = rule()
    leader = create_alert(made, subject="emails", value=268)
    create_alert(made, subject="webhooks", value=1_752, told_with=leader)
    create_alert(made, subject="payments", value=761, told_with=leader)
    create_alert(made, "acknowledged", subject="reports", value=9_000, told_with=leader)
    create_alert(made, subject="scans", value=900)  # of its own notification
    folds = [(one.lead.subject, [other.subject for other in one.others]) for one in alerts.fold(alerts.firing(ANN))]
    assert folds == [("webhooks", ["payments", "emails"]), ("scans", []), ("reports", [])]


def test_an_alert_on_one_tenants_jobs_folds_under_that_of_their_queue_which_is_as_grave(rule):
    made, poison = rule(), rule(name="Quarantine", metric="quarantined", threshold=0, severity="critical")
    tenant = rule(name="One customer", tenant="lighthouse", severity="critical")
    create_alert(tenant, subject="webhooks", value=300)
    create_alert(tenant, subject="scans", value=200)
    create_alert(poison, subject="reports", value=1, threshold=0)
    create_alert(made, subject="webhooks", value=1_752)
    folds = alerts.fold(alerts.firing(ANN))
    assert [(one.lead.subject, one.lead.value, one.severity) for one in folds] == [
        ("webhooks", 1_752, "critical"), ("scans", 200, "critical"), ("reports", 1, "critical"),
    ]  # fmt: skip
    assert [(one.rule, one.value) for one in folds[0].parts] == [(tenant, 300)] and not folds[0].others


def test_earlier_episodes_report_what_was_done(rule):
    made = rule()
    create_alert(made, "resolved", resolved_at=NOW + HOUR), create_alert(made, "resolved", subject="x", resolved_at=NOW)
    now = create_alert(made, opened_at=NOW + 2 * HOUR)
    (before,) = alerts.earlier(ANN, now)
    assert (before.subject, before.replays) == ("emails", [])


def test_a_silence_has_an_author_a_reason_and_an_end(rule):
    create_alert(rule())
    made = alerts.silence(SAM, {"source": "shop", "queue": "em*"}, ends_at=NOW + HOUR, comment="known", now=NOW)
    assert (made.author, made.comment, made.starts_at) == ("sam", "known", NOW)
    assert alerts.silences(LOU, NOW) == [made] and alerts.silences(BEA, NOW) == []
    alerts.end_silence(ANN, made.pk, now=NOW + timedelta(minutes=1))
    assert alerts.silences(ANN, NOW + timedelta(minutes=2)) == []
    assert [s.ended_by for s in alerts.silences(ANN, NOW + timedelta(minutes=2), over=True)] == ["ann"]
    with pytest.raises(Refused, match="already ended"):
        alerts.end_silence(ANN, made.pk, now=NOW + timedelta(minutes=3))
    with pytest.raises(NotFound):
        alerts.end_silence(BEA, made.pk)


def test_a_silence_that_has_not_begun_can_be_ended(desk):
    made = alerts.silence(ANN, {"rule": "*"}, starts_at=NOW + HOUR, ends_at=NOW + 2 * HOUR, comment="deploy", now=NOW)
    ended = alerts.end_silence(ANN, made.pk, now=NOW)
    assert (ended.starts_at, ended.ends_at) == (NOW, NOW)


@pytest.mark.parametrize(
    "matchers, more, words",
    [
        ({}, {}, "at least one matcher"),
        ({"colour": "red"}, {}, "Unknown matcher 'colour'"),
        ({"severity": "fatal"}, {}, "severity must be one of"),
        ({"alert": 4711}, {}, "No such alert"),
        ({"source": "shop"}, {"comment": " "}, "Enter a reason"),
        ({"source": "shop"}, {"ends_at": NOW}, "end must be after the start"),
        ({"source": "shop"}, {"ends_at": NOW + timedelta(days=31)}, "within 30 days"),
    ],
)
def test_an_empty_silence_is_refused(desk, matchers, more, words):
    with pytest.raises(Refused, match=words):
        alerts.silence(ANN, matchers, **{"ends_at": NOW + HOUR, "comment": "known", "now": NOW} | more)


def test_a_silence_belongs_to_the_operators_of_what_it_may_silence(rule):
    one = create_alert(rule())
    for matchers in ({"queue": "emails"}, {"source": "sh*"}, {"source": "bank"}):
        with pytest.raises(Refused, match="needs the role operator"):
            alerts.silence(SAM, matchers, ends_at=NOW + HOUR, comment="known", now=NOW)
    made = alerts.silence(SAM, {"alert": one.pk}, ends_at=NOW + HOUR, comment="known", now=NOW)
    assert made.matchers == {"alert": one.pk, "source": "shop"} and not alerts.may_end(LOU, made)


def test_the_most_particular_runbook_of_a_task_counts(desk):
    for task, url in (("*", "https://a"), ("shop.*", "https://b"), ("shop.send", "https://c")):
        alerts.save_runbook(ANN, task, f"{url}.example/")
    assert [for_task(t) for t in ("shop.send", "shop.pay", "bank")] == [
        "https://c.example/", "https://b.example/", "https://a.example/",
    ]  # fmt: skip
    with pytest.raises(Refused, match="operator on every source"):
        alerts.save_runbook(SAM, "shop.pay", "https://x.example/")
    with pytest.raises(Refused, match="http or https"):
        alerts.save_runbook(ANN, "shop.pay", "javascript:x")
    alerts.delete_runbook(ANN, alerts.runbooks(LOU)[0].pk)
    with pytest.raises(NotFound):
        alerts.delete_runbook(ANN, 4711)
