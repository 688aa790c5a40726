"""Check of exponential backoff: delays at least double, up to a cap of at most ten minutes.

One verdict per configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from jobs_admin.core.figures import exact_duration
from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.configuration import Where
from jobs_admin.core.lint.curve import (
    BY_SERVER,
    EXPONENTIAL,
    FIXED,
    IMMEDIATE,
    KINDS,
    LINEAR,
    NONE,
    OPTIONS,
    UNKNOWN,
    Curve,
    doubles,
)
from jobs_admin.core.lint.finding import HIGH, Found, listed, rule

# AuditBuffet's id of the check: https://auditbuffet.com/patterns/ab-002450
ID = "sending-pipeline-infrastructure.retry-error-handling.exponential-backoff"
LONGEST_CAP_S = 600.0  # "no more than 600 seconds (10 minutes)"
PASS, FAIL, NOT_APPLICABLE, UNDECIDED = "pass", "fail", "not applicable", "cannot tell"
VERDICTS = (PASS, FAIL, NOT_APPLICABLE, UNDECIDED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the check for one retry configuration."""

    where: Where
    by: str  # policy, autoretry_for, self.retry, job options; "" for a task without retries
    kind: str  # one of curve.KINDS
    quoted: str
    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class Check:
    """Result of the check for everything: verdicts, failed first, and the number of configurations per kind."""

    verdicts: tuple[Verdict, ...]
    kinds: dict[str, int]  # of configurations with retries, in the order of curve.KINDS

    def count(self, verdict: str) -> int:
        return sum(one.verdict == verdict for one in self.verdicts)

    @property
    def passes(self) -> bool:
        return not self.count(FAIL)


def check(case: Case) -> Check:
    found = [judged(curve) for curve in case.curves]
    found += [_replaced(curve, policy.name) for curve, policy in case.replaced]
    found += [_not_retried(known.where) for known in case.tasks if not known.curves]
    order = (FAIL, UNDECIDED, PASS, NOT_APPLICABLE)
    once = sorted(set(found), key=lambda one: (order.index(one.verdict), one.where, one.quoted))
    counted = Counter(one.kind for one in once if one.kind != NONE)
    return Check(tuple(once), {kind: counted[kind] for kind in KINDS if counted[kind]})


def judged(curve: Curve) -> Verdict:
    verdict, why = _judge(curve)
    if curve.seen:
        why = f"{why} {curve.seen}."
    kind = NONE if curve.retries == 0 else curve.kind
    return Verdict(curve.where, curve.by, kind, curve.quoted, verdict, why)


def _judge(curve: Curve) -> tuple[str, str]:
    if curve.kind == NONE or curve.retries == 0:
        return NOT_APPLICABLE, "One attempt, no retries."
    if curve.kind == BY_SERVER:
        return NOT_APPLICABLE, "The server sets the delay (Retry-After)."
    if curve.kind == UNKNOWN:
        return UNDECIDED, "The delay is computed at run time."
    if curve.kind == EXPONENTIAL and curve.by == OPTIONS:
        return _without_cap(curve)
    waits = listed(curve.envelope[: curve.retries] if curve.retries else curve.envelope)
    if curve.kind == IMMEDIATE:
        return FAIL, "Retries are immediate."
    if curve.kind == FIXED:
        return FAIL, f"Every wait is the same: {exact_duration(curve.envelope[0])}."
    if curve.kind == LINEAR:
        return FAIL, f"Waits grow by the same step: {waits}."
    growing = [wait for wait in curve.envelope if curve.cap_s is None or wait < curve.cap_s]
    if not doubles(growing):
        return FAIL, f"Waits do not at least double: {waits}."
    if curve.cap_s is None:
        return FAIL, f"Waits double ({waits}), but no cap is set."
    if curve.cap_s > LONGEST_CAP_S:
        return FAIL, f"Waits double up to {exact_duration(curve.cap_s)}, above {exact_duration(LONGEST_CAP_S)}."
    return PASS, f"Waits at least double ({waits}), up to {exact_duration(curve.cap_s)}."


def _without_cap(curve: Curve) -> tuple[str, str]:
    """Return the verdict and reason for BullMQ's exponential backoff, which has no cap setting: the number of
    attempts limits it.
    """
    waits, last = listed(curve.waits), curve.longest_wait_s
    if last > LONGEST_CAP_S:
        return (
            FAIL,
            f"Waits double ({waits}) without a cap: the last is {exact_duration(last)}, above {exact_duration(LONGEST_CAP_S)}.",
        )
    return PASS, f"Waits double ({waits}); the last is {exact_duration(last)}."


def _replaced(curve: Curve, policy: str) -> Verdict:
    return Verdict(
        curve.where, curve.by, curve.kind, curve.quoted, NOT_APPLICABLE, f"Replaced by the policy {policy}."
    )  # fmt: skip


def _not_retried(where: Where) -> Verdict:
    why = "Not retried: no autoretry_for, and the code does not call retry."
    return Verdict(where, "", NONE, "", NOT_APPLICABLE, why)


@rule(
    ID,
    HIGH,
    title="Retries without exponential backoff",
    why="Immediate retries, and retries with fixed or linear waits, use up all attempts during a short outage, and "
    "hit a recovering service all at once. The check passes if each wait is at least twice the one before, up "
    "to a cap of at most 600 s. Waits are compared before jitter: full jitter may shorten single waits. A task "
    "that is not retried, or that waits as long as a server asks for, is not applicable; a wait computed at run "
    "time is undecided, and is not a finding. BullMQ has no cap setting: an exponential backoff passes if no "
    "wait is longer than 600 s.",
    fix="Set `retry_backoff` and `retry_backoff_max` (at most 600), or publish a policy with an exponential "
    "backoff, a factor of at least 2 and a cap of at most 600 s. In BullMQ: `backoff: { type: 'exponential', "
    "delay: 2000 }`, or a `backoffStrategy` of the worker with `Math.min(…, 600_000)`.",
    source="https://auditbuffet.com/patterns/ab-002450; CWE-770, CWE-400",
)
def without_exponential_backoff(case: Case) -> Iterator[Found]:
    for curve in case.curves:
        one = judged(curve)
        if one.verdict == FAIL:
            yield Found(one.where, one.why, one.quoted)
