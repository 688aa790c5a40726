"""Difference between two attempts of one failure, or two of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.failures import comparison
from dashboard.failures.timeline import ENDED, short
from dashboard.failures.views import get_failure
from dashboard.web.access import can
from dashboard.web.figures import duration
from dashboard.web.htmx import render_page
from jobs_admin.core.refused import NotFound
from jobs_admin.failures import histories
from jobs_admin.failures.histories import Ended
from jobs_admin.models import Attempt
from jobs_admin.models.access import VIEWER


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    left: str
    right: str

    @property
    def is_same(self) -> bool:
        return self.left == self.right


def facts(left: Attempt, right: Attempt) -> list[Fact]:
    """Return the facts that at least one of the attempts has."""
    found = [Fact(name, *(_fact(one, name) for one in (left, right))) for name in _FACTS]
    return [fact for fact in found if fact.left or fact.right]


_FACTS = ("Ended", "Error", "Took", "Worker", "Host", "Release", "Policy", "Reason")


def _fact(one: Attempt, name: str) -> str:
    return {
        "Ended": ENDED.get(one.kind, one.kind),
        "Error": one.error_type,
        "Took": "" if one.duration_s is None else duration(one.duration_s),
        "Worker": one.worker,
        "Host": one.host,
        "Release": one.release,
        "Policy": one.policy,
        "Reason": one.reason,
    }[name]


@dataclass(frozen=True, slots=True)
class Choice:
    pk: int
    words: str


def choices(ended: Sequence[Ended | Attempt]) -> list[Choice]:
    """Return the attempts that can be selected, latest first."""
    known = {one.pk: one for one in ended}
    order = sorted(known.values(), key=lambda one: (one.run, one.attempt, one.pk), reverse=True)
    return [
        Choice(
            one.pk, f"run {one.run}, attempt {one.attempt}: {short(one.error_type) or ENDED.get(one.kind, one.kind)}"
        )
        for one in order
    ]


@require_safe
@can(VIEWER)
def index(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the difference between the attempts `left` and `right`.

    Each is run and attempt, as `2.1`, or an attempt number; by default the latest attempt, and the one to which it is
    best compared.
    """
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
            "choices": choices([*ended, left, right]),
            "grouping": comparison.grouping(failure, left, right),
            "facts": facts(left, right),
            "sections": comparison.sections(failure, left, right),
            "is_one": left.pk == right.pk,
        }
    return render_page(request, "redrive/failures/diff.html", context, part="diff")
