"""Create, change, rotate, enable and delete channels; send a test, resend.

Each in one transaction with its audit record.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import list_some
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.models import Channel, Delivery, Notice, Rule
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, Viewer
from jobs_admin.models.notice import DeliveryState
from jobs_admin.notices import documents, guard, reading, sealing
from jobs_admin.notices.documents import Wanted, invalid
from jobs_admin.notices.reading import ChannelRow, DeliveryRow

# Each channel has a thread during a request, so that none waits for another.
MOST_CHANNELS = 200
_AT_ONCE = 500  # rows per statement, when a channel is deleted with its deliveries


@dataclass(frozen=True, slots=True)
class Saved:
    channel: ChannelRow
    secret: str | None = field(repr=False)  # of a signed webhook with a new secret: shown only this once


def save_channel(viewer: Viewer, document: object, pk: int | None = None) -> Saved:
    """Create a channel, or change the one with this number. Raises Refused, NotFound.

    The host of its URL is looked up before anything is changed. Fields omitted from the document stay unchanged.
    """
    before = reading.find(viewer, pk) if pk is not None else None
    authorize(viewer, ADMIN, EVERY_SOURCE, "channel.save", f"channel:{pk}" if pk else "channel")
    wanted = documents.read(document, before)
    _reachable(wanted)
    made = wanted.secret if before is not None or wanted.secret or wanted.kind != "webhook" else sealing.make()
    is_made = before is None and wanted.kind == "webhook" and wanted.secret is None
    with transaction.atomic():
        if before is None and Channel.objects.count() >= MOST_CHANNELS:
            raise Refused(
                "too_many", f"The limit of {MOST_CHANNELS} channels is reached. Delete one first. Nothing was changed."
            )
        row = Channel.objects.select_for_update().filter(pk=before.pk).first() if before is not None else Channel()
        if row is None:
            raise NotFound("No such channel, or you cannot view it.")
        if before is not None:
            # Omitted fields stay as they are now, not as they were at the lookup.
            wanted = documents.read(document, row)
        was = _plain(row) if before is not None else None
        row.name, row.kind, row.url, row.to = wanted.name, wanted.kind, wanted.url, wanted.to
        row.events = list(wanted.events)
        if made is not None:
            row.secrets = [sealing.seal(made)]
        row.changed_by = viewer.name[:150]
        _store(row)
        after = _plain(row) | ({"secret": "changed"} if made is not None and before is not None else {})
        audit.record(viewer, "channel.save", f"channel:{row.pk}", before=was, after=after)
    return Saved(reading.row(viewer, row), made if is_made else None)


def check_channel(viewer: Viewer, document: Mapping[str, Any], pk: int | None = None) -> list[Refused]:
    """Return the refusals of `save_channel`, one for each invalid field. Looks up no host and changes nothing."""
    return documents.find_problems(document, reading.find(viewer, pk) if pk is not None else None)


def delete_channel(viewer: Viewer, pk: int) -> None:
    """Delete a channel with its deliveries. Raises Refused while a rule uses it, NotFound."""
    reading.find(viewer, pk)
    authorize(viewer, ADMIN, EVERY_SOURCE, "channel.delete", f"channel:{pk}")
    with transaction.atomic():
        row = Channel.objects.select_for_update().filter(pk=pk).first()
        if row is None:
            raise NotFound("No such channel, or you cannot view it.")
        _not_used(row)
        was, why = _plain(row), "Channel and deliveries are being deleted."
        if row.disabled_at is None:
            row.disabled_at, row.why_disabled = timezone.now(), why
            row.save(update_fields=["disabled_at", "why_disabled"])
        audit.record(viewer, "channel.disable", f"channel:{pk}", reason=why, before=was, after=_plain(row))
    # In batches, so that no one waits for a log of a hundred thousand. Without its deliveries it receives nothing more.
    while ids := list(Delivery.objects.filter(channel_id=pk).values_list("pk", flat=True)[:_AT_ONCE]):
        Delivery.objects.filter(pk__in=ids).delete()
    links = Notice.channels.through.objects
    while ids := list(links.filter(channel_id=pk).values_list("pk", flat=True)[:_AT_ONCE]):
        links.filter(pk__in=ids).delete()
    with transaction.atomic():
        row = Channel.objects.select_for_update().filter(pk=pk).first()
        if row is None:
            raise NotFound("No such channel, or you cannot view it.")
        if names := _rules_using(row):
            message = "The channel was not deleted: a rule has just started to use it. Its deliveries were deleted, and it is disabled."
            audit.record(
                viewer, "channel.delete", f"channel:{pk}", reason=message, after={"rules": names[:5]}, allowed=False
            )
        else:
            audit.record(viewer, "channel.delete", f"channel:{pk}", before=_plain(row))
            row.delete()
    if names:
        raise Refused("in_use", message)


def rotate(viewer: Viewer, pk: int) -> str:
    """Create a new secret, shown only this once; the previous one signs beside it until `end_rotation`.

    Raises Refused, NotFound.
    """
    made = sealing.make()

    def change(row: Channel) -> dict[str, Any]:
        if row.kind != "webhook":
            raise invalid("Only webhooks have a signing secret to rotate.", "kind")
        if len(row.secrets) > 1:
            message = "A rotation is already in progress. End it first. Nothing was changed."
            raise Refused("wrong_state", message)
        row.secrets = [sealing.seal(made), *row.secrets[:1]]
        row.rotated_at = timezone.now()
        return {"secrets": 2}

    _changed(viewer, "channel.rotate", pk, change)
    return made


def end_rotation(viewer: Viewer, pk: int) -> ChannelRow:
    """Sign with the latest secret only. Raises Refused, NotFound."""

    def change(row: Channel) -> dict[str, Any]:
        if len(row.secrets) < 2:
            raise Refused("wrong_state", "No rotation is in progress. Nothing was changed.")
        row.secrets = row.secrets[:1]
        return {"secrets": 1}

    return _changed(viewer, "channel.end_rotation", pk, change)


def enable(viewer: Viewer, pk: int) -> ChannelRow:
    """Enable the channel again. Deliveries parked meanwhile are resent manually. Raises Refused, NotFound."""

    def change(row: Channel) -> dict[str, Any]:
        if row.disabled_at is None:
            raise Refused("wrong_state", f"{row.name} is not disabled. Nothing was changed.")
        row.disabled_at, row.why_disabled, row.failures = None, "", 0
        return {"disabled": False}

    return _changed(viewer, "channel.enable", pk, change)


def test(viewer: Viewer, pk: int, now: datetime | None = None) -> DeliveryRow:
    """Send a notice of type `ping` once, immediately, also on a disabled channel. Raises Refused, NotFound."""
    found = reading.find(viewer, pk)
    authorize(viewer, ADMIN, EVERY_SOURCE, "channel.test", f"channel:{pk}")
    now = now or timezone.now()
    with transaction.atomic():
        Channel.objects.select_for_update().get(pk=pk)
        under_way = (DeliveryState.WAITING, DeliveryState.SENDING)
        if Delivery.objects.filter(channel_id=pk, notice__type="ping", state__in=under_way).exists():
            message = f"A test of {found.name} is already in progress. Nothing was changed."
            raise Refused("wrong_state", message)
        body = {
            "title": f"Test of {found.name}",
            "message": f"Test notification sent by {viewer.name[:150]}. No action is needed.",
            "url": config.page_at("alerts/channels/"),
        }
        notice = Notice.objects.create(
            key=f"ping-{secrets.token_hex(8)}",
            type="ping",
            severity="info",
            body=body,
            is_routed_by_event=False,
            routed_at=now,
        )
        made = Delivery.objects.create(notice=notice, channel=found, next_try_at=now)
        audit.record(viewer, "channel.test", f"channel:{pk}", after={"delivery": made.pk})
    return reading.delivery(viewer, made.pk)


def resend(viewer: Viewer, pk: int, now: datetime | None = None) -> DeliveryRow:
    """Send a delivery again, with its id, starting with the first try. Raises Refused, NotFound.

    Requires the role operator on the notice's source; on every source if it has none or several.
    """
    found = reading.find_delivery(viewer, pk)
    authorize(viewer, OPERATOR, found.notice.source or EVERY_SOURCE, "delivery.resend", f"delivery:{pk}")
    if found.channel.disabled_at is not None and found.notice.type != "ping":
        message = f"Channel {found.channel.name} is disabled. Enable it first. Nothing was changed."
        raise Refused("wrong_state", message)
    with transaction.atomic():
        changed = (
            Delivery.objects.filter(pk=pk)
            .exclude(state=DeliveryState.SENDING)
            .update(state=DeliveryState.WAITING, next_try_at=now or timezone.now(), tries=0)
        )
        if not changed:
            raise Refused("wrong_state", "The delivery is being sent. Nothing was changed.")
        audit.record(
            viewer,
            "delivery.resend",
            f"delivery:{pk}",
            source=found.notice.source if found.notice.source != "*" else "",
            before={"state": found.state},
            after={"key": found.notice.key, "channel": found.channel.name},
        )
    return reading.delivery(viewer, pk)


def _changed(viewer: Viewer, act: str, pk: int, change: Any) -> ChannelRow:
    reading.find(viewer, pk)
    authorize(viewer, ADMIN, EVERY_SOURCE, act, f"channel:{pk}")
    with transaction.atomic():
        row = Channel.objects.select_for_update().filter(pk=pk).first()
        if row is None:
            raise NotFound("No such channel, or you cannot view it.")
        was = _plain(row)
        after = change(row)
        row.changed_by = viewer.name[:150]
        row.save()
        audit.record(viewer, act, f"channel:{pk}", before=was, after=after)
    return reading.row(viewer, row)


def _reachable(wanted: Wanted) -> None:
    """Look up the hosts of requests, outside of any transaction, because a name server may be slow."""
    if wanted.address is None:
        return
    allowed = config.webhook_allow()
    if allowed.names(wanted.address.host, wanted.address.port):
        return
    try:
        guard.addresses(wanted.address, allowed)
    except (guard.NotPublic, guard.Unknown) as error:
        raise invalid(str(error), "url") from error


def _store(row: Channel) -> None:
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        if not Channel.objects.filter(name=row.name).exclude(pk=row.pk).exists():
            raise
        raise Refused("taken", f"A channel named {row.name} already exists. Nothing was changed.", "name") from error


def _rules_using(found: Channel) -> list[str]:
    """Return the names of the rules that notify it."""
    uses = Q(channels=found) | Q(escalate_to=found)
    return sorted(set(Rule.objects.filter(uses, deleted_at=None).values_list("name", flat=True)))


def _not_used(found: Channel) -> None:
    if names := _rules_using(found):
        raise Refused(
            "in_use", f"Rules use this channel: {list_some(names, 5)}. Change them first. Nothing was changed."
        )


def _plain(row: Channel) -> dict[str, Any]:
    """Return the values for the audit: no secret, and of a URL nothing after its host."""
    values = {"name": row.name, "kind": row.kind, "url": reading.masked(row.url) if row.url else ""}
    values |= {"to": row.to.split(), "events": list(row.events), "secrets": len(row.secrets)}
    return values | {"disabled": row.disabled_at is not None}
