"""Deliveries: the requests sent, their answers, and sending one again."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.alerts.channels import words as channel_words
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import notices
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models.access import OPERATOR, VIEWER

PER_PAGE = 50


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    chosen = {name: text for name in ("channel", "alert", "state") if (text := request.GET.get(name, "")[:20].strip())}
    after = request.GET.get("after")
    # What is no number names no channel: nothing matches then.
    numbers = {name: whole_number(chosen[name]) or 0 for name in ("channel", "alert") if name in chosen}
    page = notices.deliveries(request.viewer, **numbers, state=chosen.get("state", ""), after=after, limit=PER_PAGE)
    context = {
        "lines": [channel_words.delivery(row) for row in page.rows],
        "page": page,
        "chosen": chosen,
        "channels": [(str(one.pk), one.name) for one in notices.channels(request.viewer)],
        "states": channel_words.STATES.items(),
        "next_url": f"?{urlencode({**chosen, 'after': page.next})}" if page.next else "",
        "first_url": f"?{urlencode(chosen)}" if after else "",
        "self_url": f"{reverse('redrive:delivery-list')}?{urlencode({**chosen, **({'after': after} if after else {})})}",
    }
    return render_page(request, "redrive/alerts/deliveries.html", context, part="deliveries")


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one delivery. htmx polls its result until the delivery has ended."""
    context = {"d": channel_words.delivery(_get_delivery(request, pk))}
    return render_page(request, "redrive/alerts/delivery.html", context, part="result")


@require_POST
@can(OPERATOR)
def resend(request: HttpRequest, pk: int) -> HttpResponse:
    _get_delivery(request, pk)
    back = links.back(request, otherwise=reverse("redrive:delivery-detail", args=[pk]))
    try:
        sent = notices.resend(request.viewer, pk)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, back)
    add_toast(request, f"Sending again to {sent.channel}, with the same id.")
    return go(request, back)


def _get_delivery(request: HttpRequest, pk: int) -> notices.DeliveryRow:
    return notices.delivery(request.viewer, pk)
