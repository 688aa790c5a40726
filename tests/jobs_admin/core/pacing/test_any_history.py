"""Guarantees of the controller in every state that a random history of a replay leads to."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs_admin.core.pacing import HELD, Bucket, Controller, Judged, Seen, Verdict, parse, settled
from jobs_admin.core.pacing.evidence import surely_below
from jobs_admin.core.pacing.steering import TOLERATED

JOBS = 10**6
GROUPS = 3
OUTAGE = 20 + 5 * GROUPS  # first attempts: twenty that fail, and five of each group that is judged first
PACES = [
    {"style": "careful"},
    {"style": "careful", "rate": 12},
    {"style": "careful", "rate": 300, "canary": {"jobs": 5}},
    {"rate": 50},
    {"rate": 40, "ramp": {"from": 2, "to": 40}},
]


@dataclass(frozen=True)
class Stretch:
    """`n` checks under the same conditions."""

    checks: int
    every_s: float
    failing: float  # the share that fails again
    broken: int | None  # a group that fails whatever else, None for none
    home: float  # of those on their way, the share that comes home at a look
    runtime_s: float
    is_resumed: bool  # an operator resumes it afterwards, held or not


STRETCHES = st.lists(
    st.builds(
        Stretch,
        checks=st.integers(1, 60),
        every_s=st.sampled_from([0.2, 0.5, 1.0, 4.0]),
        failing=st.sampled_from([0.0, 0.0, 0.0, 0.02, 0.1, 0.4, 1.0]),
        broken=st.sampled_from([None, None, 0, 1]),
        home=st.sampled_from([0.1, 0.6, 1.0]),
        runtime_s=st.sampled_from([0.1, 0.1, 1.0]),
        is_resumed=st.booleans(),
    ),
    max_size=8,
)
histories = given(st.sampled_from(PACES), STRETCHES, st.integers(0, 2**32))
quickly = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Replayed:
    """A replay under the controller and the bucket that really send; its jobs end as a stretch says."""

    pace: dict[str, object]
    random: Random
    now: float = 0.0
    sent: int = 0
    judged: int = 0  # first attempts that came home
    out: deque[tuple[float, int]] = field(default_factory=deque)  # when each was sent, and what it died of
    aside: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.plan = settled(parse(self.pace), jobs=JOBS)
        self.controller = Controller(self.plan, 0.0)
        self.verdict = self.controller.assess(self.observation([]))
        self.bucket = Bucket(self.verdict.rate, 0.0)

    def observation(self, judged: list[Judged]) -> Seen:
        return Seen(
            self.now, self.sent, len(self.out), JOBS - self.sent, judged, set_aside=frozenset(self.aside),
            has_others=lambda groups: not set(groups) >= set(range(GROUPS)),
        )  # fmt: skip

    def plays(self, stretch: Stretch) -> None:
        for _ in range(stretch.checks):
            self.check(stretch)
        if self.verdict.state == HELD or stretch.is_resumed:
            self.resume()

    def check(self, stretch: Stretch) -> Verdict:
        self.send(stretch.every_s)
        judged = [self.ended(*job, stretch) for job in self.coming_home(stretch.home)]
        self.judged += len(judged)
        return self.take(self.controller.assess(self.observation(judged)))

    def resume(self) -> None:
        self.controller.resumed(self.now)
        self.take(self.controller.assess(self.observation([])))

    def take(self, verdict: Verdict) -> Verdict:
        self.verdict = verdict
        self.aside = (self.aside | {why.group for why in verdict.set_aside}) - set(verdict.bring_back)
        if verdict.state != HELD and verdict.rate != self.bucket.rate:
            self.bucket.change(verdict.rate, self.now)
        return verdict

    def send(self, seconds: float) -> int:
        """The jobs that the bucket and the leash let go within that many seconds."""
        before, ends = self.sent, self.now + seconds
        groups = [group for group in range(GROUPS) if group not in self.aside]
        while self.now < ends:
            self.now = min(ends, self.now + 0.1)
            left = JOBS if self.verdict.may_send is None else max(0, self.verdict.may_send - self.sent)
            for _ in range(0 if self.verdict.state == HELD else self.bucket.take(min(left, 500), self.now)):
                self.out.append((self.now, self.random.choice(groups)))
                self.sent += 1
        return self.sent - before

    def coming_home(self, share: float) -> list[tuple[float, int]]:
        return [self.out.popleft() for _ in range(-int(-len(self.out) * share // 1))]

    def ended(self, sent_at: float, died_of: int, stretch: Stretch) -> Judged:
        ok = died_of != stretch.broken and self.random.random() >= stretch.failing
        runtime_s = stretch.runtime_s * self.random.uniform(0.8, 1.2)
        return Judged(self.now, sent_at, ok, None if ok else died_of, False, not ok, runtime_s, 1, died_of)


@histories
@quickly
def test_no_more_is_sent_than_the_verdict_reports_and_never_above_the_highest_rate(pace, stretches, seed):
    replay = Replayed(pace, Random(seed))
    for stretch in stretches:
        for _ in range(stretch.checks):
            allowed, rate, state = replay.verdict.may_send, replay.verdict.rate, replay.verdict.state
            before = replay.sent
            sent = replay.send(stretch.every_s)
            assert allowed is None or replay.sent <= max(before, allowed)
            assert sent == 0 if state == HELD else sent <= 1.05 * rate * max(1.0, stretch.every_s) + 3
            verdict = replay.check(Stretch(1, 0.0, *list(vars(stretch).values())[2:]))
            assert verdict.rate <= replay.plan.highest + 1e-9 and verdict.rate > 0
            assert verdict.state != HELD or (verdict.may_send == replay.sent and verdict.because is not None)
        if replay.verdict.state == HELD or stretch.is_resumed:
            replay.resume()


@histories
@quickly
def test_the_rate_never_climbs_while_more_fails_than_is_borne(pace, stretches, seed):
    replay = Replayed(pace, Random(seed))
    for stretch in stretches:
        for _ in range(stretch.checks):
            before = replay.controller.as_dict()["steering"]
            replay.check(stretch)
            after = replay.controller.as_dict()["steering"]
            if after["rate"] > before["rate"]:
                usual, known_from = after["usual"], after["usual_of"]
                borne = TOLERATED + (surely_below(usual * known_from, known_from) if usual else 0.0)
                # Of what it knew when it climbed, and no share that makes it hold is ever usual.
                assert after["failed"] <= borne * (after["well"] + after["failed"]) + 1e-9
                assert usual <= 0.3
        if replay.verdict.state == HELD or stretch.is_resumed:
            replay.resume()


@histories
@quickly
def test_a_total_outage_holds_within_few_jobs_in_every_state(pace, stretches, seed):
    replay = Replayed(pace, Random(seed))
    for stretch in stretches:
        replay.plays(stretch)
    on_their_way, replay.judged = len(replay.out), 0
    down = Stretch(1, 0.5, 1.0, None, 1.0, 0.1, False)  # from here on nothing succeeds
    for _ in range(2_000):
        more = replay.sent
        if replay.check(down).state == HELD:
            break
        # What the look brought home beyond that was let go before any of it was known to fail.
        assert replay.judged <= on_their_way + OUTAGE + (replay.sent - more)
    assert replay.verdict.state == HELD and replay.verdict.because.sentence()


@pytest.mark.long("Plays each history twice, and stores and reads the controller at every look.")
@histories
@quickly
def test_another_process_goes_on_as_if_nothing_had_happened(pace, stretches, seed):
    """At any look: what it remembers is whole."""
    replay, other = Replayed(pace, Random(seed)), Replayed(pace, Random(seed))
    for stretch in stretches:
        for _ in range(stretch.checks):
            replay.controller = Controller.from_dict(replay.plan, json.loads(json.dumps(replay.controller.as_dict())))
            assert replay.check(stretch) == other.check(stretch)
            assert replay.controller.as_dict() == other.controller.as_dict()
        if replay.verdict.state == HELD or stretch.is_resumed:
            replay.resume()
            other.resume()
