"""Position up to which the audit was forwarded (REDRIVE_AUDIT_FORWARD), and how far it is behind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import QuerySet

from jobs_admin import config
from jobs_admin.db.audit_anchor import Finding
from jobs_admin.installation import COMMAND
from jobs_admin.models import AuditEvent, AuditPosition

_ONLY = 1
_LATE_AFTER = timedelta(minutes=1)
COUNT_CAP = 10_000


@dataclass(frozen=True, slots=True)
class Forwarding:
    """State of the forwarding."""

    target: str
    position: int | None  # id of the last forwarded event; None before the first round
    waiting: int  # events that are not forwarded yet, at most COUNT_CAP
    oldest_at: datetime | None  # the time of the oldest of them
    error: str  # why the last try failed; "" if it succeeded


def get() -> AuditPosition:
    """Return the position. The first time it is the latest event: forwarding starts with the next one."""
    latest = AuditEvent.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    return AuditPosition.objects.get_or_create(pk=_ONLY, defaults={"position": latest})[0]


def find_waiting(position: AuditPosition) -> QuerySet[AuditEvent]:
    """Return the events that are not forwarded yet, in order."""
    return AuditEvent.objects.filter(pk__gt=position.position).order_by("pk")


def is_due() -> bool:
    """Return whether events wait, or forwarding has not started."""
    if not config.setting("AUDIT_FORWARD"):
        return False
    position = AuditPosition.objects.filter(pk=_ONLY).first()
    return position is None or find_waiting(position).exists()


def read() -> Forwarding | None:
    """Return the state of the forwarding; None if none is set."""
    target = config.setting("AUDIT_FORWARD")
    if not target:
        return None
    position = AuditPosition.objects.filter(pk=_ONLY).first()
    if position is None:
        return Forwarding(target, None, 0, None, "")
    waiting = find_waiting(position)
    oldest = waiting.values_list("at", flat=True).first()
    count = waiting[:COUNT_CAP].count() if oldest else 0
    return Forwarding(target, position.position, count, oldest, position.error if oldest else "")


def finding(now: datetime | None = None) -> Finding | None:
    """Return the finding if forwarding has not begun, or an event has not been forwarded for a minute; None otherwise."""
    state = read()
    if state is not None and state.position is None:
        return Finding(
            f"The audit is not forwarded to {state.target}: it begins with the first entry after `{COMMAND} watch` starts "
            "with REDRIVE_AUDIT_FORWARD.",
            f"Restart `{COMMAND} watch` with the environment of the web process. Export the entries before.",
        )
    if state is None or state.oldest_at is None or (now or datetime.now(UTC)) - state.oldest_at < _LATE_AFTER:
        return None
    since = f"{state.oldest_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    several = "" if state.waiting == 1 else "entries"
    count = f"{state.waiting:,}{'+' if state.waiting == COUNT_CAP else ''} audit {several or 'entry'}"
    text = f"{count} since {since} {'is' if state.waiting == 1 else 'are'} not forwarded to {state.target}"
    if state.error:
        fix = "Check the receiver and REDRIVE_AUDIT_FORWARD. Nothing is lost: all are sent in order once it answers."
        return Finding(f"{text}: {state.error}", fix, state.oldest_at)
    return Finding(
        f"{text}.", f"Check that `{COMMAND} watch` runs. Nothing is lost: all are sent in order.", state.oldest_at
    )
