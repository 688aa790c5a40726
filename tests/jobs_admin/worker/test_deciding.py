"""From a verdict to a decision: what only a worker knows of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs_admin.core.policy import parse
from jobs_admin.worker.budget import GRANTED, REFUSED, Grant
from jobs_admin.worker.deciding import decide
from jobs_admin.worker.decision import AGAIN, DEAD, Decision
from jobs_admin.worker.policies import Chosen

BUDGET = {"per_minute": 60, "burst": 1}


def chosen(**fields) -> Chosen:
    usual = {"mode": "enforce", "max_attempts": 3, "backoff": {"kind": "fixed", "first_delay_s": 2}, "cap_s": 30}
    return Chosen(parse({"name": "p", **usual, **fields}), "p", 7)


def decided(policy: Chosen, attempt: int = 1, spend=lambda policy: GRANTED, **more) -> Decision:
    return decide(policy, attempt=attempt, error_names=("ValueError", "Exception"), spend=spend, **more)


def test_a_retry_by_a_share_of_the_budget_waits_for_its_turn_beside_its_own_wait():
    reason = "the budget could not be read: by this worker's share of it"
    at_once = decided(chosen(budget=BUDGET), spend=lambda policy: Grant(True, is_of_share=True))
    assert (at_once.act, at_once.delay_s, at_once.reason) == (AGAIN, 2, reason)
    later = decided(chosen(budget=BUDGET), spend=lambda policy: Grant(True, 45.5, is_of_share=True))
    assert (later.act, later.delay_s, later.reason) == (AGAIN, 47.5, f"{reason}, its turn came 45.5 s later")


def test_a_budget_that_is_spent_is_the_reason():
    assert decided(chosen(budget=BUDGET), spend=lambda policy: REFUSED).reason == "budget"


def test_a_policy_that_observes_spends_nothing():
    requests = []
    found = decided(chosen(budget=BUDGET, mode="observe", exhausted="escalate"), attempt=3, spend=requests.append)
    assert (found.act, found.is_observed, found.escalate, requests) == (DEAD, True, False, [])
    assert decided(chosen(budget=BUDGET, mode="observe"), spend=requests.append).act == AGAIN and requests == []


@pytest.mark.parametrize(("left_s", "act"), [(1, DEAD), (60, AGAIN)])
def test_a_retry_that_would_come_after_its_message_expires_is_dead(left_s, act):
    expires = (datetime.now(UTC) + timedelta(seconds=left_s)).isoformat()
    assert decided(chosen(), expires=expires).act == act
    assert decided(chosen(), expires=expires.replace("+00:00", "Z")).act == act
    assert decided(chosen(), expires="no time").act == AGAIN


def test_a_retry_that_would_come_too_late_spends_no_budget():
    requests = []
    expires = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    found = decided(chosen(budget=BUDGET), spend=requests.append, expires=expires)
    assert (found.act, found.reason, requests) == (DEAD, "expires", [])
    later = (datetime.now(UTC) + timedelta(seconds=20)).isoformat()
    late = Grant(True, 30.0, is_of_share=True)
    assert decided(chosen(budget=BUDGET), spend=lambda policy: late, expires=later).reason == "expires"


def test_only_what_was_used_up_escalates():
    policy = chosen(exhausted="escalate", classes=[{"error": "ValueError", "as": "permanent"}])
    assert not decided(policy).escalate
    assert decided(chosen(exhausted="escalate"), attempt=3).escalate


def test_a_decision_comes_back_from_its_text_and_nothing_else_does():
    found = decided(chosen(), retry_after_s=5)
    assert Decision.from_text(found.text()) == found
    assert found.reason == "asked to wait 5 s" and 5 <= found.delay_s <= 6
    for text in (
        None,
        "",
        "{}",
        "[]",
        '{"act": "else", "policy": ""}',
        '{"act": "again", "policy": "", "delay_s": -1}',
    ):
        assert Decision.from_text(text) is None
