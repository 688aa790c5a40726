"""The latest delivery of each channel: whether what is told arrives there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import OuterRef, Subquery

from jobs_admin.models import Channel, Delivery
from jobs_admin.models.access import VIEWER, Viewer


@dataclass(frozen=True, slots=True)
class LastDelivery:
    state: str  # as DeliveryState says
    at: datetime  # when it was tried; where it was not, when it was made


def last_deliveries(viewer: Viewer) -> dict[int, LastDelivery]:
    """By number of the channel. That something was told is no secret of its source; what, is."""
    if not viewer.may_anywhere(VIEWER):
        return {}
    newest = Delivery.objects.filter(channel=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    latest = Channel.objects.annotate(latest=Subquery(newest)).values("latest")
    rows = Delivery.objects.filter(pk__in=latest).values_list("channel_id", "state", "tried_at", "created_at")
    return {channel: LastDelivery(state, tried or made) for channel, state, tried, made in rows}
