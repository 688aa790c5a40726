"""A breaker whose evidence is of one host or of one task alone, in simulations with fixed seeds."""

from __future__ import annotations

from random import Random

import pytest

from jobs_admin.core.breaker import CLOSED, OPEN, Breaker, Outcome
from tests.kit.endurance import times
from tests.rigs.breaker_hosts import SINCE_S, START, run

FLEET = tuple("abcdefghijklmn")


def lost_network(host: str, task: str, at: float) -> bool:
    return host == "a" and at >= SINCE_S


def outage(host: str, task: str, at: float) -> bool:
    return at >= SINCE_S


def broken_task(host: str, task: str, at: float) -> bool:
    return task == "x" and at >= SINCE_S


@pytest.mark.parametrize("seed", range(times(1, 3)))
@pytest.mark.parametrize(
    "fleet",
    [
        {},
        {"weights": (19, 1), "usual": 0.15},  # it fails at once, and takes nearly all jobs
        {"weights": (19, 1), "per_s": 1.0, "until_s": 1_500.0},
        {"hosts": FLEET, "usual": 0.15, "until_s": 500.0},
    ],
    ids=["even", "takes most", "low traffic", "one of 14"],
)
def test_a_host_without_a_network_holds_its_own_jobs_alone(fleet, seed):
    found = run(lost_network, seed=seed, **fleet)
    assert found.opened_at is None and set(found.hosts) == {"a"}
    evidence = found.breaker.hosts.current["a"]["evidence"]
    assert evidence["failures"] >= 10 and evidence["share"] > 0.9 and evidence["kinds"].get("connection")
    assert found.failed["a"] < 120  # those that held it, and its probes


@pytest.mark.parametrize("seed", range(times(1, 3)))
@pytest.mark.parametrize(
    ("fleet", "within_s"),
    [
        ({}, 10),
        ({"hosts": FLEET}, 10),
        ({"weights": (9, 1)}, 40),
        ({"hosts": ("a",)}, 10),
        ({"weights": (1_000, 1), "until_s": 900.0}, 700),
    ],
    ids=["two hosts", "14 hosts", "nearly all on one", "one host", "one host since long"],
)
def test_an_outage_opens_for_all_hosts(fleet, within_s, seed):
    found = run(outage, seed=seed, **fleet)
    assert found.opened_at is not None and found.opened_at < within_s and found.narrowed_to == []
    assert len(found.hosts) <= 1  # which failed first


def test_of_six_failing_hosts_five_are_on_hold_and_the_document_stays_readable():
    found = run(lambda host, task, at: host in FLEET[:6] and at >= SINCE_S, hosts=FLEET, until_s=250.0)
    assert found.opened_at is None and len(found.hosts) == 5
    again = Breaker.parse("partner", found.breaker.render())
    assert again.hosts.current.keys() == found.breaker.hosts.current.keys() == found.hosts.keys()


def test_an_outage_of_the_only_host_left_opens_in_the_end():
    """Another one succeeded shortly before, and is gone."""
    breaker, now = Breaker("partner"), START
    breaker.note([Outcome(True, host="b", n=20), Outcome(True, host="a", n=20)], now)
    for number in range(40):
        now += 1
        breaker.note([Outcome(False, host="a", subject=f"{number}", kind="timeout", started_at=now)], now)
    assert breaker.covers_host("a") and not breaker.covers_host("b") and breaker.state == CLOSED
    breaker.note([Outcome(False, host="a", subject="probe", kind="timeout", started_at=now + 700)], now + 700)
    assert breaker.state == OPEN and breaker.evidence["failures"] >= 10 and not breaker.hosts.current
    assert [one["why"].split(": ")[-1] for one in breaker.history if "host" in one][1:] == ["jobs fail on all hosts"]


def test_a_host_that_is_gone_is_not_on_hold_for_good():
    breaker, now = Breaker("partner"), START
    for day in range(7):
        now += 86_400
        for number in range(40):
            now += 1
            breaker.note([Outcome(True, host="a", n=3), Outcome(True, host="b", n=3)], now)
            breaker.note([Outcome(False, host=f"pod {day}", subject=f"{day} {number}", kind="timeout")], now)
        breaker = Breaker.parse("partner", breaker.render())
        assert breaker.state == CLOSED and set(breaker.hosts.current) == {f"pod {day}"}
    number = breaker.number
    breaker.tick(now + 700, 0)
    assert not breaker.hosts.current and breaker.number > number
    assert breaker.history[-1]["why"] == "Host pod 6 resumed: no job for 10 min"


def test_an_outage_soon_after_the_only_host_was_replaced_opens_within_two_minutes():
    breaker, now = Breaker("partner"), START
    breaker.note([Outcome(True, host="old", n=200)], now)
    breaker.note([Outcome(True, host="new", n=20)], now + 5)
    for number in range(121):
        if breaker.covers_host("new") and number % 5:
            continue
        at = now + 10 + number
        breaker.note([Outcome(False, host="new", subject=f"{number}", kind="timeout", started_at=at)], at)
    assert breaker.state == OPEN and breaker.evidence["failures"] >= 10


def test_silent_probes_end_the_opening_although_a_host_is_on_hold():
    breaker, now, probes = run(lost_network).breaker, START + 300, 0
    breaker.open_to_release("sam", now)
    while breaker.state == OPEN and probes < 100:
        now += 0.1
        if breaker.tick(now, 100):
            probes, ticket = probes + 1, breaker.ticket(now)
            breaker.released(1, now, ticket)
            host, started_at = ("a", None) if probes == 2 else ("b", now)
            breaker.note([Outcome(None, host=host, ticket=ticket, started_at=started_at)], now)
            assert breaker.next_probe_at >= now + 1 or breaker.state != OPEN
    assert breaker.state != OPEN and probes == 6 and breaker.covers_host("a")


def test_a_probe_that_succeeds_ends_the_hold_of_a_host():
    found = run(lambda host, task, at: lost_network(host, task, at) and at < 120)
    assert set(found.hosts) == {"a"} and found.opened_at is None and not found.breaker.hosts.current
    start, end = found.breaker.history
    assert (start["host"], start["starts"], end["host"], end["starts"]) == ("a", True, "a", False)
    assert start["why"].startswith("Host a on hold: ") and start["why"].endswith(" attempts failed")
    assert end["why"] == "Host a resumed: a job succeeded" and start["from"] == start["to"] == end["to"] == CLOSED
    assert START + SINCE_S < start["at"] < START + 120 < end["at"] < START + 150


def test_hosts_do_not_displace_transitions_from_the_history():
    breaker, now = run(lost_network).breaker, START + 300
    evidence = breaker.hosts.current["a"]["evidence"]
    breaker.force(OPEN, now)
    breaker.force("auto", now + 1)
    for number in range(40):
        breaker._add_host("b", evidence, now + number)
        breaker._release_hosts(now + number)
    breaker = Breaker.parse("partner", breaker.render())
    assert [one["to"] for one in breaker.history if "host" not in one] == [OPEN, OPEN]
    assert sum("host" in one for one in breaker.history) == 10
    assert len({one["at"] for one in breaker.history}) == len(breaker.history)


def test_a_host_on_hold_is_not_where_the_breaker_is_observed_or_forced_closed():
    breaker = run(lost_network).breaker
    assert breaker.covers_host("a")
    breaker.set_observe(True, START + 400)
    assert not breaker.covers_host("a") and breaker.hosts.current
    breaker.set_observe(False, START + 401)
    breaker.force(CLOSED, START + 402)
    assert not breaker.covers_host("a") and not breaker.hosts.current


@pytest.mark.parametrize("seed", range(times(1, 3)))
def test_one_task_of_four_opens_for_that_task_alone(seed):
    found = run(broken_task, tasks="xyzu", seed=seed)
    assert found.narrowed_to == ["#task:x"] and found.opened_at < 40
    breaker, now = found.breaker, START + SINCE_S + 40
    assert breaker.covers("", "x") and not breaker.covers("", "y") and breaker.admits("", now, task="y")
    # An older worker knows no tasks: to it, this is the key of a tenant that it never meets.
    assert not breaker.covers("x") and not breaker.covers("#task:x")
    # The other tasks follow: it is no matter of one task.
    for number in range(20):
        now += 1
        breaker.note([Outcome(False, task="yzu"[number % 3], host="ab"[number % 2], subject=f"more {number}")], now)
    assert breaker.tenants == [] and breaker.covers("", "y")


@pytest.mark.parametrize("seed", range(times(1, 3)))
def test_an_outage_of_four_tasks_opens_for_all_of_them(seed):
    assert run(outage, tasks="xyzu", seed=seed).narrowed_to == []


@pytest.mark.parametrize("seed", range(times(1, 2)))
@pytest.mark.parametrize(
    ("share", "of"),
    [(0.15, ""), (0.5, "x"), (0.5, "a")],
    ids=["15 % broken", "half of one task", "half on one host"],
)
def test_what_fails_usually_opens_nothing_and_holds_no_host(share, of, seed):
    random = Random(seed)
    found = run(
        lambda host, task, at: of in ("", host, task) and random.random() < share,
        hosts=FLEET[:4], tasks="xyzu", until_s=1_500.0, seed=seed,
    )  # fmt: skip
    assert found.opened_at is None and not found.hosts
