"""The page of the lint of retries."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.policies.lint import screens as policy_lint
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin.core import lint
from jobs_admin.lint import linting
from jobs_admin.models.access import VIEWER


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show the lint. Not refreshed automatically: configuration changes with a deploy, and the text should not move."""
    report = linting.report(request.viewer)
    context = {
        "report": report,
        "looked_at": linting.coverage(report),
        "rules": policy_lint.broken(report),
        "severities": policy_lint.severities(report),
        "check": policy_lint.table(report.check),
        "asked": list(lint.RULES.values()),
        "stale_queues": report.lying.stale(report.looked_at),
        "is_empty": not (report.policies or report.tasks or report.options),
    }
    return render_page(request, "redrive/policies/lint.html", context, part="lint")
