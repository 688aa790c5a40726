"""Histories of an automation: jobs die in outages and now and then, and its replays bring them back.

The model is `core.automation.play`: what a dry run shows when the history is over is what the live automation did in it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from jobs_admin import automations
from jobs_admin.core.automation import HOUR_S, ROUND_S
from jobs_admin.models import AutomationDecision, Failure, Replay
from tests.kit.automations import document, fail, finish, live, person

Acts = list[tuple[int, tuple[str, ...]]]  # round, names of the jobs


@dataclass(frozen=True, slots=True)
class Death:
    round: int
    jobs: int
    queue: str


def generate(rng: random.Random, rounds: int) -> tuple[dict, list[Death]]:
    """Return an automation and what dies in which round."""
    changes = {
        "q": rng.choice(["", "queue:emails", "queue:emails state:dead", "error:TimeoutError"]),
        "min_jobs": rng.choice([1, 1, 5, 12]),
        "quiet_s": rng.choice([0, 30, 60, 120]),
        "cooldown_s": rng.choice([60, 90, 300]),
        "cap_per_hour": rng.choice([7, 25, 40, 1_000]),
    }
    deaths = []
    at = 0
    while at < rounds:
        begins = at + rng.randint(1, rounds // 4)
        at = begins + rng.randint(1, 12)
        deaths += [
            Death(n, rng.randint(1, 6), rng.choice(["emails", "emails", "reports"]))
            for n in range(begins, min(at, rounds))
            if rng.random() < 0.6
        ]
    return document(**changes), deaths


def play_both(seed: int, rounds: int) -> tuple[Acts, Acts]:
    """Return what the dry run of a history shows, and what the live run did in it. Checks the cap of the live run."""
    rng = random.Random(seed)
    wanted, deaths = generate(rng, rounds)
    end = timezone.now().timestamp() // ROUND_S * ROUND_S
    times = [
        datetime.fromtimestamp(end - (rounds - n) * ROUND_S, tz=timezone.get_current_timezone()) for n in range(rounds)
    ]
    would = _rolled_back(lambda: _dry(wanted, deaths, times))
    did = _rolled_back(lambda: _live(wanted, deaths, times))
    return would, did


def _rolled_back(run):
    with transaction.atomic():
        found = run()
        transaction.set_rollback(True)
    return found


def _dry(wanted: dict, deaths: list[Death], times: list[datetime]) -> Acts:
    for at, dying in _by_round(deaths, times):
        _die(at, dying)
    owner = person("owner", shop="operator")
    found = automations.dry_run(owner, automations.check(owner, wanted), times[-1])
    return [(_round_of(act.at, times), _names(act.ids)) for act in found.acts]


def _live(wanted: dict, deaths: list[Death], times: list[datetime]) -> Acts:
    owner = person("owner", shop="operator")
    one = live(owner, **wanted)
    did: Acts = []
    for at, dying in _by_round(deaths, times):
        _die(at, dying)
        automations.step(at)
        for replay in Replay.objects.exclude(state="done"):
            did.append((times.index(at), _names(replay.items.values_list("failure", flat=True))))
            finish(replay, now=at)
    _check_cap(one.cap_per_hour)
    return did


def _check_cap(cap: int) -> None:
    done = list(AutomationDecision.objects.filter(state="done").order_by("at"))
    for one in done:
        hour = [other.jobs for other in done if timedelta(0) <= one.at - other.at < timedelta(seconds=HOUR_S)]
        assert sum(hour) <= cap, (one.n, hour)


def _by_round(deaths: list[Death], times: list[datetime]) -> Iterator[tuple[datetime, list[Death]]]:
    for n, at in enumerate(times):
        yield at, [one for one in deaths if one.round == n]


def _die(at: datetime, dying: list[Death]) -> None:
    for one in dying:
        fail(at, one.jobs, queue=one.queue)


def _round_of(at: datetime, times: list[datetime]) -> int:
    return times.index(at)


def _names(ids) -> tuple[str, ...]:
    return tuple(sorted(Failure.objects.filter(pk__in=list(ids)).values_list("first_job_id", flat=True)))
