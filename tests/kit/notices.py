"""Channels, notices and their delivery."""

from __future__ import annotations

import time
from datetime import timedelta

from django.utils import timezone

from jobs_admin import notices
from jobs_admin.models import Channel, Delivery, Notice
from jobs_admin.models.access import Viewer

ANN = Viewer(name="ann", roles={"*": "admin"})
OTTO = Viewer(name="otto", roles={"shop": "operator"})
VERA = Viewer(name="vera", roles={"shop": "viewer"})


def webhook(name: str, url: str, **more) -> tuple[Channel, str]:
    """A channel and the secret that it signs with."""
    saved = notices.save_channel(ANN, {"name": name, "kind": "webhook", "url": url, **more})
    return Channel.objects.get(pk=saved.channel.pk), saved.secret


def notice(*channels: Channel, key: str = "alert-1-1", type: str = "alert.firing", **more) -> Notice:
    body = {"title": "Dead Letter Queue Growing", "message": "emails has 1,243 dead jobs", "queue": "emails"}
    values = {"severity": "warning", "source": "shop", "body": body | more.pop("body", {})} | more
    made = Notice.objects.create(key=key, type=type, is_routed_by_event=not channels, **values)
    made.channels.set(channels)
    return made


def deliver(now=None, within_s: float = 90.0, until=None):
    """Rounds until nothing is on its way, or `until` is true."""
    ends = time.monotonic() + within_s
    while notices.deliver(now or timezone.now()):
        if until is not None and until():
            return
        assert time.monotonic() < ends, list(Delivery.objects.values("channel__name", "state", "error"))


def due_now() -> None:
    """Make every waiting delivery due now."""
    Delivery.objects.filter(state="waiting").update(next_try_at=timezone.now() - timedelta(seconds=1))
