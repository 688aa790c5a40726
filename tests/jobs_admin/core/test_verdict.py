from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobs_admin.core.matching import REASONS, Again, Dead, Ended, judge
from jobs_admin.core.policy import parse
from tests.kit.policy_documents import COMPLETE_POLICIES

POLICY = parse(
    {
        "max_attempts": 3,
        "backoff": {"kind": "fixed", "first_delay_s": 10},
        "classes": [{"error": "ValueError", "as": "permanent"}, {"error": "*RateLimit*", "as": "rate_limited"}],
        "retry_after": {"cap_s": 3600},
    }
)


class Purse:
    def __init__(self, has=True) -> None:
        self.has, self.asked = has, 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.has


def verdict(purse=None, policy=POLICY, **ended):
    return judge(
        policy, Ended(**{"attempt": 1, "error_names": ("TimeoutError",), **ended}), lambda: 0.5, purse or Purse()
    )


def test_a_failed_attempt_is_tried_again_while_there_are_attempts():
    assert verdict() == verdict(attempt=2) == Again(10.0, "transient")
    assert verdict(attempt=3) == verdict(attempt=99) == Dead("exhausted", "transient")


def test_a_permanent_error_is_dead_at_once_also_on_the_last_attempt():
    assert verdict(error_names=("ValueError",)) == Dead("permanent", "permanent")
    assert verdict(error_names=("UnicodeError", "ValueError"), attempt=3, retry_after_s=5) == Dead(
        "permanent", "permanent"
    )


def test_a_retry_time_named_by_a_server_is_heeded():
    assert verdict(retry_after_s=60) == Again(66.0, "transient", 60)
    assert verdict(error_names=("RateLimitError",), retry_after_s=60) == Again(66.0, "rate_limited", 60)
    assert verdict(retry_after_s=1) == Again(10.0, "transient", 1)


def test_a_server_that_requests_a_year_is_not_waited_for():
    for wish in (3601, 365 * 86_400, math.inf):
        assert verdict(retry_after_s=wish) == Dead("retry-after", "transient")
    assert isinstance(verdict(retry_after_s=3600), Again)


@pytest.mark.parametrize("nothing", [None, 0, -5, math.nan])
def test_no_wish_leaves_the_backoff(nothing):
    assert verdict(retry_after_s=nothing) == Again(10.0, "transient")


def test_a_policy_may_disregard_what_servers_request():
    deaf = parse({"backoff": {"kind": "fixed", "first_delay_s": 10}, "retry_after": {"respect": False}})
    assert verdict(policy=deaf, retry_after_s=10**9) == Again(10.0, "transient")


def test_without_budget_a_failure_is_dead():
    assert verdict(Purse(has=False)) == Dead("budget", "transient")


def test_the_budget_is_queried_once_and_only_where_it_would_be_spent():
    for ended in ({"error_names": ("ValueError",)}, {"attempt": 3}, {"retry_after_s": 10**6}):
        purse = Purse()
        verdict(purse, **ended)
        assert purse.asked == 0
    verdict(purse := Purse())
    assert purse.asked == 1


@given(
    COMPLETE_POLICIES,
    some.integers(-5, 10**9),
    some.lists(some.text(max_size=10), max_size=4).map(tuple),
    some.one_of(some.none(), some.floats()),
    some.one_of(some.none(), some.floats()),
    some.booleans(),
)
def test_every_failure_gets_a_verdict_that_can_be_carried_out(document, attempt, names, requested_s, previous_s, has):
    policy = parse(document)
    found = judge(policy, Ended(attempt, names, requested_s, previous_s), lambda: 0.999, lambda: has)
    if isinstance(found, Dead):
        assert found.reason in REASONS
    else:
        assert has and attempt < policy.max_attempts and 0 <= found.delay_s <= 30 * 86_400
        assert found.wish_s is None or found.delay_s >= found.wish_s
