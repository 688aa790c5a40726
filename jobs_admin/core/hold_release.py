"""Release of jobs on hold: the controller of a careful replay, with a memory over several attempts to release.

Its state is a JSON object inside a breaker's document (`core/breaker.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jobs_admin.core import untrusted
from jobs_admin.core.outcomes import Outcome, check_values, subject_digest, task_key, tenant_key
from jobs_admin.core.pacing import (
    CAREFUL,
    RUNNING,
    Canary,
    Controller,
    Judged,
    Pace,
    Ramp,
    Seen,
    Stop,
    Verdict,
    settled,
)

TICKET_S = 300.0  # time for a released job to start
LONGEST_TICKET_S = 6 * 3_600.0
AWAITED_S = 60.0  # additional wait for its outcome, or RUNTIMES times the usual runtime
RUNTIMES = 3.0
LONGEST_TICK_S = 0.5  # maximum time between two ticks that counts
CANARY_JOBS = 20  # a job that fails goes back on hold and loses nothing
STOP_SHARE = 0.3  # of released jobs, as in a careful replay, unless more usually fail
DRAINED_S = 2.0  # jobs on hold must fit one second's release for this time
LEAST_BLAMED = 5.0  # per second: no outage is caused by a lower rate …
LEAST_START = 1.0  # … and no release starts with a lower one
FORGIVEN_S = 120.0  # without trouble: a blamed rate is then tried again; doubled each time
FORGOTTEN_S = 3_600.0  # expiry of an earlier release's findings
MOST_WAITING = 60
OVERTAKEN_S, OVERTAKEN = (
    10.0,
    5.0,
)  # a job is settled once jobs released this much later have ended, or this multiple of their lag
STALLED_S = 10.0  # nothing is in flight and nothing was released: release one job
LEAST_TO, TIMES_USUAL = 1_000.0, 3.0  # end of the ramp: jobs/s, or multiples of the usual traffic
LEAST_DRAINED = 5.0  # jobs/s, or half of the usual traffic: release of jobs on hold while closed
LEAST_WITHIN_S = 300.0  # maximum time without an outcome; RUNTIMES times the usual runtime if longer
TESTED_S, TESTED = 300.0, 100  # released jobs without an outage: then jobs on hold are drained behind live traffic
MOST_SUBJECTS = 64
_NO_CAP: dict[str, Any] = {"start": None, "bad": None, "cap": None}


@dataclass(slots=True)
class Release:
    """A running release, or the latest one."""

    canary: int
    stop: float  # share of failures that ends it
    since: float
    at: float
    to: float  # end of the ramp
    within: float  # seconds without an outcome
    controller: dict[str, Any]
    sent: int = 0
    settled: int = 0
    succeeded: int = 0
    credit: float = 1.0  # jobs that may be released now
    small_since: float = 0.0  # start of the time with few jobs on hold; 0: there are more
    forgiven: int = 0  # number of times that a blamed rate was tried again
    rate: float = 0.0
    waiting: list[list[float]] = field(default_factory=list)  # release time, deadline of the outcome, number
    added_at: float = 0.0
    tested_at: float = 0.0  # start of the test …
    tested: int = 0  # … and its number of outcomes of jobs that had not failed before
    failed: list[str] = field(default_factory=list)  # digests of the latest failed jobs
    by_tenant: dict[str, list[int]] = field(
        default_factory=dict
    )  # tenant or task -> succeeded, failed; in a narrow opening

    @staticmethod
    def start(
        known: Release | None, now: float, on_hold: int, usual: tuple[float, float], per_s: float, runtime_s: float
    ) -> Release:
        """Start a release. After one of the same outage, it keeps the findings about rates that are too fast.

        `usual`: failed attempts and all attempts while it was closed. `per_s`: the rate that the dependency usually
        handles.
        """
        share = usual[0] / max(1.0, usual[1])
        made = Release(
            canary=min(CANARY_JOBS, max(1, (on_hold + 1) // 2)),
            stop=round(min(0.9, share + (1 - share) * STOP_SHARE), 3),
            since=now,
            at=now,
            to=round(max(LEAST_TO, TIMES_USUAL * per_s)) if known is None else known.to,
            within=round(min(86_400.0, max(LEAST_WITHIN_S, RUNTIMES * runtime_s))),
            controller={},
            added_at=now,
            tested_at=now,
        )
        if known is None or now - known.at >= FORGOTTEN_S or known.controller["at"] > now + 1:
            made.controller = _seeded(Controller(made._pace, now), share, usual[1])
            return made
        made.sent = made.settled = known.sent
        made.forgiven, made.failed = known.forgiven, known.failed
        made.tested_at, made.tested = known.tested_at, known.tested
        values = known.controller | {"home": known.sent}  # the others will report no outcome
        if (values["bad"] or 0.0) < max(LEAST_BLAMED, 0.5 * per_s):
            # An intermittent outage is not caused by a rate that the dependency usually handles.
            values = values | _NO_CAP
        elif values["start"] is not None:
            values = values | {"start": max(values["start"], LEAST_START)}
        controller = Controller.from_dict(made._pace, values)
        controller.resumed(now)
        made.controller = _seeded(controller, share, usual[1])
        return made

    @property
    def _pace(self) -> Pace:
        """Careful pace, with a ramp to above the rate that the dependency usually handles."""
        canary = Canary(self.canary, round(1 - self.stop, 4), self.within)
        pace = Pace(CAREFUL, canary=canary, ramp=Ramp(None, self.to), stop=Stop(failed=self.stop, of_last=100))
        return replace(settled(pace, jobs=2 * self.canary), in_flight=None)

    @property
    def unsettled(self) -> int:
        return self.sent - self.settled

    def note(
        self, outcomes: Sequence[Outcome], sent_at: Sequence[float], now: float, *, is_narrow: bool
    ) -> list[Judged]:
        """Count the outcomes of released jobs. Return them for the controller."""
        judged = []
        for one, at in zip(outcomes, sent_at, strict=True):
            self._settle(one.n, at)
            if one.ok is None or (one.ok is False and self._has_failed(one)):
                continue
            self.tested += one.n
            if one.ok:
                self.succeeded += one.n
            for name in (tenant_key(one.tenant), task_key(one.task)) if is_narrow else ():
                if name and (len(self.by_tenant) < 40 or name in self.by_tenant):
                    self.by_tenant.setdefault(name, [0, 0])[0 if one.ok else 1] += one.n
            judged.append(Judged(now, min(now, at), one.ok, runtime_s=one.runtime_s, n=one.n))
        return judged

    def assess(self, now: float, on_hold: int, judged: Sequence[Judged]) -> Verdict:
        while self.waiting and self.waiting[0][1] <= now:  # outcome overdue
            self.settled = min(self.sent, self.settled + int(self.waiting.pop(0)[2]))
        controller = Controller.from_dict(self._pace, self.controller)
        verdict = controller.assess(Seen(now, self.sent, self.unsettled, max(1, on_hold), judged))
        self.controller = controller.as_dict()
        self.rate = round(verdict.rate or 0.0, 3)
        return verdict

    def allowance(self, now: float, on_hold: int, verdict: Verdict, least: float = 0.0) -> int:
        """Return how many jobs may be released now.

        `least`: minimum jobs/s, if the test of all jobs replaces this release's.
        """
        passed_s = min(max(0.0, now - self.at), LONGEST_TICK_S)
        self.at, self.rate = now, max(self.rate, least)
        self.credit = round(min(self.credit + self.rate * passed_s, max(1.0, self.rate * LONGEST_TICK_S)), 4)
        most = on_hold if least or verdict.may_send is None else min(on_hold, verdict.may_send - self.sent)
        n = max(0, min(most, int(self.credit)))
        if not n and on_hold and not self.unsettled and now - self.added_at >= STALLED_S:
            return 1  # whatever the controller waits for, no job in flight can report it
        return n

    def add(self, n: int, now: float, valid_s: float, runtime_s: float) -> None:
        """Count `n` jobs as released. Negative: as not released after all."""
        self.sent = max(self.settled, self.sent + n)
        self.credit = max(0.0, self.credit - n)
        self.added_at = now
        step_s = valid_s / MOST_WAITING if len(self.waiting) > MOST_WAITING // 2 else 1.0
        if self.waiting and (now - self.waiting[-1][0] < step_s or len(self.waiting) >= MOST_WAITING or n < 0):
            self.waiting[-1][2] = max(0, self.waiting[-1][2] + n)
        elif n > 0:
            self.waiting.append([round(now, 1), round(now + valid_s + max(AWAITED_S, RUNTIMES * runtime_s)), n])

    def forgive(self, now: float) -> None:
        """Allow a blamed rate again after a time: the failures may have had another cause."""
        if self.controller["cap"] is not None and self.controller["state"] == RUNNING:
            if now - self.since >= FORGIVEN_S * 2 ** min(10, self.forgiven):
                self.controller, self.since = self.controller | _NO_CAP, now
                self.forgiven += 1
        else:
            self.since = now

    def is_tested(self, now: float) -> bool:
        """Return whether enough released jobs ran for long enough without an alarm, whatever number of them failed."""
        return now - self.tested_at >= TESTED_S and self.tested >= TESTED

    def restart_test(self, now: float) -> None:
        self.tested_at, self.tested = now, 0

    def is_drained(self, now: float, on_hold: int, verdict: Verdict) -> bool:
        """Return whether only newly arrived jobs are on hold and released jobs succeed."""
        has_passed = verdict.state != "canary"
        if on_hold > (max(1.0, self.rate) if has_passed else 0) or not self.succeeded:
            self.small_since = 0.0
            return False
        if not on_hold and not self.unsettled:
            return True
        self.small_since = self.small_since or now
        return now - self.small_since >= (DRAINED_S if has_passed else 5 * DRAINED_S)

    def recovered(self, name: str) -> bool:
        """Return whether the released jobs of a tenant or task succeed."""
        succeeded, failed = self.by_tenant.get(name, (0, 0))
        return succeeded >= 5 and succeeded >= 4 * failed

    def _has_failed(self, one: Outcome) -> bool:
        """Return whether a job already failed after a release: then its failure is not evidence."""
        digest = subject_digest(one.subject)
        known = one.failed_before > 0 or (bool(digest) and digest in self.failed)
        if digest:
            self.failed = [*(known for known in self.failed if known != digest), digest][-MOST_SUBJECTS:]
        return known

    def _settle(self, n: int, sent_at: float) -> None:
        """Settle jobs with an outcome, and overdue jobs released before them."""
        lag_s = self.controller["lag_s"] or 0.0
        while self.waiting and self.waiting[0][0] < sent_at - max(OVERTAKEN_S, OVERTAKEN * lag_s):
            self.settled = min(self.sent, self.settled + int(self.waiting.pop(0)[2]))
        while n > 0 and self.waiting:
            part = min(n, int(self.waiting[0][2]))
            self.waiting[0][2] -= part
            self.settled = min(self.sent, self.settled + part)
            n -= part
            if self.waiting[0][2] <= 0:
                self.waiting.pop(0)

    def as_dict(self) -> dict[str, Any]:
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return found | {"waiting": [list(parts) for parts in self.waiting], "failed": list(self.failed)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Release:
        """Parse a stored release. Raises TypeError, KeyError or ValueError for any other value."""
        known = {one.name: values[one.name] for one in fields(Release) if one.name in values}
        made = Release(**known)
        counts = (made.canary, made.sent, made.settled, made.succeeded, made.forgiven, made.tested)
        check_values(counts, int)
        check_values(
            (made.stop, made.since, made.at, made.to, made.within, made.credit, made.small_since, made.rate), float
        )
        check_values((made.added_at, made.tested_at), float)
        check_values((one for parts in made.waiting for one in (parts[0], parts[1], parts[2])), float)
        check_values((one for parts in made.by_tenant.values() for one in (parts[0], parts[1])), int)
        check_values(made.failed, str)
        if (
            not 0 < made.stop <= 1
            or not 1 <= made.canary <= 1_000
            or not 1 <= made.to <= 100_000
            or not made.within > 0
        ):
            raise ValueError(made.stop)
        _try_out(made)
        return made


def _seeded(controller: Controller, share: float, total: float) -> dict[str, Any]:
    """Return a controller's state that includes the usual failures: broken jobs must not slow down sound ones."""
    values = controller.as_dict()
    return values | {"steering": values["steering"] | {"usual": round(share, 4), "usual_of": round(total)}}


def _try_out(release: Release) -> None:
    """Run the stored controller on a copy: raises now what it would raise later."""
    copy = Controller.from_dict(release._pace, release.controller)
    check_values((release.controller["at"], release.controller["since"]), float)
    judged = [Judged(release.at, release.at, ok, runtime_s=1.0) for ok in (True, False)]
    copy.assess(Seen(release.at, release.sent, release.unsettled, 1, judged))
    copy.resumed(release.at)
    copy.assess(Seen(release.at, release.sent, release.unsettled, 1, judged))


def read_ticket(ticket: str) -> tuple[int | None, float, float]:
    """Return a ticket's opening (None if invalid), expiry and issue time, in Unix seconds."""
    numbers = [untrusted.integer(part) for part in ticket.split(":")[:3]]
    if len(numbers) < 2 or numbers[0] is None or numbers[1] is None:
        return None, 0.0, 0.0
    issued_ms = numbers[2] if len(numbers) > 2 and numbers[2] is not None else numbers[1] - TICKET_S * 1000
    return numbers[0], numbers[1] / 1000, issued_ms / 1000
