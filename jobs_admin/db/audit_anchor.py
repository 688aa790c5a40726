"""Anchor of the audit chain's head outside the database: in Redrive's store, the log of `watch`, and notices of alerts.

A chain whose latest rows were removed is a shorter chain without a break, which the anchor detects. `watch` writes the
latest row every ten seconds; the anchor produces findings for `watch`, `/readyz?strict=1`, the overview, `doctor` and
`manage.py audit`.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import redis
from django.db import transaction

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.db import audit
from jobs_admin.installation import COMMAND
from jobs_admin.models import AuditEvent, DepthSample
from jobs_admin.models.access import Viewer

log = logging.getLogger(__name__)

LOG_EVERY_S = 3600.0
_SAMPLED_EVERY = timedelta(seconds=10)
_SHORT_MAC = 16  # of 64 digits: without the key, no row with the same prefix can be searched for
_SHORT_HEAD = re.compile(r"(\d{1,18}):([0-9a-f]{16,64})")


@dataclass(frozen=True, slots=True)
class Head:
    """The latest row of the chain at some time."""

    id: int
    mac: str
    at: datetime  # of the row

    def signed(self) -> str:
        """Return signed JSON: write access to the store alone does not suffice to name another row."""
        facts = {"id": self.id, "mac": self.mac, "at": self.at.astimezone(UTC).isoformat()}
        return json.dumps(facts | {"signature": audit.sign(json.dumps(facts, sort_keys=True))})


@dataclass(frozen=True, slots=True)
class Finding:
    text: str
    fix: str
    since: datetime | None = None  # for a missing end: the time of the anchored row


class BadAnchor(Exception):
    """The anchor in the store is not of this desk: changed, or signed with another SECRET_KEY."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A missing end of the chain: the anchored row no longer exists."""

    anchor: Head
    head: Head | None  # None: the audit is empty
    has_later_records: (
        bool | None
    )  # rows of other tables, between the head and the anchor; None: the gap is too short to know


def head() -> Head | None:
    """Return the latest row; None if the audit is empty."""
    row = AuditEvent.objects.order_by("-id").first()
    return Head(row.pk, row.mac, row.at) if row is not None else None


def short_head() -> str:
    """Return the latest row as `number:MAC` with a shortened MAC, for notices; "" if the audit is empty."""
    latest = head()
    return f"{latest.id}:{latest.mac[:_SHORT_MAC]}" if latest else ""


def compare(text: str) -> Finding | None:
    """Return the finding if the audit lacks the row of a `short_head`. Raises ValueError for another text."""
    given = _SHORT_HEAD.fullmatch(text.strip())
    if given is None:
        raise ValueError(text)
    number, mac = int(given[1]), given[2]
    if AuditEvent.objects.filter(pk=number, mac__startswith=mac).exists():
        return None
    return Finding(f"{_end_text(head())}, but entry {number} with MAC {mac}… is missing or was replaced.", _ACCEPT)


def read() -> Head | None:
    """Return the anchor in the store; None if there is none. Raises BadAnchor and redis.RedisError."""
    text = config.store().get(keys.audit_head())
    if text is None:
        return None
    anchor = untrusted.read_object(text)
    try:
        signature = str(anchor.pop("signature"))
        found = Head(int(anchor["id"]), str(anchor["mac"]), datetime.fromisoformat(anchor["at"]))
    except (ValueError, TypeError, KeyError) as error:
        raise BadAnchor from error
    if not hmac.compare_digest(
        signature.encode("utf-8", "replace"), audit.sign(json.dumps(anchor, sort_keys=True)).encode()
    ):
        raise BadAnchor
    return found


def missing() -> Missing | None:
    """Return the evidence that the latest rows are gone; None if the anchored row exists, or none is anchored.

    Raises BadAnchor and redis.RedisError.
    """
    anchor = read()
    if anchor is None or AuditEvent.objects.filter(pk=anchor.id, mac=anchor.mac).exists():
        return None
    latest = head()
    since = latest.at if latest is not None else datetime.min.replace(tzinfo=UTC)
    later = None
    if anchor.at - since > 3 * _SAMPLED_EVERY:
        # While `watch` runs, queues are sampled every ten seconds. A restored backup has no samples from that time.
        later = DepthSample.objects.filter(at__gt=since + _SAMPLED_EVERY, at__lte=anchor.at).exists()
    return Missing(anchor, latest, later)


def advance() -> bool:
    """Anchor the latest row if the previously anchored row still exists. Return whether the anchor moved.

    Raises redis.RedisError. If rows are missing, the anchor stays, and so does the finding.
    """
    latest = head()
    try:
        before = read()
        if latest is None or before == latest or missing() is not None:
            return False
    except BadAnchor:
        return False
    if before is None and latest.id > 1:
        log.warning("The store had no anchor of the audit. A new one is set at entry %d.", latest.id)
    config.store().set(keys.audit_head(), latest.signed())
    return True


class _Logged:
    at = float("-inf")
    id = 0
    finding = ""


def step() -> None:
    """Move the anchor (a step of `watch`). Log a moved anchor once an hour, and a missing end when it is new.

    Raises redis.RedisError.
    """
    advance()
    finding = end_finding()
    if finding is not None and finding.text != _Logged.finding:
        log.error("%s %s", finding.text, finding.fix)
    _Logged.finding = finding.text if finding else ""
    latest = head()
    if latest is not None and latest.id != _Logged.id and time.monotonic() - _Logged.at > LOG_EVERY_S:
        log.info("Audit head: entry %d of %s, MAC %s", latest.id, latest.at.isoformat(), latest.mac)
        _Logged.at, _Logged.id = time.monotonic(), latest.id


def accept(viewer: Viewer, reason: str) -> Head:
    """Anchor the present end of the audit, such as after restoring a backup, and record this. Raises redis.RedisError."""
    store = config.store()
    try:
        before = read()
        was = {"id": before.id, "mac": before.mac, "at": before.at.isoformat()} if before else None
    except BadAnchor:
        was = {"unreadable": True}
    with transaction.atomic():
        event = audit.record(viewer, "audit.accept", "audit", reason=reason, before=was)
        accepted = Head(event.pk, event.mac, event.at)
        store.set(keys.audit_head(), accepted.signed())
    return accepted


def findings() -> list[Finding]:
    """Return findings about the audit: a broken chain, missing latest entries, an unreadable anchor. Reads all entries."""
    found = []
    broken = audit.verify()
    if broken is not None:
        text = f"The audit's chain breaks at entry {broken}. This entry or the one before was changed or removed."
        found.append(
            Finding(text, "Compare with a backup. After a change of SECRET_KEY, all older entries look changed.")
        )
    # If the store does not answer, the check of the store reports it.
    with suppress(redis.RedisError, config.BadConfiguration):
        if (end := end_finding()) is not None:
            found.append(end)
    return found


def end_finding() -> Finding | None:
    """Return the finding if the latest entries are missing or the anchor is unreadable; None otherwise.

    Costs two lookups.

    Raises redis.RedisError and config.BadConfiguration.
    """
    try:
        gap = missing()
    except BadAnchor:
        first = AuditEvent.objects.order_by("id").values_list("at", flat=True).first()
        text = "The audit's anchor in the store was written by another desk or with another SECRET_KEY."
        fix = f"Compare the end of the audit with the lines “Audit head” in watch's log and in notices. {_ACCEPT}"
        return Finding(text, fix, first)
    return Finding(_gap_text(gap), _ACCEPT, gap.anchor.at) if gap else None


_ACCEPT = f"If you know why, accept the current end: `{COMMAND} audit accept --reason …`."


def _gap_text(gap: Missing) -> str:
    text = f"{_end_text(gap.head)}, but entry {gap.anchor.id} of {_utc_text(gap.anchor.at)} is missing or was replaced."
    if gap.has_later_records is None:
        return f"{text} A restored backup or a power cut has the same effect."
    if gap.has_later_records:
        return (
            f"{text} The database has other records from the time between, so entries were removed only from the audit."
        )
    return f"{text} The database has no other records from the time between, as after a restored backup."


def _end_text(latest: Head | None) -> str:
    return f"The audit ends at entry {latest.id} of {_utc_text(latest.at)}" if latest else "The audit is empty"


def _utc_text(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
