"""Controller of a replay: sets its rate, or holds it, by the outcomes of first attempts.

A pure state machine: each check takes the current facts and returns what may be sent. Its state is JSON, so any process
can continue. It assesses first attempts after sending; missing outcomes count against the replay. See docs/replays.md.
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

FIRST = 10  # canary jobs sent before the first outcome (FEWEST after a hold); then two more per success
# jobs of a steady replay sent before the first outcome; the limit applies until PROVEN outcomes
PROVEN_FIRST, PROVEN = 20, 50
AHEAD_LAGS = 3.0  # multiple of the jobs sent within the lag that may be in flight
CHECK_S = 0.5  # interval of checks; the measurements of careful use it (bench/recovery.py)
LONGEST_CHECK_S = 5.0  # longest interval between two checks that counts as time without outcomes
QUIET_S = 10.0  # time without outcomes after which nothing more is sent …
QUIET_LAGS = 3.0  # … or this multiple of the lag from sending to outcome, if longer
SILENT_AFTER_S = 300.0  # time without outcomes that holds the replay, if no canary sets one
WORKERLESS_S = 30.0
LATEST, NEARLY_ALL = 20, 18  # failures among the latest first attempts that mean an outage
BY_CHANCE = 1e-6  # a run of failures less likely than this is an outage too …
LEAST_USUAL, MOST_USUAL = 0.05, 0.99  # … assuming a usual failure share within these bounds
CAP = 0.75  # of the rate at which it was held: the limit of later climbs …
CAP_MOST = 0.85  # … until that rate succeeded for long; then this limit
CAP_WELL_S, CAP_WELL_JOBS = 120.0, 500
AGAIN = 0.1  # of the failed rate: maximum rate to restart with
GOOD_S = 20.0  # a later outage is not blamed on a rate that succeeded for this time
LOWEST = 0.02  # of the starting rate: minimum rate
NEW_GROUPS = 0.5  # of `stop.failed`: maximum share of new errors

# Fields stored besides the parts.
_PLAIN = (
    "state", "at", "since", "sent", "base", "home", "climbs", "quiet_s", "workerless_s", "lag_s",
    "cap", "cap_of", "cap_s", "newest", "bad", "good", "good_since", "good_of", "is_excused", "start", "cap_most",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """Facts known at a check. `now`: seconds of a clock that is monotonic across processes."""

    now: float
    sent: int  # total
    unsettled: int  # of these, not ended: waiting, running, or waiting for a native retry
    planned: int  # not yet sent
    judged: Sequence[Judged] = ()  # first attempts reported since the last check, in order, each once
    workers: int | None = None  # None if unknown
    waiting: int | None = None  # in the target queue, from any sender
    set_aside: Collection[GroupId] = ()  # groups of which no jobs are sent
    has_others: HasOthers = lambda groups: False  # returns whether a planned job died of another group than these
    are_reported: bool = True  # whether all its jobs report outcomes


@dataclass(frozen=True, slots=True)
class Verdict:
    state: str  # canary, ramping, running, held
    rate: float | None  # jobs/s; None: unlimited
    may_send: int | None  # maximum total of sent jobs; None: all
    because: Evidence | None = None  # why it is held, or (if `holds` is false) why it was just slowed down
    set_aside: tuple[Evidence, ...] = ()  # why jobs of these groups are set aside from now on
    bring_back: tuple[GroupId, ...] = ()  # groups set aside that are part of the reason for the hold


class Controller:
    """Controller of one replay. Create one at every check, `Controller.from_dict(pace, column)`, or keep it."""

    def __init__(self, pace: Pace, now: float, sent: int = 0) -> None:
        """`pace`: from `settled`. `now`: as in Seen. `sent`: before its first check."""
        self.pace = pace
        self._at = now
        self._since = now  # jobs sent before are no evidence
        self._sent = self._base = sent  # total; at its start
        self._home = sent  # first attempts with an outcome, of all sent
        self._state = HELD
        self._climbs = False
        self._outcomes = Outcomes()
        self._groups = Groups()  # first attempts sent since its start
        self._quiet_s = 0.0
        self._workerless_s: float | None = None  # None until a worker was seen
        self._lag_s: float | None = None  # from sending to outcome
        self._held_for: Evidence | None = None
        self._cap: float | None = None  # a rate that is no longer exceeded …
        self._cap_of: float | None = None  # … at a pace with this highest rate …
        self._cap_s = 0.0  # … and the time it succeeded at it …
        self._cap_most = CAP_MOST  # … after which it rises to this share of the failed rate
        self._newest: list[
            list[Any]
            # latest first attempts, oldest first: succeeded, group it died of, group it failed with, whether they are
            # the same
        ] = []
        self._bad: float | None = None  # lowest rate at which it was held because jobs failed
        self._good = 0.0  # highest rate that succeeded for GOOD_S …
        self._is_excused = False  # one outage was not blamed on the rate: the next one is
        self._start: float | None = None  # starting rate after the service was overloaded
        self._good_since = now  # … and the rate exceeded since `_good_since`
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
        verdict = self._verdict(seen, slowed)
        return replace(verdict, set_aside=set_aside) if set_aside else verdict

    def resumed(self, now: float) -> None:
        """Resume after an operator's request, at a low rate. Only the rate that failed is kept in memory."""
        self._at = max(self._at, now)
        self._begin(now, climbs=self.pace.highest is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            **{name: getattr(self, f"_{name}") for name in _PLAIN},
            "outcomes": self._outcomes.as_list(),
            "groups": self._groups.as_list(),
            "steering": self._steering.as_dict(),
            "held_for": self._held_for.as_dict() if self._held_for else None,
        }

    @staticmethod
    def from_dict(pace: Pace, values: dict[str, Any]) -> Controller:
        """Restore a controller, possibly at another pace: this is how a running replay's pace changes."""
        made = Controller(pace, values["at"])
        for name in _PLAIN:
            setattr(made, f"_{name}", values.get(name, getattr(made, f"_{name}")))
        made._outcomes = Outcomes.from_list(values["outcomes"])
        if "groups" in values:
            made._groups = Groups.from_list(values["groups"])
        else:  # of a version that did not count groups: a running canary continues from its numbers
            made._groups = Groups.of_no_group(values.get("well", 0), values.get("failed", 0))
        made._steering = Steering.from_dict(values["steering"])
        made._held_for = Evidence.from_dict(values["held_for"]) if values["held_for"] else None
        if made._state == CANARY and pace.canary is None:
            made._leave_canary()
        made._climbs = made._climbs or pace.ramp is not None
        if made._cap_of != pace.highest:
            made._cap = made._bad = made._start = None  # an operator set another rate meanwhile
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
        """Starting rate, also after a hold of a steady pace."""
        start = self.pace.ramp.start if self.pace.ramp else None
        start = start or min(CANARY_RATE, self.pace.highest or CANARY_RATE)
        return start if self._start is None else min(start, self._start)

    @property
    def _lowest(self) -> float:
        return self._low if self._start else max(SLOWEST, LOWEST * self._low)

    def _note(self, seen: Seen, passed_s: float) -> list[Judged]:
        """Add reported outcomes. Return those that are evidence."""
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
        # Nothing was sent before the start, whatever the clocks of web process and sender show.
        since = [one for one in seen.judged if not self._base or one.sent_at >= self._since]
        evidence = self._groups.add(since)
        self._outcomes = self._outcomes.joined(since, (self.pace.stop or Stop()).of_last)
        for one in evidence:
            known = [one.ok, one.died_of, one.group, one.is_same_group]
            self._newest = [*self._newest, *[known] * min(one.n, LATEST)][-LATEST:]
        return evidence

    def _out(self, seen: Seen) -> int:
        """Return the number of sent first attempts without an outcome."""
        return max(0, min(seen.unsettled, seen.sent - self._home))

    # Reasons to hold

    def _reason_to_hold(self, seen: Seen) -> Evidence | None:
        found = None
        if self._state == CANARY and self.pace.canary:
            found = self._bad_canary(self.pace.canary, seen)
        if found is None and self._judges_jobs:
            found = self._groups.outage()
        if found is None and self.pace.stop:
            found = self._too_many_failed(self.pace.stop) or self._outage(self.pace.stop)
        if found and found.kind == "failing" and self._state == CANARY and self.pace.canary:
            # Everything sent since the start is canary, whichever rule fired first.
            found = replace(found, kind="canary", limit=round(1 - self.pace.canary.success, 4))
        return found or self._workers_vanished(seen) or self._silence(seen)

    def _bad_canary(self, canary: Canary, seen: Seen) -> Evidence | None:
        if not self._well and self._out(seen) and seen.has_others({*self._groups.hopeless, *self._groups.aside}):
            return None  # a job of another group may still succeed; nothing more is sent until its outcome is known
        judged, allowed = self._well + self._failed, 1 - canary.success
        bound = surely_above(self._failed, judged)
        cannot_pass = self._canary_jobs(canary) - self._failed < self._required_successes(canary)
        if judged >= FEWEST and self._failed and (bound > allowed or cannot_pass):
            return self._failures("canary", self._failed, judged, allowed, bound)
        return None

    def _outage(self, stop: Stop) -> Evidence | None:
        """Return evidence of an outage: nearly all of the latest attempts failed, or a run of failures too long for
        chance.
        """
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
        """Return evidence about failures. `among`: the outcomes counted in `failed`; None: the latest stored ones."""
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
        """Return whether failed jobs can stop the replay or a group."""
        canary = self.pace.canary if self._state == CANARY else None
        return bool((canary and canary.success) or (self.pace.stop and self.pace.stop.failed < 1))

    @property
    def _judges(self) -> bool:
        return self.pace.stop is not None or self._is_watched

    @property
    def _is_watched(self) -> bool:
        """Return whether it needs outcomes to continue; a plain steady pace does not."""
        return self._state == CANARY or self.pace.ramp is not None

    @property
    def _longest_silence_s(self) -> float:
        return self.pace.canary.within if self.pace.canary else SILENT_AFTER_S

    def _cap_after(self, reason: Evidence) -> None:
        """Limit the rate to below the one at which it was held: some services give no earlier sign of overload."""
        if (not self._climbs and self._state != CANARY) or reason.kind not in ("canary", "failing", "new_groups"):
            return
        if self._state == CANARY and not self._well:
            return  # the service was down before
        fastest = self._steering.fastest
        if self._state == CANARY:
            # The service may only be recovering: do not limit the climb.
            self._start, self._cap_of = AGAIN * fastest, self.pace.highest
        elif self._good < fastest or self._is_excused:
            self._blame(fastest, CAP_MOST)
        else:
            self._is_excused = True

    def _blame(self, rate: float, most: float) -> None:
        """Do not use this rate, or the lowest blamed rate, again."""
        self._bad = rate if self._bad is None else min(self._bad, rate)
        self._start = AGAIN * self._bad
        self._cap, self._cap_of, self._cap_s, self._cap_most = CAP * self._bad, self.pace.highest, 0.0, most

    # Continuing

    def _canary_jobs(self, canary: Canary) -> int:
        """Return the canary's size. A small canary with a failure proves nothing, so it grows to a size that can."""
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
            self._state = RUNNING  # end of the climb: at the requested rate, or at the service's capacity
        if self._steering.rate >= high and self.pace.ramp is None and self._cap is None:
            self._climbs = False  # steady again
        return slowed

    def _note_fall(self, slowed: Evidence | None) -> None:
        """Blame the rate that overloaded a service for some jobs only, or briefly: that never holds the replay."""
        fastest = self._steering.fastest
        has_fallen = slowed is not None and slowed.kind == "backed_off" and self._steering.has_fallen
        if has_fallen and fastest > self._low and fastest >= CAP * self._good:
            # A service that refuses part of an overload does so above 0.75 of it: too few to notice until it fails.
            self._blame(fastest, CAP)
            self._steering.restart(self._low)

    def _note_good(self, passed_s: float, high: float) -> None:
        """Record a rate that succeeded for long, and raise the cap after success."""
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
        """Return the maximum total of sent jobs."""
        bounds: list[int] = []
        if self.pace.in_flight is not None:
            bounds.append(seen.sent - seen.unsettled + self.pace.in_flight)
        if self._state == CANARY and self.pace.canary:
            jobs = min(self._canary_jobs(self.pace.canary), self._first + 2 * self._well)
            without_news = max(0, seen.sent - self._home - seen.unsettled)  # ended with an unknown outcome
            bounds.append(self._base + jobs + self._groups.lost + without_news)
        if self.pace.stop and self.pace.stop.failed < 1 and seen.are_reported and seen.sent > self._base:
            bounds.append(self._proven(seen))
        if self._waits_for_news(seen) or (self._judges and self._workerless_s):
            bounds.append(seen.sent)
        bound = min(bounds, default=None)
        return None if bound is not None and bound >= seen.sent + seen.planned else bound

    def _proven(self, seen: Seen) -> int:
        """Return the limit of jobs in flight from those assessed so far, so that few reach a service that is down.

        If outcomes take long, a steady pace continues without them; a climbing one waits for them anyway.
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
        """Number of canary jobs sent before the first outcome; fewer after a hold."""
        return FIRST if not self._base else FEWEST

    def _waits_for_news(self, seen: Seen) -> bool:
        if self._state == CANARY or self.pace.ramp is None:
            return False
        rate = self._rate or 1.0
        return self._quiet_s >= max(QUIET_S, QUIET_LAGS * (self._lag_s or 0.0), QUIET_LAGS / rate)


def _outcomes_of(failed: Sequence[Sequence[Any]]) -> Outcomes:
    """Return the outcomes of these failures. Those stored by an older version have no error."""
    errors = [error or (None, False) for _, _, *error in failed]
    return Outcomes().joined([Judged(0.0, 0.0, False, group, is_same_group=same) for group, same in errors], LATEST)
