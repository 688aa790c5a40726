"""Celery's events become the ends of attempts, whatever their order and whatever they contain."""

from __future__ import annotations

import base64
import json

import pytest

from jobs_admin.core.coverage import Coverage, Minute, parse
from jobs_admin.sources.celery import event_errors, events
from jobs_admin.sources.celery.events import Events

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
    state.resume({"w@h": (7, 100)})
    read(beat(processed, pid), state=state)
    assert (state.missed, state.executed) == (missed, 0)


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
    assert [event["type"] for event in events.from_json(events.body_of_kombu(json.dumps(message)))] == ["task-sent", "task-started"]


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
