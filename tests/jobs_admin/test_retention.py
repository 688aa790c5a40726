"""Ended records go, by age and by size; what is under way stays, and no number is wrong afterwards."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partialmethod
from random import Random

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone

from jobs_admin import ingest
from jobs_admin.db import statements, step_progress
from jobs_admin.desk import retention
from jobs_admin.failures import triage
from jobs_admin.models import (
    Alert,
    AlertEvent,
    Attempt,
    AuditEvent,
    Channel,
    Delivery,
    Failure,
    FailureCount,
    Group,
    GroupCounter,
    Notice,
    Payload,
    Replay,
    ReplayItem,
    Rule,
    Silence,
    Traceback,
    Unfiled,
    Worker,
)  # fmt: skip
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.terms import FAILURES, write_failures
from tests.kit.endurance import times
from tests.kit.failures import forget
from tests.kit.reports import entries, file, report
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
NOW = timezone.now()
DAY = timedelta(days=1)
ANN = Viewer("ann", {"*": OPERATOR})


def bury(n: int = 1, age: timedelta = 100 * DAY, **changes) -> list[Failure]:
    at, start = NOW - age, Failure.objects.count()
    values = {"source": "shop", "queue": "emails", "task": "t", "state": "dead", "kind": "exception"}
    values |= {"first_failed_at": at, "failed_at": at, "received_at": at} | changes
    made = Failure.objects.bulk_create(
        Failure(**values, first_job_id=f"j{start + i}", job_id=f"j{start + i}") for i in range(n)
    )
    Payload.objects.bulk_create(Payload(failure=f, run=1, body=b"x", size=1, sha256="0") for f in made)
    Attempt.objects.bulk_create(
        Attempt(failure=f, run=1, attempt=1, kind="exception", job_id=f.job_id, ended_at=at, received_at=at)
        for f in made
    )
    write_failures([(f.pk, "t") for f in made])
    return made


def replayed(failure: Failure, state: str = "done", item: str = "succeeded", age: timedelta = 99 * DAY) -> Replay:
    at = NOW - age
    replay = Replay.objects.create(state=state, scope_max_id=failure.pk, total=1, actor="ann", **{item: 1})
    ReplayItem.objects.create(replay=replay, n=1, failure=failure, run=2, state=item, sent_at=at, settled_at=at)
    return replay


def stored_failures() -> set[int]:
    return set(Failure.objects.values_list("pk", flat=True))


def rows_of_terms() -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {FAILURES}")
        return cursor.fetchone()[0]


def counts_by_state() -> dict[str, int]:
    return {row.state: row.count for row in FailureCount.objects.filter(count__gt=0)}


@pytest.mark.parametrize(
    ("state", "days"), [("recovered", 7), ("gone", 7), ("discarded", 30), ("dead", 90), ("quarantined", 90)]
)
def test_each_state_is_stored_for_its_time(state, days):
    [_], [young] = bury(age=(days + 1) * DAY, state=state), bury(age=(days - 1) * DAY, state=state)
    assert retention.prune(NOW).failures == {state: 1} and stored_failures() == {young.pk}


@pytest.mark.parametrize("state", ["retrying", "replaying"])
def test_what_is_under_way_stays_however_old(state):
    bury(age=4000 * DAY, state=state)
    assert retention.prune(NOW, older_than=DAY, larger_than=1).count == 0 and len(stored_failures()) == 1


def test_all_that_belongs_to_a_failure_goes_with_it_and_the_counters_are_right():
    stack = Traceback.objects.create(sha256="a", text="x")
    group = Group.objects.create(fingerprint="v1-a", error_type="E", first_seen=NOW, last_seen=NOW)
    [old], [young] = bury(group=group, traceback=stack), bury(age=DAY, group=group)
    Group.objects.filter(pk=group.pk).update(representative=old)
    pruned = retention.prune(NOW)
    assert pruned.rows == {"attempts": 1, "messages": 1, "tracebacks": 1} and stored_failures() == {young.pk}
    assert not Attempt.objects.filter(failure_id=old.pk).exists() and Payload.objects.count() == rows_of_terms() == 1
    assert counts_by_state() == {"dead": 1} and not Traceback.objects.exists()
    assert Group.objects.get(pk=group.pk).representative is None


def test_nothing_else_points_to_a_failure():
    """A table that a new relation adds has to be thought of in `retention.forget`."""
    pointing = {r.related_model.__name__ for r in Failure._meta.get_fields(include_hidden=True) if r.one_to_many}
    assert pointing == {"Attempt", "Comeback", "Payload", "ReplayItem", "Group"}


@pytest.mark.parametrize(("state", "item"), [("running", "planned"), ("paused", "planned"), ("running", "succeeded"), ("done", "uncertain")])  # fmt: skip
def test_what_is_part_of_a_replay_that_is_not_over_stays(state, item):
    [failure] = bury()
    replayed(failure, state, item)
    assert retention.prune(NOW, older_than=DAY, larger_than=1).count == 0 and stored_failures() == {failure.pk}


def test_a_replay_keeps_its_numbers_when_its_jobs_are_gone():
    [failure] = bury(state="recovered")
    replay = replayed(failure)
    retention.prune(NOW)
    replay.refresh_from_db()
    assert stored_failures() == set() and (replay.total, replay.succeeded, replay.items.count()) == (1, 1, 0)


def test_its_time_begins_with_the_last_that_happened():
    [sent], [ran] = bury(state="recovered"), bury(state="recovered")
    replayed(sent, age=DAY)
    Attempt.objects.filter(failure=ran).update(received_at=NOW - DAY)
    assert retention.prune(NOW).count == 0


def test_what_was_discarded_today_can_still_be_restored_however_long_ago_it_failed():
    first, second = bury(2)
    triage.discard(ANN, selection=[first.pk, second.pk], reason="r")
    triage.restore(ANN, selection=[second.pk])
    assert retention.prune(timezone.now()).count == 0 and stored_failures() == {first.pk, second.pk}


def test_beyond_its_size_the_oldest_closed_go_and_no_dead_one():
    dead = bury(5, age=3 * DAY)
    closed = bury(40, age=2 * DAY, state="recovered")
    weight, in_use = retention.weigh()
    pruned = retention.prune(NOW, larger_than=round(in_use - 10 * weight))
    assert 8 <= pruned.count <= 14 and pruned.failures.keys() == {"recovered"}
    assert stored_failures() >= {f.pk for f in dead} and max(stored_failures()) == closed[-1].pk
    assert min(stored_failures() - {f.pk for f in dead}) == closed[pruned.count].pk
    assert retention.prune(NOW, larger_than=1).too_large_by > 0 and stored_failures() == {f.pk for f in dead}


@pytest.mark.postgresql
def test_a_large_message_weighs_little_more_than_it_is_long():
    (failure,) = bury()
    without, _ = retention.weigh()
    Payload.objects.filter(failure=failure).update(body=secrets.token_bytes(1_000_000))
    assert 1_000_000 <= retention.weigh()[0] - without <= 1_200_000


def test_a_dry_run_reports_what_a_run_then_does_and_changes_nothing():
    bury(30), bury(12, state="recovered"), bury(3, age=DAY)
    before = stored_failures()
    would = retention.prune(NOW, dry_run=True)
    assert stored_failures() == before and not AuditEvent.objects.exists() and would.bytes > 0
    assert retention.prune(NOW).failures == would.failures == {"dead": 30, "recovered": 12}


def test_none_is_passed_over_however_many_go_at_once(monkeypatch):
    bury(900, state="gone")
    monkeypatch.setattr(retention, "_TRANSACTION_S", 0.005)  # each transaction is too long, so the next is shorter
    assert retention.prune(NOW).count == 900


class Killed(Exception):
    pass


@pytest.mark.parametrize("seed", range(times(4, 12)))
def test_whatever_happened_before_exactly_those_go_whose_time_is_over_also_when_it_is_killed(seed, monkeypatch):
    pick = Random(seed)
    days = {"recovered": 7, "gone": 7, "discarded": 30, "dead": 90, "quarantined": 90}
    ends = ("succeeded", "failed_again", "cancelled", "uncertain", "planned", "sent", "running")
    staying: set[int] = set()

    def near(state: str) -> timedelta:
        return (days.get(state, 90) + pick.choice([-40, -1, 1, 1, 1, 40])) * DAY

    def is_over(state: str, *ages: timedelta) -> bool:
        return state in days and min(ages) > days[state] * DAY

    for _ in range(60):
        state = pick.choice([*days, *days, "retrying", "replaying"])
        age, heard = near(state), near(state)
        [failure] = bury(age=age, state=state)
        Attempt.objects.filter(failure=failure).update(received_at=NOW - heard)
        goes = is_over(state, age, heard)
        if pick.random() < 0.4:
            ran, item, replay = near(state), pick.choice(ends), pick.choice(["done", "stopped", "running", "paused"])
            replayed(failure, replay, item, ran)
            goes &= (
                is_over(state, ran)
                and item in {"succeeded", "failed_again", "cancelled"}
                and replay in {"done", "stopped"}
            )
        if pick.random() < 0.3:
            acted = near(state)
            AuditEvent.objects.create(
                at=NOW - acted, actor="ann", act="failure.discard", allowed=True, after={"ids": [failure.pk]}
            )
            if state in {"discarded", "dead"}:  # what else is closed was closed by what its attempts report
                goes &= is_over(state, acted)
        if not goes:
            staying.add(failure.pk)
    monkeypatch.setattr(retention, "_MOST", 5)
    monkeypatch.setattr(retention._Run, "__init__", partialmethod(retention._Run.__init__, at_once=5))
    delete = statements.delete

    def kill(*which):
        if pick.random() < 0.05:
            raise Killed
        return delete(*which)

    monkeypatch.setattr(statements, "delete", kill)
    went = 0
    while True:
        before = stored_failures()
        with suppress(Killed):
            went += retention.prune(NOW).count
            break
        assert stored_failures() >= staying
        went += len(before - stored_failures())
    assert stored_failures() == staying and went == 60 - len(staying)
    assert (
        set(Attempt.objects.values_list("failure", flat=True))
        == staying
        == set(Payload.objects.values_list("failure", flat=True))
    )
    assert set(ReplayItem.objects.values_list("failure", flat=True)) <= staying and rows_of_terms() == len(staying)
    assert counts_by_state() == Counter(Failure.objects.values_list("state", flat=True))


def test_it_may_be_broken_off_and_goes_on(monkeypatch):
    monkeypatch.setattr(retention, "_MOST", 1)  # a transaction each, of which no machine makes 300 in so short a time
    monkeypatch.setattr(retention, "_FEWEST", 1)
    bury(400, state="gone")
    runs = (retention.prune(NOW, within_s=seconds) for seconds in (0.03, 0.1, 0.3))
    first = next(run for run in runs if run.count)  # on a busy machine the first may end before it deletes one
    assert not first.is_done and first.count < 400
    second = retention.prune(NOW)
    assert second.is_done and first.count + second.count == 400 and counts_by_state() == {}


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_report_is_filed_whose_failure_is_pruned_while_it_is_written():
    file(report("j1", at=(NOW - 100 * DAY).timestamp()), now=NOW - 100 * DAY)
    with ThreadPoolExecutor(1) as other:
        with transaction.atomic():
            forget([Failure.objects.get().pk])
            filed = other.submit(in_thread, lambda: ingest.file(entries(report("j1", attempt=2)), NOW))
            wait_until(lambda: filed.done() or count_waiting("advisory"), "the report's transaction to wait")
        assert filed.result(60) == ingest.Filed(new_failures=1, new_attempts=1)
    assert Attempt.objects.get().attempt == 2 and not Unfiled.objects.exists()


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_group_and_a_stack_stay_that_a_report_refers_to_before_it_is_committed():
    first = report("j1", at=(NOW - 100 * DAY).timestamp())
    file(first, now=NOW - 100 * DAY)
    forget([Failure.objects.get().pk])
    with ThreadPoolExecutor(1) as other:
        with transaction.atomic():
            ingest.file(entries(report("j2")), NOW)
            pruned = other.submit(in_thread, lambda: retention.prune(NOW))
            wait_until(lambda: pruned.done() or count_waiting("advisory"), "prune to wait")
        assert not {"groups", "tracebacks"} & pruned.result(60).rows.keys()
    assert Failure.objects.get().group == Group.objects.get() and Traceback.objects.count() == 1


def in_thread(act):
    try:
        return act()
    finally:
        connection.close()


def count_waiting(kind: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM pg_locks WHERE locktype = %s AND NOT granted", [kind])
        return cursor.fetchone()[0]


def test_a_round_is_written_into_the_audit_once():
    bury(700)
    retention.prune(NOW)
    event = AuditEvent.objects.get()
    assert (event.actor, event.act) == ("redrive", "retention.prune") and event.after["failures"] == {"dead": 700}
    retention.prune(NOW)
    assert AuditEvent.objects.count() == 1


def test_numbers_over_time_workers_and_groups_go_in_their_time():
    group = Group.objects.create(fingerprint="v1-a", error_type="E", first_seen=NOW, last_seen=NOW - 91 * DAY)
    noted = Group.objects.create(fingerprint="v1-b", error_type="E", first_seen=NOW, last_seen=NOW - 91 * DAY, note="n")
    for step, age in ((60, 1), (60, 3), (3600, 3)):
        GroupCounter.objects.create(group=noted, step=step, at=NOW - age * DAY, failed=1)
    Worker.objects.create(source="shop", name="w", boot="1", seen_at=NOW - 8 * DAY)
    assert retention.prune(NOW).rows == {"group counters": 1, "workers": 1, "groups": 1}
    assert not Group.objects.filter(pk=group.pk).exists() and noted.counters.count() == 2


def test_settings_report_what_is_stored(settings):
    settings.REDRIVE = settings.REDRIVE | {"KEEP": "dead=ever, recovered+gone=2d", "KEEP_BYTES": "1.5GB"}
    bury(age=5000 * DAY), bury(age=3 * DAY, state="recovered")
    assert retention.prune(NOW).failures == {"recovered": 1}
    assert "recovered and gone 2 d" in retention.in_words() and "dead for ever" in retention.in_words()
    assert "1.5 GB" in retention.in_words()


@pytest.mark.parametrize("text", ["dead=3x", "dead=5m", "retrying=3d", "d", "dead=-1d", "=3d"])
def test_a_setting_that_is_not_understood_is_refused_by_name(settings, text):
    settings.REDRIVE = settings.REDRIVE | {"KEEP": text}
    with pytest.raises(retention.config.BadConfiguration, match="REDRIVE_KEEP"):
        retention.prune(NOW)


@pytest.mark.parametrize("text", ["999999w", "36501d"])
def test_a_length_of_time_that_leads_before_all_dates_is_refused_with_a_sentence(settings, text):
    bury()
    with pytest.raises(CommandError, match=f"--older-than: '{text}' is longer than 36500d"):
        call_command("prune", "--older-than", text)
    settings.REDRIVE = settings.REDRIVE | {"KEEP": f"dead={text}"}
    with pytest.raises(retention.config.BadConfiguration, match=f"REDRIVE_KEEP: '{text}' is longer"):
        retention.prune(NOW)
    assert len(stored_failures()) == 1


def test_the_longest_length_of_time_can_be_used(settings):
    settings.REDRIVE = settings.REDRIVE | {"KEEP": "36500d"}
    bury()
    assert retention.prune(NOW).count == 0 and len(stored_failures()) == 1


def test_the_command_reports_the_numbers(capsys):
    bury(3)
    call_command("prune", "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out)["by_state"] == {"dead": 3}
    call_command("prune", "--older-than", "101d")
    assert "0 failures went" in capsys.readouterr().out
    call_command("prune", "--older-than", "99d")
    assert "3 failures went" in capsys.readouterr().out and not stored_failures()
    with pytest.raises(CommandError, match="is not a duration"):
        call_command("prune", "--older-than", "soon")


def test_a_read_only_desk_keeps_everything(settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    bury(3)
    assert retention.step(NOW) is False and retention.prune(NOW, dry_run=True).count == 3
    with pytest.raises(CommandError, match="read-only"):
        call_command("prune")
    assert len(stored_failures()) == 3


def test_notices_go_with_their_deliveries_when_history_is_over_and_what_happened_to_the_alert_stays():
    channel = Channel.objects.create(name="pager", kind="webhook", url="https://hooks.example/")
    rule = Rule.objects.create(name="Deep", metric="dead", threshold=5)
    fields = {"rule": rule, "source": "shop", "subject": "emails", "severity": "warning", "value": 6, "threshold": 5}
    alert = Alert.objects.create(**fields, opened_at=NOW - 91 * DAY)
    for key, age in (("old", 91), ("new", 89)):
        notice = Notice.objects.create(key=key, type="alert.firing", alert=alert, body={})
        Notice.objects.filter(pk=notice.pk).update(created_at=NOW - age * DAY)
        notice.channels.add(channel)
        Delivery.objects.create(notice=notice, channel=channel, state="delivered")
        AlertEvent.objects.create(alert=alert, n=age, at=NOW - age * DAY, to="firing", notice=notice)
    assert retention.prune(NOW).rows["notices"] == 1  # "new" is left: the next of its alert is numbered after it
    assert list(Delivery.objects.values_list("notice__key", flat=True)) == ["new"]
    assert list(AlertEvent.objects.order_by("-n").values_list("notice__key", flat=True)) == [None, "new"]
    assert Channel.objects.get().notices.count() == 1
    Notice.objects.update(created_at=NOW - 91 * DAY)
    Notice.objects.create(key="ping", type="ping", body={})
    Notice.objects.filter(key="ping").update(created_at=NOW - 91 * DAY)
    assert retention.prune(NOW).rows["notices"] == 1
    assert list(Notice.objects.values_list("key", flat=True)) == ["new"]


def test_alerts_that_are_over_go_with_their_events_and_then_a_deleted_rule():
    old = NOW - timedelta(days=91)
    rule = Rule.objects.create(name="gone", metric="dead", threshold=1, deleted_at=old, enabled=False)
    Rule.objects.create(name="stays", metric="dead", threshold=1)
    fields = {"rule": rule, "source": "shop", "severity": "info", "value": 1, "threshold": 1, "opened_at": old}
    leader = Alert.objects.create(**fields, subject="a", state="resolved", resolved_at=old)
    AlertEvent.objects.create(alert=leader, n=1, at=old, to="firing")
    open_ = Alert.objects.create(**fields, subject="b", state="firing", told_with=leader)
    Silence.objects.create(matchers={"rule": "x"}, author="ann", comment="x", starts_at=old, ends_at=old)
    assert not {"alerts", "deleted rules"} & set(retention.prune(NOW).rows)  # its key is still in use
    assert not Silence.objects.exists()
    Alert.objects.filter(pk=open_.pk).update(state="resolved", resolved_at=old)
    retention.prune(NOW)
    retention.prune(NOW)
    assert not Alert.objects.exists() and not AlertEvent.objects.exists()
    assert not Rule.objects.filter(pk=rule.pk).exists() and Rule.objects.filter(name="stays").exists()


def test_progress_is_reported_between_the_transactions_of_a_prune(monkeypatch):
    reports = []
    monkeypatch.setattr(step_progress, "_listener", lambda: reports.append(Failure.objects.count()))
    bury(300)
    assert retention.prune(NOW).count == 300
    assert len(set(reports)) >= 3 and reports[-1] == 0
