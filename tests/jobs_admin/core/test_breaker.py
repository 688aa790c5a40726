"""The states of a breaker: from outcomes to what may start."""

from __future__ import annotations

import itertools
import json
from random import Random

import pytest

from jobs_admin.core.breaker import CLOSED, HALF_OPEN, MOST_BYTES, OPEN, Breaker, Outcome
from tests.kit.endurance import times

NOW = 1_764_000_000.0


def new(name: str = "partner") -> Breaker:
    return Breaker(name, random=lambda: 0.5)


def stored(breaker: Breaker) -> Breaker:
    """The same breaker, written to the store and read again."""
    text = breaker.render()
    again = Breaker.parse(breaker.name, text, random=lambda: 0.5)
    assert again.render() == text
    return again


def failure(number: int, **more: object) -> Outcome:
    return Outcome(False, subject=f"job {number}", kind="connection", error="ConnectionError: refused", **more)


def fail_until_open(breaker: Breaker, now: float, most: int = 100, **more: object) -> tuple[int, float]:
    for number in range(1, most + 1):
        now += 1.0
        breaker.note([failure(number, **more)], now)
        if breaker.state == OPEN:
            return number, now
    raise AssertionError(f"still {breaker.state} after {most} failures")


def opened(**more: object) -> tuple[Breaker, float]:
    breaker = new()
    _, now = fail_until_open(breaker, NOW, **more)
    return breaker, now


def test_jobs_of_a_pause_that_ends_are_put_aside_and_released_after_one_succeeded():
    breaker = new()
    breaker.open_to_release("sam", NOW)
    assert not stored(breaker).admits("", NOW) and breaker.tick(NOW, 0) == 0
    assert breaker.tick(NOW + 1, 500) == 1
    ticket = breaker.ticket(NOW + 1)
    breaker.released(1, NOW + 1, ticket)
    breaker.note([Outcome(True, ticket=ticket, runtime_s=0.1)], NOW + 2)
    assert breaker.state == HALF_OPEN and breaker.tick(NOW + 2, 499) <= 20
    number = breaker.number
    breaker.open_to_release("sam", NOW + 3)  # that it already does
    assert breaker.number == number


def test_an_outage_opens_with_its_evidence():
    breaker = new()
    for second in range(60):
        breaker.note([Outcome(True, n=10)], NOW + second)
    failures, now = fail_until_open(breaker, NOW + 60)
    assert 10 <= failures <= 16
    evidence = stored(breaker).evidence
    assert (evidence["failures"], evidence["share"], evidence["kinds"]) == (failures, 1.0, {"connection": failures})
    assert evidence["first_error"] == "ConnectionError: refused" and evidence["p"] < 1e-8
    assert breaker.history[-1] == {
        "at": now, "from": CLOSED, "to": OPEN, "why": f"{failures} of {failures} attempts failed: connection"
    }  # fmt: skip
    assert not breaker.admits("", now) and not breaker.admits("1:0", now)


def test_a_share_that_fails_always_does_not_open():
    breaker = new()
    for second in range(5_000):
        broken = [failure(second * 2 + n) for n in range(2)]
        breaker.note([Outcome(True, n=8), *broken], NOW + second)
        assert breaker.state == CLOSED


def test_one_job_that_fails_again_and_again_does_not_open():
    breaker = new()
    for second in range(2_000):
        breaker.note([failure(1)], NOW + second / 4)
        breaker.note([failure(second, attempt=2)], NOW + second / 4)
    assert breaker.state == CLOSED


def test_failures_of_one_moment_do_not_open():
    breaker = new()
    breaker.note([failure(number) for number in range(200)], NOW)
    breaker.note([Outcome(True, n=50)], NOW + 1)
    breaker.note([failure(201)], NOW + 1)
    assert breaker.state == CLOSED


def test_failures_that_a_worker_reports_together_count_by_when_they_ended():
    breaker = new()
    breaker.note([Outcome(True, n=50)], NOW)
    breaker.note([failure(number, ended_at=NOW + 5 - number / 10) for number in range(25)], NOW + 5)
    assert stored(breaker).state == OPEN and breaker.evidence["since"] == NOW + 2.6
    breaker = new()
    breaker.note([failure(number, ended_at=NOW + 900) for number in range(25)], NOW + 5)  # no later than it is known
    assert stored(breaker).state == CLOSED


def test_one_tenant_of_many_is_put_aside_alone():
    breaker = new()
    for second in range(300):
        well = [Outcome(True, n=9, tenant=f"t{n}") for n in range(5)]
        breaker.note([*well, failure(second, tenant="bad")], NOW + second)
        if breaker.state == OPEN:
            break
    assert stored(breaker).tenants == ["bad"] and second < 40
    assert not breaker.admits("", NOW + second, "bad") and breaker.admits("", NOW + second, "t1")
    # The others follow: it is no matter of one tenant.
    for later in range(second, second + 60):
        breaker.note([failure(10_000 + later, tenant=f"t{later % 5}")], NOW + later)
        if not breaker.tenants:
            break
    assert breaker.tenants == [] and later - second < 10
    assert not breaker.admits("", NOW + later, "t1")


def test_one_job_at_a_time_probes_and_is_spaced():
    breaker, now = opened()
    assert breaker.tick(now, 500) == 0
    probes = []
    for tenth in range(6_000):
        at = now + tenth / 10
        if breaker.tick(at, 500):
            ticket = breaker.ticket(at)
            breaker.released(1, at, ticket)
            assert breaker.tick(at, 500) == 0
            probes.append(at)
            breaker = stored(breaker)
            assert breaker.admits(ticket, at + 1) and not breaker.admits(ticket, at + 61)
            breaker.note([Outcome(False, ticket=ticket, subject=f"p{tenth}")], at + 1)
    gaps = [b - a for a, b in itertools.pairwise(probes)]
    assert 4 < probes[0] - now < 6.1 and gaps == sorted(gaps) and 19 < gaps[-1] <= 25.1
    assert breaker.state == OPEN and len(probes) < 60


def test_the_wish_of_a_server_spaces_probes():
    breaker, now = opened(wish_s=90.0)
    assert breaker.tick(now + 89, 5) == 0 and breaker.tick(now + 91, 5) == 1
    breaker.released(1, now + 91, ticket := breaker.ticket(now + 91))
    breaker.note([Outcome(False, ticket=ticket, wish_s=1e9)], now + 92)
    assert breaker.tick(now + 92 + 599, 5) == 0 and breaker.tick(now + 92 + 601, 5) == 1


def test_a_probe_that_never_ends_is_followed_by_another():
    breaker, now = opened()
    breaker.released(1, now + 10, breaker.ticket(now + 10))
    assert breaker.tick(now + 100, 5) == 0 and breaker.tick(now + 131, 5) == 1


def probe(breaker: Breaker, now: float, on_hold: int) -> float:
    while not breaker.tick(now, on_hold):
        now += 0.1
    breaker.released(1, now, ticket := breaker.ticket(now))
    breaker.note([Outcome(True, ticket=ticket, runtime_s=0.1)], now + 0.2)
    return now + 0.2


def test_a_success_releases_carefully_until_nothing_is_on_hold():
    breaker, now = opened()
    now = probe(breaker, now, 400)
    assert breaker.state == HALF_OPEN
    on_hold, running, rates = 400, [], []
    while breaker.state == HALF_OPEN:
        now += 0.1
        breaker = stored(breaker)
        n = breaker.tick(now, on_hold)
        if n:
            ticket = breaker.ticket(now)
            breaker.released(n, now, ticket)
            on_hold -= n
            running.append((now + 0.2, ticket, n))
        rates.append(breaker.rate)
        while running and running[0][0] <= now:
            _, ticket, n = running.pop(0)
            breaker.note([Outcome(True, n=n, ticket=ticket, runtime_s=0.2)], now)
        assert now < NOW + 400
    assert breaker.state == CLOSED and on_hold <= breaker.rate
    assert rates[0] <= 5 < max(rates) and breaker.admits("", now)


def test_a_release_that_fails_holds_again_and_its_tickets_are_void():
    breaker, now = opened()
    now = probe(breaker, now, 400)
    ticket = breaker.ticket(now)
    sent = 0
    while breaker.state == HALF_OPEN:
        now += 0.1
        n = breaker.tick(now, 400)
        breaker.released(n, now, ticket)
        sent += n
        breaker.note([Outcome(False, ticket=ticket, subject=f"{now}-{one}") for one in range(n)], now + 0.05)
    assert breaker.state == OPEN and sent <= 10
    assert not breaker.admits(ticket, now)
    breaker.note([Outcome(True, ticket=ticket)], now)  # too late
    assert breaker.state == OPEN


def test_forced_open_is_a_pause_of_the_dependency():
    breaker, now = new(), NOW
    breaker.force(OPEN, now, until=now + 60, by="ann", reason="partner asked us to")
    assert stored(breaker).forced["by"] == "ann" and not breaker.admits("", now)
    assert [breaker.tick(now + second, 9) for second in range(59)] == [0] * 59
    assert breaker.tick(now + 61, 9) == 1 and breaker.forced is None  # a probe at once


def test_forced_closed_never_puts_aside():
    breaker, now = opened()
    breaker.force(CLOSED, now, until=now + 600)
    for second in range(590):
        breaker.note([failure(second)], now + second)
        assert breaker.admits("", now + second)
    assert sum(breaker.tick(now + tenth / 10, 50) for tenth in range(100)) > 10  # and releases
    failures, _ = fail_until_open(breaker, now + 700)
    assert failures < 20


def test_auto_lets_the_breaker_decide_again():
    breaker, now = new(), NOW
    breaker.force(OPEN, now)
    breaker.force("auto", now + 1)
    assert breaker.state == OPEN and breaker.tick(now + 1, 3) == 1
    with pytest.raises(ValueError, match="half"):
        breaker.force("half", now)


def test_observe_mode_counts_and_puts_nothing_aside():
    breaker = new()
    breaker.set_observe(True, NOW)
    _, now = fail_until_open(breaker, NOW)
    for second in range(60):
        breaker.note([failure(1_000 + second)], now + second, starts=20)
        assert breaker.admits("", now) and breaker.tick(now, 0) == 0
    breaker.note([Outcome(True, n=5)], now + 60, starts=5)
    assert breaker.state == CLOSED
    assert breaker.history[-1]["why"] == "Would have held 1,205 jobs for 1 min"


def test_openings_that_follow_each_other_probe_less_often():
    breaker, now, first = new(), NOW, []
    for _ in range(4):
        _, now = fail_until_open(breaker, now + 5)
        first.append(breaker.next_probe_at - now)
        now = probe(breaker, breaker.next_probe_at, 1)
        breaker.tick(now, 0)
        while breaker.state != CLOSED:
            now += 1
            breaker.tick(now, 0)
            assert now < NOW + 2_000
    assert first == sorted(first) and first[-1] > 6 * first[0]


def test_jobs_on_hold_of_a_lost_document_are_released():
    breaker, now, on_hold = new(), NOW, 60
    while on_hold:
        now += 0.1
        if n := breaker.tick(now, on_hold):
            ticket = breaker.ticket(now)
            breaker.released(n, now, ticket)
            on_hold -= n
            breaker.note([Outcome(True, n=n, ticket=ticket)], now + 0.05)
    assert breaker.state == CLOSED and NOW + 5 < now < NOW + 60


@pytest.mark.parametrize(
    "text", [None, b"", b"7", b"7 [1]", b"x {}", b'3 {"state": "odd"}', b'3 {"release": {}}', b"\xff {"]
)
def test_a_document_that_is_none_is_a_new_breaker(text):
    breaker = Breaker.parse("partner", text)
    assert breaker.state == CLOSED and breaker.admits("", NOW)


def test_fields_of_others_stay_in_the_document():
    breaker, now = opened()
    values = breaker.as_dict() | {"lease": ["boot", 5], "at_bound": 3}
    again = Breaker.from_dict("partner", json.loads(json.dumps(values)))
    again.note([Outcome(True)], now)
    assert again.as_dict()["lease"] == ["boot", 5] and again.as_dict()["at_bound"] == 3
    assert len(json.dumps(again.as_dict())) < MOST_BYTES


def test_every_change_raises_the_number():
    breaker, numbers = new(), [0]
    for act in (
        lambda: breaker.note([Outcome(True)], NOW),
        lambda: breaker.force(OPEN, NOW),
        lambda: breaker.force("auto", NOW),
        lambda: breaker.tick(NOW, 5),
        lambda: breaker.released(1, NOW),
        lambda: breaker.set_observe(True, NOW),
    ):
        act()
        numbers.append(breaker.number)
    assert all(a < b for a, b in itertools.pairwise(numbers))
    breaker.note([], NOW)
    assert breaker.number == numbers[-1]


# Releases into a dependency that is well, but not simple


def release_all(
    breaker: Breaker,
    now: float,
    answer,
    *,
    on_hold: int,
    per_s: float = 0.0,
    queue_s: float = 0.0,
    until_s: float = 3_600.0,
) -> tuple[float, int]:
    """Answer every job until it is closed and nothing is on hold. Return the seconds, and the most that were on hold."""
    begun, running, most, owed, number = now, [], on_hold, 0.0, 0
    while (breaker.state != CLOSED or on_hold >= 1) and now - begun < until_s:
        now += 0.2
        if breaker.state != CLOSED:
            owed += per_s * 0.2
            on_hold, owed = on_hold + int(owed), owed % 1
        if n := breaker.tick(now, on_hold):
            mark = breaker.ticket(now)
            breaker.released(n, now, mark)
            on_hold -= n
            running.append((now + queue_s, mark, n))
        while running and running[0][0] <= now:
            _, mark, n = running.pop(0)
            if not breaker.admits(mark, now):
                breaker.note([Outcome(None, ticket=mark) for _ in range(n)], now)
                on_hold += n
                continue
            for _ in range(n):
                number += 1
                ok, failed_before = answer(number, now - begun)
                breaker.note(
                    [Outcome(ok, ticket=mark, runtime_s=0.1, subject=f"r{number}", failed_before=failed_before)], now
                )
                on_hold += ok is False and failed_before < 3
        most = max(most, on_hold)
    return now - begun, most


@pytest.mark.parametrize("share", [5, *(pytest.param(n, marks=pytest.mark.endurance) for n in (15, 25)), 40])
def test_jobs_that_always_fail_do_not_stall_a_release(share):
    breaker, now = opened()
    random = Random(share)
    took_s, _ = release_all(
        breaker,
        now,
        lambda n, at: (random.random() * 100 >= share, 0 if n % 3 else 1),
        on_hold=1_000,
        per_s=5,
        until_s=2_400,
    )
    assert breaker.state == CLOSED and took_s < 2_400


def test_a_second_outage_during_a_release_bounds_no_rate_for_ever():
    breaker, now = opened()
    took_s, _ = release_all(
        breaker, now, lambda n, at: (not 40 <= at < 80, 0), on_hold=times(1_000, 3_000), per_s=times(10, 30)
    )
    assert breaker.state == CLOSED and took_s < 1_500


@pytest.mark.parametrize("queue_s", [70.0, 200.0, 900.0])
def test_released_jobs_that_wait_in_a_queue_are_admitted_in_the_end(queue_s):
    breaker, now = opened()
    took_s, _ = release_all(
        breaker, now, lambda n, at: (True, 0), on_hold=times(60, 200), queue_s=queue_s, until_s=8 * 3_600
    )
    assert breaker.state == CLOSED and took_s < 8 * 3_600


def test_probes_without_evidence_are_taken_for_an_answer_in_the_end():
    breaker, now = opened()
    took_s, _ = release_all(breaker, now, lambda n, at: (None if at < 300 else True, 0), on_hold=100, per_s=1)
    assert breaker.state == CLOSED and took_s < 900


def test_more_than_a_thousand_a_second_are_drained():
    breaker, now = new(), NOW
    for second in range(900):
        breaker.note([Outcome(True, n=1_500)], now + second)
    for tenth in range(10):
        breaker.note([failure(100 * tenth + n) for n in range(90)], now + 900 + tenth / 10)
    assert breaker.state == OPEN
    release = breaker._start_release(now + 901)
    assert release.to > 3_000


def test_a_run_that_is_long_does_not_open_again_for_its_silence():
    breaker, now = new(), NOW
    breaker.note([Outcome(True, n=10, runtime_s=400.0)], now)
    _, now = fail_until_open(breaker, now)
    now = probe(breaker, now, 20)
    openings = breaker.openings
    breaker.released(4, now, breaker.ticket(now))
    for second in range(1_200):
        breaker.tick(now + second, 20)
    assert breaker.openings == openings and breaker.state == HALF_OPEN


def test_forced_open_in_observe_mode_is_in_force_once_it_is_enforced():
    breaker = new()
    breaker.set_observe(True, NOW)
    breaker.force(OPEN, NOW)
    breaker.note([Outcome(True, n=50)], NOW + 1)
    breaker.set_observe(False, NOW + 2)
    assert (breaker.state, breaker.openings) == (OPEN, 1) and not breaker.admits("", NOW + 2)


def test_one_argument_that_fails_for_hours_does_not_open():
    breaker = new()
    for number in range(200):
        breaker.note([failure(7)], NOW + 660 * number)
        assert breaker.state == CLOSED


def _broken(values, path, value):
    values = json.loads(json.dumps(values))
    *parts, last = path.split(".")
    part = values
    for name in parts:
        part = part[name]
    part[last] = value
    return values


@pytest.mark.parametrize("value", ["x", None, [], {"a": "b"}, [["a", 1]], -1e9, 1e300, True, ["a", "b"]])
def test_a_document_of_another_shape_raises_nothing_later(value):
    breaker, now = opened()
    now = probe(breaker, now, 50)
    paths = [name for name in breaker.as_dict() if name not in ("release", "detector")]
    paths += [f"{part}.{name}" for part in ("release", "detector") for name in breaker.as_dict()[part]]
    paths += [f"release.controller.{name}" for name in breaker.as_dict()["release"]["controller"]]
    paths += [f"release.controller.steering.{name}" for name in breaker.as_dict()["release"]["controller"]["steering"]]
    for path in paths:
        again = Breaker.from_dict("partner", _broken(breaker.as_dict(), path, value), random=lambda: 0.5)
        mark = again.ticket(now)
        for step in range(3):
            at = now + 40 * step
            again.note([Outcome(True, n=3, ticket=mark, runtime_s=1.0, tenant="a"), failure(step, tenant="b")], at)
            again.note([failure(step, ticket=mark)], at)
            again.released(again.tick(at, 9), at, again.ticket(at))
            again.admits(mark, at, "a")
            again.render()
