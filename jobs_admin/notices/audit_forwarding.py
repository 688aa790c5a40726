"""Forwarding of the audit to a syslog receiver or a webhook channel: the step `forward` of watch.

Events are sent in the order of their ids, at least once: the position moves after the receiver has taken them. A crash in
between, or a receiver that takes a part, repeats events, with the same ids. The id of a webhook also has the start of
the MAC, because after a restore the ids of events are used again.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Q

from jobs_admin import config
from jobs_admin.core.syslog import Target, build_message, parse_target
from jobs_admin.core.text import representable
from jobs_admin.core.web_address import BadAddress
from jobs_admin.db import audit_position
from jobs_admin.db.audit_export import document
from jobs_admin.models import AuditEvent, AuditPosition, Channel
from jobs_admin.notices import formats, posting, sealing, syslog
from jobs_admin.notices.syslog import NotSent

_CLAIMED = timedelta(seconds=60)  # longer than a round takes
_MOST = {"udp": 20, "unix": 100, "tcp": 500, "channel": 1}  # events in one round
_LARGEST_DATAGRAM = 60_000  # bytes
_SHORTEST_WAIT, _LONGEST_WAIT = timedelta(seconds=2), timedelta(minutes=1)


def step(now: datetime) -> bool:
    """Send the next events. Return whether more may wait."""
    text = config.setting("AUDIT_FORWARD")
    if not text:
        return False
    target, position = parse_target(text), audit_position.get()
    events = list(audit_position.find_waiting(position)[: _MOST[target.kind]])
    if not events or not _claim(position, now):
        return False
    claim = AuditPosition.objects.filter(pk=position.pk, next_try_at=now + _CLAIMED)
    try:
        _send(events, target, now)
    except NotSent as error:
        since = position.failing_since or now
        wait = min(max((now - since) / 4, _SHORTEST_WAIT), _LONGEST_WAIT)
        claim.update(next_try_at=now + wait, failing_since=since, error=representable(str(error))[:300])
        return False
    claim.update(position=events[-1].pk, next_try_at=None, failing_since=None, error="")
    return True


def _claim(position: AuditPosition, now: datetime) -> bool:
    """Claim the next events. Return whether this process may send them."""
    is_free = Q(next_try_at=None) | Q(next_try_at__lte=now) | Q(next_try_at__gt=now + 2 * _CLAIMED)  # a clock set back
    free = AuditPosition.objects.filter(is_free, pk=position.pk, position=position.position)
    return bool(free.update(next_try_at=now + _CLAIMED))


def _send(events: Sequence[AuditEvent], target: Target, now: datetime) -> None:
    if target.kind == "channel":
        for event in events:
            _post(event, target.name, now)
    else:
        most = None if target.kind == "tcp" else _LARGEST_DATAGRAM
        syslog.send([_build_message(event, most) for event in events], target)


def _build_message(event: AuditEvent, most: int | None) -> bytes:
    about = document(event)
    header = {"when": about["when"], "host": socket.gethostname(), "name": event.act, "is_warning": not event.allowed}
    message = build_message(json.dumps(about), **header)
    if most is None or len(message) <= most:
        return message
    return build_message(json.dumps(about | {"before": None, "after": None, "shortened": True}), **header)


def _post(event: AuditEvent, name: str, now: datetime) -> None:
    channel = Channel.objects.filter(name=name).first()
    if channel is None or channel.kind != "webhook":
        raise NotSent(f"There is no webhook channel named {name}.")
    if channel.disabled_at is not None:
        raise NotSent(f"The channel is disabled: {channel.why_disabled}")
    about = document(event)
    body = {"type": "audit.recorded", "timestamp": about["when"], "data": about}
    try:
        request = formats.build_webhook(channel, f"audit-{event.pk}-{event.mac[:12]}", body, now)
    except (sealing.CannotOpen, BadAddress, ValueError) as error:
        raise NotSent(str(error)) from error
    answer = posting.send(request, config.webhook_allow())
    if answer.status is None or not 200 <= answer.status < 300:
        raise NotSent(answer.error or f"The endpoint answered {answer.status}.")
