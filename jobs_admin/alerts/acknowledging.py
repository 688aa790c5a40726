"""Acknowledgement of alerts by an operator: reminders and escalation stop."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from jobs_admin.alerts import reading
from jobs_admin.alerts.transitions import move
from jobs_admin.core.refused import Refused
from jobs_admin.core.utc_text import clock
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.models import Alert
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer
from jobs_admin.models.alert import AlertState

LONGEST_COMMENT = 500  # as its event and the audit keep it
_QUIETED = (AlertState.FIRING, AlertState.SILENCED)


def acknowledge(viewer: Viewer, pk: int, comment: str = "") -> Alert:
    """Acknowledge the alert and all in its bundle. Of two operators at the same time, one succeeds.

    Raises Refused, with the name of an operator who has acknowledged it already, and NotFound.
    """
    found = reading.get(viewer, pk)
    source = found.source or EVERY_SOURCE  # its operators act on it
    message = "Acknowledging needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source, "alert.acknowledge", f"alert:{pk}", message=message, field="source")
    text = comment.strip()
    if len(text) > LONGEST_COMMENT:
        message = f"The comment has {len(text):,} characters; the limit is {LONGEST_COMMENT}. Nothing was changed."
        raise Refused("invalid", message, "comment")
    now = timezone.now()
    with transaction.atomic():
        alerts = list(reading.bundle(found).select_for_update().filter(state__in=_QUIETED))
        mine = [one for one in alerts if one.pk == found.pk] and [
            one for one in alerts if move(one, AlertState.ACKNOWLEDGED, now, text, viewer.name, acknowledged_at=now,
                                        acknowledged_by=viewer.name[:150])
        ]  # fmt: skip
        if not mine:
            raise Refused("wrong_state", _refusal_reason(pk, now))
        audit.record(
            viewer, "alert.acknowledge", f"alert:{pk}", source=found.source, reason=text,
            after={"alerts": [one.pk for one in mine][:100]},
        )  # fmt: skip
    return reading.get(viewer, pk)


def _refusal_reason(pk: int, now: datetime) -> str:
    found = Alert.objects.get(pk=pk)
    if found.state == AlertState.ACKNOWLEDGED:
        at = f" at {clock(found.acknowledged_at, now, with_seconds=True)} UTC" if found.acknowledged_at else ""
        return f"Already acknowledged by {found.acknowledged_by or 'an operator'}{at}. Nothing was changed."
    if found.state == AlertState.RESOLVED:
        since = f" at {clock(found.resolved_at, now, with_seconds=True)} UTC" if found.resolved_at else ""
        return f"The alert was resolved{since}. Nothing was changed."
    return "The alert is pending: only firing alerts can be acknowledged. Nothing was changed."
