"""Celery's events become the ends of attempts, whatever their order and whatever they contain."""

from __future__ import annotations

import base64
import json

import pytest

from jobs_admin.core.coverage import Coverage, Minute, WorkerCoverage, parse
from jobs_admin.sources.celery import event_errors, events, followed
from jobs_admin.sources.celery.events import Events, Worker
from jobs_admin.sources.celery.followed import TaskQueues

NOW = 1_800_000_000.0
TRACE = """Traceback (most recent call last):
  File "/app/mail.py", line 3, in send
    raise Away("no answer")
shop.Away: no answer

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/mail.py", line 5, in send
    raise self.retry(exc=error)
celery.exceptions.Retry: Retry in 3s: Away('no answer')
"""


def read(*given, state=None):
    state = state or Events()
    for kind, fields in given:
        state.add({"type": kind, "uuid": "j1", "hostname": "w@h", "timestamp": NOW} | fields, NOW)
    return state


def error_of(end):
    return event_errors.error_of(end.kind, end.error, end.trace)


def ends(state, now=NOW):
    return [(one.kind, one.attempt) for one in state.take_ended(now)]


def test_the_next_attempt_may_be_received_before_the_last_one_ends():
    state = read(
        ("task-received", {"name": "mail", "retries": 0}),
        ("task-received", {"name": "mail", "retries": 1, "eta": "2027-01-15T08:00:03+00:00"}),
        ("task-received", {"name": "mail", "retries": 2}),
        ("task-retried", {"exception": "Away('no answer')", "traceback": TRACE}),
        ("task-retried", {"exception": "Away('no answer')", "traceback": TRACE}),
        ("task-succeeded", {"runtime": 0.5}),
    )
    retried, *others = state.take_ended(NOW)
    assert [(one.kind, one.attempt) for one in (retried, *others)] == [("retry", 1), ("retry", 2), ("success", 3)]
    assert error_of(retried) == ("shop.Away", "no answer") and "celery.exceptions.Retry" not in retried.trace


def test_a_later_attempt_may_be_reported_first():
    received = [("task-received", {"name": "mail", "retries": n}) for n in (0, 1)]
    assert ends(read(*received, ("task-succeeded", {}), ("task-retried", {}))) == [("success", 2), ("retry", 1)]
    failed = ("task-failed", {"exception": "E()"})
    assert ends(read(*received, failed, ("task-retried", {}))) == [("exception", 2), ("retry", 1)]


def test_a_job_that_succeeds_at_once_is_only_counted():
    state = read(("task-received", {"name": "ok"}), ("task-succeeded", {}))
    assert ends(state) == [] and [one.count for one in state.succeeded.values()] == [1]


def test_a_hard_limit_is_one_end_though_celery_sends_two():
    failed = ("task-failed", {"exception": "TimeLimitExceeded(30,)"})
    state = read(("task-received", {"name": "slow"}), failed, failed)
    (end,) = state.take_ended(NOW)
    assert end.kind == "hard_limit" and error_of(end)[1] == "hard time limit of 30 s exceeded"


def test_a_rejection_ends_a_job_only_where_no_failure_follows():
    state = read(("task-received", {"name": "a"}), ("task-rejected", {"requeue": False}))
    assert ends(state) == []
    assert ends(state, NOW + 3) == [("rejected", 1)]
    state = read(
        ("task-received", {"name": "a"}), ("task-rejected", {"requeue": False}), ("task-failed", {"exception": "E()"})
    )
    assert ends(state, NOW + 3) == [("exception", 1)]
    assert ends(read(("task-received", {"name": "a"}), ("task-rejected", {"requeue": True})), NOW + 3) == []


def test_revoked_by_an_operator_is_no_failure_and_expired_is_one():
    assert ends(read(("task-received", {"name": "a"}), ("task-revoked", {"terminated": True, "expired": False}))) == []
    assert ends(read(("task-received", {"name": "a"}), ("task-revoked", {"expired": True}))) == [("expired", 1)]


def test_the_attempt_of_a_job_that_was_not_received_is_unknown_unless_it_was_retried():
    assert ends(read(("task-failed", {"exception": "E()"}))) == [("exception", 0)]
    state = read(("task-received", {"retries": 4}), ("task-retried", {}), ("task-failed", {"exception": "E()"}))
    assert ends(state) == [("retry", 5), ("exception", 6)]


def beat(processed, pid=7, kind="worker-heartbeat"):
    return kind, {"pid": pid, "processed": processed}


def test_executions_are_counted_from_the_first_heartbeat():
    started = ("task-started", {})
    state = read(started, beat(100), started, beat(102))
    assert (state.started, state.executed, state.missed) == (1, 2, 0)


def test_a_restarted_worker_counts_from_zero_also_under_the_same_process_id():
    assert read(beat(100), beat(3)).executed == 3
    assert read(beat(100), beat(0, 8, "worker-online"), beat(2, 8)).executed == 2


@pytest.mark.parametrize(("pid", "processed", "missed"), [(7, 150, 50), (7, 20, 20), (8, 20, 20)])
def test_what_ran_in_an_unread_interval_is_missed(pid, processed, missed):
    state = Events()
    state.resume({"w@h": Worker(7, 100, NOW - 60, executed=40, started=0)})
    read(beat(processed, pid), state=state)
    assert (state.missed, state.executed) == (missed, 0)
    # A worker that sent no events before it is not taken for a new one.
    assert state.workers["w@h"].executed == (40 if pid == 7 else 0)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(events, "_MOST_JOBS", 10)
    monkeypatch.setattr(events, "_MOST_WORKERS", 10)
    state = Events()
    for n in range(100):
        read(("task-received", {"uuid": str(n)}), ("worker-heartbeat", {"hostname": str(n), **beat(1)[1]}), state=state)
    assert len(state.jobs) == len(state.workers) == 10


def test_messages_of_kombu():
    body = json.dumps([{"type": "task-sent"}, {"type": "task-started"}]).encode()
    message = {
        "body": base64.b64encode(body).decode(),
        "content-type": "application/json",
        "properties": {"body_encoding": "base64"},
    }
    assert [event["type"] for event in events.from_json(events.body_of_kombu(json.dumps(message)))] == [
        "task-sent",
        "task-started",
    ]


@pytest.mark.parametrize(
    "message", ["", "{}", "[1]", '{"body": 5}', '{"body": "gAR9", "content-type": "application/x-python-serialize"}']
)
def test_other_messages_are_unreadable(message):
    with pytest.raises(events.UnreadableEvent):
        events.from_json(events.body_of_kombu(message))


def test_coverage_survives_its_text_and_any_other():
    coverage = Coverage(at=NOW, since=NOW - 60)
    coverage.add_gap(NOW - 50, NOW - 40)
    coverage.minute(NOW).executed = 4
    coverage.minute(NOW).started = 3
    assert parse(coverage.dump()) == coverage
    assert coverage.share(NOW) == 0.75 and coverage.share(NOW + 7200) is None
    for text in (
        "",
        "[]",
        "nonsense",
        '{"minutes": [1], "gaps": {"a": 1}, "workers": {"w": 3}}',
        '{"at": "x", "gaps": [null]}',
    ):
        assert parse(text) is None or parse(text).last_hour(NOW) == Minute()


@pytest.mark.parametrize(
    "eta", ["0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59", "1969-12-31T00:00:00", "soon", 5, None]
)
def test_a_due_time_out_of_range_is_none(eta):
    state = read(("task-received", {"name": "a", "eta": eta}))
    assert state.jobs["j1"].due_at is None
    assert ends(read(("task-failed", {"exception": "E()"}), state=state)) == [("exception", 1)]


def test_the_text_of_jobs_in_hand_is_bounded(monkeypatch):
    monkeypatch.setattr(events, "_MOST_TEXT", 50_000)
    state = Events()
    for n in range(300):
        read(("task-received", {"uuid": str(n), "name": "a", "args": "x" * 1_000}), state=state)
        assert sum(len(job.args) for job in state.jobs.values()) <= 50_000
    assert "299" in state.jobs and "0" not in state.jobs and len(state.jobs) >= 20
    # One job with many attempts in hand counts with all of them.
    for n in range(300):
        read(("task-received", {"uuid": "one", "name": "a", "args": "x" * 1_000, "retries": n}), state=state)
    job, texts = state.jobs.get("one"), 0
    while job is not None:
        texts, job = texts + len(job.args), job.following
    assert texts <= 50_000


def test_the_worker_that_was_not_heard_for_longest_makes_room(monkeypatch):
    monkeypatch.setattr(events, "_MOST_WORKERS", 3)
    state = Events()
    for now, name in enumerate(["a", "b", "c", "a", "d"]):
        event = {"type": "worker-heartbeat", "hostname": name, "pid": 1, "processed": 1}
        state.add(event, NOW + now)
    assert sorted(state.workers) == ["a", "c", "d"]


def received(retries):
    return "task-received", {"name": "a", "retries": retries}


RETRIED, FAILED = ("task-retried", {"exception": "E()"}), ("task-failed", {"exception": "E()"})


@pytest.mark.parametrize("retries", [7, 1e6, 2**62, 1e300])
def test_the_number_of_an_attempt_is_at_most_the_next_one_of_those_seen(retries):
    assert ends(read(received(0), RETRIED, received(retries), FAILED)) == [("retry", 1), ("exception", 2)]
    # In hand before the last one ended.
    assert ends(read(received(0), received(retries), RETRIED, FAILED)) == [("retry", 1), ("exception", 2)]


def test_the_number_of_a_first_seen_attempt_is_believed_within_reason():
    assert ends(read(received(7), FAILED)) == [("exception", 8)]
    assert ends(read(received(2**62), FAILED)) == [("exception", 0)]
    assert ends(read(received(-5), FAILED)) == ends(read(received("x"), FAILED)) == [("exception", 1)]


def test_after_events_were_missed_a_job_may_have_passed_further_attempts():
    state = read(received(0), RETRIED)
    state.note_missed()
    assert ends(read(received(3), FAILED, state=state)) == [("retry", 1), ("exception", 4)]
    state = read(received(0), RETRIED)
    state.note_missed()
    assert ends(read(FAILED, state=state)) == [("retry", 1), ("exception", 0)]


def test_a_success_whose_attempt_is_unknown_ends_a_known_retry():
    assert ends(read(("task-succeeded", {}))) == [("success", 0)]


def test_a_body_that_comes_twice_is_read_once(monkeypatch):
    monkeypatch.setattr(events, "_MOST_BODIES", 2)
    state = Events()
    assert [state.is_repeated(body) for body in (b"a", b"b", b"a", b"c", b"d", b"a")] == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]


def test_successes_are_counted_by_task_and_by_the_queue_that_a_producer_named():
    sent = ("task-sent", {"queue": "mails"})
    state = read(sent, received(0), ("task-succeeded", {}), received(0), ("task-succeeded", {}), ("task-succeeded", {}))
    assert {key: one.count for key, one in state.succeeded.items()} == {("mails", "a"): 1, ("", "a"): 1, ("", ""): 1}


def test_a_worker_whose_events_were_switched_off_is_silent():
    state = Events()

    def at(second, *given):
        for kind, fields in given:
            state.add({"type": kind, "uuid": "j", "hostname": "w@h", "timestamp": NOW} | fields, NOW + second)
        one = state.workers["w@h"]
        return WorkerCoverage(one.pid, one.processed, one.executed, one.started, one.at, one.quiet_since).sends_events

    assert at(0, beat(0)) is None
    assert at(2, ("task-started", {}), beat(1)) is True
    assert at(4, beat(1)) is True and at(60, beat(1)) is True  # idle
    assert at(62, beat(2)) is True  # its events may be on their way
    assert at(63, ("task-started", {})) is True and at(80, beat(2)) is True
    assert at(82, beat(5)) is True and at(90, beat(5)) is False
    assert at(91, ("task-started", {})) is True
    assert (
        parse(Coverage(at=NOW, workers={"w": WorkerCoverage(1, 2, 3, 2, NOW, NOW - 9)}).dump())
        .workers["w"]
        .sends_events
        is False
    )


class TestTaskQueues:
    def test_a_task_of_one_queue_has_it_and_one_of_several_has_none(self):
        queues = TaskQueues()
        queues.add("a", "one", NOW)
        assert (queues.get("a", NOW), queues.get("b", NOW)) == ("one", "")
        queues.add("a", "two", NOW + 1)
        assert queues.get("a", NOW + 2) == ""
        queues.add("a", "two", NOW + 700)
        assert queues.get("a", NOW + 700) == "two"

    def test_a_result_of_a_task_is_read_once_a_minute_and_memory_is_bounded(self, monkeypatch):
        monkeypatch.setattr(followed, "_MOST_TASKS", 5)
        queues = TaskQueues()
        assert [queues.is_to_be_learned("a", NOW + s) for s in (0, 30, 61)] == [True, False, True]
        for n in range(50):
            queues.add(str(n), str(n), NOW)
            queues.add("0", str(n), NOW)
            queues.is_to_be_learned(str(n), NOW)
        assert len(queues._seen) <= 5 and len(queues._requested_at) <= 5 and len(queues._seen["0"]) <= 5
