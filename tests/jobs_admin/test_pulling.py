"""Reports of a system that keeps its dead letters are in the tables before it may forget them, and what people do there is seen here."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from django.db import OperationalError
from django.utils import timezone

from jobs_admin import config, failures, replays
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.failures import triage
from jobs_admin.ingest import lost_jobs
from jobs_admin.models import Attempt, Failure, QueueCounter, RefusedReports, ReplayItem, Source, Unfiled
from jobs_admin.models.access import ENGINE
from jobs_admin.retries import pulling, rechecking
from jobs_admin.sources.base import JobChanges, Ref, SourceRefused, SourceUnreachable
from jobs_admin.trust import Cause, admission
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


@pytest.fixture
def table(settings, tmp_path, monkeypatch):
    """The source `table`, in this process, which keeps its dead letters."""
    file = tmp_path / "sources.toml"
    file.write_text('[sources.table]\nbackend = "memory"\nurl = "memory:"\nkeeps_dead = true\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    # The dead are asked for every few seconds: here at each round.
    monkeypatch.setattr(rechecking, "_BETWEEN_S", 0.0)
    monkeypatch.setattr(rechecking, "_rested", {})
    monkeypatch.setattr(rechecking, "_places", {})
    monkeypatch.setattr(pulling, "_ROUND_S", 60.0)  # a round that takes longer leaves the rest to the next
    yield config.adapter("table")
    forget_configuration(config)


def report(n, kind="exception", attempt=1, **changes):
    raw = json.dumps({"args": [n], "kwargs": {}}).encode()
    values = {
        "source": "table", "queue": "emails", "task": "send", "job_id": f"j{n}", "kind": kind, "attempt": attempt,
        "at": time.time() - 60, "error_type": "TimeoutError", "message": "too slow", "args": f"[{n}]", "kwargs": "{}",
        "raw": raw, "raw_size": len(raw), "raw_sha256": hashlib.sha256(raw).hexdigest(),
    }  # fmt: skip
    return Envelope(**values | changes)


def ref(n):
    return Ref("emails", f"j{n}")


def states():
    return dict(Failure.objects.values_list("job_id", "state"))


def pull(puller="one", **when):
    return pulling.pull("table", puller, **when)


def test_all_that_it_has_is_filed_page_by_page_and_only_then_given_up_there(table):
    table.reports = [report(n) for n in range(250)]
    assert pull() is False
    assert len(states()) == 250 and table.filed_up_to == 250
    source = Source.objects.get(name="table")
    assert source.cursor == "250" and source.pulled_at and not source.why_not_pulled
    table.reports += [report(250)]
    pull()
    assert len(states()) == 251


def test_what_could_not_be_filed_is_read_again(table, monkeypatch):
    table.reports = [report(1)]

    def away(*_, **__):
        raise OperationalError("away")

    with monkeypatch.context() as broken:
        broken.setattr(pulling.ingest, "file", away)
        with pytest.raises(OperationalError):
            pull()
    assert table.filed_up_to == 0 and Source.objects.get(name="table").cursor == ""
    pull()
    assert states() == {"j1": "dead"} and table.filed_up_to == 1


def test_what_is_neither_filed_nor_stored_stays_there_and_is_read_again_once_there_is_room(table, monkeypatch):
    monkeypatch.setitem(admission._BOUNDS, Cause.UNFILED, admission._Bound(2, 10**9))
    nameless = [report(n, job_id="", raw_sha256=f"{n}") for n in (3, 105, 130)]  # of one queue: their messages differ
    table.reports = [report(n) if n not in (3, 105, 130) else nameless.pop(0) for n in range(250)]
    for _ in range(3):  # it is the same page each time
        with pytest.raises(pulling.NoRoom, match="Dead letters left here: 1"):
            pull()
    assert table.filed_up_to == 100 and len(states()) == 197 and Unfiled.objects.count() == 2
    refused = RefusedReports.objects.get()
    assert (refused.source, refused.dropped) == ("table", 0) and "names no job" in refused.why
    admission.discard_unfiled(ENGINE, [Unfiled.objects.first().pk])
    assert pull() is False
    assert table.filed_up_to == 250 and len(states()) == 247 and Unfiled.objects.count() == 2
    assert not Source.objects.get().why_not_pulled


def test_an_event_without_room_is_counted_as_dropped_and_holds_up_no_other(table, monkeypatch):
    monkeypatch.setitem(admission._BOUNDS, Cause.UNFILED, admission._Bound(0, 0))
    monkeypatch.setattr(table, "can", replace(table.can, follows=True))
    table.reports = [report(0, job_id=""), report(1)]
    assert pull() is False
    assert table.filed_up_to == 2 and states() == {"j1": "dead"} and RefusedReports.objects.get().dropped == 1


def test_the_same_reported_twice_changes_nothing(table):
    table.reports = [report(1), report(1), report(2)]
    pull()
    Source.objects.update(cursor="")
    pull()
    assert Failure.objects.count() == Attempt.objects.count() == 2


def test_who_reports_the_same_attempt_and_knows_more_fills_in_what_was_missing(table):
    table.reports = [report(1, task="", args="", kwargs="", raw=None, raw_size=0)]
    pull()
    failure = Failure.objects.get()
    assert failure.task == "" and failure.caveats
    table.reports += [report(1)]
    pull()
    failure.refresh_from_db()
    assert (failure.task, failure.args, failure.caveats, failure.attempts) == ("send", "[1]", None, 1)
    assert Attempt.objects.count() == 1 and failures.search(ANN, "task:send").rows


def test_jobs_of_two_queues_with_one_id_are_two(table):
    table.reports = [report(1), report(1, queue="webhooks")]
    pull()
    table.reports += [report(1, queue="reports", attempt=2)]
    pull()
    assert sorted(Failure.objects.values_list("queue", "attempts")) == [("emails", 1), ("reports", 2), ("webhooks", 1)]


def test_jobs_that_ran_well_are_counted_in_their_minute_and_by_who_holds_the_lease_alone(table):
    minute = int(time.time() // 60)
    table.ran = {("emails", minute): 7, ("web", minute - 1): 2}
    pull("one")
    table.ran = {("emails", minute): 100}
    assert pull("two") is False
    pull("one")
    counted = QueueCounter.objects.filter(source="table", step=60).values_list("queue", "at", "succeeded")
    at = datetime.fromtimestamp(60 * minute, UTC)
    assert set(counted) == {("emails", at, 107), ("web", at - timedelta(minutes=1), 2)}


def test_a_job_that_is_given_the_id_of_one_that_is_no_more_is_a_further_run_however_often_it_is_reported(table):
    now = time.time()
    first = report(1, attempt=3, at=now - 90, made_at=now - 91)
    table.reports = [first, report(2, at=now - 90, made_at=now - 91)]
    pull()
    Failure.objects.filter(job_id="j1").update(state="recovered")
    another = report(1, at=now - 50, made_at=now - 51, message="another error", raw=b'{"args": [9]}', raw_size=13)
    third = report(1, at=now - 10, made_at=now - 20)
    table.reports += [another, another]
    pull()
    found = Failure.objects.get(first_job_id="j1")
    assert (found.state, found.run, found.attempts, found.message) == ("dead", 2, 1, "another error")
    table.reports += [first, another, third, third, another, first]
    pull()
    Source.objects.update(cursor="")
    pull()
    runs = Attempt.objects.filter(failure=found).values_list("run", "attempt").order_by("run")
    assert list(runs) == [(1, 3), (2, 1), (3, 1)] and Failure.objects.count() == 2
    assert found.payloads.filter(run=2).exists()


@pytest.mark.parametrize("ahead_s", [-7_200, 7_200])
def test_a_job_is_itself_however_far_the_clock_of_its_maker_is_off(table, ahead_s):
    now = time.time()
    one = report(1, at=now - 500, made_at=now - 501 + ahead_s)
    table.reports = [one]
    for _ in range(5):
        pull()
        Source.objects.update(cursor="")
    assert Attempt.objects.count() == 1 and Failure.objects.get().run == 1
    assert sum(QueueCounter.objects.filter(step=60).values_list("failed", flat=True)) == 1


def test_who_died_before_a_further_run_was_filed_files_that_one(table, monkeypatch):
    now = time.time()
    table.reports = [report(1, at=now - 90, made_at=now - 91)]
    pull()
    table.reports += [report(1, at=now - 50, made_at=now - 51)]

    def away(*_, **__):
        raise OperationalError("away")

    with monkeypatch.context() as broken:
        broken.setattr(pulling.ingest, "file", away)
        with pytest.raises(OperationalError):
            pull()
    pull()
    assert Failure.objects.get().run == 2


def test_one_process_reads_a_source_at_a_time_and_another_takes_over_from_one_that_hangs(table):
    now = timezone.now()
    table.reports = [report(1)]
    assert pull("one", now=now) is False and len(states()) == 1
    table.reports += [report(2)]
    assert pull("two", now=now) is False and len(states()) == 1
    pull("two", now=now + pulling._LEASE * 2)
    assert len(states()) == 2


def test_who_loses_the_lease_while_it_reads_gives_up_nothing_and_counts_nothing(table, monkeypatch):
    dead_letters = table.dead_letters
    table.reports, table.ran = [report(1)], {("emails", int(time.time() // 60)): 7}

    def meanwhile(after):
        Source.objects.update(puller="two")
        return dead_letters(after)

    monkeypatch.setattr(table, "dead_letters", meanwhile)
    assert pull("one") is False
    assert table.filed_up_to == 0 and Source.objects.get().cursor == "" and not QueueCounter.objects.filter(succeeded=7)


def test_a_watch_that_is_started_again_does_not_wait_for_the_lease_of_the_one_that_ended(table):
    ended = subprocess.Popen(["true"])
    ended.wait()
    table.reports = [report(1)]
    pull(f"{socket.gethostname()}:{ended.pid}")
    table.reports += [report(2)]
    pull(f"{socket.gethostname()}:{os.getpid()}")
    assert len(states()) == 2
    table.reports += [report(3)]
    pull("elsewhere:1")
    assert len(states()) == 2
    Source.objects.update(puller=f"elsewhere:{ended.pid}")  # of another machine nothing is known by that number
    pull("elsewhere:1")
    assert len(states()) == 2


def test_a_source_that_is_away_reports_it_and_nothing_changes(table):
    table.reports = [report(1)]
    pull()
    table.reachable = False
    with pytest.raises(SourceUnreachable):
        pull()
    assert states() == {"j1": "dead"}


def test_what_another_person_brought_back_is_gone_until_it_fails_again(table):
    table.reports = [report(1), report(2, "retry", due_at=time.time() + 60)]
    pull()
    table.gone = {ref(1): "It waits in its queue again.", ref(2): "It was removed."}
    pull()
    assert states() == {"j1": "gone", "j2": "gone"}
    assert Failure.objects.get(job_id="j1").reason == "It waits in its queue again."
    table.gone, table.reports = {ref(3): "\0 and \ud800 and so on. " * 50}, [*table.reports, report(3)]
    pull()
    found = Failure.objects.get(job_id="j3")
    assert found.state == "gone" and len(found.reason) <= 200 and not {"\0", "\ud800"} & set(found.reason)
    table.gone, table.reports = {}, [*table.reports, report(1, attempt=2)]
    pull()
    assert states()["j1"] == "dead"


def test_a_job_that_a_replay_is_about_to_send_is_not_gone(table):
    table.reports = [report(1)]
    pull()
    replay = start_replay()
    table.gone = {ref(1): "It waits in its queue again."}
    pull()
    assert states() == {"j1": "dead"}
    send(replay)
    pull()
    assert states() == {"j1": "replaying"}


def start_replay():
    ids = list(Failure.objects.order_by("pk").values_list("pk", flat=True))
    return replays.start(ANN, replays.draft(ANN, selection=ids, pace={"style": "at_once"}, reason="mended"))


def send(replay):
    ends = time.monotonic() + 90
    while ReplayItem.objects.filter(replay=replay, state="planned").exists() and time.monotonic() < ends:
        replays.create_items(), replays.send(f"pulling {replay.key}"), replays.settle()


def test_a_replayed_job_keeps_its_id_and_its_end_comes_home(table):
    table.reports = [report(1), report(2)]
    pull()
    replay = start_replay()
    send(replay)
    sent = {job["id"]: job["redrive"] for job in table.queues["emails"]}
    assert sent.keys() == {"j1", "j2"} and sent["j1"]["run"] == 2 and sent["j1"]["sent_as"] == "j1"
    lineages = {job: Lineage.from_header(header) for job, header in sent.items()}
    table.news = {
        ref(1): report(1, "success", lineage=lineages["j1"]),
        ref(2): report(2, lineage=lineages["j2"], message="again"),
    }
    pull()
    replays.settle()
    assert states() == {"j1": "recovered", "j2": "dead"}
    replay.refresh_from_db()
    assert (replay.succeeded, replay.failed_again) == (1, 1)
    assert Failure.objects.get(job_id="j2").run == 2


def test_a_due_time_that_was_moved_there_is_moved_here(table):
    table.reports = [report(1, "retry", due_at=time.time() + 60)]
    pull()
    table.due = {ref(1): 4_000_000_000.0}
    pull()
    assert Failure.objects.get().due_at.timestamp() == 4_000_000_000.0
    for absurd in (float("inf"), float("nan"), 1e300):
        table.due = {ref(1): absurd}
        pull()
    assert Failure.objects.get().due_at.timestamp() == 4_000_000_000.0


def test_a_retry_that_is_late_is_not_called_lost_by_the_clock(table):
    table.reports = [report(1, "retry", due_at=time.time() - 50_000, at=time.time() - 60_000)]
    pull()
    Failure.objects.update(due_at=timezone.now() - timedelta(days=3))
    lost_jobs.reconcile(timezone.now())
    assert states() == {"j1": "retrying"}


def test_what_was_discarded_here_is_taken_out_there(table):
    table.reports = [report(1), report(2)]
    pull()
    triage.discard(ANN, selection=[Failure.objects.get(job_id="j1").pk], reason="a test order")
    pull()
    assert table.removed == {ref(1)}


def test_all_the_dead_are_requested_in_rotation(table):
    table.reports = [report(n) for n in range(1_200)]
    for _ in range(3):
        pull()
    assert set(table.asked) == {ref(n) for n in range(1_200)}


def test_the_step_gives_each_such_source_a_thread_until_it_is_taken_out(table, transactional_db, settings):
    table.reports = [report(1)]
    assert pulling.step("watch") is False
    thread = pulling._threads["table"]
    wait_until(lambda: table.filed_up_to, "the mark")
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": ""}
    forget_configuration(config)
    thread.join(90)
    assert not thread.is_alive()
    assert states() == {"j1": "dead"}  # not while it writes: a database in memory has locks that nobody waits for


def test_a_source_whose_adapter_cannot_be_made_keeps_no_other_from_being_read(table, monkeypatch, settings, tmp_path):
    file = tmp_path / "two.toml"
    file.write_text("".join(f'[sources.{name}]\nbackend = "memory"\nurl = "memory:"\n' for name in ("bad", "table")))
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    requests = []

    def is_pulled(name):
        requests.append(name)
        if name == "bad":
            raise ValueError("a defect")
        return False  # else a thread would begin

    monkeypatch.setattr(config, "is_pulled", is_pulled)
    assert pulling.step("watch") is False and requests == ["bad", "table"]


def test_since_when_it_is_not_read_is_reported_of_the_first_failure(table):
    pulling._note_failed("table", "no")  # before it was ever heard of
    pull()
    pulling._note_failed("table", "it does not answer")
    since = Source.objects.get(name="table").not_pulled_since
    pulling._note_failed("table", "it still does not answer")
    source = Source.objects.get(name="table")
    assert source.not_pulled_since == since and source.why_not_pulled == "it still does not answer"
    pull()
    source.refresh_from_db()
    assert source.not_pulled_since is None and source.why_not_pulled == ""


def test_a_source_that_cannot_be_queried_about_known_jobs_reports_since_when_although_its_pages_are_read(
    table, monkeypatch
):
    """Each round reads the pages first. That it could does not begin the time again, or no alert would ever come."""
    table.reports = [report(1)]
    pull()

    def failed_since():
        rechecking._rested.clear()
        with pytest.raises(ValueError, match="a defect") as error:
            pull()
        pulling._note_failed("table", str(error.value))
        return Source.objects.get(name="table").not_pulled_since

    with monkeypatch.context() as patched:
        patched.setattr(table, "check_jobs", Mock(side_effect=ValueError("a defect")))
        assert failed_since() == failed_since()
    pull()
    assert Source.objects.get(name="table").not_pulled_since is None


def test_it_counts_as_read_only_where_there_was_no_more(table, monkeypatch):
    monkeypatch.setattr(pulling, "_ROUND_S", 0.0)
    table.reports = [report(n) for n in range(150)]
    assert pull() is True
    assert Source.objects.get(name="table").pulled_at is None
    assert pull() is False
    assert Source.objects.get(name="table").pulled_at is not None


def test_what_a_check_saw_is_older_than_what_came_meanwhile(table):
    table.reports = [report(1), report(2, "retry", due_at=time.time() + 60)]
    pull()
    next_due = {state: rechecking._next("table", state) for state in ("dead", "retrying")}
    Failure.objects.filter(job_id="j1").update(attempts=2)
    Failure.objects.filter(job_id="j2").update(attempts=2)
    due = Failure.objects.get(job_id="j2").due_at
    rechecking._note(next_due["dead"], JobChanges(gone={ref(1): "It waits."}))
    rechecking._note(next_due["retrying"], JobChanges(due={ref(2): 4_000_000_000.0}))
    assert states() == {"j1": "dead", "j2": "retrying"} and Failure.objects.get(job_id="j2").due_at == due
    Failure.objects.update(attempts=1, run=2)
    rechecking._note(next_due["dead"], JobChanges(gone={ref(1): "It waits."}))
    rechecking._note(next_due["retrying"], JobChanges(due={ref(2): 4_000_000_000.0}))
    assert states()["j1"] == "dead" and Failure.objects.get(job_id="j2").due_at == due
    Failure.objects.filter(job_id="j1").update(run=1, state="discarded")
    rechecking._note(next_due["dead"], JobChanges(gone={ref(1): "It waits."}))
    assert states()["j1"] == "discarded"


def test_what_a_replay_sent_is_never_gone(table):
    table.reports = [report(1)]
    pull()
    send(start_replay())
    table.gone = {ref(1): "It was removed."}
    pull()
    assert states() == {"j1": "replaying"}


def test_a_source_that_may_not_be_changed_is_read_on_although_something_of_it_was_discarded(table, monkeypatch):
    table.reports = [report(1)]
    pull()
    triage.discard(ANN, selection=[Failure.objects.get(job_id="j1").pk], reason="a test order")

    def refuse(jobs):
        raise SourceRefused("It is read-only.")

    monkeypatch.setattr(table, "remove", refuse)
    pull()
    table.reports += [report(2)]
    pull()
    assert states() == {"j1": "discarded", "j2": "dead"} and not Source.objects.get(name="table").why_not_pulled


def test_a_large_message_is_filed_by_itself(table, monkeypatch):
    parts = []
    file = pulling.ingest.file
    monkeypatch.setattr(
        pulling.ingest, "file", lambda entries, **how: parts.append(len(entries)) or file(entries, **how)
    )
    large = json.dumps({"args": ["x" * 1_500_000], "kwargs": {}}).encode()
    table.reports = [report(n, raw=large, raw_size=len(large)) for n in range(3)] + [report(9)]
    pull()
    assert parts == [1, 1, 2] and len(states()) == 4


def test_reports_that_differ_are_stored_raw_under_names_that_differ():
    first = report(1)
    lineage = Lineage(queue="emails", job_id="j1", run=2, item=1, replay="r", sent_as="j1")
    others = [
        report(2), report(1, kind="retry"), report(1, attempt=2), report(1, queue="web"), report(1, source="shop"),
        report(1, lineage=lineage),
    ]  # fmt: skip
    assert len({pulling._name(one) for one in (first, *others)}) == 7 and pulling._name(first) == pulling._name(
        report(1)
    )
