"""The subject of the lint: policies, live configurations, options of queued jobs, observed facts, and the curves that follow."""

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

# How long a service may be away, where no outage was seen yet: five minutes.
OUTAGE_S = 300.0


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which many attempts of a queue failed, and no more are known to have succeeded."""

    source: str
    queue: str
    began: datetime
    seconds: float
    failed: int = 0
    succeeded: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Keyed by (source, queue) or (source, task). What is missing was not seen."""

    per_minute: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # jobs started in the busiest minute of a day
    failed_per_minute: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # attempts, in the worst minute of a day
    outages: tuple[Outage, ...] = ()  # of the last week
    # Failures that are kept: (source, task) -> class of the error, without its module -> how many.
    errors: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    # Of those, the ones in which a server said that it was asked too often (429).
    rate_limited: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # And the ones whose message says that they are permanent, and which ran more than once all the same; of a sample.
    permanent_retried: Mapping[tuple[str, str], int] = field(default_factory=dict)
    fully_reported: frozenset[str] = frozenset()  # sources of which every live worker told what it has
    outage_s: float = OUTAGE_S  # to be survived where none was seen

    def longest_outage(self, source: str, queue: str) -> Outage | None:
        seen = [one for one in self.outages if (one.source, one.queue) == (source, queue)]
        return max(seen, key=lambda one: one.seconds, default=None)


@dataclass(frozen=True, slots=True)
class Known:
    """A task as the workers of one configuration know it."""

    found: Configuration
    task: Task
    where: Where
    curves: tuple[Curve, ...]  # the ways in which Celery itself retries it
    policy: Policy | None  # the one that matches it

    @property
    def enforced(self) -> Policy | None:
        """The policy, where it decides in every worker of this configuration."""
        is_in_force = self.policy is not None and self.policy.mode == ENFORCE and self.found.modes == {ENFORCE}
        return self.policy if is_in_force else None

    def replaced(self, curve: Curve) -> bool:
        """Return whether a policy decides instead of this curve; a call that is more than a retry stays Celery's."""
        policy = self.enforced
        return (
            policy is not None
            and policy.retries
            and policy.native == REPLACE
            and (curve.call is None or curve.call.is_plain)
        )

    @property
    def attempts(self) -> int | None:
        """Return how often a job runs at most: of the way of retrying that has most. 1: it is not retried. None: one has no bound."""
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
    of_tasks: tuple[Curve, ...]  # Celery's own retries that still run
    replaced: tuple[tuple[Curve, Policy], ...]  # and those that a policy took the place of
    shared: Mapping[tuple[str, str], int]  # (source, queue) -> tasks that are routed to it
    lying: tuple[FoundOptions, ...] = ()  # of sources whose jobs say themselves how they are retried
    of_options: tuple[Curve, ...] = ()

    @property
    def curves(self) -> tuple[Curve, ...]:
        return self.of_policies + self.of_tasks + self.of_options

    def queues_of(self, curve: Curve) -> list[tuple[str, str]]:
        """(source, queue) that jobs of this curve go through, as far as that is known."""
        if curve.policy is None:
            return [(curve.where.source, curve.where.queue)]
        match = curve.policy.match
        known = {(one.where.source, one.where.queue) for one in self.tasks if matches(match.task, one.task.name)}
        return sorted(one for one in known if matches(match.source, one[0]) and matches(match.queue, one[1]))

    def tasks_in(self, source: str, queue: str) -> int:
        """Return how many tasks share a queue, as its workers report; at least 1."""
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
    """Every task of every configuration, with the policy that matches it."""
    return tuple(_known_task(task, configuration, policies) for configuration in found for task in configuration.tasks)


def _known_task(task: Task, found: Configuration, policies: Sequence[Policy]) -> Known:
    where = Where(found.source, task.queue, task.name)
    policy = chosen(policies, found.source, task.queue, task.name) if policies else None
    return Known(found, task, where, tuple(curves.of_task(task, found)), policy)
