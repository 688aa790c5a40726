"""Retries that wait in a jobs table wait otherwise: seen before it is done, done by the watch, and taken back."""

from __future__ import annotations

import json
import time

import pytest
from django.db import connection
from django.utils import timezone

from jobs_admin import config, replays
from jobs_admin.core.refused import Refused
from jobs_admin.core.retry_change import Change, read
from jobs_admin.models import AuditEvent, Failure, ReplayItem, Reschedule
from jobs_admin.models.access import Viewer
from jobs_admin.retries import pulling, rescheduling
from jobs_admin.retries.rescheduling import carrying
from tests.kit.jobs_tables import AS_PUBLISHED, OnSQLite
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

EXPONENTIAL = {"curve": {"backoff": {"kind": "exponential", "first_delay_s": 30, "factor": 2}}}
BEN = Viewer(name="ben", roles={"shop": "viewer"})


@pytest.fixture
def table(settings, tmp_path):
    """A jobs table as Hectoday's worker has it (tests/kit/jobs_tables.py), and the source `shop` that reads it."""
    made = OnSQLite(tmp_path / "shop.db")
    file = tmp_path / "sources.toml"
    file.write_text(f'[sources.shop]\nbackend = "jobs_table"\nurl = "{made.url}"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    yield made
    made.close()
    config.adapter("shop").close()
    forget_configuration(config)


def pull():
    return pulling.pull("shop", "test")


def waits(table, job_id):
    """Seconds from when it failed to when it is due, by the table."""
    due, failed = table.row(job_id, "unixepoch(scheduled_at)", "unixepoch(updated_at)")
    return due - failed


def shown_wait(failure):
    return round((failure.due_at - failure.failed_at).total_seconds())


def fail_often(table, job_id, times, max_attempts=9):
    table.enqueue(job_id, max_attempts=max_attempts)
    for _ in range(times):
        table.fail(job_id)


def send(replay):
    ends = time.monotonic() + 30
    while ReplayItem.objects.filter(replay=replay, state="planned").exists() and time.monotonic() < ends:
        replays.create_items(), replays.send(f"rescheduling {replay.key}"), replays.settle()


def test_a_job_of_a_table_is_retried_three_times_fails_and_is_replayed(table):
    table.enqueue("mail", {"to": "ann@example.com"}, max_attempts=4)
    seen = []
    for error in ("Error: 503", "Error: 503", "TimeoutError: too slow"):
        table.claim("mail"), table.fail("mail", error), pull()
        failure = Failure.objects.get()
        seen.append((failure.state, failure.attempts, shown_wait(failure), failure.message))
    assert seen == [
        ("retrying", 1, 30, "503"), ("retrying", 2, 60, "503"), ("retrying", 3, 90, "too slow"),
    ]  # fmt: skip
    table.claim("mail"), table.fail("mail", "Error: gone for good"), pull()
    failure = Failure.objects.get()
    assert (failure.state, failure.attempts, failure.max_attempts, failure.task) == ("dead", 4, 4, "send_email")
    assert failure.attempt_set.count() == 4 and json.loads(failure.kwargs) == {"to": "ann@example.com"}

    replay = replays.start(ANN, replays.draft(ANN, selection=[failure.pk], reason="the service is back"))
    send(replay)
    assert table.row("mail", "status", "attempts", "payload") == ("pending", 0, '{"to": "ann@example.com"}')
    pull()
    assert Failure.objects.get().state == "replaying"
    table.claim("mail"), table.complete("mail"), pull(), replays.settle()
    failure.refresh_from_db(), replay.refresh_from_db()
    assert (failure.state, failure.run, replay.succeeded) == ("recovered", 2, 1)


def test_a_replayed_job_that_fails_again_is_retried_in_its_second_run(table):
    table.die("mail")
    pull()
    replay = replays.start(ANN, replays.draft(ANN, selection=[Failure.objects.get().pk], reason="again"))
    table.execute("UPDATE jobs SET max_attempts = 2")
    send(replay)
    table.fail("mail"), pull()
    failure = Failure.objects.get()
    assert (failure.state, failure.run, failure.attempts, shown_wait(failure)) == ("retrying", 2, 1, 30)
    table.fail("mail"), pull(), replays.settle()
    failure.refresh_from_db(), replay.refresh_from_db()
    assert (failure.state, failure.run, failure.attempts, replay.failed_again) == ("dead", 2, 2, 1)


def test_linear_waits_become_exponential_ones(table):
    for n in (1, 2, 3, 4, 5):
        fail_often(table, f"j{n}", n)
    pull()
    assert [waits(table, f"j{n}") for n in (1, 2, 3, 4, 5)] == [30, 60, 90, 120, 150]

    preview = rescheduling.preview(ANN, query="state:retrying", change=EXPONENTIAL)
    assert (preview.source, preview.matched, preview.beyond) == ("shop", 5, 0)
    assert [(line.attempts, line.jobs) for line in preview.lines] == [(n, 1) for n in (1, 2, 3, 4, 5)]
    assert [round(line.before[1]) for line in preview.lines] == [30, 60, 90, 120, 150]
    assert [round(line.after[1]) for line in preview.lines] == [30, 60, 120, 240, 480]
    assert [waits(table, f"j{n}") for n in (4, 5)] == [120, 150]  # looking changes nothing

    planned = rescheduling.plan(ANN, query="state:retrying", change=EXPONENTIAL, reason="linear is too quick")
    assert [waits(table, f"j{n}") for n in (4, 5)] == [120, 150]  # and neither does a screen
    before = table.execute("SELECT id, unixepoch(updated_at) FROM jobs")
    pull()
    planned.refresh_from_db()
    assert (planned.state, planned.changed, planned.left, planned.matched) == ("done", 5, 0, 5)
    failed_at = dict(before)
    due = dict(table.execute("SELECT id, unixepoch(scheduled_at) FROM jobs"))
    assert [round(due[f"j{n}"] - failed_at[f"j{n}"]) for n in (1, 2, 3, 4, 5)] == [30, 60, 120, 240, 480]
    assert [shown_wait(one) for one in Failure.objects.order_by("attempts")] == [30, 60, 120, 240, 480]
    events = list(AuditEvent.objects.order_by("pk").values_list("act", "actor", "source", "object"))
    assert events == [
        ("retry.reschedule", "ann", "shop", f"reschedule:{planned.pk}"),
        ("retry.reschedule.done", "redrive", "shop", f"reschedule:{planned.pk}"),
    ]


def test_what_was_changed_is_taken_back_where_it_still_waits_so(table):
    for name in ("stays", "ran", "again", "moved", "discarded"):
        fail_often(table, name, 3)
    pull()
    planned = rescheduling.plan(ANN, query="", change=EXPONENTIAL | {"max_attempts": 20}, reason="try it")
    pull()
    assert table.row("stays", "max_attempts") == 20
    table.claim("ran"), table.complete("ran"), table.fail("again")
    table.execute("UPDATE jobs SET scheduled_at = datetime('now', '5 hours') WHERE id = 'moved'")
    pull()
    Failure.objects.filter(job_id="discarded").update(state="discarded")
    back = rescheduling.undo(ANN, Reschedule.objects.get(pk=planned.pk))
    pull()
    back.refresh_from_db()
    assert (back.state, back.changed, back.left) == ("done", 1, 4)
    assert table.row("again", "attempts", "max_attempts") == (4, 20)
    assert table.row("moved", "max_attempts") == table.row("discarded", "max_attempts") == 20
    assert table.row("stays", "max_attempts") == 9
    assert shown_wait(Failure.objects.get(job_id="stays")) == 90
    with pytest.raises(Refused, match="already undone"):
        rescheduling.undo(ANN, Reschedule.objects.get(pk=planned.pk))


def test_of_two_who_take_it_back_at_once_one_is_informed_that_it_was_done(table):
    fail_often(table, "j", 3), pull()
    planned = rescheduling.plan(ANN, query="", change=EXPONENTIAL)
    pull(), planned.refresh_from_db()
    first = []

    def be_first(execute, sql, *rest):
        if sql.startswith("INSERT") and '"jobs_admin_reschedule"' in sql and not first:
            first.append("asked")  # its own statement comes here, too
            Reschedule.objects.create(
                source="shop",
                scope_max_id=1,
                change={},
                undo_of=planned,
                actor="bob",
                created_at=timezone.now(),
                below=1,
            )
        return execute(sql, *rest)

    with connection.execute_wrapper(be_first), pytest.raises(Refused, match="already undone") as refused:
        rescheduling.undo(ANN, planned)
    assert first and refused.value.code == "wrong_state"
    assert not AuditEvent.objects.filter(act="retry.reschedule.undo").exists()
    assert (
        rescheduling.undo(ANN, planned).undo_of == planned
    )  # all of that was taken back with it: here nobody was first


def test_one_job_is_due_at_once_and_may_try_more_often(table):
    fail_often(table, "j", 2, max_attempts=3)
    pull()
    change = {"due_at": "now", "max_attempts": 8}
    planned = rescheduling.plan(ANN, selection=[Failure.objects.get().pk], change=change)
    pull()
    planned.refresh_from_db()
    assert planned.changed == 1 and table.row("j", "max_attempts") == 8
    assert table.row("j", "unixepoch(scheduled_at) <= unixepoch('now') + 1") == 1
    assert Failure.objects.get().max_attempts == 8


def test_who_has_made_as_many_attempts_already_stays_as_it_is(table):
    fail_often(table, "two", 2), fail_often(table, "five", 5)
    pull()
    change = {"max_attempts": 4}
    assert rescheduling.preview(ANN, query="", change=change).beyond == 1
    planned = rescheduling.plan(ANN, query="", change=change, reason="fewer")
    pull()
    planned.refresh_from_db()
    assert (planned.changed, planned.left) == (1, 1)
    assert table.row("two", "max_attempts") == 4 and table.row("five", "max_attempts") == 9


def test_a_row_that_a_worker_has_taken_meanwhile_is_left_alone(table):
    fail_often(table, "taken", 2), fail_often(table, "waits", 2)
    pull()
    planned = rescheduling.plan(ANN, query="", change=EXPONENTIAL, reason="x")
    table.claim("taken")
    due = table.row("taken", "scheduled_at")
    pull()
    planned.refresh_from_db()
    assert (planned.changed, planned.left) == (1, 1) and table.row("taken", "scheduled_at") == due


def test_what_came_after_the_preview_is_not_in_it(table):
    fail_often(table, "seen", 1)
    pull()
    preview = rescheduling.preview(ANN, query="", change=EXPONENTIAL)
    fail_often(table, "later", 1), pull()
    planned = rescheduling.plan(ANN, query="", change={"max_attempts": 30}, highest=preview.highest)
    pull()
    planned.refresh_from_db()
    assert planned.changed == 1 and table.row("later", "max_attempts") == 9


def test_many_are_changed_part_by_part_and_each_once(table):
    table.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 950) "
        "INSERT INTO jobs (id, type, payload, attempts, max_attempts) SELECT 'j' || i, 't', '{}', 1 + i % 5, 9 FROM n"
    )
    while pull():
        pass
    planned = rescheduling.plan(ANN, query="", change=EXPONENTIAL, reason="all")
    while pull() or Reschedule.objects.filter(state="planned").exists():
        pass
    planned.refresh_from_db()
    assert (planned.changed, planned.left, planned.matched) == (950, 0, 950)


def test_only_an_operator_of_the_source_may_and_each_refusal_is_written_down(table, settings):
    fail_often(table, "j", 1)
    pull()
    with pytest.raises(Refused) as refused:
        rescheduling.plan(BEN, query="", change=EXPONENTIAL)
    assert refused.value.code == "forbidden" and not AuditEvent.objects.get().allowed
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    with pytest.raises(Refused) as refused:
        rescheduling.plan(ANN, query="", change=EXPONENTIAL)
    assert refused.value.code == "read_only" and not Reschedule.objects.exists()


@pytest.fixture
def beside(table, settings, tmp_path):
    """A second jobs table, of the source `web`."""
    made = OnSQLite(tmp_path / "web.db")
    file = tmp_path / "sources.toml"
    file.write_text(file.read_text() + f'[sources.web]\nbackend = "jobs_table"\nurl = "{made.url}"\n')
    forget_configuration(config)
    yield made
    made.close()
    config.adapter("web").close()


def test_who_operates_one_source_and_sees_another_changes_retries_of_the_one_alone(table, beside):
    fail_often(table, "mine", 4), fail_often(beside, "theirs", 4)
    pulling.pull("web", "test"), pull()
    both = list(Failure.objects.values_list("pk", flat=True))
    theirs = Failure.objects.get(source="web")
    cem = Viewer(name="cem", roles={"shop": "operator", "web": "viewer"})
    for scope in ({"query": ""}, {"selection": both}):
        assert rescheduling.preview(cem, change=EXPONENTIAL, **scope).source == "shop"
        planned = rescheduling.plan(cem, change=EXPONENTIAL, reason="mine", **scope)
        assert (planned.source, planned.matched) == ("shop", 1)
        assert [one.source for one in rescheduling.planning.remaining(planned)] == ["shop"]
    for scope in ({"query": "source:web"}, {"selection": [theirs.pk]}):
        for act in (rescheduling.preview, rescheduling.plan):
            with pytest.raises(Refused, match="where you are operator") as refused:
                act(cem, change=EXPONENTIAL, **scope)
            assert refused.value.code == "bad_scope"
    planned = rescheduling.plan(ANN, query="source:web", change=EXPONENTIAL)
    pulling.pull("web", "test"), planned.refresh_from_db()
    assert planned.changed == 1
    with pytest.raises(Refused, match="not operator of web") as refused:
        rescheduling.undo(cem, planned)
    assert refused.value.code == "forbidden" and not Reschedule.objects.filter(undo_of=planned).exists()
    assert {one.source for one in rescheduling.listing(cem).rows} == {"shop", "web"}
    assert {one.source for one in rescheduling.listing(BEN).rows} == {"shop"}
    with pytest.raises(Reschedule.DoesNotExist):
        rescheduling.find(BEN, planned.pk)


def test_what_waits_in_a_system_that_cannot_be_reported_is_neither_counted_nor_checked(table):
    fail_often(table, "j", 1), pull()
    elsewhere = Failure.objects.get()
    elsewhere.pk, elsewhere.source = None, "memory"
    elsewhere.save()
    planned = rescheduling.plan(ANN, query="", change=EXPONENTIAL)
    assert (planned.source, planned.matched, planned.scope_max_id) == ("shop", 1, elsewhere.pk - 1)


def test_what_is_written_down_of_a_part_is_of_the_failures_as_they_were(table):
    """Changes between the sending and the noting are newer: another attempt, another run, another process with the same part."""
    for name in ("as it was", "tried again", "in another run"):
        fail_often(table, name, 2)
    pull()
    planned = rescheduling.plan(ANN, query="", change={"max_attempts": 30}, reason="more")
    seen = Reschedule.objects.get(pk=planned.pk)
    below, rows, checked = carrying._forth(seen, timezone.now())
    Failure.objects.filter(job_id="tried again").update(attempts=3)
    Failure.objects.filter(job_id="in another run").update(run=2)
    carrying._write(seen, rows, checked, below)
    assert dict(Failure.objects.values_list("job_id", "max_attempts")) == {
        "as it was": 30, "tried again": 9, "in another run": 9,
    }  # fmt: skip
    Failure.objects.update(max_attempts=9)
    carrying._write(seen, rows, checked, below)  # by a process that saw it as it was before
    planned.refresh_from_db()
    assert (planned.changed, planned.parts.count()) == (3, 1)
    assert set(Failure.objects.values_list("max_attempts", flat=True)) == {9}
    carrying._end(planned, "done"), carrying._end(seen, "stopped")  # of two that end it the first does
    planned.refresh_from_db()
    assert planned.state == "done" and AuditEvent.objects.filter(actor="redrive").count() == 1


def test_an_act_that_is_taken_back_while_it_is_under_way_changes_nothing_more(table):
    table.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120) "
        "INSERT INTO jobs (id, type, payload, attempts, max_attempts) SELECT 'j' || i, 't', '{}', 1, 9 FROM n"
    )
    while pull():
        pass
    planned = rescheduling.plan(ANN, query="", change={"max_attempts": 30}, reason="more")
    carrying._part(planned, config.adapter("shop"), timezone.now())
    planned.refresh_from_db()
    rescheduling.undo(ANN, planned)
    while pull() or Reschedule.objects.filter(state="planned").exists():
        pass
    planned.refresh_from_db()
    assert (planned.state, planned.changed) == ("stopped", 100)
    assert table.execute("SELECT DISTINCT max_attempts FROM jobs") == [(9,)]


def test_a_source_that_can_no_longer_be_rescheduled_stops_it_with_the_reason(table, settings):
    fail_often(table, "j", 1), pull()
    planned = rescheduling.plan(ANN, query="", change=EXPONENTIAL)
    with open(settings.REDRIVE["SOURCES"], "a") as file:
        file.write('columns = {scheduled_at = ""}\n')
    config.adapter("shop").close()
    forget_configuration(config)
    pull()
    planned.refresh_from_db()
    assert (planned.state, planned.changed) == ("stopped", 0) and "cannot be rescheduled" in planned.why


def test_a_failure_that_came_after_the_preview_is_not_checked_by_who_carries_it_out(table):
    fail_often(table, "seen", 1), pull()
    highest = Failure.objects.get().pk
    fail_often(table, "later", 1), pull()
    planned = rescheduling.plan(ANN, query="", change={"max_attempts": 30}, highest=highest)
    planned.below = 2**62  # as if nothing were looked at
    assert [one.job_id for one in rescheduling.planning.remaining(planned)] == ["seen"]


def test_a_table_that_became_unknown_stops_it_and_reports_why(table):
    fail_often(table, "j", 1)
    pull()
    planned = rescheduling.plan(ANN, query="", change=EXPONENTIAL)
    table.execute("INSERT INTO jobs (id, type, payload, status) VALUES ('x', 't', '{}', 'zombie')")
    config.adapter("shop")._shape = None  # a minute later
    pull()
    planned.refresh_from_db()
    assert planned.state == "stopped" and "'zombie'" in planned.why and planned.changed == 0


def test_what_the_published_statement_writes_as_it_is_is_reported_and_fixed(table):
    """In SQLite `||` binds tighter than `*`: the row that is to be tried again has no time, and its worker never finds it."""
    table.enqueue("mail")
    table.execute(AS_PUBLISHED, "Error: 503", "mail")
    assert table.row("mail", "status", "scheduled_at") == ("pending", None)
    pull()
    assert Failure.objects.get().state == "retrying"
    assert "jobs-table-no-due-time" in {one.id for one in config.adapter("shop").findings()}
    rescheduling.plan(ANN, selection=[Failure.objects.get().pk], change=EXPONENTIAL)
    pull()
    assert table.row("mail", "scheduled_at IS NOT NULL") == 1
    assert "jobs-table-no-due-time" not in {one.id for one in config.adapter("shop").findings()}


@pytest.mark.parametrize(("change", "field"), [
    ({}, ""), ([], ""), ({"colour": 1}, "colour"), ({"due_at": "tomorrow"}, "due_at"), ({"max_attempts": 0}, "max_attempts"),
    ({"due_at": "now", "curve": {}}, "due_at"), ({"curve": {"backoff": {"kind": "odd"}}}, "curve.backoff.kind"),
    ({"curve": {"name": "x"}}, "curve"), ({"max_attempts": True}, "max_attempts"), ({"due_at": "0001-01-01"}, "due_at"),
])  # fmt: skip
def test_a_change_that_cannot_be_done_is_refused_beside_its_field(change, field):
    with pytest.raises(Refused) as refused:
        read(change, time.time())
    assert refused.value.field == field


def test_jitter_spreads_the_jobs_and_is_the_same_whenever_it_is_requested():
    change = read({"curve": {"backoff": {"kind": "fixed", "first_delay_s": 100}, "jitter": {"kind": "full"}}}, 0.0)
    dues = [change.due(job, 1, 1000.0, 0.0) for job in range(2_000)]
    assert dues == [change.due(job, 1, 1000.0, 0.0) for job in range(2_000)]
    assert {int(due - 1000) // 10 for due in dues} == set(range(10)) and Change(due_at=5.0).due(1, 1, 0.0, 9.0) == 9.0
    assert change.due(1, 1, 1000.0, 5000.0) == 5000.0  # never in the past
    assert read(json.loads(json.dumps(change.document())), 0.0) == change
