"""One's own latest act, to be taken back from wherever one is, or why it cannot be. Asking changes nothing."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.audit import undo as undo_offer
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin.failures import undoing
from jobs_admin.failures.undoing import Done, Undoable
from jobs_admin.models.access import OPERATOR


@require_safe
@can(OPERATOR)
def index(request: HttpRequest) -> HttpResponse:
    back = request.GET.get("back", "")[:2_000]  # the form's own answer looks whether it is ours
    act = undoing.latest(request.viewer)
    context = {
        "offer": undo_offer.offer(act, back) if isinstance(act, Undoable) else None,
        "final": undo_offer.final(act) if isinstance(act, Done) else None,
        "list_url": reverse("redrive:failure-list"),
    }
    return render_page(request, "redrive/undo.html", context, part="offer")
