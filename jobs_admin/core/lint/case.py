"""All that is judged: policies, live configurations, what was seen, and every curve that follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs_admin.core.lint import curve as curves
from jobs_admin.core.lint.configuration import Configuration, Task
from jobs_admin.core.lint.curve import Curve
from jobs_admin.core.lint.facts import Facts
from jobs_admin.core.lint.finding import Where
from jobs_admin.core.matching import chosen, matches
from jobs_admin.core.policy import ENFORCE, Policy
from jobs_admin.core.policy.shape import REPLACE


@dataclass(frozen=True, slots=True)
class Case:
    policies: tuple[Policy, ...]
    found: tuple[Configuration, ...]
    facts: Facts
    of_policies: tuple[Curve, ...]
    of_tasks: tuple[Curve, ...]  # Celery's own retries that still run
    replaced: tuple[tuple[Curve, Policy], ...]  # and those that a policy took the place of

    @property
    def curves(self) -> tuple[Curve, ...]:
        return self.of_policies + self.of_tasks

    def tasks(self) -> Iterator[tuple[Configuration, Task, Where]]:
        for found in self.found:
            for task in found.tasks:
                yield found, task, Where(found.source, task.queue, task.name)

    def queues_of(self, curve: Curve) -> list[tuple[str, str]]:
        """(source, queue) that jobs of this curve go through, as far as that is known."""
        if curve.policy is None:
            return [(curve.where.source, curve.where.queue)]
        match = curve.policy.match
        known = {(found.source, task.queue) for found, task, _ in self.tasks() if matches(match.task, task.name)}
        return sorted(one for one in known if matches(match.source, one[0]) and matches(match.queue, one[1]))

    def tasks_in(self, source: str, queue: str) -> int:
        """How many tasks share a queue, as its workers tell; at least 1."""
        known = {task.name for found, task, _ in self.tasks() if (found.source, task.queue) == (source, queue)}
        return max(1, len(known))


def case(policies: Sequence[Policy], found: Sequence[Configuration], facts: Facts) -> Case:
    of_tasks, replaced = [], []
    for configuration in found:
        for task in configuration.tasks:
            for curve in curves.of_task(task, configuration):
                policy = in_place_of(curve, policies)
                if policy is None:
                    of_tasks.append(curve)
                else:
                    replaced.append((curve, policy))
    return Case(
        tuple(policies),
        tuple(found),
        facts,
        tuple(curves.of_policy(policy) for policy in policies),
        tuple(of_tasks),
        tuple(replaced),
    )


def enforced(policies: Sequence[Policy], source: str, queue: str, task: str, modes: frozenset[str]) -> Policy | None:
    """The policy that decides over this task in workers that may go as far as `modes`; None where none does in all of them."""
    policy = chosen(policies, source, queue, task)
    return policy if policy is not None and policy.mode == ENFORCE and modes == {ENFORCE} else None


def in_place_of(curve: Curve, policies: Sequence[Policy]) -> Policy | None:
    """The policy that decides instead of Celery's own retries; a call that is more than a retry stays Celery's."""
    if curve.found is None or (curve.call is not None and not curve.call.is_plain):
        return None
    where = curve.where
    policy = enforced(policies, where.source, where.queue, where.task, curve.found.modes)
    return policy if policy is not None and policy.native == REPLACE else None
