"""The difference between two attempts of one failure, or between two of its runs."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.failures import comparison
from dashboard.failures import diff as failure_diff
from dashboard.failures.timeline import short
from dashboard.failures.views import get_failure
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin.core.refused import NotFound
from jobs_admin.failures import histories
from jobs_admin.models.access import VIEWER


@require_safe
@can(VIEWER)
def index(request: HttpRequest, pk: int) -> HttpResponse:
    """`left` and `right` are attempts, `2.1` (run and attempt) or their numbers; left out: the latest, and what it is
    best compared with."""
    failure = get_failure(request, pk)
    try:
        pair = histories.choose_pair(failure, request.GET.get("left", ""), request.GET.get("right", ""))
    except NotFound as error:
        raise Http404(str(error)) from error
    context = {
        "failure": failure,
        "error": short(failure.error_type),
        "url": reverse("redrive:failure-detail", args=[pk]),
        "why_not": "" if pair else histories.missing_pair(failure),
    }
    if pair is not None:
        left, right, ended = pair.left, pair.right, pair.ended
        context |= {
            "left": left,
            "right": right,
            "choices": failure_diff.choices([*ended, left, right]),
            "grouping": comparison.grouping(failure, left, right),
            "facts": failure_diff.facts(left, right),
            "sections": comparison.sections(failure, left, right),
            "is_one": left.pk == right.pk,
        }
    return render_page(request, "redrive/failures/diff.html", context, part="diff")
