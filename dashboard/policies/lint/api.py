"""The call for lint."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Schema

from dashboard.web.access import needs
from dashboard.web.api.base import REFUSALS, api
from jobs_admin.lint import linting
from jobs_admin.models.access import VIEWER


class Finding(Schema):
    id: str
    severity: str  # high, medium, low
    title: str
    evidence: str
    fix: str
    source: str  # where it is known from
    where: str
    quoted: str


class Place(Schema):
    """ "" where a finding is not about one."""

    source: str
    queue: str
    task: str
    policy: str


class LintFinding(Finding):
    at: Place


class Verdict(Schema):
    verdict: str  # pass, fail, not applicable, cannot tell
    where: str
    at: Place
    by: str  # policy, autoretry_for, self.retry, job options; "" of a task that is not retried
    kind: str
    quoted: str
    why: str


class Check(Schema):
    """The check of exponential backoff."""

    id: str
    passes: bool
    counts: dict[str, int]  # by verdict
    kinds: dict[str, int]  # configurations that retry, by kind of backoff
    verdicts: list[Verdict]  # the failed first


class Options(Schema):
    """One distinct set of retry options of the jobs in a queue."""

    source: str
    queue: str
    task: str
    quoted: str  # as it lies there
    jobs: int  # that have it, of those that were looked at …
    looked_at: int
    in_queue: int  # … of those that lie there
    example: str  # a job's id


class Lint(Schema):
    findings: list[LintFinding]  # the worst first
    counts: dict[str, int]  # by severity
    check: Check
    policies: int
    tasks: int
    workers: int  # that live and told what they have
    options: list[Options]  # of jobs that lie in queues, where jobs say it themselves (BullMQ)
    reservations: list[str]  # what this does not cover
    looked_at: datetime


@api.get("/policies/lint", response={200: Lint, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def lint_policies(request: HttpRequest) -> Any:
    """Return lint findings on policies in force, the configuration of live Celery workers, and queued jobs."""
    return linting.as_json(linting.report(request.auth))
