"""Breaker of one dependency: outcomes of jobs decide whether its jobs may start.

States: `closed`, jobs start; `open`, jobs are put on hold and one at a time probes; `half_open`, jobs on hold are
released at the careful pace. If jobs fail on one host and succeed on another, only that host puts jobs on hold.

Pure: time and randomness are arguments. The state is JSON of at most `MOST_BYTES` (`NUMBER JSON` in the store), which
workers and the desk share and change by compare-and-set on `number`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jobs_admin.core.breaker_memory import (
    CLOSED,
    HALF_OPEN,
    LONGEST_STRAINED_S,
    MOST_BYTES,
    OPEN,
    PROBE_S,
    PROBE_TICKET_S,
    BreakerMemory,
)
from jobs_admin.core.hold_release import (
    AWAITED_S,
    LEAST_DRAINED,
    LONGEST_TICKET_S,
    RUNTIMES,
    TICKET_S,
    Release,
    read_ticket,
)
from jobs_admin.core.outage import Alarm, Return, opening_text
from jobs_admin.core.outcomes import TASK, Outcome, clip, finite, host_key, task_key, tenant_key
from jobs_admin.core.pacing import HELD, Judged, Verdict

__all__ = ["CLOSED", "HALF_OPEN", "MOST_BYTES", "OPEN", "Breaker", "Outcome", "tenant_key"]

AUTO = "auto"
MOST_NARROWED = 20  # tenants and tasks of a narrow opening
STRAINED_S = 600.0  # an opening this soon after a closing doubles the interval of probes
MOST_STRAIN = 12.0
MOST_SILENT_PROBES = 5  # in a row, without evidence about the dependency
WIDEN_S = 600.0  # after a narrow opening, half of the score widens it to all tenants
WIDER = 0.5
RESUMED = "Paused jobs resumed"  # start of the reason of such an opening
JUMP_S = 300.0  # a clock that goes back by more was set back
# Released while a host on hold puts jobs on hold: jobs/s, or multiples of the usual traffic.
LEAST_BOUNCED, TIMES_BOUNCED = 20.0, 2.0


class Breaker(BreakerMemory):
    """Breaker of one dependency. Write changes by compare-and-set on `number`."""

    # Whether a job may start

    def covers(self, tenant: str, task: str = "") -> bool:
        """Return whether jobs of a tenant and task without a ticket are put on hold now."""
        if self.state == CLOSED or self.observe:
            return False
        return not self.tenants or tenant_key(tenant) in self.tenants or task_key(task) in self.tenants

    def covers_host(self, host: str) -> bool:
        """Return whether a host starts only probes of the dependency, `hosts.probe_s` apart."""
        is_forced = self.forced is not None and self.forced["as"] == CLOSED
        return host_key(host) in self.hosts.current and not self.observe and not is_forced

    def admits(self, ticket: str, now: float, tenant: str = "", task: str = "") -> bool:
        """Return whether a job may start, on a host that is not on hold."""
        if not self.covers(tenant, task):
            return True
        opening, until_s, _ = read_ticket(ticket)
        return opening == self.openings and now <= until_s

    def ticket(self, now: float) -> str:
        """Return the ticket of jobs that are released now: `OPENING:EXPIRY:ISSUED`, in Unix ms."""
        now = max(now, self._at)
        return f"{self.openings}:{round((now + self._ticket_s) * 1000)}:{round(now * 1000)}"

    @property
    def _ticket_s(self) -> float:
        """Return a ticket's validity in seconds. Its opening limits it too: the time only has to outlast the queue."""
        return self._valid_s if self.state == OPEN else min(LONGEST_TICKET_S, max(TICKET_S, 2 * self._valid_s))

    # Outcomes

    def note(self, outcomes: Sequence[Outcome], now: float, starts: int | None = None) -> None:
        """Add outcomes. `starts`: jobs started since the last call, for observe mode; None: as many as ended."""
        now = self._advance(now)
        if not outcomes and not starts:
            return
        self.number += 1
        for one in outcomes:
            if one.runtime_s is not None and one.ok:
                share = 1 - 0.9 ** min(100, one.n) if self._runtime_s else 1.0
                self._runtime_s += share * (finite(one.runtime_s) - self._runtime_s)
        outcomes = self._exclude_failing_hosts(outcomes, now)
        if self.state == CLOSED:
            self._note_closed(outcomes, now)
        elif self.observe:
            self.starts += sum(one.n for one in outcomes) if starts is None else starts
            self._note_observed(outcomes, now)
        else:
            self._note_ticketed([one for one in outcomes if read_ticket(one.ticket)[0] == self.openings], now)
            free = [one for one in outcomes if not self.covers(one.tenant, one.task)]
            if self.tenants and free:
                lower = WIDER if now - self.since < WIDEN_S else 1.0
                self._note_alarm(self._detect(free, now, lower), now)
            self._note_unasked([one for one in outcomes if self.covers(one.tenant, one.task) and not one.ticket], now)

    def _exclude_failing_hosts(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Outcome]:
        """Return the outcomes that are evidence.

        A failed probe of a host opens the breaker if no other host succeeds any longer.
        """
        if not self.hosts.current:
            return outcomes
        found, met, failed = self._note_outcomes_of_hosts(outcomes, now)
        is_probe = any(read_ticket(one.ticket)[0] == self.openings for one in met)
        if self.state == OPEN and self.probe is not None and is_probe:  # another probe starts
            self.probe, self.next_probe_at, met = None, round(now + 1.0, 3), []
        hold = self.hosts.current.get(failed)
        if hold and self.forced is None and not self._detector.succeeds_elsewhere(failed, hold["since"], now):
            evidence = hold["evidence"]
            self.tenants, self.evidence = [], evidence
            self._release_hosts(now)
            if self.state == CLOSED:
                self._open(opening_text(evidence, f" on host {failed}"), now)
        return [*found, *met]

    def _note_closed(self, outcomes: Sequence[Outcome], now: float) -> None:
        ticketed = [one for one in outcomes if read_ticket(one.ticket)[0] == self.openings]
        release = self._release
        if release is not None and ticketed:
            verdict = release.assess(now, self.on_hold, self._judged(release, ticketed, now))
            if verdict.state == HELD:
                self._start_release(now)  # release slowly again: opening is up to the test of all jobs
        if self.forced is None:
            # Attempts that started before it closed met the outage that has ended.
            latest = [one for one in outcomes if one.ok or not self.since or (one.started_at or now) >= self.since]
            lower = WIDER if now - self.hosts.latest() < WIDEN_S else 1.0
            self._note_alarm(self._detect(latest, now, lower), now)

    def _detect(self, outcomes: Sequence[Outcome], now: float, lower: float = 1.0) -> Alarm | None:
        return self._detector.add(outcomes, now, lower=lower, is_known=lambda name: name in self.tenants)

    def _note_alarm(self, alarm: Alarm | None, now: float) -> None:
        if alarm is None or self._hold_host(alarm, now):
            return
        tenants = []
        if alarm.part:
            tenants = [*self.tenants, alarm.part] if len(self.tenants) < MOST_NARROWED else []
        wish_s = self._detector.wish_s
        self._detector.restart()
        self.tenants, self.evidence = tenants, alarm.evidence
        if not tenants:
            self._release_hosts(now)
        which = f" of task {alarm.part[len(TASK) :]}" if alarm.part.startswith(TASK) else f" of tenant {alarm.part}"
        self._open(opening_text(alarm.evidence, which if alarm.part else ""), now, wish_s)

    def _hold_host(self, alarm: Alarm, now: float) -> bool:
        """Put an alarm's only host on hold. Return whether that settles the alarm."""
        if not alarm.host:
            return False
        is_of_all = self._detector.run.is_alarm(self._detector.alarm_at)
        if self._add_host(alarm.host, alarm.evidence, now):
            self._detector.restart_without(alarm.host)
            return True
        return not is_of_all

    def _note_observed(self, outcomes: Sequence[Outcome], now: float) -> None:
        if self.forced is not None:
            return
        names = {*self.tenants}
        covered = [one for one in outcomes if not names or names & {tenant_key(one.tenant), task_key(one.task)}]
        returned = Return(self._return)
        if returned.add(covered, self._detector.usual):
            minutes = max(1, round((now - self.opened_at) / 60))
            self._close(f"Would have held {self.starts:,} jobs for {minutes:,} min", now)
        else:
            self._return = round(returned.score, 3)

    def _note_unasked(self, outcomes: Sequence[Outcome], now: float) -> None:
        """Probe at once if jobs of observe-only workers succeed."""
        latest = [one for one in outcomes if (one.started_at or 0.0) > self.since]
        if self.state == OPEN and self.forced is None and latest:
            returned = Return(self._return)
            if returned.add(latest, self._detector.usual):
                self.next_probe_at, returned.score = min(self.next_probe_at, now), 0.0
            self._return = round(returned.score, 3)

    def _note_ticketed(self, outcomes: Sequence[Outcome], now: float) -> None:
        if not outcomes or self.forced is not None:
            return
        if self.state == HALF_OPEN:
            # A probe from before the half-open state says nothing about the rate.
            outcomes = [one for one in outcomes if read_ticket(one.ticket)[2] >= self.since - 1]
            release = self._release or self._start_release(now)
            verdict = release.assess(now, self.on_hold, self._judged(release, outcomes, now))
            first = [one for one in outcomes if one.ok or (one.ok is False and not one.failed_before)]
            alarm = self._detect([replace(one, attempt=1) for one in first], now)
            if alarm is not None and not self._hold_host(alarm, now):
                self._detector.restart()
                release.restart_test(now)
            if verdict.state == HELD:
                self._end_release(verdict, now)
            return
        self.probe = None
        if any(one.ok for one in outcomes):
            self._start_release(now).succeeded = 1
            self._move(HALF_OPEN, "The probe succeeded", now)
            self._silent_probes = 0
        elif any(one.ok is False for one in outcomes):
            self._silent_probes = 0
            if self._release is not None:
                self._release.restart_test(now)
            self._plan_probe(now, max(finite(one.wish_s) for one in outcomes))
        else:
            self._note_silent_probe(now)

    def _note_silent_probe(self, now: float) -> None:
        """Probe again after a probe without evidence about the dependency; after several, take the dependency to be
        available.
        """
        self._silent_probes += 1
        if self._silent_probes >= MOST_SILENT_PROBES:
            self._silent_probes = 0
            self._start_release(now)
            self._move(HALF_OPEN, f"{MOST_SILENT_PROBES} probes met no outage", now)
        else:
            self.next_probe_at = round(now + min(PROBE_S, 1.5**self._silent_probes), 3)

    # Release

    def tick(self, now: float, on_hold: int) -> int:
        """Return the number of jobs on hold to release now. Report the actual number with `released`."""
        now, before = self._advance(now), self.on_hold
        self.on_hold = max(0, on_hold)
        self.number += before != self.on_hold
        self._end_unseen_hosts(now)
        if self.state == OPEN and not self.observe:
            return 0 if self.forced else self._probe_due(now)
        if self.state == CLOSED or self.observe:
            return self._drain(now) if self.on_hold else 0
        self.number += 1
        release = self._release or self._start_release(now)
        release.forgive(now)
        verdict = release.assess(now, self.on_hold, [])
        self.rate = release.rate
        if verdict.state == HELD:
            self._end_release(verdict, now)
            return 0
        if release.is_drained(now, self.on_hold, verdict):
            self._close(f"{self.released_count:,} jobs released", now)
        elif release.is_tested(now):
            self._close(f"No outage in {release.tested:,} attempts", now)
        return release.allowance(now, self.on_hold, verdict)

    def released(self, n: int, now: float, ticket: str = "") -> None:
        """Record that `n` jobs were released. Negative: they were not released after all."""
        now = self._advance(now)
        if not n:
            return
        self.number += 1
        self.released_count = max(0, self.released_count + n)
        if self.state == OPEN and not self.observe:
            if not ticket or read_ticket(ticket)[0] == self.openings:
                until_s = now + self._valid_s + max(AWAITED_S, RUNTIMES * self._runtime_s)
                self.probe = {"at": round(now, 3), "until": round(until_s, 3), "ticket": ticket} if n > 0 else None
        elif self._release is not None:
            self._release.add(n, now, self._ticket_s, self._runtime_s)

    def _probe_due(self, now: float) -> int:
        if self.probe is not None and now < self.probe["until"]:
            return 0
        if self.probe is not None:
            self.probe = None  # no outcome of the probe: the next one may wait in a queue for longer
            self._valid_s = min(LONGEST_TICKET_S, 2 * self._valid_s)
            self.number += 1
        return 1 if self.on_hold and now >= self.next_probe_at else 0

    def _drain(self, now: float) -> int:
        """Release jobs on hold of a closed breaker: the rest of a release, or jobs whose breaker document was lost."""
        self.number += 1
        release = self._release or self._start_release(now)
        release.forgive(now)
        verdict = release.assess(now, self.on_hold, [])
        if verdict.state == HELD:
            release = self._start_release(now)
            verdict = release.assess(now, self.on_hold, [])
        per_s = self._detector.per_s
        least = max(LEAST_BOUNCED, TIMES_BOUNCED * per_s) if self.hosts.current else max(LEAST_DRAINED, 0.5 * per_s)
        return release.allowance(now, self.on_hold, verdict, least)

    def _start_release(self, now: float) -> Release:
        usual = (self._detector.usual_failed, self._detector.usual_total)
        self._release = Release.start(self._release, now, self.on_hold, usual, self._detector.per_s, self._runtime_s)
        return self._release

    def _judged(self, release: Release, outcomes: Sequence[Outcome], now: float) -> list[Judged]:
        sent_at = [read_ticket(one.ticket)[2] for one in outcomes]
        return release.note(outcomes, sent_at, now, is_narrow=len(self.tenants) > 1)

    def _end_release(self, verdict: Verdict, now: float) -> None:
        """Open again because released jobs fail. In a narrow opening, close it for tenants whose jobs succeed.

        Silence alone does not open it: tickets stay valid, and a few jobs are released again.
        """
        if verdict.because is not None and not verdict.because.judged:
            self._start_release(now)
            return
        if self._release is not None and len(self.tenants) > 1:
            still = [name for name in self.tenants if not self._release.recovered(name)]
            self.tenants = still or self.tenants
        self._open(verdict.because.sentence() if verdict.because else "Released jobs fail.", now)

    # Actions of operators

    def force(self, as_: str, now: float, until: float | None = None, by: str = "", reason: str = "") -> None:
        """Force it open or closed until a time (None: until changed), or make it automatic again (`auto`)."""
        if as_ not in (OPEN, CLOSED, AUTO):
            raise ValueError(as_)
        now = self._advance(now)
        self.number += 1
        self.forced = None
        why = clip(f"Forced {as_}{by and f' by {by}'}{reason and f': {reason}'}", 80)
        if as_ != AUTO:
            self.forced = {
                "as": as_, "until": until, "by": clip(by, 60), "reason": clip(reason, 200), "at": round(now, 3)
            }  # fmt: skip
        self._detector.restart()
        self._release_hosts(now, "the breaker was forced")
        if as_ == OPEN:
            self.tenants = []
            self._open(why, now)
        elif as_ == CLOSED:
            self._close(why, now)
        else:
            self._resume(why, now)

    def open_to_release(self, by: str, now: float) -> None:
        """Open before paused jobs resume, to release them: the first as a probe, the others at the careful pace."""
        now = self._advance(now)
        if self.state == CLOSED:
            self.number += 1
            self.tenants = []
            self._detector.restart()
            self._open(clip(f"{RESUMED} by {by}", 80), now)
            self.next_probe_at = round(now, 3)

    def set_observe(self, is_observed: bool, now: float) -> None:
        """Follow the mode of the policies: in observe mode no job is put on hold."""
        if is_observed != self.observe:
            now = self._advance(now)
            self.observe = is_observed
            self.number += 1
            if self.state != CLOSED and self.forced is None:
                self._resume("The mode changed", now)

    def _resume(self, why: str, now: float) -> None:
        if self.state == CLOSED:
            self._move(CLOSED, why, now)
        else:
            self._move(OPEN, why, now)
            self.next_probe_at = min(self.next_probe_at, now) if self.probe is None else self.next_probe_at

    # Transitions

    def _open(self, why: str, now: float, wish_s: float = 0.0) -> None:
        """Open, with a number that makes all earlier tickets invalid."""
        self.openings += 1
        self.probe, self.starts, self._return, self._silent_probes = None, 0, 0.0, 0
        if self.state == CLOSED:
            closed_s = now - self.since if self.since else math.inf
            self._strain = 2 * self._strain if closed_s < STRAINED_S else max(1.0, self._strain * STRAINED_S / closed_s)
            self.opened_at, self.released_count = now, 0
        elif self.state == HALF_OPEN:
            self._strain *= 1.5
        self._strain = min(MOST_STRAIN, self._strain)
        self.rate = 0.0
        self._move(OPEN, why, now)
        self._plan_probe(now, wish_s)

    def _close(self, why: str, now: float) -> None:
        self.probe, self.tenants, self._return, self._valid_s = None, [], 0.0, PROBE_TICKET_S
        self._detector.restart()
        self._move(CLOSED, why, now)

    def _advance(self, now: float) -> float:
        """Return the effective time: the latest of several hosts' clocks, unless a clock was set back."""
        if now < self._at - JUMP_S:
            self.next_probe_at, self.since = min(self.next_probe_at, now + LONGEST_STRAINED_S), min(self.since, now)
            self.opened_at = min(self.opened_at, now)
            self.hosts.current = {}
            if self.probe is not None:
                self.probe = self.probe | {"until": min(self.probe["until"], round(now + 2 * self._valid_s, 3))}
            self._detector.set_back(now)
            self._release, self._at = None, now
        self._at = now = max(now, self._at)
        if self.forced and self.forced["until"] is not None and now >= self.forced["until"]:
            self.forced = None
            self.number += 1
            self._resume("The forced state has ended", now)
        return now
