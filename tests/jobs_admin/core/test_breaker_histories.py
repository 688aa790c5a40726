"""Breakers under any history, and short rounds of the simulation (`bench/breaker.py`)."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from jobs_admin.core.breaker import CLOSED, MOST_BYTES, OPEN, Breaker, Outcome
from tests.kit.endurance import times
from tests.rigs import breakers as rig

NOW = 1_764_000_000.0
WORD = some.text(max_size=80)
OUTCOMES = some.builds(
    Outcome, some.sampled_from([True, False, None]), n=some.integers(1, 500), tenant=some.sampled_from(["", "a", "b", "ü\n" * 60]),
    subject=WORD, kind=WORD, wish_s=some.none() | some.floats(), attempt=some.integers(1, 3), error=WORD,
    runtime_s=some.none() | some.floats(0, 1e6), started_at=some.none() | some.floats(NOW - 100, NOW + 10_000),
)  # fmt: skip
# Seconds that pass, as another host's clock sees them: some seconds back, too.
STEPS = some.lists(
    some.tuples(
        some.floats(-3, 30) | some.floats(0, 400),
        some.one_of(
            some.tuples(some.just("note"), some.lists(OUTCOMES, max_size=30), some.booleans()),
            some.tuples(some.just("outage"), some.integers(1, 40)),
            some.tuples(some.just("tick"), some.integers(0, 5_000)),
            some.tuples(
                some.just("force"),
                some.sampled_from(["open", "closed", "auto"]),
                some.none() | some.floats(1, 500),
                WORD,
            ),
            some.tuples(some.just("observe"), some.booleans()),
        ),
    ),
    max_size=60,
)


@settings(max_examples=times(40, 120), deadline=None)
@given(STEPS, some.randoms(use_true_random=False))
def test_any_history_keeps_its_promises(steps, random):
    breaker, now, tickets = Breaker("partner", random.random), NOW, []
    for number, (passed_s, (act, *values)) in enumerate(steps):
        now += passed_s
        before = breaker.number
        if act == "note":
            outcomes, are_ticketed = values
            mark = tickets[-1] if tickets and are_ticketed else ""
            breaker.note([Outcome(**{**_fields(one), "ticket": mark}) for one in outcomes], now)
        elif act == "outage":
            breaker.note([Outcome(False, subject=f"{number}-{n}") for n in range(values[0])], now)
        elif act == "tick":
            n = breaker.tick(now, *values)
            assert 0 <= n <= values[0]
            if breaker.state == OPEN and not breaker.observe:
                assert n <= 1 and not (n and breaker.probe and now < breaker.probe["until"])  # one probe at a time
                assert not (n and breaker.forced)
            if n:
                tickets.append(breaker.ticket(now))
                breaker.released(n, now, tickets[-1])
                assert breaker.admits(tickets[-1], now)
        elif act == "force":
            breaker.force(values[0], now, until=values[1] and now + values[1], by=values[2], reason=values[2])
        else:
            breaker.set_observe(values[0], now)
        assert breaker.number >= before
        for one in tickets:
            if int(one.split(":")[0]) != breaker.openings and breaker.covers(""):
                assert not breaker.admits(one, now)  # of an earlier opening
        if breaker.observe or (breaker.forced and breaker.forced["as"] == "closed"):
            assert breaker.admits("", now)
        if breaker.forced and breaker.forced["as"] == "open" and not breaker.observe:
            assert not breaker.admits("", now)
        text = breaker.render()
        assert len(json.dumps(breaker.as_dict())) <= MOST_BYTES
        again = Breaker.parse("partner", text, random.random)
        assert again.render() == text and again.number == breaker.number
        breaker = again


def _fields(one: Outcome) -> dict[str, object]:
    return {name: getattr(one, name) for name in Outcome.__dataclass_fields__}


def test_the_memory_is_bounded_whatever_fails():
    breaker, random = Breaker("partner", Random(1).random), Random(1)
    now, on_hold, most = NOW, 3_000, 0
    for number in range(times(1_000, 3_000)):
        now += random.choice((0.1, 1, 7))
        tenant = f"tenant {random.randrange(60)} {'x' * 30}"
        breaker.note(
            [Outcome(False, subject=f"{number}", tenant=tenant, kind="k" * (number % 60), error="é" * 900)], now
        )
        if n := breaker.tick(now, on_hold):
            mark = breaker.ticket(now)
            breaker.released(n, now, mark)
            breaker.note(
                [
                    Outcome(random.random() < 0.6, ticket=mark, tenant=tenant, error="\x00" * 500)
                    for _ in range(min(n, 20))
                ],
                now,
            )
        most = max(most, len(breaker.render()))
    assert breaker.openings > 1 and 4_000 < most <= MOST_BYTES + 20


@pytest.mark.parametrize("ahead_s", [-4.0, 4.0])
def test_clocks_of_hosts_that_differ_by_seconds_do_no_harm(ahead_s):
    breaker, now, openings = Breaker("partner", lambda: 0.5), NOW, 0
    for number in range(40):
        now += 1
        breaker.note([Outcome(False, subject=f"{number}")], now + ahead_s * (number % 2))
    openings = breaker.openings
    assert (breaker.state, openings) == (OPEN, 1)
    for tenth in range(600):
        at = now + tenth / 10 + ahead_s * (tenth % 2)
        if n := breaker.tick(at, 30):
            breaker.released(n, at, mark := breaker.ticket(at))
            assert breaker.admits(mark, at - ahead_s)
            breaker.note([Outcome(True, n=n, ticket=mark, runtime_s=0.1)], at - ahead_s)
        if breaker.state == CLOSED:
            break
        breaker.tick(at, 0 if tenth > 300 else 30)
    assert breaker.state == CLOSED and breaker.openings == openings


def test_a_clock_that_was_set_back_by_an_hour_stops_nothing():
    breaker = Breaker("partner", lambda: 0.5)
    breaker.note([Outcome(True, n=5)], NOW + 3_600)
    for number in range(40):
        breaker.note([Outcome(False, subject=f"{number}")], NOW + number)
    assert breaker.state == OPEN
    assert any(breaker.tick(NOW + 40 + second, 5) for second in range(20))


@pytest.mark.parametrize("mix", rig.MIXES, ids=lambda mix: mix.name)
def test_traffic_without_an_outage_opens_nothing(mix):
    days = min(mix.days, 20_000 / (86_400 * mix.per_s(7_300.0)))
    found = rig.false_holds(mix, 3, days)
    assert found["false_openings"] == 0, found
    assert (found["narrow_openings"] > 0) == mix.bad_tenant


@pytest.mark.parametrize(("per_s", "seconds"), [(1 / 60, 1_300), (1.0, 30), (10.0, 5), (100.0, 0.5), (1_000.0, 0.3)])
def test_an_outage_opens_within_few_attempts(per_s, seconds):
    for seed in range(times(2, 5)):
        took_s, failures = rig.time_to_open(per_s, seed)
        assert took_s < seconds and failures <= max(30, 0.2 * per_s)


def test_an_outage_leaves_no_dead_job_and_no_collapse():
    found = rig.story(1_500, 60)
    assert (found["dead"], found["left"], found["collapses"], found["openings"]) == (0, 0, 0, 1)
    assert found["requests_while_down"] <= 40 and found["most_probes"] <= 1 and found["times_ideal"] < 3
    assert rig.story(1_500, 60, enabled=False)["dead"] > 500


def test_a_partner_that_limits_the_rate_gets_what_it_can_bear():
    found = rig.World(rig.Limited(10.0), lambda at: 30.0 if at < 60 else 2.0, 250).run()
    assert (found["dead"], found["left"]) == (0, 0) and found["requests_while_down"] < 400
