"""A short run of `bench/capture_kills.py`, and a proof that it finds what it searches for."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.rigs.capture_kills import rigs, trouble
from tests.rigs.journal_jobs import END, RAISE, START, Line
from tests.rigs.kill_history import Desk, checked
from tests.rigs.kill_rig import plan

SEED = 18


@pytest.mark.server
@pytest.mark.sqlite
@pytest.mark.django_db
@pytest.mark.endurance
def test_workers_are_killed_at_random_under_late_ack_and_no_failure_is_missing(tmp_path):
    assert {kill.way for kill in plan(SEED, 4, 300, 2)} == {"worker", "main", "child"}
    with rigs(tmp_path) as make:
        found = make(jobs=300, kills=4, seed=SEED, visibility_s=3, failing=0.3, hung_each=2).run("late")
    assert not trouble(found), found
    assert sum(found["kills"].values()) == 4 and found["attempts_about_to_raise"] > 50


LINES = [
    Line(START, "j0", 1, False, 7, 1.0),
    Line(RAISE, "j0", 1, False, 7, 1.1),
    Line(START, "j1", 1, False, 7, 1.2),
    Line(END, "j1", 1, False, 7, 1.3),
    Line(START, "j2", 1, False, 8, 1.4),
]
ROWS = [("j0", 1, "exception"), ("j2", 1, "worker_lost")]
STATES = {"j0": ("dead", 1), "j2": ("dead", 1)}
COUNTED = {"failed": 2.0, "retried": 0.0, "recovered": 0.0}


def find_trouble(lines=LINES, rows=ROWS, states=STATES, counted=COUNTED, killed=1, sent=3):
    found = checked(sent, lines, Desk(rows, states, counted, int(counted["failed"])), Counter(child=killed))
    return {name: value for name, value in trouble({**found, "left": {}}).items() if value}


def test_a_history_that_is_complete_is_not_found_fault_with():
    assert find_trouble() == {}


@pytest.mark.parametrize(
    ("name", "history"),
    [
        ("missing", {"rows": ROWS[1:]}),
        ("vanished", {"rows": ROWS[:1], "states": {"j0": ("dead", 1)}}),
        ("invented", {"rows": [*ROWS, ("j1", 1, "exception")]}),
        ("invented", {"rows": [*ROWS, ("j0", 1, "success")]}),
        ("invented", {"killed": 0}),
        ("begun_again_unflagged", {"lines": [*LINES, Line(START, "j1", 1, False, 9, 2.0)]}),
        ("wrong_states", {"states": {**STATES, "j0": ("recovered", 1)}}),
        ("gone_while_retrying", {"states": {**STATES, "j0": ("retrying", 1)}}),
        ("wrong_counters", {"counted": {**COUNTED, "failed": 3.0}}),
        ("wrong_counters", {"rows": [*ROWS, ROWS[0]]}),
    ],
)
def test_what_is_wrong_in_a_history_is_seen(name, history):
    assert name in find_trouble(**history)


def test_an_attempt_that_the_broker_reported_it_delivered_again_is_flagged():
    assert find_trouble([*LINES, Line(START, "j1", 1, True, 9, 2.0)]) == {}
