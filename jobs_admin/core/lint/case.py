"""Input of the lint: policies, live configurations, options of queued jobs, observed facts, and the resulting
curves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from jobs_admin.core.lint import curve as curves
from jobs_admin.core.lint.configuration import Configuration, Task, Where
from jobs_admin.core.lint.curve import Curve
from jobs_admin.core.lint.options import FoundOptions
from jobs_admin.core.matching import chosen, matches
from jobs_admin.core.policy import ENFORCE, Policy
from jobs_admin.core.policy.shape import REPLACE

# Assumed outage of a service if none was seen yet: five minutes.
OUTAGE_S = 300.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Interval in which many attempts of a queue failed and no success is known."""

    source: str
    queue: str
    began: datetime
    seconds: float
    failed: int = 0
    succeeded: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Observed facts, by (source, queue) or (source, task). A missing key means not observed."""

    per_minute: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # jobs started in the busiest minute of a day
    failed_per_minute: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # failed attempts in the worst minute of a day
    outages: tuple[Outage, ...] = ()  # of the last week
    # Stored failures: (source, task) -> error class without module -> count.
    errors: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    # Those in which a server answered with 429 (rate limited).
    rate_limited: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # In a sample, those whose message declares a permanent error and that ran more than once nevertheless.
    permanent_retried: Mapping[tuple[str, str], int] = field(default_factory=dict)
    fully_reported: frozenset[str] = frozenset()  # sources whose live workers all reported their configuration
    outage_s: float = OUTAGE_S  # outage to survive if none was seen

    def longest_outage(self, source: str, queue: str) -> Outage | None:
        seen = [one for one in self.outages if (one.source, one.queue) == (source, queue)]
        return max(seen, key=lambda one: one.seconds, default=None)


@dataclass(frozen=True, slots=True)
class Known:
    """A task in the configuration of some workers."""

    found: Configuration
    task: Task
    where: Where
    curves: tuple[Curve, ...]  # Celery's own ways to retry it
    policy: Policy | None  # the matching policy

    @property
    def enforced(self) -> Policy | None:
        """Policy if it is enforced in every worker of this configuration, else None."""
        is_in_force = self.policy is not None and self.policy.mode == ENFORCE and self.found.modes == {ENFORCE}
        return self.policy if is_in_force else None

    def replaced(self, curve: Curve) -> bool:
        """Return whether a policy replaces this curve; a call that is more than a retry stays Celery's."""
        policy = self.enforced
        return (
            policy is not None
            and policy.retries
            and policy.native == REPLACE
            and (curve.call is None or curve.call.is_plain)
        )

    @property
    def attempts(self) -> int | None:
        """Maximum attempts over all ways to retry. 1: never retried. None: unlimited."""
        ways = [curve.attempts for curve in self.curves if not self.replaced(curve)]
        if self.enforced is not None and self.enforced.retries:
            ways.append(self.enforced.max_attempts)
        return None if None in ways else max((way for way in ways if way is not None), default=1)


@dataclass(frozen=True, slots=True)
class Case:
    policies: tuple[Policy, ...]
    found: tuple[Configuration, ...]
    facts: Facts
    tasks: tuple[Known, ...]
    of_policies: tuple[Curve, ...]
    of_tasks: tuple[Curve, ...]  # Celery's own retries still in effect
    replaced: tuple[tuple[Curve, Policy], ...]  # those replaced by a policy
    shared: Mapping[tuple[str, str], int]  # (source, queue) -> number of tasks routed to it
    lying: tuple[FoundOptions, ...] = ()  # of sources whose jobs contain their own retry options
    of_options: tuple[Curve, ...] = ()

    @property
    def curves(self) -> tuple[Curve, ...]:
        return self.of_policies + self.of_tasks + self.of_options

    def queues_of(self, curve: Curve) -> list[tuple[str, str]]:
        """Return the known (source, queue) pairs of this curve's jobs."""
        if curve.policy is None:
            return [(curve.where.source, curve.where.queue)]
        match = curve.policy.match
        known = {(one.where.source, one.where.queue) for one in self.tasks if matches(match.task, one.task.name)}
        return sorted(one for one in known if matches(match.source, one[0]) and matches(match.queue, one[1]))

    def tasks_in(self, source: str, queue: str) -> int:
        """Return the number of tasks that share a queue, as reported by its workers; at least 1."""
        return max(1, self.shared.get((source, queue), 0))


def case(
    policies: Sequence[Policy],
    found: Sequence[Configuration],
    facts: Facts,
    lying: Sequence[FoundOptions] = (),
) -> Case:
    tasks = known_tasks(policies, found)
    of_tasks: list[Curve] = []
    replaced: list[tuple[Curve, Policy]] = []
    for known in tasks:
        for curve in known.curves:
            if known.policy is not None and known.replaced(curve):
                replaced.append((curve, known.policy))
            else:
                of_tasks.append(curve)
    return Case(
        tuple(policies),
        tuple(found),
        facts,
        tasks,
        tuple(curves.of_policy(policy) for policy in policies),
        tuple(of_tasks),
        tuple(replaced),
        Counter((where.source, where.queue) for where in {known.where for known in tasks}),
        tuple(lying),
        tuple(curves.of_options(one, some) for some in lying for one in some.options),
    )


def known_tasks(policies: Sequence[Policy], found: Sequence[Configuration]) -> tuple[Known, ...]:
    """Return every task of every configuration, with its matching policy."""
    return tuple(_known_task(task, configuration, policies) for configuration in found for task in configuration.tasks)


def _known_task(task: Task, found: Configuration, policies: Sequence[Policy]) -> Known:
    where = Where(found.source, task.queue, task.name)
    policy = chosen(policies, found.source, task.queue, task.name) if policies else None
    return Known(found, task, where, tuple(curves.of_task(task, found)), policy)
