"""A budget of retries, in a real Valkey."""

from __future__ import annotations

import itertools
import os

import pytest

from jobs_admin.core import keys
from jobs_admin.core.policy import Budget
from jobs_admin.worker.budget import LONGEST_TURN_S, REFUSED, SCRIPT, Budgets, Shares, arguments
from jobs_admin.worker.calls import Calls
from tests.kit.patience import patient
from tests.rigs.budget import RULES, all_decided, figures, most_within, over

pytestmark = pytest.mark.server

LONG_AGO = 3600 * 1_000_000


@pytest.fixture
def budgets(engine, store):
    return Budgets(patient(engine.url), "shop")


def granted(budgets, name, per_minute, burst, tries) -> int:
    return sum(budgets.spend(name, per_minute, burst) for _ in range(tries))


def pass_time(store, name, microseconds) -> None:
    """The record is made older, since no one sets the server's clock."""
    full_at, rest = store.hget(keys.budget("shop"), name).decode().split(" ", 1)
    store.hset(keys.budget("shop"), name, f"{int(full_at) - microseconds} {rest}")


def tokens_left(store, name, per_minute, burst) -> int:
    return store.eval(SCRIPT.text, 1, keys.budget("shop"), *arguments(name, per_minute, burst))[1]


def test_a_burst_is_granted_and_no_more(budgets):
    assert granted(budgets, "p", 1, 10, 50) == 10


def test_it_fills_by_one_each_interval_and_never_above_its_burst(budgets, store):
    granted(budgets, "p", 1, 10, 10)
    pass_time(store, "p", 3 * 60_000_000)
    assert granted(budgets, "p", 1, 10, 50) == 3
    pass_time(store, "p", LONG_AGO)
    assert granted(budgets, "p", 1, 10, 50) == 10


def test_one_that_fills_in_weeks_is_not_forgotten_before_whatever_else_is_spent(budgets, store):
    week_ms = 7 * 86_400_000
    granted(budgets, "slow", 60 / (week_ms / 1000), 10, 10)
    granted(budgets, "quick", 60, 10, 1)
    assert 9.9 * week_ms < store.pttl(keys.budget("shop")) <= 10 * week_ms + 1000
    assert tokens_left(store, "slow", 60 / (week_ms / 1000), 10) == 0


def test_a_budget_of_nothing_grants_nothing(budgets):
    assert granted(budgets, "p", 0, 0, 20) == granted(budgets, "p", 0, 100, 20) == 0


@pytest.mark.parametrize("before", [(0, 0), (0, 100), (1, 5)])
def test_a_limit_that_is_raised_is_no_refill(budgets, store, before):
    granted(budgets, "p", *before, 10)
    assert tokens_left(store, "p", 6, 100) == granted(budgets, "p", 6, 100, 1) == 0
    pass_time(store, "p", 20_000_000)
    assert granted(budgets, "p", 6, 100, 50) == 2


def test_what_was_left_is_stored_when_the_limit_changes_as_far_as_the_new_burst_holds_it(budgets, store):
    granted(budgets, "p", 1, 10, 2)
    assert tokens_left(store, "p", 2, 20) == 8
    assert granted(budgets, "p", 2, 5, 50) == 5


def test_turning_a_limit_up_and_down_grants_nothing_extra(budgets):
    limits = itertools.cycle([(1, 10), (2, 10), (0, 10), (1, 3), (1, 10)])
    assert sum(budgets.spend("p", *next(limits)) for _ in range(500)) <= 10


def test_policies_that_name_one_group_spend_from_one_budget_and_others_from_their_own(budgets):
    assert granted(budgets, "mail", 1, 3, 2) == 2
    assert granted(budgets, "mail", 1, 3, 5) == 1
    assert granted(budgets, "web", 1, 3, 5) == 3


def test_checking_by_another_rule_takes_nothing_from_those_who_spend(budgets, store):
    granted(budgets, "p", 1, 100, 10)
    assert (tokens_left(store, "p", 1, 5), tokens_left(store, "p", 0, 0)) == (5, 0)
    assert granted(budgets, "p", 1, 100, 200) == 90


def test_checking_spends_nothing(budgets, store):
    assert tokens_left(store, "p", 1, 10) == tokens_left(store, "p", 1, 10) == 10
    budgets.spend("p", 1, 10)
    assert tokens_left(store, "p", 1, 10) == tokens_left(store, "p", 1, 10) == 9


def test_a_store_that_is_away_grants_nothing_and_refuses_nothing(store):
    calls = Calls("redis://127.0.0.1:1/0", "budgets")
    assert [Budgets(calls, "shop").spend("p", 1, 10) for _ in range(3)] == [None, None, None]


def test_processes_that_query_all_at_once_are_granted_no_more_in_any_window_and_no_less(engine, store, tmp_path):
    """A short one of `bench/budget.py`, from the notes of three processes, by the server's clock."""
    measured = figures(all_decided(engine.url, tmp_path, 3, 6_000, 1.5))
    assert measured["decisions"] == 6_000 and measured["not_answered"] == 0
    for name in RULES:
        rule = measured["rules"][name]
        assert rule["over_in_any_window"] == 0, name
        assert all(window["most"] <= window["bound"] for window in rule["windows"].values()), name
    # One less where its moment came after the last that asked for it.
    assert measured["rules"]["narrow"]["granted"] >= measured["rules"]["narrow"]["could"] - 1


def test_what_checks_the_windows_sees_one_too_many():
    # As a counter per minute grants.
    at_an_edge = [59_990_000 + n for n in range(100)] + [60_010_000 + n for n in range(100)]
    assert over(at_an_edge, 100, 10) == 190 and most_within(at_an_edge, 60) == 200
    evenly = [n * 600_000 for n in range(500)]
    assert over(evenly, 100, 1) == 0 and over([0, *evenly], 100, 1) == 1 and most_within(evenly, 60) == 100
    assert over([0] * 11, 100, 10) == 1 and over([0] * 10, 100, 10) == 0 and over([], 100, 10) == 0


def turns(shares: Shares, budget: Budget, tries: int, now: float = 100.0) -> list[float]:
    """The earliest and latest retries of as many jobs that fail at once, in seconds after that."""
    return [grant.wait_s for _ in range(tries) if (grant := shares.take("p", budget, now)).is_granted]


def test_without_the_store_a_worker_makes_its_share_of_the_retries_and_no_job_is_dead_for_that():
    alone, one_of_four = Shares(), Shares()
    one_of_four.live_workers = 4
    assert turns(alone, Budget(30, 3), 6) == [0, 0, 0, 2, 4, 6]
    assert turns(one_of_four, Budget(30, 3), 4) == [
        2,
        10,
        18,
        26,
    ]  # of a burst of three quarters, and one each eight seconds
    assert alone.take("other", Budget(30, 3), 100.0).wait_s == 0
    assert alone.take("p", Budget(30, 3), 200.0).wait_s == 0 and alone.granted == 8


@pytest.mark.parametrize("live", [1, 2, 5])
def test_all_shares_together_are_the_budget_and_one_more_for_each_worker_at_most(live):
    workers, budget = [Shares() for _ in range(live)], Budget(30, 3)
    for one in workers:
        one.live_workers = live
    due = sorted(at + wait for at in range(0, 300, 3) for one in workers for wait in turns(one, budget, 1, float(at)))
    for first, begun in enumerate(due):
        for count, ended in enumerate(due[first:], 1):
            assert count <= budget.most_in(ended - begun) + live, (begun, ended)


def test_a_budget_of_nothing_has_no_shares_and_no_one_waits_for_hours():
    assert Shares().take("p", Budget(0, 0)) == REFUSED
    waits = turns(Shares(), Budget(1, 1), 100)
    assert len(waits) == 61 and waits[-1] == LONGEST_TURN_S


def test_the_processes_of_a_worker_have_one_share_and_one_that_dies_with_the_lock_holds_no_one_up():
    shares, budget = Shares(), Budget(60, 1)
    children = []
    for _ in range(4):
        if not (child := os.fork()):
            for _ in range(25):
                shares.take("p", budget, 100.0)
            shares._locked().__enter__()  # and ends with it
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert shares.granted == 100 and shares.take("p", budget, 100.0).wait_s == 100
