"""Retries inside of retries."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from jobs_admin.core.lint.case import Case, Known
from jobs_admin.core.lint.configuration import ClientRetries
from jobs_admin.core.lint.finding import HIGH, MEDIUM, Found, rule

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
    for known in case.tasks:
        clients = [one for one in known.task.clients if one.attempts > 1]
        attempts = _attempts(known)
        if not clients or attempts < 2:
            continue
        requests = attempts * prod(client.attempts for client in clients)
        evidence = f"{attempts} attempts of the task × {' × '.join(map(_said, clients))}: up to {requests} requests for one job."
        yield Found(known.where, evidence, "", HIGH if requests >= TOO_MANY else None)


def _said(client: ClientRetries) -> str:
    return f"{client.attempts} of {client.name} ({client.library})"


def _attempts(known: Known) -> int:
    """Of the way of retrying that has most; 1 where none is bounded or none is there."""
    ways = [curve.attempts for curve in known.curves if not known.replaced(curve)]
    if known.enforced is not None and known.enforced.retries:
        ways.append(known.enforced.max_attempts)
    return max((attempts for attempts in ways if attempts is not None), default=1)
