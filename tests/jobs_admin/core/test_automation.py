"""Decisions of automations: what they wait for, and the dry run against a slow one that checks every round."""

from __future__ import annotations

import random

import pytest

from jobs_admin.core.automation import (
    DAY_S,
    HOUR_S,
    MOST_PER_JOB,
    ROUND_S,
    Conditions,
    Dead,
    Decision,
    Episode,
    WouldAct,
    decide,
    most_jobs,
    play,
    waiting_reason,
)

NOW = 1_700_000_000.0
BASE = Conditions(min_jobs=2, quiet_s=600, cooldown_s=300, cap_per_hour=10)


def test_enough_jobs_that_are_quiet_are_acted_on_up_to_the_cap():
    assert decide(BASE, 5, 0, is_quiet=True) == Decision(5)
    assert decide(BASE, 50, 4, is_quiet=True) == Decision(6)
    assert decide(BASE, 1, 0, is_quiet=True).why_not == "1 of at least 2 jobs match."
    assert decide(BASE, 5, 0, is_quiet=False).why_not == "A job failed within the last 10 min."


def test_an_act_that_changes_no_job_has_no_cap():
    assert most_jobs(Conditions(1, 0, 60, None), 10**6) == 10_000 and most_jobs(BASE, 12) == 0


def test_it_waits_for_its_cooldown_its_cap_and_its_rule():
    assert "ago" in waiting_reason(BASE, NOW, NOW - 299, 0) and not waiting_reason(BASE, NOW, NOW - 300, 0)
    assert "cap of 10 jobs" in waiting_reason(BASE, NOW, None, 10)
    ruled = Conditions(1, 0, 60, 10, needs_rule=True)
    assert "has not resolved" in waiting_reason(ruled, NOW, None, 0)
    assert "firing" in waiting_reason(ruled, NOW, None, 0, [Episode(NOW - 50, None)])
    assert not waiting_reason(ruled, NOW, None, 0, [Episode(NOW - 50, NOW - 10)])
    assert "has not resolved" in waiting_reason(ruled, NOW, NOW - 60, 0, [Episode(NOW - 500, NOW - 61)])
    assert "has not resolved" in waiting_reason(ruled, NOW, None, 0, [Episode(NOW - 3 * DAY_S, NOW - 2 * DAY_S)])


def play_slowly(conditions, dead, failed, since, until, takes_jobs):
    """The same as `play`, without passing over a round and without a memory of what was ready."""
    found, taken = [], {}
    now = -(-since // ROUND_S) * ROUND_S
    while now <= until:
        ready = set()
        for one in dead:
            is_dead = one.since <= now and (one.until is None or one.until > now)
            if not takes_jobs and found and one.since <= found[-1].at:
                continue  # it asked for the act once
            if (
                is_dead
                and not any(at >= one.since for at in taken.get(one.job, ()))
                and len(taken.get(one.job, ())) < MOST_PER_JOB
            ):
                ready.add(one.job)
        last = max((at for at in failed if at <= now), default=float("-inf"))
        spent = sum(len(act.jobs) for act in found if act.at > now - HOUR_S) if conditions.cap_per_hour else 0
        acted_at = found[-1].at if found else None
        if not waiting_reason(conditions, now, acted_at, spent):
            count = decide(conditions, len(ready), spent, is_quiet=last <= now - conditions.quiet_s).jobs
            if count:
                jobs = tuple(sorted(ready)[:count])
                found.append(WouldAct(now, jobs))
                for job in jobs if takes_jobs else ():
                    taken.setdefault(job, []).append(now)
        now += ROUND_S
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_dry_run_is_that_of_every_round(seed):
    rng = random.Random(seed)
    since, until = NOW - rng.uniform(600, 3 * HOUR_S), NOW
    dead, failed = [], []
    for job in range(rng.randint(0, 40)):
        at = since
        for _ in range(rng.randint(1, 3)):
            at = at + rng.uniform(0, HOUR_S)
            until_or_not = None if rng.random() < 0.5 else at + rng.uniform(1, 1_000)
            dead.append(Dead(job, at, until_or_not))
            failed.append(at)
            if until_or_not is None:
                break
            at = until_or_not
    conditions = Conditions(
        rng.choice([1, 3, 8]), rng.choice([0, 15, 60, 600]), rng.choice([60, 65, 900]), rng.choice([3, 20, None])
    )
    takes = conditions.cap_per_hour is not None
    given = (conditions, dead, failed, since, until)
    assert play(*given, takes_jobs=takes) == play_slowly(*given, takes)
