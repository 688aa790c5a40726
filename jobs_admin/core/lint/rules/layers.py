"""Retries inside of retries."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.lint.case import Case, enforced
from jobs_admin.core.lint.configuration import ClientRetries, Configuration, Task
from jobs_admin.core.lint.finding import HIGH, MEDIUM, Found, Where, rule

TOO_MANY = 27  # three layers of three attempts


@rule(
    "retries-multiplied",
    MEDIUM,
    title="Retries multiplied over layers",
    why="A client that tries again by itself does so in every attempt of the task: four attempts of a task "
    "whose client makes three requests are twelve requests for one job, at a service that is down. Retry "
    "at one layer, the one that can wait. Clients are found where the task's own code, or a function of "
    "the same package that it calls, names one: tenacity, urllib3 and requests, httpx. High from 27 "
    "requests for one job, three layers of three.",
    fix="Take the retries out of the client, or give the task one attempt.",
    source="AWS Builders’ Library, Timeouts, retries, and backoff with jitter; Google SRE Book, Addressing "
    "Cascading Failures",
)
def retries_multiplied(case: Case) -> Iterator[Found]:
    for found, task, where in case.tasks():
        attempts = _attempts(case, found, task)
        clients = [one for one in task.clients if one.attempts > 1]
        if attempts is None or attempts < 2 or not clients:
            continue
        requests = attempts
        for client in clients:
            requests *= client.attempts
        evidence = f"{attempts} attempts of the task × {' × '.join(map(_said, clients))}: up to {requests} requests for one job."
        yield Found(where, evidence, "", HIGH if requests >= TOO_MANY else None)


def _said(client: ClientRetries) -> str:
    return f"{client.attempts} of {client.name} ({client.library})"


def _attempts(case: Case, found: Configuration, task: Task) -> int | None:
    """Of the way of retrying that has most; None where none is bounded or none is there."""
    where = Where(found.source, task.queue, task.name)
    ways = [curve.attempts for curve in case.of_tasks if curve.where == where and curve.found is found]
    policy = enforced(case.policies, found.source, task.queue, task.name, found.modes)
    if policy is not None:
        ways.append(policy.max_attempts)
    return max((attempts for attempts in ways if attempts is not None), default=None)
