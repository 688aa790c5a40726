"""Alert rules: the list, enabling, deletion, and the editor with a live preview."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.alerts.rules import forms as rule_forms
from dashboard.alerts.rules import picture as rule_picture
from dashboard.alerts.rules import words as rule_words
from dashboard.alerts.rules.forms import CONFIRM, ENABLED, Draft
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, config, notices
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.failures import completing, saved_views
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.models.alert import Rule

PER_PAGE = 100
MOST_SUGGESTIONS = 100
DAYS = 7
# Name of a new rule in previews, never saved.
UNNAMED = "A new rule"
_NEEDED = {"name", "metric", "threshold"}


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    viewer = request.viewer
    query, after = request.GET.get("q", "").strip()[:100], request.GET.get("after", "")
    every = sorted(alerts.rules(viewer), key=_key)
    words = query.lower().split()
    found = [one for one in every if all(word in _words(one) for word in words)]
    begins = next((n for n, one in enumerate(found) if _key(one) > (after.lower(), after)), len(found)) if after else 0
    shown = found[begins : begins + PER_PAGE]
    is_more = len(found) > begins + PER_PAGE
    context = {
        "lines": rule_words.lines(
            shown, alerts.read_rule_status(viewer, shown), {one.pk: alerts.may_change(viewer, one) for one in shown}
        ),
        "count": len(every),
        "query": query,
        "may_make": viewer.may_anywhere(OPERATOR) and not config.is_read_only(),
        "self_url": f"{reverse('redrive:alert-rules')}?{urlencode({'q': query, 'after': after})}",
        "next_url": f"?{urlencode({'q': query, 'after': shown[-1].name})}" if is_more else "",
        "first_url": f"?{urlencode({'q': query})}" if after else "",
    }
    return render_page(request, "redrive/alerts/rules.html", context, part="rules")


def _key(rule: Rule) -> tuple[str, str]:
    return rule.name.lower(), rule.name


def _words(rule: Rule) -> str:
    channels = " ".join(one.name for one in rule.channels.all())
    return f"{rule.name} {rule_words.sentence(rule)} {rule.severity} {channels}".lower()


@require_POST
@can(OPERATOR)
def switch(request: HttpRequest, pk: int) -> HttpResponse:
    """Enable or disable the rule, without changing its fields."""
    rule = alerts.rule(request.viewer, pk)
    is_on = request.POST.get(ENABLED) == "1"
    back = links.back(request, otherwise=reverse("redrive:alert-rules"))
    try:
        alerts.save_rule(request.viewer, alerts.document(rule) | {ENABLED: is_on, "changed_at": rule.changed_at}, pk)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, back)
    message = f"{rule.name} enabled." if is_on else f"{rule.name} disabled."
    fields = [(ENABLED, "" if is_on else "1"), ("back", back)]
    add_toast(request, message, undo=reverse("redrive:alert-rule-switch", args=[pk]), undo_fields=fields)
    return go(request, back)


@require_POST
@can(OPERATOR)
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    rule = alerts.rule(request.viewer, pk)
    former = [*Draft.from_rule(rule).fields(), (CONFIRM, "1")]
    try:
        alerts.delete_rule(request.viewer, pk)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, reverse("redrive:alert-rule-detail", args=[pk]))
    create = reverse("redrive:alert-rule-create")
    add_toast(request, f"Rule {rule.name} deleted. Alert history stays.", undo=create, undo_fields=former)
    return go(request, reverse("redrive:alert-rules"))


# --- the editor --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Edit:
    """State of an edit."""

    draft: Draft
    current: Rule | None = None
    begun: str = ""  # time of change of the rule when the edit began
    stale: str = ""  # why it was not saved
    is_unconfirmed: bool = False  # no channel is selected, which must be confirmed once
    differing: list[tuple[str, str, str]] = field(default_factory=list)  # (field, current value, typed value)


@require_safe
@can(VIEWER)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form of a new rule for the values in a link (metric, source, queue, task), by default for dead jobs."""
    given = ("metric", "source", "queue", "task", "group", "tenant", "threshold", "view")
    texts = {name: text for name in given if (text := request.GET.get(name, "")[:200].strip())}
    draft = Draft({"metric": "dead", "threshold": "100", "for_s": "1 min", "keep_firing_s": "2 min"} | texts)
    if copied := whole_number(request.GET.get("from")):
        draft = Draft.from_rule(alerts.rule(request.viewer, copied))
        draft.texts["name"] = f"{draft.texts['name']} (copy)"[:100]
    else:
        draft.chosen["channels"] = _usual_channels(request)
    return page(request, Edit(draft))


def _usual_channels(request: HttpRequest) -> list[str]:
    """Return the enabled channels that enabled rules use; if none do, the only enabled channel."""
    enabled = [one.name for one in notices.channels(request.viewer) if not one.is_disabled]
    used = {one.name for rule in alerts.rules(request.viewer) if rule.enabled for one in rule.channels.all()}
    return [name for name in enabled if name in used] or (enabled if len(enabled) == 1 else [])


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    rule = alerts.rule(request.viewer, pk)
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
    current = alerts.rule(request.viewer, pk) if pk else None
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
            edit.current = alerts.rule(request.viewer, edit.current.pk)
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
    """Return whether a valid rule notifies no one, did not do so before, and was not confirmed."""
    if _notifies(edit.draft) or CONFIRM in request.POST:
        return False
    if edit.current and not edit.current.channels.exists():
        return False
    try:
        alerts.check_rule(request.viewer, edit.draft.document())
    except Refused:
        return False  # saving reports it at the field
    return True


def _notifies(draft: Draft) -> bool:
    """Return whether the rule has a channel, directly or by escalation."""
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
        "name_field": rule_forms.one(draft, "name"),
        "what": rule_forms.what(draft, saved_views.listing(viewer)),
        "scope": rule_forms.scope(draft),
        "threshold": rule_forms.one(draft, "threshold"),
        "units": rule_forms.units(),
        "when": rule_forms.when(draft),
        "severity": rule_forms.severity(draft),
        "reminders": rule_forms.reminders(draft),
        "runbook": rule_forms.one(draft, "runbook_url"),
        "channels": rule_forms.channels(draft, "channels", channels),
        "escalate_to": rule_forms.channels(draft, "escalate_to", channels),
        "picture": drawn,
        "why_not": why_not,
        "is_refused": bool(draft.errors),
        "unplaced": draft.errors.get("", []),
        "slots": rule_forms.slots(draft) if request.htmx else [],
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
        context["line"] = rule_words.line(rule, rule_status, may_change)
    return render_page(request, "redrive/alerts/rule.html", context, part="outlook", status=status)


def _draw_preview(request: HttpRequest, edit: Edit, *, is_reported: bool) -> tuple[rule_picture.Picture | None, str]:
    """Return the preview of the draft, or why there is none. `is_reported`: add refusals to their inputs."""
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
            # Drawn with defaults in place of refused fields, so that the rest is visible.
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
    """Return (field, current value, typed value) of every difference."""
    now, yours = Draft.from_rule(current), draft
    found = [
        (rule_forms.LABELS[name], now.texts.get(name, "") or "–", yours.texts.get(name, "") or "–")
        for name in rule_forms.LABELS
        if name not in ("channels", "escalate_to") and now.document().get(name) != yours.document().get(name)
    ]
    for name in ("channels", "escalate_to"):
        mine, theirs = (sorted(one.chosen.get(name, [])) for one in (yours, now))
        if mine != theirs:
            found.append((rule_forms.LABELS[name], rule_words.recipients(theirs), rule_words.recipients(mine)))
    if now.enabled != yours.enabled:
        words = {True: "enabled", False: "disabled"}
        found.append(("Enabled", words[now.enabled], words[yours.enabled]))
    return found


def _suggestions(request: HttpRequest) -> list[tuple[str, list[str]]]:
    """Return values of stored failures, offered as completions of the inputs."""
    return [
        (name, [one.text for one in islice(completing.values(request.viewer, name, ""), MOST_SUGGESTIONS)])
        for name in rule_forms.SUGGESTED.values()
    ]


def _stamp(rule: Rule) -> str:
    return rule.changed_at.isoformat()
