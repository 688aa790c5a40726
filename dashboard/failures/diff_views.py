"""The difference between two attempts of one failure, or between two of its runs."""

from __future__ import annotations

import re

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.failures import diff as failure_diff
from dashboard.failures.timeline import short
from dashboard.failures.views import get_failure
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin.failures import histories
from jobs_admin.failures.histories import Ended
from jobs_admin.models import Attempt, Failure
from jobs_admin.models.access import VIEWER


@require_safe
@can(VIEWER)
def index(request: HttpRequest, pk: int) -> HttpResponse:
    """`left` and `right` are attempts, `2.1` (run and attempt) or their numbers; left out: the latest, and what it is
    best compared with."""
    failure = get_failure(request, pk)
    ended = histories.history(failure).ended
    right = _chosen(request, failure, "right") or _attempt(failure, _latest(ended))
    left = _chosen(request, failure, "left") or _attempt(failure, _before(ended, right))
    context = {
        "failure": failure,
        "error": short(failure.error_type),
        "url": reverse("redrive:failure-detail", args=[pk]),
    }
    if left and right:
        context |= {
            "left": left,
            "right": right,
            "choices": failure_diff.choices([*ended, left, right]),
            "grouping": failure_diff.grouping(failure, left, right),
            "facts": failure_diff.facts(left, right),
            "sections": failure_diff.sections(failure, left, right),
            "is_one": left.pk == right.pk,
        }
    return render_page(request, "redrive/failures/diff.html", context, part="diff")


_ATTEMPT = re.compile(r"(\d{1,9})\.(\d{1,9})|(\d{1,19})", re.ASCII)


def _chosen(request: HttpRequest, failure: Failure, side: str) -> Attempt | None:
    text = request.GET.get(side, "")
    if not text:
        return None
    named = _ATTEMPT.fullmatch(text)
    try:
        if named is None:
            raise Attempt.DoesNotExist
        if named[3]:
            return histories.get(failure, int(named[3]))
        return histories.find(failure, int(named[1]), int(named[2]))
    except Attempt.DoesNotExist as error:
        raise Http404(f"Failure {failure.pk} has no attempt {text[:40]}.") from error


def _attempt(failure: Failure, pk: int | None) -> Attempt | None:
    return None if pk is None else histories.get(failure, pk)


def _latest(ended: list[Ended]) -> int | None:
    return next((one.pk for one in reversed(ended) if one.kind != "success"), None)


def _before(ended: list[Ended], right: Attempt | None) -> int | None:
    """The end of the run before, since a replay changes most; else the attempt before; else the attempt itself."""
    if right is None:
        return None
    failed = [one for one in ended if one.kind != "success" and one.pk != right.pk]
    runs = [one for one in failed if one.run < right.run] or [one for one in failed if one.run == right.run]
    earlier = [one for one in runs if (one.run, one.attempt) < (right.run, right.attempt)] or runs
    return earlier[-1].pk if earlier else right.pk
