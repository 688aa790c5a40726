"""Audit of acts and refusals: a hash chain in which no row can be changed, moved, added or removed unnoticed."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from jobs_admin.core.text import representable, whole_number
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import AUDITOR, Viewer

# Identifies the lock under which the chain grows (PostgreSQL's advisory locks are numbers).
_CHAIN_LOCK = 0x7265_6472_6976_6500
_FIRST = "0" * 64
COUNT_CAP = 10_000


def record(
    viewer: Viewer,
    act: str,
    object: str = "",
    *,
    source: str = "",
    reason: str = "",
    before: Any = None,
    after: Any = None,
    allowed: bool = True,
) -> AuditEvent:
    """Record an act (`replay.start`) or its refusal (`allowed=False`), in the transaction of the act itself.

    Raises TransactionManagementError outside a transaction: an act and its record must be committed together.
    """
    entry = Entry(object, source=source, reason=reason, before=before, after=after, allowed=allowed)
    return record_all(viewer, act, [entry])[0]


@dataclass(frozen=True, slots=True)
class Entry:
    """Audit entry for one object of an act."""

    object: str = ""
    source: str = ""
    reason: str = ""
    before: Any = None
    after: Any = None
    allowed: bool = True


def record_all(viewer: Viewer, act: str, entries: Sequence[Entry]) -> list[AuditEvent]:
    """Record one act on many objects, in two statements. The rows get consecutive ids.

    Lock the rows that the act changes before this call: a process that holds the chain and waits for a row could
    deadlock with one that holds the row and waits for the chain.
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            "audit.record must run inside the transaction of the act it records."
        )
    if not entries:
        return []
    now = timezone.now()
    events = [
        AuditEvent(
            at=now,
            actor=representable(viewer.name)[:150],
            user_id=viewer.person_id,
            token_id=viewer.token_id,
            act=act[:60],
            source=representable(entry.source)[:63],
            object=representable(entry.object)[:120],
            reason=representable(_reason(viewer, entry))[:500],
            before=_plain(entry.before),
            after=_plain(_after(viewer, entry)),
            allowed=entry.allowed,
        )
        for entry in entries
    ]
    _lock_chain()
    mac = AuditEvent.objects.order_by("-id").values_list("mac", flat=True).first() or _FIRST
    for event in events:
        event.mac = mac = _mac(mac, event)
    return AuditEvent.objects.bulk_create(events)


def _reason(viewer: Viewer, entry: Entry) -> str:
    return f"Through {viewer.through}. {entry.reason}".rstrip() if viewer.through else entry.reason


def _after(viewer: Viewer, entry: Entry) -> Any:
    """Return `after` with the program in which the person acted: a reason could be typed as "Through Slack."."""
    return {**(entry.after or {}), "through": viewer.through} if viewer.through else entry.after


@dataclass(frozen=True, slots=True)
class AuditPage:
    rows: list[AuditEvent]
    next: str | None  # `after` of the next page; None on the last
    count: int  # of all matches, at most COUNT_CAP
    count_is_capped: bool


def find_events(viewer: Viewer, *, act: str = "", object: str = "") -> QuerySet[AuditEvent]:
    """Return the events of the sources whose audit the viewer may read; all for an auditor of every source.

    `act` matches by prefix (`replay` finds `replay.start`), `object` exactly (`replay:12`).
    """
    sources = viewer.sources(AUDITOR)
    found = AuditEvent.objects.all() if sources is None else AuditEvent.objects.filter(source__in=sources)
    if act:
        found = found.filter(act__startswith=act)
    return found.filter(object=object) if object else found


def list_events(
    viewer: Viewer, *, act: str = "", object: str = "", after: str | None = None, limit: int = 50
) -> AuditPage:
    """Return a page of `find_events`, latest first. An invalid `after` returns the first page."""
    found = find_events(viewer, act=act, object=object).order_by("-id")
    total = found[: COUNT_CAP + 1].count()
    if (below := whole_number(after)) is not None:
        found = found.filter(pk__lt=below)
    rows = list(found[: limit + 1])
    next_after = str(rows[limit - 1].pk) if len(rows) > limit else None
    return AuditPage(rows[:limit], next_after, min(total, COUNT_CAP), total > COUNT_CAP)


def verify() -> int | None:
    """Return the id of the first row that does not follow from the previous one; None if the chain is intact.

    Finds rows that were changed, moved, added or removed. Rows removed at the end leave a shorter intact chain, which
    `audit_anchor` detects.
    """
    previous = _FIRST
    for event in AuditEvent.objects.order_by("id").iterator(chunk_size=1000):
        if not hmac.compare_digest(event.mac, _mac(previous, event)):
            return event.pk
        previous = event.mac
    return None


def _lock_chain() -> None:
    """Let one transaction at a time append, until it ends: two would both follow the same row.

    SQLite's write transactions are serial already (BEGIN IMMEDIATE).
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_CHAIN_LOCK])


def _mac(previous: str, event: AuditEvent) -> str:
    facts = {
        "at": event.at.astimezone(UTC).isoformat(),
        "actor": event.actor,
        "user": event.user_id,
        "token": event.token_id,
        "act": event.act,
        "source": event.source,
        "object": event.object,
        "reason": event.reason,
        "before": _plain(event.before),
        "after": _plain(event.after),
        "allowed": event.allowed,
    }
    # A project's user ids need not be numbers; they may be UUIDs.
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hmac.new(_key(), f"{previous}\n{text}".encode(), hashlib.sha256).hexdigest()


def sign(text: str) -> str:
    """Return a MAC of this text under the chain's key, for the anchor outside the database."""
    return hmac.new(_key(), f"anchor\n{text}".encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    return hmac.new(settings.SECRET_KEY.encode(), b"redrive audit chain 1", hashlib.sha256).digest()


def _plain(value: Any) -> Any:
    """Return a value that both databases return exactly as stored."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        # PostgreSQL stores JSON numbers as decimals, not floats: 50.0 may be returned as 50, and NaN is refused.
        return int(value) if value.is_integer() else value if value == value and abs(value) < 1e300 else str(value)
    if isinstance(value, dict):
        return {representable(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return representable(str(value))
