"""Notification channels: the list with their health, the editor, a test, and the rotation of secrets."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.alerts.channels import words as channel_words
from dashboard.alerts.channels.forms import OF_KIND, PLACES, Draft
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.templates import render
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, notices
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models.access import ADMIN_OF_ALL, VIEWER
from jobs_admin.models.notice import EVENTS, KINDS

RECENT = 10


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    viewer = request.viewer
    rows = notices.channels(viewer)
    lines = channel_words.lines(rows, notices.last_deliveries(viewer), alerts.rules_by_channel(viewer))
    context = {"lines": lines, "may_change": notices.may_change(viewer), "sees": not any(r.is_masked for r in rows)}
    return render_page(request, "redrive/alerts/channels.html", context, part="channels")


@require_safe
@can(ADMIN_OF_ALL)
def new(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("kind", "")
    draft = Draft({"kind": kind if kind in KINDS else KINDS[0]})
    for one in notices.check_channel(request.viewer, draft.document()):
        if one.field == "kind":  # the desk cannot send this kind
            draft.refuse(one)
    return _page(request, None, draft)


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    row = _get_channel(request, pk)
    return _page(request, row, Draft.from_channel(row))


@require_POST
@can(ADMIN_OF_ALL)
def create(request: HttpRequest) -> HttpResponse:
    draft = Draft.from_form(request.POST)
    try:
        saved = notices.save_channel(request.viewer, draft.document())
    except Refused as refused:
        draft.refuse_all(notices.check_channel(request.viewer, draft.document()), refused)
        return _page(request, None, draft, status=422)
    if saved.secret:
        return _page(request, saved.channel, Draft.from_channel(saved.channel), secret=saved.secret)
    add_toast(request, f"Channel {saved.channel.name} created. Send a test to check it.")
    return go(request, _url(saved.channel.pk))


@require_POST
@can(ADMIN_OF_ALL)
def change(request: HttpRequest, pk: int) -> HttpResponse:
    row = _get_channel(request, pk)
    draft = Draft.from_form(request.POST, row.kind)
    try:
        saved = notices.save_channel(request.viewer, draft.document(), pk)
    except Refused as refused:
        draft.refuse_all(notices.check_channel(request.viewer, draft.document(), pk), refused)
        return _page(request, row, draft, status=422)
    add_toast(request, f"Channel {saved.channel.name} saved.")
    return go(request, _url(pk))


@require_POST
@can(ADMIN_OF_ALL)
def check(request: HttpRequest) -> HttpResponse:
    """Check the fields that are filled in. Nothing is changed, and no host is looked up."""
    pk = whole_number(request.POST.get("channel"))
    row = _get_channel(request, pk) if pk else None
    draft = Draft.from_form(request.POST, row.kind if row else "")
    document = draft.document() | {"name": draft.texts["name"] or "unnamed"}
    for one in notices.check_channel(request.viewer, document, pk or None):
        draft.refuse(one)
    errors = {place: texts for place, texts in draft.errors.items() if draft.texts.get(place) or place == "events"}
    slots = [(f"c-{place.replace('_', '-')}", errors.get(place, [])) for place in PLACES]
    context = {"slots": slots, "is_refused": bool(errors), **_unsaved(row, draft)}
    return render(request, "redrive/alerts/channel_check.html", context)


def _unsaved(row: notices.ChannelRow | None, draft: Draft) -> dict[str, Any]:
    """Return the context of the bar: how many fields differ from the channel."""
    now, yours = Draft.from_channel(row).document() if row else {}, draft.document()
    changes = sum(now.get(name) != yours.get(name) for name in now.keys() | yours.keys()) if row else 0
    back = _url(row.pk) if row else reverse("redrive:channel-list")
    return {"changes": changes, "is_new": not row, "unsaved": "unsaved", "discard_url": back}


def show_refusal_on_page(act: Callable[[HttpRequest, int], HttpResponse]) -> Callable[[HttpRequest, int], HttpResponse]:
    """Wrap an act so that a refusal is shown on the channel's page. A missing channel is a 404."""

    @wraps(act)
    def acted(request: HttpRequest, pk: int) -> HttpResponse:
        try:
            return act(request, pk)
        except Refused as refused:
            add_toast(request, refused.message, level="error")
            return go(request, _url(pk))

    return acted


@require_POST
@can(ADMIN_OF_ALL)
@show_refusal_on_page
def rotate(request: HttpRequest, pk: int) -> HttpResponse:
    """A second secret, shown in this answer and never again."""
    secret = notices.rotate(request.viewer, pk)
    row = _get_channel(request, pk)
    return _page(request, row, Draft.from_channel(row), secret=secret)


@require_POST
@can(ADMIN_OF_ALL)
@show_refusal_on_page
def end_rotation(request: HttpRequest, pk: int) -> HttpResponse:
    notices.end_rotation(request.viewer, pk)
    add_toast(request, "Rotation ended. Only the new secret signs requests.")
    return go(request, _url(pk))


@require_POST
@can(ADMIN_OF_ALL)
@show_refusal_on_page
def enable(request: HttpRequest, pk: int) -> HttpResponse:
    notices.enable(request.viewer, pk)
    add_toast(request, "Channel enabled. Parked deliveries can be sent again from the list of deliveries.")
    return go(request, _url(pk))


@require_POST
@can(ADMIN_OF_ALL)
@show_refusal_on_page
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    name = _get_channel(request, pk).name
    notices.delete_channel(request.viewer, pk)
    add_toast(request, f"Channel {name} deleted.")
    return go(request, reverse("redrive:channel-list"))


@require_POST
@can(ADMIN_OF_ALL)
@show_refusal_on_page
def test(request: HttpRequest, pk: int) -> HttpResponse:
    """Queue a test delivery. The watch sends it; the page polls its result."""
    sent = notices.test(request.viewer, pk)
    return go(request, f"{_url(pk)}?test={sent.pk}#test")


def _page(
    request: HttpRequest,
    row: notices.ChannelRow | None,
    draft: Draft,
    *,
    secret: str = "",
    status: int = 200,
) -> HttpResponse:
    """A channel, or a new one. `secret`: to be shown this once."""
    context: dict[str, Any] = {
        "row": row,
        "draft": draft,
        "kinds": [(name, channel_words.KINDS[name]) for name in KINDS],
        "kinds_with": {name: " ".join(k for k, inputs in OF_KIND.items() if name in inputs) for name in _INPUTS},
        "events": [(name, channel_words.EVENTS[name], name in draft.events) for name in EVENTS],
        "unplaced": draft.errors.get("", []),
        "secret": secret,
        "may_change": notices.may_change(request.viewer),
        "is_refused": bool(draft.errors),
        **_unsaved(row, draft),
    }
    if row:
        rules = alerts.rules_by_channel(request.viewer).get(row.pk, [])
        last = notices.last_deliveries(request.viewer).get(row.pk)
        recent = notices.deliveries(request.viewer, channel=row.pk, limit=RECENT)
        shown = [channel_words.delivery(one) for one in recent.rows]
        context |= {
            "line": channel_words.line(row, last, rules),
            "recent": shown,
            "recent_waits": any(not one.is_over for one in shown),
            "d": _tested(request, row),
        }
    return render_page(request, "redrive/alerts/channel.html", context, part="channel", status=status)


_INPUTS = ("url", "secret", "routing_key", "to")


def _tested(request: HttpRequest, row: notices.ChannelRow) -> channel_words.DeliveryLine | None:
    """The test that the address names."""
    number = whole_number(request.GET.get("test"))
    if not number:
        return None
    try:
        found = notices.delivery(request.viewer, number)
    except NotFound:
        return None
    return channel_words.delivery(found) if found.channel_id == row.pk else None


def _get_channel(request: HttpRequest, pk: int) -> notices.ChannelRow:
    return notices.channel(request.viewer, pk)


def _url(pk: int) -> str:
    return reverse("redrive:channel-detail", args=[pk])
