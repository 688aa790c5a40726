"""A rule of alerts, edited: what it would have done is drawn while it is typed, and it is judged once it is saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.alerts.rules import fields as rule_fields
from dashboard.alerts.rules import listing as rule_list
from dashboard.alerts.rules import picture as rule_picture
from dashboard.alerts.rules import words as rule_words
from dashboard.alerts.rules.forms import CONFIRM, Draft
from dashboard.alerts.rules.views import get_rule
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, config, notices
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.failures import completing, saved_views
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.models.alert import Rule

MOST_SUGGESTIONS = 100
DAYS = 7
# What a new rule is called while it has no name: drawn, never saved.
UNNAMED = "A new rule"
_NEEDED = {"name", "metric", "threshold"}


@dataclass(slots=True)
class Edit:
    """An edit under way."""

    draft: Draft
    current: Rule | None = None
    begun: str = ""  # when the rule that it began from was changed
    stale: str = ""  # why it was not saved
    is_unconfirmed: bool = False  # no channel is selected: saving is confirmed once
    differing: list[tuple[str, str, str]] = field(default_factory=list)  # (what, as it is now, as it is typed)


@require_safe
@can(VIEWER)
def new(request: HttpRequest) -> HttpResponse:
    """For what a link names (metric, source, queue, task), or about dead jobs."""
    given = ("metric", "source", "queue", "task", "group", "tenant", "threshold", "view")
    texts = {name: text for name in given if (text := request.GET.get(name, "")[:200].strip())}
    draft = Draft({"metric": "dead", "threshold": "100", "for_s": "1 min", "keep_firing_s": "2 min"} | texts)
    if copied := whole_number(request.GET.get("from")):
        draft = Draft.from_rule(get_rule(request, copied))
        draft.texts["name"] = f"{draft.texts['name']} (copy)"[:100]
    else:
        draft.chosen["channels"] = _usual_channels(request)
    return page(request, Edit(draft))


def _usual_channels(request: HttpRequest) -> list[str]:
    """Return the enabled channels that enabled rules use; where none does, the only enabled channel."""
    enabled = [one.name for one in notices.channels(request.viewer) if not one.is_disabled]
    used = {one.name for rule in alerts.rules(request.viewer) if rule.enabled for one in rule.channels.all()}
    return [name for name in enabled if name in used] or (enabled if len(enabled) == 1 else [])


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    rule = get_rule(request, pk)
    return page(request, Edit(Draft.from_rule(rule), rule, _stamp(rule)))


@require_POST
@can(VIEWER)
def preview(request: HttpRequest) -> HttpResponse:
    """Preview the rule on stored history. Nothing is changed or stored."""
    pk = whole_number(request.POST.get("rule"))
    return page(request, _edit(request, pk))


@require_POST
@can(OPERATOR)
def create(request: HttpRequest) -> HttpResponse:
    return _save(request, _edit(request, None))


@require_POST
@can(OPERATOR)
def change(request: HttpRequest, pk: int) -> HttpResponse:
    return _save(request, _edit(request, pk))


def _edit(request: HttpRequest, pk: int | None) -> Edit:
    current = get_rule(request, pk) if pk else None
    return Edit(Draft.from_form(request.POST), current, request.POST.get("begun", "")[:40])


def _save(request: HttpRequest, edit: Edit) -> HttpResponse:
    pk = edit.current.pk if edit.current else None
    if _must_confirm(request, edit):
        edit.is_unconfirmed = True
        return page(request, edit, status=422)
    begun = {"changed_at": edit.begun} if edit.begun else {}
    former = Draft.from_rule(edit.current).fields() if edit.current else []
    try:
        saved = alerts.save_rule(request.viewer, edit.draft.document() | begun, pk)
    except Refused as refused:
        if refused.code == "stale" and edit.current:
            edit.current = get_rule(request, edit.current.pk)
            edit.stale, edit.begun = refused.message, _stamp(edit.current)
            edit.differing = _differences(edit.current, edit.draft)
            return page(request, edit, status=409)
        edit.draft.refuse(refused)
        return page(request, edit, status=422)
    when = "The rule is active." if saved.enabled else "The rule is disabled and not evaluated."
    act = "change" if pk else "delete"
    undo = reverse(f"redrive:alert-rule-{act}", args=[saved.pk])
    fields = [*former, (CONFIRM, "1"), ("begun", _stamp(saved))] if pk else []
    add_toast(request, f"{saved.name} saved. {when}", undo=undo, undo_fields=fields)
    return go(request, reverse("redrive:alert-rule-detail", args=[saved.pk]))


def _must_confirm(request: HttpRequest, edit: Edit) -> bool:
    """Return whether a valid rule notifies no one, and neither did before nor was confirmed so."""
    if _notifies(edit.draft) or CONFIRM in request.POST:
        return False
    if edit.current and not edit.current.channels.exists():
        return False
    try:
        alerts.check_rule(request.viewer, edit.draft.document())
    except Refused:
        return False  # saving reports it beside the field
    return True


def _notifies(draft: Draft) -> bool:
    """Return whether the rule has a channel, of its own or to escalate to."""
    chosen = draft.chosen
    return bool(chosen.get("channels") or (draft.document().get("escalate_s") and chosen.get("escalate_to")))


def page(request: HttpRequest, edit: Edit, *, status: int = 200) -> HttpResponse:
    viewer, draft = request.viewer, edit.draft
    drawn, why_not = _draw_preview(request, edit, is_reported=status == 200 and request.method == "POST")
    channels = notices.channels(viewer)
    rule = edit.current
    may_change = (
        alerts.may_change(viewer, rule) if rule else viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    )
    context = {
        "edit": edit,
        "is_confirmed": CONFIRM in request.POST,
        "draft": draft,
        "rule": rule,
        "name_field": rule_fields.one(draft, "name"),
        "what": rule_fields.what(draft, saved_views.listing(viewer)),
        "scope": rule_fields.scope(draft),
        "threshold": rule_fields.one(draft, "threshold"),
        "units": rule_fields.units(),
        "when": rule_fields.when(draft),
        "severity": rule_fields.severity(draft),
        "reminders": rule_fields.reminders(draft),
        "runbook": rule_fields.one(draft, "runbook_url"),
        "channels": rule_fields.channels(draft, "channels", channels),
        "escalate_to": rule_fields.channels(draft, "escalate_to", channels),
        "picture": drawn,
        "why_not": why_not,
        "is_refused": bool(draft.errors),
        "unplaced": draft.errors.get("", []),
        "slots": rule_fields.slots(draft) if request.htmx else [],
        "suggestions": [] if request.htmx else _suggestions(request),
        "may_change": may_change,
        "changes": len(_differences(rule, draft)) if rule else 0,
        "unsaved": "unsaved",
        "is_new": not rule,
        "discard_url": reverse("redrive:alert-rule-detail", args=[rule.pk]) if rule else reverse("redrive:alert-rules"),
        "days": DAYS,
    }
    if rule and not request.htmx:
        rule_status = alerts.read_rule_status(viewer, [rule]).get(rule.pk)
        context["line"] = rule_list.line(rule, rule_status, may_change)
    return render_page(request, "redrive/alerts/rule.html", context, part="outlook", status=status)


def _draw_preview(request: HttpRequest, edit: Edit, *, is_reported: bool) -> tuple[rule_picture.Picture | None, str]:
    """Return the preview of the draft, or why there is none. `is_reported`: put refusals beside their inputs."""
    document = edit.draft.document()
    document["name"] = document.get("name") or (edit.current.name if edit.current else UNNAMED)
    why_not = ""
    for _ in range(2):
        try:
            tried = alerts.preview(request.viewer, document, timezone.now(), days=DAYS)
        except Refused as refused:
            if is_reported and not why_not:
                edit.draft.refuse(refused)
            why_not = refused.message
            # Drawn without what is refused, so that the rest can be seen; it has its default then.
            document = {
                name: value for name, value in document.items() if name not in refused.details.get("problems", ())
            }
            if not document.keys() >= _NEEDED:
                break
        else:
            if not tried.is_possible:
                return None, " ".join(tried.untold)
            threshold, has_channels = float(document["threshold"]), _notifies(edit.draft)
            return rule_picture.picture(tried, document["metric"], threshold, has_channels=has_channels), ""
    return None, why_not


def _differences(current: Rule, draft: Draft) -> list[tuple[str, str, str]]:
    """(what, as it is now, as it is typed) of all that differs."""
    now, yours = Draft.from_rule(current), draft
    found = [
        (rule_fields.LABELS[name], now.texts.get(name, "") or "–", yours.texts.get(name, "") or "–")
        for name in rule_fields.LABELS
        if name not in ("channels", "escalate_to") and now.document().get(name) != yours.document().get(name)
    ]
    for name in ("channels", "escalate_to"):
        mine, theirs = (sorted(one.chosen.get(name, [])) for one in (yours, now))
        if mine != theirs:
            found.append((rule_fields.LABELS[name], rule_words.recipients(theirs), rule_words.recipients(mine)))
    if now.enabled != yours.enabled:
        words = {True: "enabled", False: "disabled"}
        found.append(("Enabled", words[now.enabled], words[yours.enabled]))
    return found


def _suggestions(request: HttpRequest) -> list[tuple[str, list[str]]]:
    """Return values of stored failures, offered as completions of the inputs."""
    return [
        (name, [one.text for one in islice(completing.values(request.viewer, name, ""), MOST_SUGGESTIONS)])
        for name in rule_fields.SUGGESTED.values()
    ]


def _stamp(rule: Rule) -> str:
    return rule.changed_at.isoformat()
