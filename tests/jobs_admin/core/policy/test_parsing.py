"""A policy that cannot be in force is refused, whatever it is, with all that is wrong with it."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from jobs_admin.core.policy import (
    BACKOFFS,
    JITTERS,
    LONGEST_S,
    Backoff,
    Jitter,
    Match,
    Policy,
    Problem,
    document,
    parse,
)
from jobs_admin.core.policy.shape import OF_RETRIES
from jobs_admin.core.refused import Refused
from tests.kit.endurance import times
from tests.kit.policy_documents import CASES, COMPLETE_POLICIES

JSON = some.recursive(
    some.one_of(
        some.none(),
        some.booleans(),
        some.integers(),
        some.floats(),
        some.text(max_size=20),
        some.sampled_from([10**400, -(10**4000), 1e308, -1e308, 5e-324, -0.0, "\x00", "\ud800", "NaN", "1", "*" * 500]),
    ),
    lambda inner: some.one_of(
        some.lists(inner, max_size=4), some.dictionaries(some.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
COMPLETE = {
    "name": "partner.calls",
    "match": {"source": "shop", "queue": "web*", "task": "shop.tasks.call_*"},
    "mode": "enforce",
    "native": "after",
    "max_attempts": 6,
    "backoff": {"kind": "exponential", "first_delay_s": 2, "factor": 2},
    "cap_s": 300,
    "jitter": {"kind": "plus_minus", "fraction": 0.1},
    "retry_after": {"respect": True, "jitter": 0.2, "cap_s": 7200},
    "classes": [{"error": "ValueError", "as": "permanent"}, {"error": "*RateLimit*", "as": "rate_limited"}],
    "budget": {"per_minute": 100, "burst": 10, "group": "partners"},
    "poison": {"crashes": 3, "window_s": 300},
    "concurrency": {"key": "kwargs.customer_id", "limit": 5},
    "rate_limit": {"max": 100, "per_s": 60},
    "breaker": {"dependency": "partner", "max_hold_s": 3600},
    "exhausted": "escalate",
    "file_lost": True,
    "expires_at": "2026-11-20T10:00:00Z",
    "note": "Until the partner is back.\nSee the runbook.",
}


def places(value, path=()):
    """Every place in a document, as the keys and numbers that lead to it."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def with_value(value, path, new):
    if not path:
        return new
    changed = deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return changed


PLACES = list(places(COMPLETE))


def problems_of(value, **more) -> list[Problem]:
    with pytest.raises(Refused) as refused:
        parse(value, **more)
    return refused.value.details["problems"]


def fields_of(value) -> list[str]:
    return [problem.field for problem in problems_of(value)]


def test_a_complete_policy_is_read_and_written_as_it_was():
    policy = parse(COMPLETE)
    assert document(policy) == COMPLETE
    assert policy.expires_at == datetime(2026, 11, 20, 10, tzinfo=UTC) and policy.budget.most_in(60) == 110


@given(COMPLETE_POLICIES)
def test_what_is_written_is_read_as_the_same_policy(stored):
    policy = parse(stored)
    assert parse(document(policy)) == policy
    assert parse(json.loads(json.dumps(document(policy)))) == policy
    assert document(parse(document(policy))) == document(policy)


def test_what_is_left_out_has_its_default():
    assert parse({"retries": True}) == Policy()
    assert parse({"match": None, "cap_s": None, "backoff": {"factor": None}, "classes": []}) == Policy()
    assert parse({"backoff": {"kind": "fixed", "first_delay_s": 60}}) == Policy(backoff=Backoff("fixed", 60.0))
    assert Policy().mode == "observe" and Policy().match == Match("*", "*", "*") and Policy().jitter == Jitter("none")


@pytest.mark.parametrize(
    "limit",
    [{}, {"concurrency": {"key": "task", "limit": 2}}, {"rate_limit": {"max": 1}}, {"poison": {}}, {"breaker": {}}],
)
def test_a_policy_that_reports_nothing_of_retries_leaves_them_to_the_task(limit):
    policy = parse({"name": "limits", "mode": "enforce", **limit})
    assert (policy.retries, policy.max_attempts) == (False, 1)
    written = document(policy)
    assert written["retries"] is False and not written.keys() & set(OF_RETRIES)
    assert parse(written) == policy


@pytest.mark.parametrize("name", OF_RETRIES)
def test_a_policy_that_reports_anything_of_retries_decides_them(name):
    written = {name: document(parse({"budget": {"per_minute": 1}, "cap_s": 60}))[name]}
    policy = parse(written)
    assert policy.retries and policy.max_attempts == 5 and "retries" not in document(policy)
    with pytest.raises(Refused, match=f"{name} must be omitted"):
        parse({**written, "retries": False})


@given(JSON)
@settings(max_examples=times(75, 300))
def test_any_value_is_a_policy_or_refused(value):
    judged(value)


@given(some.sampled_from(PLACES), JSON)
@settings(max_examples=times(100, 400), suppress_health_check=[HealthCheck.too_slow])
def test_a_policy_with_anything_anywhere_is_a_policy_or_refused(path, value):
    judged(with_value(COMPLETE, path, value))


def judged(value):
    for lenient in (False, True):
        try:
            policy = parse(value, lenient=lenient)
        except Refused as refused:
            assert refused.details["problems"]
            for problem in refused.details["problems"]:
                assert problem.message.endswith(".") and problem.bound and len(problem.message) < 600
                problem.message.encode()  # can be stored and sent
        else:
            assert parse(document(policy)) == parse(document(policy), lenient=True)
            json.dumps(document(policy), allow_nan=False).encode()


ABSURD = [
    ("max_attempts", 10**9),
    ("max_attempts", 0),
    ("max_attempts", -1),
    ("max_attempts", 2.5),
    ("max_attempts", True),
    ("max_attempts", "5"),
    ("max_attempts", math.nan),
    ("max_attempts", math.inf),
    ("max_attempts", 10**5000),
    ("cap_s", -1),
    ("cap_s", 0),
    ("cap_s", 1e308),
    ("cap_s", math.inf),
    ("cap_s", 1.9),  # below the first delay
    ("backoff.kind", "fibonacci"),
    ("backoff.first_delay_s", -1),
    ("backoff.first_delay_s", 1e308),
    ("backoff.first_delay_s", False),
    ("backoff.factor", 0.5),
    ("backoff.factor", 1e308),
    ("backoff.power", 2),  # of another kind
    ("jitter.kind", "lots"),
    ("jitter.fraction", 1.1),
    ("jitter.fraction", -0.1),
    ("jitter.seconds", 1),  # of another kind
    ("retry_after.respect", 1),
    ("file_lost", 1),
    ("file_lost", "yes"),
    ("retry_after.jitter", 2),
    ("retry_after.cap_s", 365 * 86_400),
    ("classes", {"error": "ValueError"}),
    ("classes", [{"error": "x", "as": "permanent"}] * 51),
    ("classes.0.error", ""),
    ("classes.1.as", "maybe"),
    ("budget.per_minute", -1),
    ("budget.per_minute", 1e-308),
    ("budget.per_minute", 0.00009),
    ("budget.burst", 0),
    ("budget.burst", 1.5),
    ("budget.group", "Über"),
    ("poison.crashes", 0),
    ("poison.window_s", 0),
    ("concurrency.key", "customer_id; DROP TABLE"),
    ("concurrency.limit", 0),
    ("rate_limit.max", 0),
    ("rate_limit.per_s", 0),
    ("breaker.max_hold_s", 0.5),
    ("breaker.max_hold_s", 2_592_001),
    ("breaker.dependency", "ä" * 101),
    ("breaker.dependency", "two\nlines"),
    ("mode", "capture"),
    ("native", "never"),
    ("exhausted", "retry"),
    ("expires_at", "tomorrow"),
    ("expires_at", "0001-01-01T00:00:00+23:59"),
    ("expires_at", 1),
    ("name", "Partner Calls"),
    ("name", "new"),
    ("name", "x" * 64),
    ("match.task", "x" * 201),
    ("match.task", "shop\ntasks"),
    ("match.queue", 5),
    ("note", "x" * 2001),
    ("note", "a\x00b"),
    ("note", "\ud800"),
    ("match", []),
    ("budget", 5),
]


@pytest.mark.parametrize(
    ("field", "value"),
    ABSURD,
    ids=lambda value: ascii(value)[:30] if not isinstance(value, int) or abs(value) < 10**20 else "huge",
)
def test_what_is_absurd_is_refused_by_its_field(field, value):
    path = tuple(int(key) if key.isdigit() else key for key in field.split("."))
    assert fields_of(with_value(COMPLETE, path, value)) == [field]


@pytest.mark.parametrize(
    "value", [None, True, 5, 1e308, "policy", [], [COMPLETE], "x" * 10**7], ids=lambda value: type(value).__name__
)
def test_what_is_no_object_is_no_policy(value):
    assert fields_of(value) == [""]


def test_all_problems_are_reported_at_once_with_field_bound_and_what_was_written():
    found = problems_of(
        {"max_attempts": 10**9, "cap_s": -1, "backoff": {"kind": "fixed", "first_delay_s": True}, "mod": 1}
    )
    assert [problem.field for problem in found] == ["backoff.first_delay_s", "max_attempts", "cap_s", "mod"]
    assert found[0] == Problem(
        "backoff.first_delay_s",
        "backoff.first_delay_s must be a number from 0 to 2,592,000 seconds. Got true.",
        "a number from 0 to 2,592,000 seconds",
    )
    assert "Got 1000000000." in found[1].message and "no field mod" in found[3].message


def test_what_is_huge_is_refused_without_being_repeated():
    huge = {
        "note": "x" * 10**7,
        "max_attempts": 10**100_000,
        "classes": [{}] * 10**5,
        "backoff": {"kind": "table", "delays_s": [1] * 10**5},
        **{str(n): n for n in range(10**4)},
    }
    found = problems_of(huge)
    assert len(found) < 40 and sum(len(problem.message) for problem in found) < 10_000


def test_a_field_of_any_name_can_be_reported():
    assert fields_of({"\ud800": 1, "a\nb": 2, 5: 3}) == ["\\ud800", "a\\nb", "5"]


def test_a_table_reports_which_of_its_entries_is_wrong():
    assert fields_of({"backoff": {"kind": "table", "delays_s": [1, -1, None, "x"]}}) == [
        f"backoff.delays_s.{n}" for n in (1, 2, 3)
    ]
    assert (
        fields_of({"backoff": {"kind": "table"}})
        == fields_of({"backoff": {"kind": "table", "delays_s": []}})
        == ["backoff.delays_s"]
    )
    assert fields_of({"backoff": {"kind": "table", "delays_s": [60, 1]}, "cap_s": 5}) == ["cap_s"]


def test_a_breaker_has_the_name_of_its_dependency_or_of_its_policy():
    assert parse({"name": "webhooks", "breaker": {}}).breaker_name == "webhooks"
    assert parse({"name": "webhooks", "breaker": {"dependency": " partner "}}).breaker_name == "partner"
    assert parse({"name": "webhooks", "budget": {"per_minute": 1}}).breaker_name is None
    assert document(parse({"breaker": {}}))["breaker"] == {}
    assert document(parse({"breaker": {"max_hold_s": 60}}))["breaker"] == {"max_hold_s": 60}
    assert fields_of({"breaker": {"threshold": 5}}) == ["breaker.threshold"]


def test_what_a_part_needs_is_requested():
    assert fields_of({"budget": {}, "concurrency": {}, "rate_limit": {}, "jitter": {"kind": "down"}, "classes": [{}]}) == [
        "jitter.fraction", "classes.0.error", "budget.per_minute", "concurrency.key", "concurrency.limit", "rate_limit.max",
    ]  # fmt: skip


def test_a_decorrelated_backoff_takes_no_other_jitter_and_grows_from_something():
    assert fields_of({"backoff": {"kind": "decorrelated"}, "jitter": {"kind": "full"}}) == ["jitter.kind"]
    assert fields_of({"backoff": {"kind": "decorrelated", "first_delay_s": 0}}) == ["backoff.first_delay_s"]


@pytest.mark.parametrize("kind", BACKOFFS)
def test_the_least_and_the_most_that_is_allowed_is_allowed(kind):
    ends = {"table": [{"delays_s": [0] * 100}, {"delays_s": [LONGEST_S]}]}
    for end in ends.get(kind, [{"first_delay_s": 0.001}, {"first_delay_s": LONGEST_S}]):
        for attempts in (1, 1000):
            parse({"backoff": {"kind": kind, **end}, "cap_s": LONGEST_S, "max_attempts": attempts})


@pytest.mark.parametrize("vector", CASES["vectors"], ids=lambda vector: vector["name"])
def test_the_published_policies_are_allowed(vector):
    assert parse(vector["policy"]).backoff.kind in BACKOFFS and parse(vector["policy"]).jitter.kind in JITTERS


def test_a_worker_that_does_not_know_a_field_only_observes():
    newer = with_value(with_value(COMPLETE, ("half_life",), 3), ("backoff", "warp"), 9)
    assert [problem.field for problem in problems_of(newer)] == ["half_life", "backoff.warp"]
    policy = parse(newer, lenient=True)
    assert policy.mode == "observe" and policy.unknown == ("half_life", "backoff.warp")
    assert policy.backoff == parse(COMPLETE).backoff


def test_a_worker_is_no_more_lenient_than_that():
    assert [
        problem.field for problem in problems_of(with_value(COMPLETE, ("backoff", "kind"), "fibonacci"), lenient=True)
    ] == ["backoff.kind"]


def test_a_time_without_a_zone_is_utc_and_every_zone_becomes_it():
    for text in ("2026-11-20T10:00:00", "2026-11-20T10:00:00Z", "2026-11-20T12:00:00+02:00", "2026-11-20T10:00:00z"):
        assert document(parse({"expires_at": text}))["expires_at"] == "2026-11-20T10:00:00Z"


def test_stars_beside_each_other_are_one():
    assert parse({"match": {"task": "shop.***"}}).match.task == "shop.*"


def test_a_budget_of_none_a_minute_is_a_policy_without_retries_and_its_burst_is_none():
    assert parse({"budget": {"per_minute": 0}}).budget.most_in(60) == 0
    case = CASES["budget"]
    budget = parse({"budget": {"per_minute": case["per_minute"], "burst": case["burst"]}}).budget
    assert budget.most_in(60) == case["most_in_any_60_s"]


def test_a_policy_that_files_nothing_as_lost_does_not_report_it():
    """A guard that does not know the field would only observe what has it."""
    assert "file_lost" not in document(parse({"file_lost": False}))
    assert document(parse({"file_lost": True}))["file_lost"] is True
