"""Retry policies: which are in force for which tasks and workers, the history of one, and rollback."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.policies import changes as policy_changes
from dashboard.policies import listing as policy_list
from dashboard.policies import words as policy_words
from dashboard.policies.editor_views import MOST_REASON
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import config, policies
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models.access import OPERATOR, VIEWER

VERSIONS = 50
MOST_TASKS = 200


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    found = policies.published(viewer)
    tasks = policies.by_task(viewer, now)
    may_act = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    context = {
        "lines": policy_list.lines(found, policies.in_force(viewer, found, now)),
        "tasks": policy_list.tasks(tasks[:MOST_TASKS]),
        "more_tasks": max(0, len(tasks) - MOST_TASKS),
        "presets": [] if found else policy_list.presets(),
        "may_act": may_act,
        "lint_url": reverse("redrive:policy-lint"),
    }
    return render_page(request, "redrive/policies/list.html", context, part="policies")


@require_safe
@can(VIEWER)
def versions(request: HttpRequest, name: str) -> HttpResponse:
    """List all versions ever in force under a name, latest first, each with its changes."""
    viewer = request.viewer
    found = policies.versions(viewer, name, after=request.GET.get("after"), limit=VERSIONS + 1)
    current = next((one for one in policies.published(viewer) if one.name == name), None)
    context = {
        "name": name,
        "current": current,
        "standing": policy_words.standing(current) if current else "",
        "lines": policy_changes.version_lines(found.rows[:VERSIONS], found.rows, current, viewer),
        "next": str(found.rows[VERSIONS - 1].version) if len(found.rows) > VERSIONS else "",
        "is_first": "after" not in request.GET,
        "compared": _compared(request, name, current),
    }
    return render_page(request, "redrive/policies/versions.html", context, part="versions")


def _compared(request: HttpRequest, name: str, current: object) -> dict | None:
    """Return two versions side by side, if the URL names them."""
    left, right = (whole_number(request.GET.get(side)) for side in ("left", "right"))
    if not left or not right:
        return None
    one, other = (policies.version(request.viewer, name, number) for number in (left, right))
    return {"left": one, "right": other, "lines": policy_changes.version_changes(one, other)}


@require_POST
@can(OPERATOR)
def put_back(request: HttpRequest, name: str, version: int) -> HttpResponse:
    expected = _expected(request)
    before = expected["expected_version"]
    try:
        made = policies.put_back(request.viewer, name, version, **expected)
    except Refused as refused:
        return _refused(request, name, refused)
    # Offered only if the form names the replaced version, which is then put back.
    undo = reverse("redrive:policy-put-back", args=[name, before]) if before else ""
    fields = [("begun", made.version), ("reason", f"Version {made.version} was undone.")]
    add_toast(
        request,
        f"Version {version} of {name} restored as v{made.version}.",
        undo=undo,
        undo_fields=fields if undo else None,
    )
    return go(request, reverse("redrive:policy-detail", args=[name]))


@require_POST
@can(OPERATOR)
def withdraw(request: HttpRequest, name: str) -> HttpResponse:
    try:
        ended = policies.withdraw(request.viewer, name, **_expected(request))
    except Refused as refused:
        return _refused(request, name, refused)
    undo = reverse("redrive:policy-put-back", args=[name, ended.version])
    add_toast(request, f"{name} is no longer in force.", undo=undo, undo_fields=[("reason", "Withdrawal undone.")])
    return go(request, reverse("redrive:policy-versions", args=[name]))


def _expected(request: HttpRequest) -> dict:
    begun = whole_number(request.POST.get("begun"))
    return {"expected_version": begun or None, "reason": request.POST.get("reason", "").strip()[:MOST_REASON]}


def _refused(request: HttpRequest, name: str, refused: Refused) -> HttpResponse:
    add_toast(request, refused.message, level="error")
    return go(request, reverse("redrive:policy-versions", args=[name]))
