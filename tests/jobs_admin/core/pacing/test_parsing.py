from __future__ import annotations

import math

import pytest

from jobs_admin.core.pacing import default_for, parse, settled
from jobs_admin.core.refused import Refused
from tests.kit.cases import with_cases


@pytest.mark.parametrize(
    "pace, rate",
    [
        (None, 50),
        ({}, 50),
        ({"style": "steady"}, 50),
        ({"rate": "12.5"}, 12.5),
        ({"style": "steady", "every": 0.02}, 50),
        ({"style": "steady", "every": 20}, 0.05),
        ({"style": "at_once"}, None),
        ({"style": "steady", "rate": None}, 50),
    ],
)
def test_a_rate_is_read_as_the_api_writes_it(pace, rate):
    read = parse(pace)
    assert read.rate == (rate if rate is None else pytest.approx(rate))
    assert parse(read.as_dict()) == read


COMPLETE = {
    "style": "careful",
    "rate": 100,
    "jitter": 0.5,
    "canary": {"jobs": 20, "success": 0.9, "within": 60},
    "ramp": {"from": 2, "to": 80},
    "in_flight": 300,
    "per_key": {"key": "kwargs.customer_id", "concurrency": 5, "rate": 2.5},
    "queue_cap": 1000,
    "stop": {"failed": 0.2, "of_last": 100, "new_groups": False},
    "window": {"from": "22:00", "to": "06:00", "days": ["mon", "fri"]},
    "priority": 0,
    "shuffle": True,
}


def test_all_of_a_pace_comes_back_as_it_was_written():
    assert parse(COMPLETE).as_dict() == COMPLETE
    assert parse(parse(COMPLETE).as_dict()) == parse(COMPLETE)


@pytest.mark.parametrize(
    "pace", [{"style": "careful"}, {"over": 60}, {"style": "at_once", "shuffle": True}, {"ramp": {}}]
)
@pytest.mark.parametrize("median", [None, 0.0004, 3, 300, 10**9])
@pytest.mark.parametrize("jobs", [1, 50, 45_000])
def test_a_settled_pace_is_one_that_could_have_been_written(pace, median, jobs):
    found = settled(parse(pace), jobs=jobs, median_per_s=median)
    assert parse(found.as_dict()) == found
    assert settled(found, jobs=7) == found


def test_a_careful_pace_is_settled_with_numbers_for_everything():
    found = settled(parse({"style": "careful"}), jobs=45_000, median_per_s=300)
    assert found.as_dict() == {
        "style": "careful",
        "canary": {"jobs": 50, "success": 0.7, "within": 300},
        "ramp": {"from": 5, "to": 300},
        "in_flight": 9000,
        "stop": {"failed": 0.3, "of_last": 200, "new_groups": True},
    }


@pytest.mark.parametrize(
    "pace, median, low, high",
    [
        ({"style": "careful"}, None, 5, 1000),
        ({"style": "careful"}, 2, 5, 1000),
        ({"style": "careful"}, 7, 0.7, 7),
        ({"style": "careful", "rate": 40}, 300, 4, 40),
        ({"style": "careful", "over": 3600}, 300, 1.25, 12.5),
        ({"style": "careful", "ramp": {"from": 20}}, 300, 20, 300),
        ({"style": "steady", "rate": 50, "ramp": {"from": 1}}, 300, 1, 50),
        ({"style": "steady", "over": 3600}, 300, 12.5, 12.5),
        ({"style": "at_once"}, 300, None, None),
    ],
)
def test_the_lowest_and_highest_rates_follow_from_what_is_known(pace, median, low, high):
    found = settled(parse(pace), jobs=45_000, median_per_s=median)
    assert (found.lowest, found.highest) == (low, high)


def test_workers_bound_a_pace_that_no_history_bounds_and_one_share_stops_it():
    assert settled(parse({"style": "careful"}), jobs=500, workers_per_s=40).highest == 40
    assert settled(parse({"style": "careful"}), jobs=500, median_per_s=20, workers_per_s=40).highest == 20
    found = settled(parse({"style": "careful", "stop": {"failed": 0.1}}), jobs=500)
    assert found.canary.success == 0.9


def test_steady_stops_by_itself_and_at_once_does_not():
    assert settled(parse({"rate": 50}), jobs=10).stop is not None
    assert settled(parse({"style": "at_once"}), jobs=10).stop is None


def test_above_a_hundred_jobs_careful_is_the_default():
    assert [default_for(jobs).style for jobs in (100, 101)] == ["steady", "careful"]
    assert parse({}, jobs=101).style == parse({"shuffle": True}, jobs=101).style == "careful"
    assert parse({"rate": 5}, jobs=101).style == "steady"


def test_careful_is_the_default_of_few_jobs_that_are_likely_to_fail_again():
    assert [default_for(jobs, is_risky=True).style for jobs in (9, 10)] == ["steady", "careful"]
    assert parse({"shuffle": True}, jobs=10, is_risky=True).style == "careful"
    assert parse({"rate": 5}, jobs=10, is_risky=True).style == "steady"


@with_cases(
    "pace, field, message",
    [
        ({"rate": 0}, "rate", "0.001 to 100,000"),
        ({"rate": -1}, "rate", "0.001"),
        ({"rate": math.nan}, "rate", "number"),
        ({"rate": "inf"}, "rate", "100,000"),
        ({"rate": 100_001}, "rate", "100,000"),
        ({"rate": True}, "rate", "number"),
        ({"rate": [1]}, "rate", "number"),
        ({"rate": "fast"}, "rate", "number"),
        ({"rate": 10**400}, "rate", "number"),
        ({"every": 0}, "every", "1,000"),
        ({"rate": 1, "every": 1}, "every", "not both"),
        ({"rate": 1, "over": 60}, "over", "not both"),
        ({"every": 1, "over": 60}, "over", "not both"),
        ({"over": 0}, "over", "1 to 2,592,000"),
        ({"style": "wild"}, "style", "careful, steady"),
        ({"style": ["steady"]}, "style", "steady"),
        ({"rat": 5}, "rat", "Unknown field 'rat'"),
        ({"x" * 100_000: 5}, "x" * 40, "Unknown field 'xxx"),
        ({"style": "at_once", "rate": 5}, "rate", "rate does not apply to at_once"),
        ({"style": "at_once", "ramp": {"to": 5}}, "ramp", "ramp does not apply to at_once"),
        ({"style": "at_once", "jitter": 0.1}, "jitter", "jitter does not apply to at_once"),
        ({"jitter": 1.1}, "jitter", "0 to 1"),
        ({"canary": 5}, "canary", "object"),
        ({"canary": {"jobs": 0}}, "canary.jobs", "1 to 10,000"),
        ({"canary": {"jobs": 2.5}}, "canary.jobs", "whole"),
        ({"canary": {"jobs": math.inf}}, "canary.jobs", "whole"),
        ({"canary": {"success": 2}}, "canary.success", "0 to 1"),
        ({"canary": {"within": 0}}, "canary.within", "1 to 86,400"),
        ({"canary": {"job": 5}}, "canary.job", "Unknown field canary.job"),
        ({"ramp": {"from": 20, "to": 10}}, "ramp.from", "ramp.to"),
        ({"ramp": {"from": 20}, "rate": 10}, "ramp.from", "ramp.to"),
        ({"ramp": {"to": 0}}, "ramp.to", "0.001"),
        ({"in_flight": 0}, "in_flight", "1 to 10,000,000"),
        ({"per_key": {"key": "tenant"}}, "per_key", "concurrency"),
        ({"per_key": {"key": "kwargs", "rate": 1}}, "per_key.key", "kwargs.customer_id"),
        ({"per_key": {"key": "args.x.y", "rate": 1}}, "per_key.key", "args.0.id"),
        ({"per_key": {"key": 5, "rate": 1}}, "per_key.key", "path"),
        ({"per_key": {"key": "tenant", "concurrency": 0}}, "per_key.concurrency", "1 to"),
        ({"per_key": {"key": "tenant", "rate": 0}}, "per_key.rate", "0.001"),
        ({"queue_cap": 0}, "queue_cap", "1 to 10,000,000"),
        ({"stop": {"failed": 0}}, "stop.failed", "0.01 to 1"),
        ({"stop": {"of_last": 9}}, "stop.of_last", "10 to 10,000"),
        ({"stop": {"new_groups": 1}}, "stop.new_groups", "true or false"),
        ({"stop": None, "window": "22:00"}, "window", "object"),
        ({"window": {"from": "22:00"}}, "window.to", "00:00 to 24:00"),
        ({"window": {"from": "25:00", "to": "01:00"}}, "window.from", "00:00"),
        ({"window": {"from": "22:00", "to": "01:00", "days": []}}, "window.days", "mon, tue"),
        ({"window": {"from": "22:00", "to": "01:00", "days": ["Monday"]}}, "window.days", "mon, tue"),
        ({"priority": 10}, "priority", "0 to 9"),
        ({"priority": "highest"}, "priority", "critical, high, medium, low"),
        ({"shuffle": "yes"}, "shuffle", "true or false"),
        ("fast", "pace", "object"),
    ],
)
def test_an_invalid_part_of_a_pace_is_refused_by_name(pace, field, message):
    with pytest.raises(Refused, match=message) as refused:
        parse(pace)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "key", ["tenant", "queue", "task", "args.0", "args.0.customer.id", "kwargs.customer_id", "kwargs.a.b"]
)
def test_a_limit_per_key_names_what_it_counts(key):
    assert parse({"per_key": {"key": key, "concurrency": 5}}).per_key.key == key


def test_a_level_of_priority_comes_back_as_it_was_written():
    assert parse({"style": "at_once", "priority": "high"}).as_dict()["priority"] == "high"
