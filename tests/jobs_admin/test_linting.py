"""Lint over real tables and a real store: live, stale and silent workers, what was seen, and who may see it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs_admin.core import keys
from jobs_admin.core.lint.configuration import App, Configuration, Task, document
from jobs_admin.core.policy import document as normal_form
from jobs_admin.core.policy import parse
from jobs_admin.lint import linting
from jobs_admin.models import Failure, Group, PolicyVersion, QueueCounter, Worker
from jobs_admin.models.access import ENGINE, Viewer

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DIGEST = "0123456789abcdef" * 2
BRIEF = Task(
    "send", "emails", autoretry_for=("builtins.OSError",), retry_backoff=2, retry_backoff_max=60, max_retries=3
)
POLICY = {
    "match": {"source": "shop", "task": "send"}, "mode": "observe", "max_attempts": 4, "cap_s": 60,
    "backoff": {"kind": "fixed", "first_delay_s": 9}, "classes": [{"error": "ValueError", "as": "permanent"}],
}  # fmt: skip

pytestmark = pytest.mark.django_db


def beat(
    store, name="w1", source="shop", *, digest=DIGEST, mode="capture", ago=0.0, tasks=(BRIEF,), reports_tasks=True
):
    """A worker's heartbeat, and its row as `watch` writes it."""
    seen = NOW - timedelta(seconds=ago)
    fields = {
        "source": source,
        "name": name,
        "at": seen.timestamp(),
        "mode": mode,
        "queues": ["emails"],
        "configuration": digest,
    }
    store.hset(keys.workers(source), name, json.dumps(fields))
    if reports_tasks:
        found = Configuration(source, App("redis", 3600), tasks=tuple(tasks))
        store.set(keys.configuration(source, digest), document(found))
    Worker.objects.create(source=source, name=name, boot="1", seen_at=seen)


def publish(name="emails", **changes):
    written = normal_form(parse({**POLICY, **changes, "name": name}))
    PolicyVersion.objects.create(version=1, document=written, published_at=NOW, published_by="ann")


def count(at: datetime, *, step=60, **columns):
    QueueCounter.objects.create(source="shop", queue="emails", step=step, at=at, **columns)


def ids(report: linting.Report) -> list[str]:
    return [finding.id for finding in report.findings]


def test_a_desk_that_knows_nothing_finds_nothing_and_reports_it(store):
    report = linting.report(ENGINE, NOW)
    assert (report.findings, report.tasks, report.policies, report.reported.is_reachable) == ((), 0, 0, True)


def test_live_workers_and_published_policies_are_judged_together(store):
    beat(store)
    beat(store, "w2")
    publish()
    report = linting.report(ENGINE, NOW)
    assert report.reported.found[0].workers == ("w1", "w2")
    assert (report.tasks, report.policies, report.reported.workers) == (1, 1, 2)
    assert [(str(f.where), f.severity) for f in report.findings] == [
        ("policy emails", "high"), ("policy emails", "low"), ("shop · send", "low"),
    ]  # fmt: skip
    assert report.check.kinds == {"exponential": 1, "fixed": 1}


def test_a_version_that_is_not_published_is_not_judged(store):
    publish()
    PolicyVersion.objects.update(is_published=False, ended_at=NOW)
    assert linting.report(ENGINE, NOW).policies == 0


def test_where_no_one_lives_what_was_last_reported_is_judged_and_called_stale(store):
    beat(store, ago=900)
    beat(store, "older", ago=5000)
    report = linting.report(ENGINE, NOW)
    (stale,) = report.reported.stale
    assert (stale.source, stale.seen_at) == ("shop", NOW - timedelta(seconds=900))
    assert [one.workers for one in report.reported.found] == [("w1",)]
    assert (report.tasks, report.reported.workers, report.reported.complete) == (1, 0, frozenset())


def test_a_worker_that_lives_counts_and_a_dead_one_beside_it_does_not(store):
    beat(store)
    beat(store, "gone", ago=900, digest="f" * 32)
    report = linting.report(ENGINE, NOW)
    assert ([one.workers for one in report.reported.found], report.reported.stale) == ([("w1",)], ())


def test_workers_that_report_nothing_are_counted_by_source(store):
    beat(store)
    beat(store, "old", digest="", reports_tasks=False)
    beat(store, "lost", digest="a" * 32, reports_tasks=False)  # its text has expired
    report = linting.report(ENGINE, NOW)
    assert report.reported.silent == (("shop", 2),)
    assert report.reported.complete == frozenset()


def test_a_store_that_is_away_is_reported_and_policies_are_judged_all_the_same(store, settings):
    from jobs_admin import config
    from tests.kit.sources import forget_configuration

    publish()
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    forget_configuration(config)
    report = linting.report(ENGINE, NOW)
    assert not report.reported.is_reachable
    assert report.policies == 1 and report.findings


def test_hostile_heartbeats_and_texts_break_nothing(store):
    store.hset(keys.workers("shop"), mapping={"a": "{", "b": "[]", "c": json.dumps({"source": "../x", "name": "y"})})
    store.hset(
        keys.workers("shop"), "d", json.dumps({"source": "shop", "name": "w", "configuration": DIGEST, "at": "never"})
    )
    store.set(keys.configuration("shop", DIGEST), '{"v": 1, "tasks": "no", "app": 3}')
    report = linting.report(ENGINE, NOW)
    assert report.findings == ()


def test_an_outage_that_was_seen_by_the_minute_is_the_one_to_survive(store):
    beat(store)
    began = NOW - timedelta(hours=5)
    for minute in range(42):
        count(began + timedelta(minutes=minute), failed=20, succeeded=1)
    count(began + timedelta(minutes=60), failed=9)  # too few
    count(began + timedelta(minutes=61), failed=20, succeeded=21)  # most ran well
    (finding,) = linting.report(ENGINE, NOW).findings
    assert finding.severity == "high"
    assert finding.evidence.endswith(
        "on 21 Nov 07:00 UTC 840 attempts of emails failed within about 42 min, and 42 succeeded."
    )


def test_older_outages_are_reported_from_quarter_hours_for_a_week(store):
    beat(store)
    count(NOW - timedelta(days=4), step=900, failed=150, succeeded=10)
    count(NOW - timedelta(days=8), step=900, failed=9000)
    (finding,) = linting.report(ENGINE, NOW).findings
    assert finding.evidence.endswith(
        "on 17 Nov 12:00 UTC 150 attempts of emails failed within about 15 min, and 10 succeeded."
    )


def test_an_outage_shorter_than_the_retries_is_survived(store):
    beat(store)
    count(NOW - timedelta(hours=5), failed=20)
    beat(store, "w2", digest="b" * 32, tasks=[Task("send", "emails", autoretry_for=("builtins.OSError",), retry_backoff=20, max_retries=5)])  # fmt: skip
    assert [f.where.task for f in linting.report(ENGINE, NOW).findings if f.id == "gives-up-before-outage"] == ["send"]


def test_without_an_outage_the_one_that_is_requested_counts(store):
    beat(store)
    assert ids(linting.report(ENGINE, NOW, outage_s=10)) == []
    assert ids(linting.report(ENGINE, NOW, outage_s=15)) == ["gives-up-before-outage"]


def test_volume_is_that_of_the_busiest_quarter_of_the_last_day(store):
    steady = Task(
        "send", "emails", autoretry_for=("builtins.OSError",), retry_backoff=20, max_retries=5, retry_jitter=False
    )
    beat(store, tasks=[steady])
    count(NOW - timedelta(hours=3), step=900, started=1499)
    count(NOW - timedelta(hours=30), step=900, started=90_000)
    assert ids(linting.report(ENGINE, NOW)) == []
    count(NOW - timedelta(hours=4), step=900, started=1500)
    assert ids(linting.report(ENGINE, NOW)) == ["no-jitter-at-volume"]


def test_errors_among_the_failures_that_are_stored_are_counted_by_task(store):
    broad = Task("send", "emails", autoretry_for=("builtins.Exception",), retry_backoff=20, max_retries=5)
    beat(store, tasks=[broad])
    for error, message, n in (("TypeError", "no", 3), ("app.errors.RateLimited", "slow down", 2), ("HTTPError", "429 Too Many Requests", 1), ("HTTPError", "order 4290", 1)):  # fmt: skip
        group = Group.objects.create(fingerprint=f"v1-{error}{message}"[:40], error_type=error, message=message, first_seen=NOW, last_seen=NOW)  # fmt: skip
        Failure.objects.bulk_create(
            Failure(source="shop", queue="emails", task="send", state="dead", group=group, first_job_id=f"{error}{message}{i}",
                    job_id=f"{error}{message}{i}", first_failed_at=NOW, failed_at=NOW, received_at=NOW) for i in range(n)
        )  # fmt: skip
    found = {finding.id: finding for finding in linting.report(ENGINE, NOW).findings}
    assert found["retries-permanent-errors"].evidence.endswith("3 TypeError.")
    assert found["retries-permanent-errors"].severity == "high"
    assert found["ignores-retry-after"].evidence.startswith("Rate limited: 3 stored failures")


def test_a_viewer_is_informed_about_what_belongs_to_sources_in_sight(store):
    beat(store)
    beat(store, "b1", "bank", digest="b" * 32)
    publish()
    publish("every", match={"source": "*", "task": "x*"})
    seen = linting.report(Viewer("ann", {"bank": "viewer"}), NOW)
    assert {one.source for one in seen.reported.found} == {"bank"}
    assert {f.where.policy or f.where.source for f in seen.findings} == {"bank", "every"}
    assert "shop" not in repr(seen)


def test_one_policy_is_judged_as_if_it_were_in_force(store):
    beat(store)
    publish()
    draft = parse(
        POLICY | {"name": "emails", "cap_s": 600, "backoff": {"kind": "exponential", "first_delay_s": 60, "factor": 2}}
    )
    assert linting.findings_of(ENGINE, draft, NOW) == []
    worse = parse(POLICY | {"name": "other", "match": {"task": "*"}})
    assert {finding.where.policy for finding in linting.findings_of(ENGINE, worse, NOW)} == {"other"}


def test_a_policy_that_gives_tasks_more_attempts_reports_how_many_and_what_they_have_now(store):
    plain = [Task(f"plain{n}", "emails") for n in range(4)]
    beat(store, tasks=(BRIEF, *plain), mode="enforce")
    budget = {"name": "all", "mode": "enforce", "match": {"source": "shop"}, "budget": {"per_minute": 30}}
    assert linting.attempts_given(ENGINE, parse(budget), NOW) == [
        "This gives 4 tasks up to 5 attempts; they have no retries now: plain0, plain1, plain2 and 1 more.",
        "This gives 1 task up to 5 attempts; it has fewer now: send (4).",
    ]
    brief = parse(POLICY | {"name": "brief", "max_attempts": 5})
    assert linting.attempts_given(ENGINE, brief, NOW) == [
        "Once enforced, this gives 1 task up to 5 attempts; it has fewer now: send (4)."
    ]
    assert linting.attempts_given(ENGINE, parse(POLICY | {"name": "brief"}), NOW) == []
    limit = {"name": "limit", "mode": "enforce", "concurrency": {"key": "tenant", "limit": 2}}
    assert linting.attempts_given(ENGINE, parse(limit), NOW) == []


def test_a_policy_that_gives_what_is_in_force_already_does_not_report_it_again(store):
    beat(store, tasks=(Task("send", "emails"),), mode="enforce")
    publish(mode="enforce", max_attempts=4)
    draft = {**POLICY, "name": "emails", "mode": "enforce", "cap_s": 90}
    assert linting.attempts_given(ENGINE, parse(draft), NOW) == []
    assert linting.attempts_given(ENGINE, parse({**draft, "max_attempts": 6}), NOW) == [
        "This gives 1 task up to 6 attempts; it has fewer now: send (4)."
    ]


def test_attempts_of_workers_that_are_not_there_are_not_known(store):
    beat(store, tasks=(Task("send", "emails"),), mode="enforce", ago=3_600)
    assert linting.attempts_given(ENGINE, parse(POLICY | {"name": "emails", "mode": "enforce"}), NOW) == []


def test_a_document_that_cannot_be_read_is_named_and_hides_no_other(store):
    publish()
    publish("odd", match={"task": "y"}, classes=[{"error": "x", "as": "permanent"}])
    odd = PolicyVersion.objects.get(name="odd")
    odd.document["classes"][0]["error"] = 7  # which the database does not look at
    odd.save()
    report = linting.report(ENGINE, NOW)
    assert (report.policies, report.unread) == (1, ("odd",))


def test_it_costs_the_same_queries_whatever_there_is(store, django_assert_max_num_queries):
    beat(store)
    for n in range(5):
        publish(f"p{n}", match={"task": f"t{n}"})
        beat(store, f"w{n + 2}", digest=f"{n}" * 32)
    with django_assert_max_num_queries(8):
        linting.report(ENGINE, NOW)


def test_an_error_that_calls_itself_permanent_and_ran_again_is_counted(store):
    for n, (message, attempts) in enumerate((("Permanent failure: no such unit", 3), ("Permanent failure: once", 1), ("301 Moved Permanently", 3))):  # fmt: skip
        group = Group.objects.create(fingerprint=f"v1-{n}", error_type="Error", message=message, first_seen=NOW, last_seen=NOW)  # fmt: skip
        Failure.objects.create(source="shop", queue="sync", first_job_id=str(n), job_id=str(n), state="dead", task="sync", kind="exception", group=group,
            message=message, attempts=attempts, first_failed_at=NOW, failed_at=NOW, received_at=NOW)  # fmt: skip
    assert [(one.id, one.evidence) for one in linting.report(ENGINE, NOW).findings] == [
        ("permanent-by-word-only", "1 stored failure with such a message and several attempts.")
    ]
