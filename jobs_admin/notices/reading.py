"""Channels and deliveries, for pages and API. Where a channel leads is for admins of every source."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery

from jobs_admin.core.refused import NotFound
from jobs_admin.core.text import list_some, whole_number
from jobs_admin.core.web_address import BadAddress, parse
from jobs_admin.db.authorizing import may_write
from jobs_admin.models import Alert, Channel, Delivery
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.models.notice import DeliveryState
from jobs_admin.notices import sealing
from jobs_admin.rights import alert_sight


@dataclass(frozen=True, slots=True)
class LastDelivery:
    state: str  # a DeliveryState
    at: datetime  # time of the try; without one, time of creation


def last_deliveries(viewer: Viewer) -> dict[int, LastDelivery]:
    """Return the latest delivery by number of the channel. That there was one is no secret of its source; its content
    is.
    """
    if not viewer.may_anywhere(VIEWER):
        return {}
    latest = Delivery.objects.filter(channel=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    latest = Channel.objects.annotate(latest=Subquery(latest)).values("latest")
    rows = Delivery.objects.filter(pk__in=latest).values_list("channel_id", "state", "tried_at", "created_at")
    return {channel: LastDelivery(state, tried or made) for channel, state, tried, made in rows}


COUNT_CAP = 10_000
LARGEST_PAGE = 500
HIDDEN = "…"


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """A channel with the fields that its reader may see, without secrets."""

    pk: int
    name: str
    kind: str
    url: str  # as it is for an admin of every source, else without path, else empty; of Slack never with its path
    to: tuple[str, ...]  # empty for others
    address: str  # where it leads, in a line: `https://hooks.example/…`, `ops@example.com and 2 more`
    is_masked: bool  # whether the reader sees less than there is
    events: tuple[str, ...]
    is_rotating: bool  # two secrets sign
    rotated_at: datetime | None
    disabled_at: datetime | None
    why_disabled: str
    failures: int  # tries that failed in a row
    changed_at: datetime
    changed_by: str
    may_change: bool

    @property
    def is_disabled(self) -> bool:
        return self.disabled_at is not None


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    pk: int
    channel_id: int
    channel: str  # its name
    kind: str
    notice_id: int
    key: str  # the `webhook-id`
    type: str
    source: str
    alert_id: int | None
    title: str
    state: str
    tries: int
    created_at: datetime
    next_try_at: datetime | None  # while it waits
    tried_at: datetime | None
    delivered_at: datetime | None
    status: int | None
    error: str
    answer: str  # what came back, at most 2 kB; for admins of every source
    request: str  # the body as it was last sent, without secrets
    took_ms: int | None
    log: tuple[dict[str, Any], ...]  # the tries, newest last
    may_resend: bool


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    rows: list[DeliveryRow]  # newest first
    next: str | None  # `after` of the page that follows; None on the last
    count: int  # at most COUNT_CAP
    count_is_capped: bool


def channels(viewer: Viewer) -> list[ChannelRow]:
    """Return the channels by name."""
    if not viewer.may_anywhere(VIEWER):
        return []
    return [row(viewer, one) for one in Channel.objects.order_by("name")]


def channel(viewer: Viewer, pk: int) -> ChannelRow:
    """Return a channel. Raises NotFound."""
    return row(viewer, find(viewer, pk))


def find(viewer: Viewer, pk: int) -> Channel:
    """Return the row of a channel. Raises NotFound."""
    _must_see(viewer)
    found = Channel.objects.filter(pk=pk).first() if 0 < int(pk) < 2**63 else None
    if found is None:
        raise NotFound("No such channel, or you cannot view it.")
    return found


def row(viewer: Viewer, found: Channel) -> ChannelRow:
    sees = _sees_addresses(viewer)
    url, to = _url(found, sees), tuple(found.to.split()) if sees else ()
    return ChannelRow(
        pk=found.pk,
        name=found.name,
        kind=found.kind,
        url=url,
        to=to,
        address=_line(found, url, to, sees),
        is_masked=not sees,
        events=tuple(found.events),
        is_rotating=len(found.secrets) > 1,
        rotated_at=found.rotated_at,
        disabled_at=found.disabled_at,
        why_disabled=found.why_disabled
        if sees or not found.disabled_at
        else "An admin of every source can see the reason.",
        failures=found.failures,
        changed_at=found.changed_at,
        changed_by=found.changed_by,
        may_change=may_change(viewer),
    )


def _url(found: Channel, sees: bool) -> str:
    if not sees:
        return ""
    if found.kind != "slack":
        return found.url
    try:
        return masked(sealing.unseal(found.secrets[:1])[0])
    except (sealing.CannotOpen, IndexError):
        return ""


def _line(found: Channel, url: str, to: tuple[str, ...], sees: bool) -> str:
    if not sees:
        return HIDDEN
    if found.kind == "slack":
        return url  # masked already
    if found.kind == "email":
        return list_some(to, 1)
    return masked(url)


def masked(url: str) -> str:
    """Return a URL without the parts that may be secret."""
    try:
        return parse(url).without_path
    except BadAddress:
        return HIDDEN


def deliveries(
    viewer: Viewer,
    *,
    channel: int | None = None,
    alert: int | None = None,
    state: str = "",
    after: str | None = None,
    limit: int = 50,
) -> DeliveryPage:
    """Return deliveries of notices that the viewer may see, latest first. `alert` by its number, or that of its leader."""
    limit = max(1, min(limit, LARGEST_PAGE))
    found = _visible(viewer)
    if channel is not None:
        found = found.filter(channel_id=channel)
    if alert is not None:
        # Notices of a bundle have the number of its first alert.
        leader = Alert.objects.filter(pk=alert).values_list("told_with", flat=True).first()
        found = found.filter(notice__alert_id__in={alert, leader or alert})
    if state:
        found = found.filter(state=state) if state in DeliveryState.values else found.none()
    count = found.order_by()[: COUNT_CAP + 1].count()
    if (below := whole_number(after)) is not None:
        found = found.filter(pk__lt=below)
    rows = list(found.order_by("-pk")[: limit + 1])
    following = str(rows[limit - 1].pk) if len(rows) > limit else None
    shown = [delivery_row(viewer, one) for one in rows[:limit]]
    return DeliveryPage(shown, following, min(count, COUNT_CAP), count > COUNT_CAP)


def delivery(viewer: Viewer, pk: int) -> DeliveryRow:
    """Return a delivery. Raises NotFound."""
    return delivery_row(viewer, find_delivery(viewer, pk))


def find_delivery(viewer: Viewer, pk: int) -> Delivery:
    """Return the row of a delivery. Raises NotFound."""
    found = _visible(viewer).filter(pk=pk).first() if 0 < int(pk) < 2**63 else None
    if found is None:
        raise NotFound("No such delivery, or you cannot view it.")
    return found


def _visible(viewer: Viewer) -> QuerySet[Delivery]:
    found = Delivery.objects.select_related("notice", "channel")
    if not viewer.may_anywhere(VIEWER):
        return found.none()
    return found.filter(visible(viewer, "notice__"))


def delivery_row(viewer: Viewer, found: Delivery) -> DeliveryRow:
    sees = _sees_addresses(viewer)
    # What an endpoint answers, and why it cannot be reached, tells where it is.
    log = tuple(dict(one) if sees else {**one, "error": _without_addresses(one.get("error", ""))} for one in found.log)
    return DeliveryRow(
        pk=found.pk,
        channel_id=found.channel_id,
        channel=found.channel.name,
        kind=found.channel.kind,
        notice_id=found.notice_id,
        key=found.notice.key,
        type=found.notice.type,
        source=found.notice.source,
        alert_id=found.notice.alert_id,
        title=str(found.notice.body.get("title", ""))[:300] if isinstance(found.notice.body, dict) else "",
        state=found.state,
        tries=found.tries,
        created_at=found.created_at,
        next_try_at=found.next_try_at if found.state == DeliveryState.WAITING else None,
        tried_at=found.tried_at,
        delivered_at=found.delivered_at,
        status=found.status,
        error=_overflow_text(found) if found.counts else found.error if sees else _without_addresses(found.error),
        answer=found.answer if sees else "",
        request=found.request,
        took_ms=found.took_ms,
        log=log,
        may_resend=may_write(viewer, OPERATOR, found.notice.source or EVERY_SOURCE),
    )


def _overflow_text(found: Delivery) -> str:
    """Return the text of a delivery that only counts others. It does not show the channel's address."""
    return f"{found.error} Notices not sent, including this one: {found.counts:,}."


def _without_addresses(error: str) -> str:
    return "Failed. An admin of every source can see the reason." if error else ""


# -- who may see: channels belong to the whole desk; whoever sees a source sees their names --------------------------


def _sees_addresses(viewer: Viewer) -> bool:
    """Return whether the viewer sees the addresses of channels, and their answers."""
    return viewer.may(ADMIN, EVERY_SOURCE)


def may_change(viewer: Viewer) -> bool:
    return may_write(viewer, ADMIN, EVERY_SOURCE)


def _must_see(viewer: Viewer) -> None:
    """Raise NotFound if the viewer may not see channels."""
    if not viewer.may_anywhere(VIEWER):
        raise NotFound("No such channel, or you cannot view it.")


def visible(viewer: Viewer, prefix: str = "") -> Q:
    """Return the condition of visible notices: of a source, or of the desk itself; those of several take seeing every
    source.

    Those of an alert take seeing the alert.
    """
    theirs = viewer.sources()
    if theirs is None:
        return Q()
    if not theirs:
        return Q(pk__in=[])
    alerts = Alert.objects.filter(alert_sight.visible(viewer)).values("pk")
    its_alert = Q(**{f"{prefix}alert": None}) | Q(**{f"{prefix}alert__in": alerts})
    return Q(**{f"{prefix}source__in": [*theirs, ""]}) & its_alert
