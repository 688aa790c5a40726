"""Notification channels: the list with their health, the editor, a test, the rotation of secrets, and deliveries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.alerts.channels import words as channel_words
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, notices
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models.access import ADMIN_OF_ALL, OPERATOR, VIEWER
from jobs_admin.models.notice import EVENTS, KINDS
from jobs_admin.notices import ChannelRow

# Inputs that apply to a kind. The routing key of PagerDuty is its `secret`.
OF_KIND = {
    "webhook": ("url", "secret"),
    "slack": ("url",),
    "pagerduty": ("routing_key", "url"),
    "email": ("to",),
}
PLACES = ("name", "kind", "url", "to", "secret", "routing_key", "events")
_LONGEST = 4_000
RECENT = 10
PER_PAGE = 50  # deliveries per page


@dataclass(slots=True)
class Draft:
    """Channel in the editor, as texts of the inputs. `document`: the resulting channel; `errors`: refusals by input."""

    texts: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    errors: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def from_channel(cls, row: ChannelRow) -> Draft:
        """Return a channel as inputs. Secrets are never filled in; an empty input keeps the stored one."""
        url = "" if row.kind == "slack" else row.url
        return cls({"name": row.name, "kind": row.kind, "url": url, "to": "\n".join(row.to)}, list(row.events))

    @classmethod
    def from_form(cls, given: QueryDict, kind: str = "") -> Draft:
        """Return the inputs of a submitted form; `kind` is that of an existing channel."""
        texts = {name: given.get(name, "")[:_LONGEST].strip() for name in PLACES if name != "events"}
        texts["kind"] = kind or texts["kind"]
        return cls(texts, [one[:100] for one in given.getlist("events")][: len(EVENTS) * 2])

    @property
    def kind(self) -> str:
        return self.texts.get("kind") or KINDS[0]

    def document(self) -> dict[str, Any]:
        """Return the channel as the API accepts it: the non-empty fields of its kind."""
        found: dict[str, Any] = {"name": self.texts.get("name", ""), "kind": self.kind, "events": list(self.events)}
        for name in OF_KIND.get(self.kind, ()):
            text = self.texts.get(name, "")
            if name == "to":
                found["to"] = [one.strip() for one in text.replace(",", "\n").splitlines() if one.strip()]
            elif text:
                found["secret" if name == "routing_key" else name] = text
        return found

    def refuse_all(self, problems: list[Refused], refused: Refused) -> None:
        """Add each problem to its input, or, if the fields are valid, the refusal of the act."""
        for one in problems or [refused]:
            self.refuse(one)

    def refuse(self, refused: Refused) -> None:
        """Add a message to its input; one without an input is under `""`."""
        place = refused.field or ""
        if place == "secret" and self.kind == "pagerduty":
            place = "routing_key"
        self.errors.setdefault(place if place in PLACES else "", []).append(refused.message)


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
        if one.field == "kind":  # the desk cannot send to this kind
            draft.refuse(one)
    return _page(request, None, draft)


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    row = notices.channel(request.viewer, pk)
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
    row = notices.channel(request.viewer, pk)
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
    """Validate the fields that are filled in, without changing anything or resolving hosts."""
    pk = whole_number(request.POST.get("channel"))
    row = notices.channel(request.viewer, pk) if pk else None
    draft = Draft.from_form(request.POST, row.kind if row else "")
    document = draft.document() | {"name": draft.texts["name"] or "unnamed"}
    for one in notices.check_channel(request.viewer, document, pk or None):
        draft.refuse(one)
    errors = {place: texts for place, texts in draft.errors.items() if draft.texts.get(place) or place == "events"}
    slots = [(f"c-{place.replace('_', '-')}", errors.get(place, [])) for place in PLACES]
    context = {"slots": slots, "is_refused": bool(errors), **_unsaved(row, draft)}
    return render(request, "redrive/alerts/channel_check.html", context)


def _unsaved(row: notices.ChannelRow | None, draft: Draft) -> dict[str, Any]:
    """Return the context of the bar: the number of fields that differ from the channel."""
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
    """Create a second secret, shown only in this response."""
    secret = notices.rotate(request.viewer, pk)
    row = notices.channel(request.viewer, pk)
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
    name = notices.channel(request.viewer, pk).name
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
    """Show a channel, or the form of a new one. `secret`: a new secret to be displayed."""
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
    """Return the test in the URL."""
    number = whole_number(request.GET.get("test"))
    if not number:
        return None
    try:
        found = notices.delivery(request.viewer, number)
    except NotFound:
        return None
    return channel_words.delivery(found) if found.channel_id == row.pk else None


def _url(pk: int) -> str:
    return reverse("redrive:channel-detail", args=[pk])


# --- deliveries --------------------------------------------------------------------------------------------------


@require_safe
@can(VIEWER)
def deliveries(request: HttpRequest) -> HttpResponse:
    chosen = {name: text for name in ("channel", "alert", "state") if (text := request.GET.get(name, "")[:20].strip())}
    after = request.GET.get("after")
    # An invalid number matches no channel and no alert.
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
def delivery(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one delivery. htmx polls its result until the delivery has ended."""
    context = {"d": channel_words.delivery(notices.delivery(request.viewer, pk))}
    return render_page(request, "redrive/alerts/delivery.html", context, part="result")


@require_POST
@can(OPERATOR)
def resend(request: HttpRequest, pk: int) -> HttpResponse:
    notices.delivery(request.viewer, pk)
    back = links.back(request, otherwise=reverse("redrive:delivery-detail", args=[pk]))
    try:
        sent = notices.resend(request.viewer, pk)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, back)
    add_toast(request, f"Sending again to {sent.channel}, with the same id.")
    return go(request, back)
