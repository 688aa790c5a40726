"""Alert rules: the list, the switch and the deletion."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.alerts.rules import listing as rule_list
from dashboard.alerts.rules import words as rule_words
from dashboard.alerts.rules.forms import CONFIRM, ENABLED, Draft
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, config
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.models.alert import Rule

PER_PAGE = 100


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
        "lines": rule_list.lines(
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


def get_rule(request: HttpRequest, pk: int) -> Rule:
    return alerts.rule(request.viewer, pk)


@require_POST
@can(OPERATOR)
def switch(request: HttpRequest, pk: int) -> HttpResponse:
    """Enable or disable the rule. Its fields stay."""
    rule = get_rule(request, pk)
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
    rule = get_rule(request, pk)
    former = [*Draft.from_rule(rule).fields(), (CONFIRM, "1")]
    try:
        alerts.delete_rule(request.viewer, pk)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, reverse("redrive:alert-rule-detail", args=[pk]))
    create = reverse("redrive:alert-rule-create")
    add_toast(request, f"Rule {rule.name} deleted. Alert history stays.", undo=create, undo_fields=former)
    return go(request, reverse("redrive:alert-rules"))
