"""The controller of a replay: from the outcomes of first attempts to its rate, or to a hold.

A pure state machine: every look takes what is known now and answers what may be sent. Its memory is JSON that any
process can take up. It judges first attempts after sending, and no news is not good news. See docs/replays.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from jobs_admin.core.pacing.evidence import FEWEST, Evidence, GroupId, Judged, Outcomes, surely_above
from jobs_admin.core.pacing.groups import Groups, HasOthers
from jobs_admin.core.pacing.pace import CANARY_RATE, SLOWEST, Canary, Pace, Stop
from jobs_admin.core.pacing.steering import Steering

CANARY, RAMPING, RUNNING, HELD = "canary", "ramping", "running", "held"

FIRST = 10  # of a canary are sent before any of them came home, or FEWEST after a hold; then two more for each that succeeded
PROVEN_FIRST, PROVEN = 20, 50  # of a steady replay go before any was judged; it is leashed until so many were
AHEAD_LAGS = 3.0  # times what it sends until news come may be on their way
CHECK_S = 0.5  # how often to look: what careful promises is measured so (bench/recovery.py)
LONGEST_CHECK_S = 5.0  # between two looks: what is more (nobody looked) does not count as time without news
QUIET_S = 10.0  # without news: then nothing more is sent …
QUIET_LAGS = 3.0  # … or so many times what it takes from sending until news come, where that is more
SILENT_AFTER_S = 300.0  # without news, where no canary says otherwise
WORKERLESS_S = 30.0
LATEST, NEARLY_ALL = 20, 18  # of the newest first attempts so many failed: an outage
BY_CHANCE = 1e-6  # a run of failures that is less likely is an outage, too …
LEAST_USUAL, MOST_USUAL = 0.05, 0.99  # … where at least this share is reckoned to fail anyhow, and never all
CAP = 0.75  # of the rate at which it had to be held: a climb goes no further after that …
CAP_MOST = 0.85  # … until that was well for long, and then so far
CAP_WELL_S, CAP_WELL_JOBS = 120.0, 500
AGAIN = 0.1  # of the rate that failed: where it begins again at most
GOOD_S = 20.0  # a rate that was well for so long is not what a later outage is laid to
LOWEST = 0.02  # of the rate that it begins with: so slow at most
NEW_GROUPS = 0.5  # of `stop.failed` is what new errors may make out

# What a controller remembers besides its parts.
_PLAIN = (
    "state", "at", "since", "sent", "base", "home", "climbs", "quiet_s", "workerless_s", "lag_s",
    "cap", "cap_of", "cap_s", "newest", "bad", "good", "good_since", "good_of", "is_excused", "start", "cap_most",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """The facts known at a look. `now` in seconds of any clock that goes forward, also across processes."""

    now: float
    sent: int  # in all
    unsettled: int  # of these, not yet ended: waiting, running, or waiting for a native retry
    planned: int  # not sent yet
    judged: Sequence[Judged] = ()  # first attempts reported since the last look, in that order, each once
    workers: int | None = None  # None where it is not known
    waiting: int | None = None  # in the target queue, whoever sent them
    set_aside: Collection[GroupId] = ()  # groups of which nothing is sent
    has_others: HasOthers = lambda groups: False  # whether a planned job died of something else than these groups
    are_reported: bool = True  # the outcomes of all of its jobs


@dataclass(frozen=True, slots=True)
class Verdict:
    state: str  # canary, ramping, running, held
    rate: float | None  # jobs per second; None is without bound
    may_send: int | None  # so many may have been sent in all; None is all of them
    because: Evidence | None = None  # why it is held, or (`holds` is false) why it was slowed down just now
    set_aside: tuple[Evidence, ...] = ()  # why the jobs of these groups are to be set aside from now on
    bring_back: tuple[GroupId, ...] = ()  # groups whose being set aside was a part of what it is held for now


class Controller:
    """The controller of one replay. Make a new one at every look: `Controller.from_dict(pace, column)`; or keep it."""

    def __init__(self, pace: Pace, now: float, sent: int = 0) -> None:
        """`pace` as `settled` gives it; `now` as in Seen; `sent` before it began to look."""
        self.pace = pace
        self._at = now
        self._since = now  # what was sent before is no evidence
        self._sent = self._base = sent  # in all; when it began
        self._home = sent  # first attempts that came home, of all that were sent
        self._state = HELD
        self._climbs = False
        self._outcomes = Outcomes()
        self._groups = Groups()  # first attempts sent since it began
        self._quiet_s = 0.0
        self._workerless_s: float | None = None  # None until a worker was seen
        self._lag_s: float | None = None  # from sending to news
        self._held_for: Evidence | None = None
        self._cap: float | None = None  # a rate that it does not exceed any more …
        self._cap_of: float | None = None  # … of a pace with this highest one …
        self._cap_s = 0.0  # … and was well at for so long …
        self._cap_most = CAP_MOST  # … so that it is raised to this share of the rate that failed
        self._newest: list[
            list[Any]
        ] = []  # the newest first attempts, oldest first: succeeded, died of, failed with, whether that is the same
        self._bad: float | None = None  # the lowest rate at which it had to be held because jobs failed
        self._good = 0.0  # the highest rate that was well for GOOD_S …
        self._is_excused = False  # one outage was not laid to the rate: the next one is
        self._start: float | None = None  # the rate to begin with after the service was knocked over
        self._good_since = now  # … and that which was exceeded all the time since then
        self._good_of = 0.0
        self._begin(now, climbs=pace.ramp is not None)

    @property
    def state(self) -> str:
        return self._state

    def assess(self, seen: Seen) -> Verdict:
        passed_s = min(max(0.0, seen.now - self._at), LONGEST_CHECK_S)
        self._at = max(self._at, seen.now)
        evidence = self._note(seen, passed_s)
        if self._state == HELD or not seen.planned:
            return self._verdict(seen)
        set_aside = self._groups.to_set_aside(seen.has_others) if self._judges_jobs else ()
        if reason := self._reason_to_hold(seen):
            self._cap_after(reason)
            self._state, self._held_for = HELD, reason
            bring_back = self._groups.innocent if reason.judged else ()
            self._groups.bring_back(bring_back)
            return replace(self._verdict(seen), set_aside=set_aside, bring_back=bring_back)
        slowed = None
        if self._state == CANARY or self._climbs:
            slowed = self._steer(evidence, passed_s)
        if self._state == CANARY:
            self._pass_canary()
        return replace(self._verdict(seen, slowed), set_aside=set_aside)

    def resumed(self, now: float) -> None:
        """A person says: go on. From a low rate; what was learnt is forgotten, but for the rate that it failed at."""
        self._at = max(self._at, now)
        self._begin(now, climbs=self.pace.highest is not None)

    def as_dict(self) -> dict[str, Any]:
        """All that it remembers, for JSON."""
        return {
            **{name: getattr(self, f"_{name}") for name in _PLAIN},
            "outcomes": self._outcomes.as_list(),
            "groups": self._groups.as_list(),
            "steering": self._steering.as_dict(),
            "held_for": self._held_for.as_dict() if self._held_for else None,
        }

    @staticmethod
    def from_dict(pace: Pace, values: dict[str, Any]) -> Controller:
        """The same again, maybe at another pace: that is how a pace is changed while it runs."""
        made = Controller(pace, values["at"])
        for name in _PLAIN:
            setattr(made, f"_{name}", values.get(name, getattr(made, f"_{name}")))
        made._outcomes = Outcomes.from_list(values["outcomes"])
        if "groups" in values:
            made._groups = Groups.from_list(values["groups"])
        else:  # of a version that counted no groups: a canary under way goes on from its numbers
            made._groups = Groups.of_no_group(values.get("well", 0), values.get("failed", 0))
        made._steering = Steering.from_dict(values["steering"])
        made._held_for = Evidence.from_dict(values["held_for"]) if values["held_for"] else None
        if made._state == CANARY and pace.canary is None:
            made._leave_canary()
        made._climbs = made._climbs or pace.ramp is not None
        if made._cap_of != pace.highest:
            made._cap = made._bad = made._start = None  # a person said another rate since
        return made

    def _begin(self, now: float, *, climbs: bool) -> None:
        self._since, self._base = now, self._sent
        self._climbs = climbs
        self._outcomes, self._groups, self._newest = Outcomes(), Groups(), []
        self._quiet_s, self._workerless_s, self._held_for = 0.0, None, None
        self._good_since, self._good_of = now, 0.0
        self._steering = Steering(rate=self._low, changed_at=now)
        self._state = CANARY if self.pace.canary else RAMPING if climbs else RUNNING

    @property
    def _low(self) -> float:
        """The rate to begin with, also where a steady pace begins again."""
        start = self.pace.ramp.start if self.pace.ramp else None
        start = start or min(CANARY_RATE, self.pace.highest or CANARY_RATE)
        return start if self._start is None else min(start, self._start)

    @property
    def _lowest(self) -> float:
        return self._low if self._start else max(SLOWEST, LOWEST * self._low)

    def _note(self, seen: Seen, passed_s: float) -> list[Judged]:
        """Take in the outcomes that were reported; return those that are evidence."""
        self._sent = seen.sent
        came = sum(one.n for one in seen.judged)
        self._home += came
        self._quiet_s = 0.0 if came or not self._out(seen) else self._quiet_s + passed_s
        if seen.workers:
            self._workerless_s = 0.0
        elif seen.workers == 0 and self._workerless_s is not None:
            self._workerless_s += passed_s
        if came:
            lag_s = sum(max(0.0, one.at - one.sent_at) * one.n for one in seen.judged) / came
            self._lag_s = lag_s if self._lag_s is None else self._lag_s + 0.2 * (lag_s - self._lag_s)
        self._groups.follow(seen.set_aside, seen.now)
        # Before it began nothing was sent, whatever the clocks of the web process and of the sender say.
        since = [one for one in seen.judged if not self._base or one.sent_at >= self._since]
        evidence = self._groups.add(since)
        self._outcomes = self._outcomes.joined(since, (self.pace.stop or Stop()).of_last)
        for one in evidence:
            known = [one.ok, one.died_of, one.group, one.is_same_group]
            self._newest = [*self._newest, *[known] * min(one.n, LATEST)][-LATEST:]
        return evidence

    def _out(self, seen: Seen) -> int:
        """Return the number of first attempts that were sent and have no outcome yet."""
        return max(0, min(seen.unsettled, seen.sent - self._home))

    # When it is held

    def _reason_to_hold(self, seen: Seen) -> Evidence | None:
        found = None
        if self._state == CANARY and self.pace.canary:
            found = self._bad_canary(self.pace.canary, seen)
        if found is None and self._judges_jobs:
            found = self._groups.outage()
        if found is None and self.pace.stop:
            found = self._too_many_failed(self.pace.stop) or self._outage(self.pace.stop)
        if found and found.kind == "failing" and self._state == CANARY and self.pace.canary:
            # All that was sent since it began is canary, whichever rule was quicker.
            found = replace(found, kind="canary", limit=round(1 - self.pace.canary.success, 4))
        return found or self._workers_vanished(seen) or self._silence(seen)

    def _bad_canary(self, canary: Canary, seen: Seen) -> Evidence | None:
        if not self._well and self._out(seen) and seen.has_others({*self._groups.hopeless, *self._groups.aside}):
            return None  # a job of another group may still succeed; nothing more is sent before it is known
        judged, allowed = self._well + self._failed, 1 - canary.success
        bound = surely_above(self._failed, judged)
        cannot_pass = self._canary_jobs(canary) - self._failed < self._required_successes(canary)
        if judged >= FEWEST and self._failed and (bound > allowed or cannot_pass):
            return self._failures("canary", self._failed, judged, allowed, bound)
        return None

    def _outage(self, stop: Stop) -> Evidence | None:
        """Return the evidence of an outage: nearly all of the latest failed, or a run of failures too long for chance."""
        without = self._groups.no_evidence
        latest = [one for one in self._newest if one[0] or one[1] not in without]
        bad, judged = [one for one in latest if not one[0]], len(latest)
        if judged < LATEST or len(bad) < NEARLY_ALL:
            bad = list(takewhile(lambda one: not one[0], reversed(latest)))
            judged = len(bad)
            usual = min(max(LEAST_USUAL, self._steering.usual), MOST_USUAL)
            if judged < max(FEWEST, math.log(BY_CHANCE) / math.log(usual)):
                return None
        if (bound := surely_above(len(bad), judged)) > stop.failed:
            return self._failures("failing", len(bad), judged, stop.failed, bound, _outcomes_of(bad))
        return None

    def _too_many_failed(self, stop: Stop) -> Evidence | None:
        last = self._outcomes.without(self._groups.no_evidence)
        judged, failed, new = last.judged, last.failed, last.new
        if judged < FEWEST:
            return None
        if (bound := surely_above(failed, judged)) > stop.failed:
            return self._failures("failing", failed, judged, stop.failed, bound)
        if stop.new_groups and (bound := surely_above(new, judged)) > NEW_GROUPS * stop.failed:
            return self._failures("new_groups", new, judged, NEW_GROUPS * stop.failed, bound)
        return None

    def _failures(
        self, kind: str, failed: int, judged: int, limit: float, bound: float, among: Outcomes | None = None
    ) -> Evidence:
        """`among`: the outcomes that `failed` counts; None: of the last that are remembered."""
        last = self._outcomes.without(self._groups.no_evidence) if among is None else among
        group, in_group, is_same = last.commonest(new=kind == "new_groups")
        return Evidence(
            kind, failed=failed, judged=judged, limit=round(limit, 4), bound=round(bound, 4),
            group=group, in_group=min(in_group, failed), is_same_group=is_same,
        )  # fmt: skip

    def _workers_vanished(self, seen: Seen) -> Evidence | None:
        if self._judges and (self._workerless_s or 0.0) >= WORKERLESS_S:
            return Evidence("workers_gone", unsettled=seen.unsettled, seconds=self._workerless_s or 0.0)
        return None

    def _silence(self, seen: Seen) -> Evidence | None:
        limit = self.pace.in_flight
        is_full = limit is not None and seen.unsettled >= limit
        if not (is_full or self._is_watched) or self._quiet_s < self._longest_silence_s:
            return None
        kind = "not_draining" if is_full else "no_news"
        return Evidence(kind, unsettled=seen.unsettled, seconds=self._quiet_s, limit=limit if is_full else None)

    @property
    def _well(self) -> int:
        return self._groups.succeeded

    @property
    def _failed(self) -> int:
        return self._groups.failed

    @property
    def _judges_jobs(self) -> bool:
        """Return whether jobs that fail can stop anything: also a group."""
        canary = self.pace.canary if self._state == CANARY else None
        return bool((canary and canary.success) or (self.pace.stop and self.pace.stop.failed < 1))

    @property
    def _judges(self) -> bool:
        return self.pace.stop is not None or self._is_watched

    @property
    def _is_watched(self) -> bool:
        """Return whether it goes on only while news arrive; a plain steady pace needs none."""
        return self._state == CANARY or self.pace.ramp is not None

    @property
    def _longest_silence_s(self) -> float:
        return self.pace.canary.within if self.pace.canary else SILENT_AFTER_S

    def _cap_after(self, reason: Evidence) -> None:
        """Bound the rate below the one it was held at: some services give no other sign before they fall over."""
        if (not self._climbs and self._state != CANARY) or reason.kind not in ("canary", "failing", "new_groups"):
            return
        if self._state == CANARY and not self._well:
            return  # it was down before
        fastest = self._steering.fastest
        if self._state == CANARY:
            # It may only just be coming back: no bound on the climb.
            self._start, self._cap_of = AGAIN * fastest, self.pace.highest
        elif self._good < fastest or self._is_excused:
            self._blame(fastest, CAP_MOST)
        else:
            self._is_excused = True

    def _blame(self, rate: float, most: float) -> None:
        """This rate, or the lowest that was blamed, is not tried again."""
        self._bad = rate if self._bad is None else min(self._bad, rate)
        self._start = AGAIN * self._bad
        self._cap, self._cap_of, self._cap_s, self._cap_most = CAP * self._bad, self.pace.highest, 0.0, most

    # How it goes on

    def _canary_jobs(self, canary: Canary) -> int:
        """A small canary with a failure in it proves nothing: it becomes as large as can prove something."""
        return max(canary.jobs, FEWEST) if self._failed else canary.jobs

    def _required_successes(self, canary: Canary) -> float:
        return canary.success * self._canary_jobs(canary) - 1e-9

    def _pass_canary(self) -> None:
        canary = self.pace.canary
        if canary is None or (self._well >= 1 and self._well >= self._required_successes(canary)):
            self._leave_canary()

    def _leave_canary(self) -> None:
        self._steering.leave_canary(self._failed, self._well + self._failed)
        self._state = RAMPING if self._climbs else RUNNING

    def _steer(self, evidence: Sequence[Judged], passed_s: float) -> Evidence | None:
        high = self._high
        if self._state == CANARY:
            high = min(high or CANARY_RATE, max(CANARY_RATE, self._low))
        if high is None:
            self._state, self._climbs = RUNNING, False
            return None
        most_usual = min(self.pace.stop.failed, Stop().failed) if self.pace.stop else 1.0
        is_canary = self._state == CANARY
        slowed = self._steering.steer(
            evidence, passed_s, self._at, min(self._lowest, high), high, most_usual,
            is_canary=is_canary and self._start is None,
        )  # fmt: skip
        if is_canary:
            return slowed
        self._note_fall(slowed)
        self._note_good(passed_s, high)
        if slowed or self._steering.rate >= high:
            self._state = RUNNING  # the end of the climb: what was asked for, or what the service bears
        if self._steering.rate >= high and self.pace.ramp is None and self._cap is None:
            self._climbs = False  # steady again
        return slowed

    def _note_fall(self, slowed: Evidence | None) -> None:
        """Blame the rate that knocked a service over for some of the jobs only, or for a moment: that never holds the replay."""
        fastest = self._steering.fastest
        has_fallen = slowed is not None and slowed.kind == "backed_off" and self._steering.has_fallen
        if has_fallen and fastest > self._low and fastest >= CAP * self._good:
            # A service that refuses some of what is too much does so above 0.75 of that: too few to be seen, until it falls.
            self._blame(fastest, CAP)
            self._steering.restart(self._low)

    def _note_good(self, passed_s: float, high: float) -> None:
        """Record the rate that succeeded for long, and raise a cap that did."""
        rate = self._steering.rate
        if rate < self._good_of or not self._good_of:
            self._good_of, self._good_since = rate, self._at
        elif self._at - self._good_since >= GOOD_S:
            self._good = max(self._good, self._good_of)
            self._good_of, self._good_since = rate, self._at
        if self._cap is not None and self._bad is not None and rate >= self._cap:
            self._cap_s += passed_s
            if self._cap_s >= max(CAP_WELL_S, CAP_WELL_JOBS / rate):
                raised = min(self._cap_most * self._bad, self._cap + 0.05 * self._bad)
                self._cap, self._cap_s = max(self._cap, raised), 0.0

    def _verdict(self, seen: Seen, slowed: Evidence | None = None) -> Verdict:
        if self._state == HELD:
            return Verdict(HELD, self._low, seen.sent, self._held_for)
        return Verdict(self._state, self._rate, self._leash(seen), slowed)

    @property
    def _high(self) -> float | None:
        high = self.pace.highest
        return high if high is None or self._cap is None else min(high, self._cap)

    @property
    def _rate(self) -> float | None:
        high = self._high
        if self._state == CANARY:
            return min(self._steering.rate, high or self._steering.rate)
        return high if high is None or not self._climbs else min(self._steering.rate, high)

    def _leash(self, seen: Seen) -> int | None:
        """Return how many may have been sent in all."""
        bounds: list[int] = []
        if self.pace.in_flight is not None:
            bounds.append(seen.sent - seen.unsettled + self.pace.in_flight)
        if self._state == CANARY and self.pace.canary:
            jobs = min(self._canary_jobs(self.pace.canary), self._first + 2 * self._well)
            without_news = max(0, seen.sent - self._home - seen.unsettled)  # ended, and nobody knows how
            bounds.append(self._base + jobs + self._groups.lost + without_news)
        if self.pace.stop and self.pace.stop.failed < 1 and seen.are_reported and seen.sent > self._base:
            bounds.append(self._proven(seen))
        if self._waits_for_news(seen) or (self._judges and self._workerless_s):
            bounds.append(seen.sent)
        bound = min(bounds, default=None)
        return None if bound is not None and bound >= seen.sent + seen.planned else bound

    def _proven(self, seen: Seen) -> int:
        """Return the bound on jobs in flight from those judged so far, so that few reach a service that is down.

        Where news take long, a steady pace goes on without; what climbs waits for them anyhow.
        """
        rate = self._rate
        if rate is None or self._state == CANARY or self._quiet_s >= QUIET_S:
            return seen.sent + seen.planned
        judged = self._well + self._failed
        if judged < PROVEN:
            return self._base + PROVEN_FIRST + 4 * self._well + self._groups.lost
        return seen.sent - self._out(seen) + max(PROVEN, math.ceil(AHEAD_LAGS * rate * ((self._lag_s or 0.0) + 1.0)))

    @property
    def _first(self) -> int:
        """Number of canary jobs sent before the first result; fewer after a hold."""
        return FIRST if not self._base else FEWEST

    def _waits_for_news(self, seen: Seen) -> bool:
        if self._state == CANARY or self.pace.ramp is None:
            return False
        rate = self._rate or 1.0
        return self._quiet_s >= max(QUIET_S, QUIET_LAGS * (self._lag_s or 0.0), QUIET_LAGS / rate)


def _outcomes_of(failed: Sequence[Sequence[Any]]) -> Outcomes:
    """Return the outcomes of these failures; the error is unknown of those that an older version stored."""
    errors = [error or (None, False) for _, _, *error in failed]
    return Outcomes().joined([Judged(0.0, 0.0, False, group, is_same_group=same) for group, same in errors], LATEST)
