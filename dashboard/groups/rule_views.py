"""Grouping rules: preview, save, list with progress, and undo."""

from __future__ import annotations

from typing import TypedDict

from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.groups.views import why_page
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.figures import ago, number, percent
from dashboard.web.htmx import go, render_page
from dashboard.web.text import visible
from dashboard.web.toasts import add_toast
from jobs_admin import config, failures
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.groups import group_rules
from jobs_admin.groups.group_rules import Row
from jobs_admin.groups.rule_previews import Preview
from jobs_admin.models.access import OPERATOR, VIEWER


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return _index(request)


def _index(request: HttpRequest, *, frame: str = "", refused: str = "", status: int = 200) -> HttpResponse:
    may_act = request.viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    rows = group_rules.listing(request.viewer)
    context = {
        "lines": lines(rows, may_act),
        "may_act": may_act,
        "self_url": reverse("redrive:group-rules"),
        "frame": frame,
        "refused": refused,
    }
    return render_page(request, "redrive/groups/rules.html", context, part="rules", status=status)


@require_POST
@can(OPERATOR)
def preview(request: HttpRequest) -> HttpResponse:
    """Preview the rule without storing anything."""
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
    # A rule that the viewer does not see in the list does not exist for them.
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
        "groups": [name.rstrip("/").rpartition("/")[2] for name in names if name],  # a group may be named by its URL
        "by": given.get("by", ""),
        "frame": given.get("frame", ""),
    }


def _preview(
    request: HttpRequest,
    rule_fields: dict[str, object],
    found: Preview | None,
    *,
    refused: str = "",
    status: int = 200,
) -> HttpResponse:
    names = rule_fields["groups"]
    context = {
        "rule_fields": rule_fields,
        "title": title(str(rule_fields["kind"]), str(rule_fields["frame"])),
        "found": found,
        "rows": becoming(found) if found else [],
        "refused": refused,
        "back_url": links.group_page(names[0]) if names else reverse("redrive:group-rules"),
    }
    return render_page(request, "redrive/groups/rule_preview.html", context, part="preview", status=status)


# --- display --------------------------------------------------------------------------------------------------------

_TITLES = {"merge": "Merge groups", "split": "Split group", "ignore": "Ignore frame"}
MOST_MERGED = 5  # merged groups that a line names


class RuleLine(TypedDict):
    sentence: str
    group_url: str
    merged: list[str]  # merged groups, the first few
    more: str
    note: str
    author: str
    made: str
    progress: str  # progress as text
    is_withdrawn: bool
    withdraw_url: str  # "" if the viewer may not withdraw the rule


class BecomingLine(TypedDict):
    title: str
    place: str
    becomes_place: str
    becomes_holds: str
    url: str
    becomes: str
    becomes_url: str  # "" for a group that does not exist yet
    failures: str
    sample: list[tuple[str, str]]  # (number, URL) of some failures


def title(kind: str, frame: str) -> str:
    """Return the effect of the rule, for its page and button."""
    return f"Ignore frame {frame}" if kind == "ignore" and frame else _TITLES.get(kind, "Grouping rule")


def lines(rows: list[Row], may_act: bool) -> list[RuleLine]:
    return [_line(row, may_act) for row in rows]


def _line(row: Row, may_act: bool) -> RuleLine:
    rule = row.rule
    if row.progress < 1:
        progress = f"{'withdrawing' if rule.is_withdrawn else 'applying'}: {percent(row.progress)}"
    else:
        progress = "withdrawn" if rule.is_withdrawn else "in force"
    return RuleLine(
        sentence=visible(row.summary),
        group_url=links.group_page(rule.group.fingerprint) if rule.group else "",
        merged=[visible(one) for one in row.merged[:MOST_MERGED]],
        more=number(len(row.merged) - MOST_MERGED) if len(row.merged) > MOST_MERGED else "",
        note=visible(rule.note),
        author=visible(rule.author),
        made=ago(rule.created_at),
        progress=progress,
        is_withdrawn=rule.is_withdrawn,
        withdraw_url=reverse("redrive:group-rule-withdraw", args=[rule.pk]) if may_act and row.may_withdraw else "",
    )


def becoming(found: Preview) -> list[BecomingLine]:
    return [
        BecomingLine(
            title=visible(row.title),
            place=visible(row.place),
            becomes_place=visible(row.becomes_place),
            becomes_holds="" if row.becomes_holds is None else f"currently {number(row.becomes_holds)}",
            url=links.group_page(row.fingerprint),
            becomes=visible(row.becomes_title),
            becomes_url="" if row.is_new else links.group_page(row.becomes),
            failures=number(row.failures),
            sample=[(str(pk), reverse("redrive:failure-detail", args=[pk])) for pk in row.sample],
        )
        for row in found.rows
    ]
