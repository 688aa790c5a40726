"""Rules about differences between workers, policies that match no worker, and breakers that hold too much or lose
jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.configuration import Where
from jobs_admin.core.lint.finding import LOW, MEDIUM, Found, count, rule
from jobs_admin.core.matching import matches
from jobs_admin.core.policy import ENFORCE, Policy
from jobs_admin.core.policy.shape import OF_RETRIES

_USUAL = Policy()


@rule(
    "workers-differ",
    LOW,
    title="Workers retry one task differently",
    why="Workers of one source report different retry settings for the same task, because of an unfinished deploy "
    "or different versions of the app. How a job is retried depends on the worker that runs it.",
    fix="Finish the deploy, or restart the outdated workers.",
    source="Redrive: comparison of live configurations",
)
def workers_differ(case: Case) -> Iterator[Found]:
    seen: dict[Where, dict[tuple[str, ...], int]] = defaultdict(lambda: defaultdict(int))
    for known in case.tasks:
        quotes = tuple(sorted(curve.quoted for curve in known.curves))
        seen[known.where][quotes] += max(1, len(known.found.workers))
    for where, ways in seen.items():
        if len(ways) > 1:
            listed = [f"{count(n, 'worker')}: {'; '.join(quotes) or 'not retried'}" for quotes, n in ways.items()]
            yield Found(where, f"{len(ways)} ways.", " | ".join(sorted(listed)))


@rule(
    "rate-limit-per-worker",
    LOW,
    title="A rate limit per worker, not across workers",
    why="Celery's `rate_limit` counts in each worker separately: with four workers, four times as many jobs start. "
    "Jobs above the limit wait in the worker's memory. A policy's `rate_limit` counts across all workers.",
    fix="Give the task a policy with `rate_limit`, or divide the limit by the number of workers.",
    source="Celery, Task.rate_limit: “this is a per worker instance rate limit, and not a global rate limit”",
)
def rate_limit_per_worker(case: Case) -> Iterator[Found]:
    workers: dict[tuple[Where, str], set[str]] = defaultdict(set)
    for known in case.tasks:
        task, found = known.task, known.found
        if task.rate_limit and (not task.queue or task.queue in found.consumed):
            workers[known.where, task.rate_limit] |= set(found.workers)
    for (where, limit), names in workers.items():
        if len(names) > 1:
            evidence = f"{limit} in each of {len(names)} workers that consume {where.queue or 'its queue'}."
            yield Found(where, evidence, f"rate_limit={limit!r}")


@rule(
    "policy-held-back",
    MEDIUM,
    title="Workers do not apply an enforced policy",
    why="A worker's `REDRIVE_MODE` limits every policy. A policy in mode enforce has no effect in workers that may "
    "only capture or observe.",
    fix="Start these workers with REDRIVE_MODE=enforce, or set the policy to observe.",
    source="docs/workers.md",
)
def policy_limited_by_mode(case: Case) -> Iterator[Found]:
    limited: dict[str, dict[tuple[str, str], set[str]]] = defaultdict(lambda: defaultdict(set))
    for known in case.tasks:
        if known.policy is not None and known.policy.mode == ENFORCE:
            for mode in known.found.modes - {ENFORCE}:
                limited[known.policy.name][known.found.source, mode].update(known.found.workers)
    for policy in case.policies:
        for (source, mode), names in sorted(limited[policy.name].items()):
            where = Where(source, policy.match.queue, policy.match.task, policy.name)
            yield Found(where, f"{count(len(names), 'worker')} of {source} run in mode {mode}.")


@rule(
    "limit-adds-retries",
    MEDIUM,
    title="A policy for a limit adds retries to tasks without any",
    why="A policy with `concurrency` or `rate_limit` and default retries was probably published for the limit only, "
    "in a version in which every policy decided about retries. Tasks that are not retried in their own code get "
    "up to five attempts from the policy.",
    fix="Publish the policy with `retries: false` (Leave retries to the task), or with the number of attempts that you want.",
    source="Redrive: a limit of two concurrent jobs turned 60 jobs into 300 runs",
)
def limit_adds_retries(case: Case) -> Iterator[Found]:
    tasks: dict[str, set[str]] = defaultdict(set)
    for known in case.tasks:
        if known.policy is not None and not known.curves:
            tasks[known.policy.name].add(known.task.name)
    for policy in case.policies:
        is_usual = all(getattr(policy, name) == getattr(_USUAL, name) for name in OF_RETRIES)
        has_limit = policy.concurrency is not None or policy.rate_limit is not None
        if policy.mode == ENFORCE and policy.retries and is_usual and has_limit and tasks[policy.name]:
            which = f"{count(len(tasks[policy.name]), 'task')} without retries, such as {min(tasks[policy.name])}"
            evidence = f"Up to {policy.max_attempts} attempts for {which}."
            yield Found(Where(policy.match.source, policy.match.queue, policy.match.task, policy.name), evidence)


@rule(
    "policy-matches-nothing",
    LOW,
    title="A policy that matches no known task",
    why="No live worker has a task that the policy matches: the name is misspelled, or the task was removed. "
    "Reported only if every live worker of these sources reports its tasks.",
    fix="Correct the match, or withdraw the policy.",
    source="Redrive: comparison of live configurations",
)
def policy_matches_nothing(case: Case) -> Iterator[Found]:
    for curve in case.of_policies:
        policy = curve.policy
        if policy is None:
            continue
        covered = [found for found in case.found if matches(policy.match.source, found.source)]
        is_complete = all(found.source in case.facts.fully_reported and not found.left_out for found in covered)
        if covered and is_complete and not case.queues_of(curve):
            names = ", ".join(sorted({found.source for found in covered}))
            yield Found(curve.where, f"No live worker of {names} has registered a task that the policy matches.")


@rule(
    "breaker-for-all-tasks",
    MEDIUM,
    title="A breaker for all tasks",
    why="A policy for all tasks has a single breaker for all their dependencies: an outage of one holds jobs that do "
    "not use it, and an outage that affects few jobs goes unnoticed among the others.",
    fix="Publish a policy for each dependency, with the tasks that call it in `match.task`.",
    source="docs/policies.md, Breakers",
)
def breaker_for_all_tasks(case: Case) -> Iterator[Found]:
    for policy in case.policies:
        if policy.breaker is not None and policy.match.task == "*" and policy.match.queue == "*":
            yield Found(Where(policy=policy.name), "The policy matches every task and queue.", "breaker, match.task: *")


@rule(
    "breaker-without-retries",
    LOW,
    title="A breaker whose first failures are final",
    why="The failures that open a breaker (about 9 to 20) are ordinary failed attempts. With `max_attempts: 1` these jobs "
    "are dead; only later ones are held.",
    fix="Allow at least two attempts, or leave retries to the task (`retries: false`).",
    source="docs/policies.md, Breakers",
)
def breaker_without_retries(case: Case) -> Iterator[Found]:
    for policy in case.policies:
        if policy.breaker is not None and policy.retries and policy.max_attempts == 1:
            yield Found(Where(policy=policy.name), "The policy allows one attempt.", "breaker, max_attempts: 1")
