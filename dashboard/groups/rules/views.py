"""People's rules of grouping: seen first, saved, listed with how far they are, taken back."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.groups.rules import screens as screen
from dashboard.groups.views import why_page
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import config, failures
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.groups import group_rules
from jobs_admin.models.access import OPERATOR, VIEWER


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return _index(request)


def _index(request: HttpRequest, *, frame: str = "", refused: str = "", status: int = 200) -> HttpResponse:
    may_act = request.viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    rows = group_rules.listing(request.viewer)
    context = {
        "lines": screen.lines(rows, may_act),
        "may_act": may_act,
        "self_url": reverse("redrive:group-rules"),
        "frame": frame,
        "refused": refused,
    }
    return render_page(request, "redrive/groups/rules.html", context, part="rules", status=status)


@require_POST
@can(OPERATOR)
def preview(request: HttpRequest) -> HttpResponse:
    """Preview the rule. Nothing is changed or stored."""
    rule_fields = _requested_rule(request.POST)
    try:
        found = group_rules.preview(request.viewer, **rule_fields)
    except Refused as refused:
        return _source_page(request, rule_fields, refused) or _preview(
            request, rule_fields, None, refused=refused.message, status=422
        )
    return _preview(request, rule_fields, found)


def _source_page(request: HttpRequest, rule_fields: dict[str, object], refused: Refused) -> HttpResponse | None:
    """Return the page of the form with the refusal at its field; None if that page is unknown."""
    if refused.field == "frame":
        return _index(request, frame=str(rule_fields["frame"]), refused=refused.message, status=422)
    names = rule_fields["groups"]
    if refused.field not in ("groups", "by") or not names:
        return None
    try:
        group = failures.group_named(request.viewer, names[0])
    except NotFound:
        return None
    return why_page(request, group, rule_fields=rule_fields, refused=refused, status=422)


@require_POST
@can(OPERATOR)
def save(request: HttpRequest) -> HttpResponse:
    rule_fields = _requested_rule(request.POST)
    try:
        rule = group_rules.save(request.viewer, **rule_fields, note=request.POST.get("note", ""))
    except Refused as refused:
        return _preview(request, rule_fields, None, refused=refused.message, status=409)
    undo = reverse("redrive:group-rule-withdraw", args=[rule.pk])
    add_toast(request, "Rule saved. Existing failures are regrouped within minutes.", undo=undo)
    return go(request, reverse("redrive:group-rules"))


@require_POST
@can(OPERATOR)
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    # What the viewer does not see in the list is not there for them.
    row = group_rules.row(request.viewer, pk)
    if row is None:
        raise Http404("Rule not found, or not visible to you.")
    back = links.back(request, otherwise=reverse("redrive:group-rules"))
    try:
        group_rules.withdraw(request.viewer, row.rule)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, back)
    add_toast(request, "Rule withdrawn. Its failures are regrouped within minutes.")
    return go(request, back)


def _requested_rule(given: QueryDict) -> dict[str, object]:
    names = [name.strip() for text in given.getlist("groups") for name in text.replace("\n", ",").split(",")]
    return {
        "kind": given.get("kind", ""),
        "groups": [
            name.rstrip("/").rpartition("/")[2] for name in names if name
        ],  # an address of a group is its name too
        "by": given.get("by", ""),
        "frame": given.get("frame", ""),
    }


def _preview(
    request: HttpRequest,
    rule_fields: dict[str, object],
    found: group_rules.Preview | None,
    *,
    refused: str = "",
    status: int = 200,
) -> HttpResponse:
    names = rule_fields["groups"]
    context = {
        "rule_fields": rule_fields,
        "title": screen.title(str(rule_fields["kind"]), str(rule_fields["frame"])),
        "found": found,
        "rows": screen.becoming(found) if found else [],
        "refused": refused,
        "back_url": links.group_page(names[0]) if names else reverse("redrive:group-rules"),
    }
    return render_page(request, "redrive/groups/rule_preview.html", context, part="preview", status=status)
