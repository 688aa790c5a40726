"""An outage of the shop's e-mails, from its first failure to the last job that came back, on real rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs_admin import incidents, ingest
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db import audit
from jobs_admin.db.counters import add_queue_counts
from jobs_admin.incidents import spans
from jobs_admin.incidents.reading import first_since
from jobs_admin.incidents.spans import Loudness, _background, outages
from jobs_admin.models import (
    Alert,
    AlertEvent,
    AuditEvent,
    DepthSample,
    Failure,
    Group,
    PolicyVersion,
    Release,
    Replay,
    ReplayItem,
    Rule,
    Silence,
    Source,
)
from jobs_admin.models.access import ADMIN, AUDITOR, ENGINE, OPERATOR, VIEWER, Viewer
from jobs_admin.replays import rights as replay_rights
from tests.kit.reports import entries, report

pytestmark = pytest.mark.django_db

BEGAN = datetime(2026, 11, 21, 2, 7, tzinfo=UTC)
NOW = BEGAN + timedelta(hours=2)
ANN = Viewer("ann", {"*": ADMIN})
OTTO = Viewer("otto", {"shop": OPERATOR})
VERA = Viewer("vera", {"bank": VIEWER})
OUT_OF = 40  # jobs that died


def minute(n: float) -> datetime:
    return BEGAN + timedelta(minutes=n)


@pytest.fixture
def outage():
    """Forty jobs of two tenants die in four minutes; an alert fires; a replay brings all but two back half an hour later."""
    reports = [
        report(f"j{n}", at=minute(n / 10).timestamp(), tenant="acme" if n % 4 else "zebra", error_type="Timeout")
        for n in range(OUT_OF)
    ]
    Source.objects.get_or_create(name="shop")  # accepted before: ids of the audit rise with its times
    for start in range(0, OUT_OF, 10):
        ingest.file(entries(*reports[start : start + 10]), minute(start / 10 + 1))
    rule = Rule.objects.create(name="e-mails die", metric="dead", threshold=10)
    alert = Alert.objects.create(
        rule=rule, source="shop", subject="emails", state="resolved", severity="warning", value=0, peak=40, threshold=10,
        opened_at=minute(1), fired_at=minute(2), acknowledged_at=minute(6), resolved_at=minute(40), transitions=4,
    )  # fmt: skip
    for n, (at, to, value, actor) in enumerate(
        [(1, "pending", 11, ""), (2, "firing", 20, ""), (6, "acknowledged", 40, "otto"), (40, "resolved", 0, "")]
    ):
        AlertEvent.objects.create(alert=alert, n=n + 1, at=minute(at), to=to, value=value, actor=actor, reason="said")
    Release.objects.update_or_create(source="shop", version="r1", defaults={"at": minute(-1)})
    PolicyVersion.objects.create(
        document={"name": "mail", "mode": "enforce", "match": {"source": "shop", "queue": "*", "task": "*"},
                  "backoff": {"kind": "fixed"}, "max_attempts": 3},
        version=1, published_at=minute(20), published_by="otto", reason="longer waits",
    )  # fmt: skip
    replay = brought_back()
    for n, dead in ((-3, 0), (1, 10), (4, 40), (30, 40), (35, 20), (38, 2), (60, 0)):
        DepthSample.objects.create(source="shop", queue="emails", at=minute(n), step=10, dead=dead)
    return replay


def brought_back() -> Replay:
    jobs = list(Failure.objects.order_by("pk"))
    replay = Replay.objects.create(
        state="done", scope_max_id=jobs[-1].pk, actor="otto", reason="partner is back", started_at=minute(30),
        ended_at=minute(38), total=39, succeeded=38, failed_again=1,
    )  # fmt: skip
    for n, job in enumerate(jobs[:39], start=1):
        ReplayItem.objects.create(replay=replay, n=n, failure=job, run=2, state="succeeded")
    Failure.objects.filter(pk__in=[job.pk for job in jobs[:38]]).update(state="recovered")
    Failure.objects.filter(pk=jobs[39].pk).update(state="discarded")
    add_queue_counts({("shop", "emails", minute(36)): {"recovered": 38, "sent": 39}})
    for act, at, who, why in (("start", 30, OTTO, "partner is back"), ("hold", 32, ENGINE, "too many fail")):
        with transaction.atomic():
            row = audit.record(who, f"replay.{act}", f"replay:{replay.pk}", source="shop", reason=why)
        type(row).objects.filter(pk=row.pk).update(at=minute(at))
    return replay


def read_incident(viewer=ANN, **options):
    where = incidents.span(viewer, NOW, **options)
    return incidents.incident(viewer, where, NOW)


def test_without_times_it_is_the_last_alert_from_its_first_failure_on(outage):
    where = incidents.span(ANN, NOW)
    assert (where.source, where.queue, where.found_by, where.is_going_on) == ("shop", "emails", "alert", False)
    assert minute(-6) <= where.since <= minute(0) and where.until >= minute(40)


def test_without_a_source_the_worst_firing_alert_goes_before_a_later_one(outage):
    rule = Rule.objects.get(name="e-mails die")
    for source, dead, at in (("shop", 900, 50), ("bank", 12, 60)):
        Alert.objects.create(
            rule=rule, source=source, subject="", state="firing", severity="warning", value=dead, peak=dead, threshold=10,
            opened_at=minute(at), fired_at=minute(at), transitions=2,
        )  # fmt: skip
    assert incidents.span(ANN, NOW).source == "shop"
    assert incidents.span(VERA, NOW).source == "bank"
    Alert.objects.filter(source="bank").update(severity="critical")
    assert incidents.span(ANN, NOW).source == "bank"
    Alert.objects.filter(state="firing").update(state="resolved", resolved_at=minute(70))
    assert incidents.span(ANN, NOW).source == "bank"  # the latest


def test_the_timeline_reports_all_of_it_in_order(outage):
    kinds = [(one.kind, one.what) for one in read_incident().timeline]
    wanted = [
        ("release", "released"), ("failing", "began"), ("group", "new"), ("alert", "fired"), ("calm", "over"),
        ("alert", "acknowledged"), ("policy", "published"), ("replay", "started"), ("replay", "held"),
        ("replay", "done"), ("alert", "resolved"), ("back", "back"),
    ]  # fmt: skip
    assert sorted(kinds) == sorted(wanted)
    times = [one.at for one in read_incident().timeline]
    assert times == sorted(times)
    by_what = {one.what: one for one in read_incident().timeline}
    assert by_what["began"].at == minute(0) and by_what["over"].at == minute(4)
    assert by_what["acknowledged"].who == "otto" and by_what["published"].why == "longer waits"
    assert by_what["done"].words == f"Replay #{outage.pk} done: 38 succeeded, 1 failed again"
    assert by_what["held"].who == "redrive" and by_what["back"].at == minute(60)


def test_a_silence_of_its_alerts_is_in_the_timeline_and_one_of_others_is_not(outage):
    def silence(start, end, ended_by="", **matchers):
        return Silence.objects.create(
            matchers=matchers, author="otto", comment="being fixed", starts_at=minute(start), ends_at=minute(end),
            ended_by=ended_by,
        )  # fmt: skip

    silence(7, 30, "ann", source="shop", queue="e*")
    silence(-600, 600, rule="e-mails die")  # begins before it and ends after it
    silence(8, 30, alert=Alert.objects.get().pk, source="shop")
    silence(9, 30, source="shop", queue="webhooks"), silence(9, 30, source="bank"), silence(9, 30, severity="critical")
    number = Alert.objects.get().pk
    assert [(one.at, one.words, one.who, one.why) for one in read_incident().timeline if one.kind == "silence"] == [
        (minute(7), "Silence of queue e*, source shop started", "otto", "being fixed"),
        (minute(8), f"Silence of alert {number}, source shop started", "otto", "being fixed"),
        (minute(30), f"Silence of alert {number}, source shop ended", "", ""),
        (minute(30), "Silence of queue e*, source shop ended", "ann", ""),
    ]


def test_counts_report_what_it_came_to(outage):
    counts = read_incident().counts
    assert (counts.failed, counts.died, counts.recovered) == (40, 40, 38)
    assert {state: n for state, n in counts.jobs.items() if n} == {"dead": 1, "recovered": 38, "discarded": 1}
    assert counts.open == 1 and counts.of_jobs == 40 and not counts.jobs_are_capped
    assert counts.tenants == [("acme", 30), ("zebra", 10)] and counts.looked_at == 40


def test_the_picture_has_each_minute_with_its_dead_jobs(outage):
    seen = read_incident().seen
    by_minute = {point.at: point for point in seen.points}
    assert seen.step_s == 60 and by_minute[minute(0)].failed == 10 and by_minute[minute(36)].recovered == 38
    assert by_minute[minute(4)].dead == 40 and seen.dead_most == 40 and seen.dead_before == 0
    assert by_minute[minute(20)].dead is None, "nobody looked for a quarter of an hour"


def test_what_died_before_it_of_something_else_need_not_come_back(outage):
    """An incident is over when no more are dead than just before it began; a step reports its end, and no time before it."""
    DepthSample.objects.all().delete()
    for n, dead in ((-4, 0), (-1, 500), (0, 510), (4, 540), (38, 502), (60, 500), (61, 500)):
        DepthSample.objects.create(source="shop", queue="emails", at=minute(n), step=10, dead=dead)
    seen = read_incident().seen
    assert (seen.dead_before, seen.dead_most, seen.back_at) == (500, 540, minute(60))
    assert read_incident().where.until == minute(65), "what brings its jobs back is part of it"
    DepthSample.objects.filter(at__lt=minute(0)).delete()  # nobody looked before
    assert (read_incident().seen.dead_before, read_incident().seen.back_at) == (510, minute(38))


def test_only_admins_and_auditors_of_the_source_read_who_did_what(outage):
    acts = read_incident(ANN).acts
    assert [(act.who, act.act) for act in acts] == [("otto", "replay.start"), ("redrive", "replay.hold")]
    assert read_incident(Viewer("aud", {"shop": AUDITOR})).acts == acts
    assert read_incident(OTTO).acts is None


def test_what_is_out_of_sight_is_not_there(outage):
    Source.objects.create(name="bank")
    assert incidents.span(VERA, NOW) is None
    for options in ({"source": "shop"}, {"source": "nobody"}, {"source": "bank", "queue": "none"}):
        with pytest.raises(NotFound):
            incidents.span(VERA, NOW, **options)


def test_what_belongs_to_other_sources_too_is_reported_to_those_who_see_them(outage):
    ingest.file(entries(report("b1", source="bank", error_type="Timeout", at=minute(-500).timestamp())), minute(1))
    with transaction.atomic():
        row = audit.record(ENGINE, "replay.start", f"replay:{outage.pk}", source="bank")
    type(row).objects.filter(pk=row.pk).update(at=minute(30))
    whats = {one.what: one for one in read_incident(OTTO, source="shop").timeline}
    assert "new" not in whats and whats["held"].why == ""
    assert {one.what: one for one in read_incident(ANN, source="shop").timeline}["held"].why == "too many fail"


def test_an_act_on_a_replay_of_several_sources_is_reported_once_with_its_reason(outage):
    with transaction.atomic():
        replay_rights.record(
            ENGINE, "replay.pause", outage, ["bank", "shop"], reason="lunch", after={"state": "paused"}
        )
    AuditEvent.objects.filter(act="replay.pause").update(at=minute(30))
    [paused] = [one for one in read_incident(ANN, source="shop").timeline if one.what == "paused"]
    assert paused.why == "lunch"


def test_times_that_are_requested_are_stored_and_bad_ones_refused(outage):
    where = incidents.span(ANN, NOW, source="shop", queue="emails", since=minute(2), until=minute(5))
    assert (where.since, where.until, where.found_by) == (minute(2), minute(5), "asked")
    assert read_incident(source="shop", since=minute(2), until=minute(3)).counts.failed == 20, (
        "two minutes, the last one whole"
    )
    for since, until in ((minute(5), minute(5)), (minute(9), minute(1)), (minute(-60 * 24 * 40), minute(0))):
        with pytest.raises(Refused):
            incidents.span(ANN, NOW, source="shop", since=since, until=until)
    with pytest.raises(Refused):
        incidents.span(ANN, NOW, queue="emails")
    assert incidents.span(ANN, NOW, source="shop", until=NOW + timedelta(days=9)).until == NOW


def test_without_an_alert_the_last_outage_is_found_by_counters(outage):
    Alert.objects.all().delete()
    where = incidents.span(OTTO, NOW)
    assert (where.source, where.queue, where.found_by) == ("shop", "emails", "counters")
    assert where.since <= minute(0) and minute(4) <= where.until


def test_an_outage_long_ago_is_found_by_the_hour():
    Source.objects.create(name="shop")
    add_queue_counts({("shop", "emails", NOW - timedelta(days=20)): {"failed": 500}})
    where = incidents.span(ANN, NOW)
    assert where.since <= NOW - timedelta(days=20) <= where.until
    assert incidents.incident(ANN, where, NOW).counts.failed == 500


def span_queries(now=NOW) -> list[str]:
    """The statements about counters of queues that it takes."""
    with CaptureQueriesContext(connection) as queries:
        incidents.span(ANN, now)
    return [one["sql"] for one in queries if "queuecounter" in one["sql"]]


def test_the_minutes_of_every_queue_are_not_added_up_to_find_the_loudest():
    Source.objects.create(name="shop")
    add_queue_counts({("shop", f"q{n:03}", minute(n % 60)): {"failed": n + 1} for n in range(4)})
    few = span_queries()
    add_queue_counts({("shop", f"q{n:03}", minute(n % 60)): {"failed": n + 1} for n in range(4, 400)})
    many = span_queries()
    assert len(many) == len(few) and incidents.span(ANN, NOW).queue == "q399"
    of_minutes = [sql for sql in many if '"step" = 60' in sql]
    assert of_minutes and all('"queue" = ' in sql for sql in of_minutes)


def test_no_more_hours_than_a_bound_are_added_up_the_latest_of_them(monkeypatch):
    Source.objects.create(name="shop")
    add_queue_counts({("shop", "long ago", NOW - timedelta(hours=30)): {"failed": 900}})
    add_queue_counts({("shop", f"q{n}", NOW - timedelta(hours=n)): {"failed": 9} for n in range(1, 9)})
    assert incidents.span(ANN, NOW).queue == "long ago"
    monkeypatch.setattr(spans, "_MOST_COUNTED", 5)
    assert incidents.span(ANN, NOW).queue == "q1"


def test_counters_are_not_requested_the_loudest_queue_while_an_alert_is_open(outage):
    Alert.objects.update(state="firing", resolved_at=None)
    assert all('"queue" = ' in sql for sql in span_queries())


def test_a_newer_outage_of_the_same_source_goes_before_the_alert(outage):
    later = NOW + timedelta(hours=20)
    add_queue_counts({("shop", "sms", later - timedelta(hours=3, minutes=n)): {"failed": 5} for n in range(9)})
    where = incidents.span(ANN, later)
    assert (where.queue, where.found_by) == ("sms", "counters")


def test_an_outage_that_goes_on_has_no_end_yet():
    Source.objects.create(name="shop")
    add_queue_counts({("shop", "emails", NOW - timedelta(minutes=n)): {"failed": 30} for n in range(10)})
    where = incidents.span(ANN, NOW)
    assert where.is_going_on and where.until == NOW
    found = incidents.incident(ANN, where, NOW)
    assert [one.what for one in found.timeline] == ["began"] and found.seen.calm_at is None


def test_nothing_ever_failed_is_no_incident():
    assert incidents.span(ANN, NOW) is None
    Source.objects.create(name="shop")
    assert incidents.span(ANN, NOW, source="shop") is None


def test_what_always_fails_a_little_is_no_part_of_an_outage():
    steady = [2] * 600 + [90, 80, 70] + [2] * 60
    loud = Loudness(60, BEGAN, steady, max(1, 3 * sorted(steady)[len(steady) // 4], max(steady) // 20))
    assert outages(loud) == [(minute(600), minute(603))]


def test_a_pause_of_a_few_minutes_does_not_end_it():
    loud = Loudness(60, BEGAN, [0, 9, 0, 0, 0, 0, 9, *[0] * 20, 9], 1)
    assert outages(loud) == [(minute(1), minute(7)), (minute(27), minute(28))]


def test_a_moment_is_found_among_ids_with_gaps(outage):
    pks = list(Failure.objects.order_by("pk").values_list("pk", flat=True))
    Failure.objects.filter(pk__in=pks[5:9]).delete()
    assert first_since(Failure, "received_at", minute(-99)) <= pks[0]
    assert first_since(Failure, "received_at", minute(1.5)) in range(pks[9], pks[10] + 1)
    assert first_since(Failure, "received_at", minute(99)) == pks[-1] + 1


def test_it_costs_the_same_with_many_jobs_alerts_and_groups(outage):
    def count_queries():
        with CaptureQueriesContext(connection) as queries:
            read_incident(source="shop", queue="emails", since=minute(-5), until=minute(60))
        return len(queries)

    before = count_queries()
    more = [report(f"m{n}", error_type=f"E{n}", at=minute(n / 60).timestamp()) for n in range(200)]
    ingest.file(entries(*more), minute(4))
    rule = Rule.objects.get(name="e-mails die")
    for n in range(60):
        Alert.objects.create(
            rule=rule, source="shop", subject="emails", state="resolved", severity="warning", value=0, threshold=1,
            opened_at=minute(n / 2), fired_at=minute(n / 2), resolved_at=minute(n / 2 + 1),
        )  # fmt: skip
    assert count_queries() - before <= 8, "a larger table takes a few more steps to find a moment in"
    assert len([one for one in read_incident(source="shop").timeline if one.kind == "group"]) <= 50


def test_a_group_that_came_back_shows_after_what(outage):
    Group.objects.update(state="regressed", state_since=minute(3), regressed_after="release:r1")
    (back,) = [one for one in read_incident().timeline if one.what == "regressed"]
    assert back.words.startswith("Came back after release r1: Timeout")


def test_jobs_that_failed_long_before_and_arrived_meanwhile_are_none_of_it(outage):
    old = [report(f"old{n}", at=minute(-6000).timestamp(), tenant="elsewhere") for n in range(9)]
    ingest.file(entries(*old), minute(3))
    counts = read_incident(source="shop", queue="emails", since=minute(-5), until=minute(60)).counts
    assert counts.of_jobs == 40 and dict(counts.tenants) == {"acme": 30, "zebra": 10}


def test_an_outage_of_a_fresh_desk_ends_although_an_error_goes_on_in_the_background():
    """No earlier data show the usual rate: each minute with three failures counted as a part of it, for good."""
    Source.objects.create(name="shop")
    add_queue_counts({("shop", "emails", NOW - timedelta(minutes=n)): {"failed": 3} for n in range(25)})
    add_queue_counts({("shop", "emails", NOW - timedelta(minutes=n)): {"failed": 40} for n in (22, 23, 24)})
    where = incidents.span(ANN, NOW)
    assert not where.is_going_on and where.until <= NOW - timedelta(minutes=15)


@pytest.mark.parametrize("after", [[38, 41] * 8, [20] * 15, [39] * 5])
def test_an_outage_that_goes_on_is_no_background(after):
    assert _background([0] * 5 + [45] + after) == 0
