"""The page of the lint: findings by rule, and the check of exponential backoff."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_safe

from dashboard.web.access import can
from dashboard.web.htmx import render_page
from dashboard.web.links import failures_of, is_web
from jobs_admin.core import lint
from jobs_admin.core.lint import Check, Finding, Verdict, Where
from jobs_admin.lint import linting
from jobs_admin.lint.linting import Report
from jobs_admin.models.access import VIEWER


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show the lint. Not refreshed automatically: configuration changes with a deploy, and the text should not move."""
    report = linting.report(request.viewer)
    context = {
        "report": report,
        "looked_at": linting.coverage(report),
        "rules": broken(report),
        "severities": severities(report),
        "check": table(report.check),
        "asked": list(lint.RULES.values()),
        "stale_queues": report.lying.stale(report.looked_at),
        "is_empty": not (report.policies or report.tasks or report.options),
    }
    return render_page(request, "redrive/policies/lint.html", context, part="lint")


# --- what the page shows -------------------------------------------------------------------------------------------

MOST_PLACES = 25  # places listed per rule
MOST_VERDICTS = 200
# Severities and verdicts as tones.
TONES = {
    lint.HIGH: "dead", lint.MEDIUM: "retrying", lint.LOW: "discarded",
    "pass": "recovered", "fail": "dead", "not applicable": "discarded", "cannot tell": "quarantined",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    where: Where
    url: str
    evidence: str
    quoted: str


@dataclass(frozen=True, slots=True)
class Broken:
    """Findings of one rule at one severity, with their places."""

    id: str
    title: str
    severity: str
    tone: str
    why: str
    fix: str
    known_from: tuple[tuple[str, str], ...]  # (text, URL or "")
    places: tuple[Place, ...]
    count: int

    @property
    def more(self) -> int:
        return self.count - len(self.places)


@dataclass(frozen=True, slots=True)
class Line:
    verdict: Verdict
    tone: str
    url: str


@dataclass(frozen=True, slots=True)
class Table:
    """Check of exponential backoff: verdicts, tasks that cannot be checked, and counts."""

    lines: tuple[Line, ...]
    aside: tuple[Line, ...]  # not applicable
    more: int
    counts: tuple[tuple[str, str, int], ...]  # (verdict, tone, number)
    kinds: tuple[tuple[str, int], ...]
    verdict: str  # verdict of all lines together
    sentence: str

    @property
    def tone(self) -> str:
        return TONES[self.verdict]


def broken(report: Report) -> list[Broken]:
    return [_broken(list(some)) for _, some in groupby(report.findings, key=lambda one: (one.severity, one.id))]


def _broken(found: list[Finding]) -> Broken:
    first = found[0]
    return Broken(
        first.id,
        first.title,
        first.severity,
        TONES[first.severity],
        lint.RULES[first.id].why,
        first.fix,
        tuple((part, part if is_web(part) else "") for part in first.source.split("; ")),
        tuple(Place(one.where, _url(one.where), one.evidence, one.quoted) for one in found[:MOST_PLACES]),
        len(found),
    )


def severities(report: Report) -> list[tuple[str, str, int]]:
    return [(name, TONES[name], n) for name in lint.SEVERITIES if (n := report.count(name))]


def table(check: Check) -> Table:
    lines = [Line(one, TONES[one.verdict], _url(one.where)) for one in check.verdicts]
    judged = [line for line in lines if line.verdict.verdict != "not applicable"]
    aside = [line for line in lines if line.verdict.verdict == "not applicable"]
    shown = judged[:MOST_VERDICTS], aside[:MOST_VERDICTS]
    return Table(
        tuple(shown[0]),
        tuple(shown[1]),
        len(lines) - sum(map(len, shown)),
        tuple((verdict, TONES[verdict], check.count(verdict)) for verdict in lint.VERDICTS),
        tuple(check.kinds.items()),
        *_verdict(check),
    )


def _verdict(check: Check) -> tuple[str, str]:
    if failed := check.count("fail"):
        return "fail", f"Failed: {failed:,} of {sum(check.kinds.values()):,} retry configurations break the rule."
    if check.count("pass"):
        return "pass", "Passed: no retry configuration breaks the rule."
    return "not applicable", "Not applicable: no retry configurations."


def _url(where: Where) -> str:
    """Return the URL of the policy, otherwise of the task's failures; "" if there is neither."""
    if where.policy:
        try:
            return reverse("redrive:policy-detail", args=[where.policy])
        except NoReverseMatch:
            return ""
    return failures_of(source=where.source, task=where.task) if where.task else ""
