"""Filing of reports that were stored raw (`Unfiled`): those that a person accepted, and those of a newer guard.

A fleet is upgraded in any order. Reports from before the desk could read them are tried again by each `watch` that
starts: it runs the version that can read them, or they stay stored for the next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography.fernet import InvalidToken
from django.db.models import Q, QuerySet

from jobs_admin import config, ingest
from jobs_admin.core.envelope import READABLE_LATER, Unreadable, decode
from jobs_admin.models import Unfiled
from jobs_admin.trust import Cause, raw_entries, unsealing

_AT_ONCE = 20
_BYTES_AT_ONCE = 32 * 2**20

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Position:
    """Progress of this process: everything that was there when it began is tried once."""

    at: int = 0
    until: int | None = None


_position = _Position()


def restart() -> None:
    """Try all of them again, as a process that starts does."""
    _position.at, _position.until = 0, None


def step() -> bool:
    """File the next few accepted or now readable ones; True while there are more. Idempotent, whoever dies."""
    accepted = list(_next_rows(Unfiled.objects.filter(cause=Cause.ACCEPTED).order_by("id")))
    for row in accepted:
        _file_accepted(row)
    if accepted:
        return True
    from_newer_guard = Q()
    for words in READABLE_LATER:
        from_newer_guard |= Q(cause="", why__startswith=words)
    found = Unfiled.objects.filter(from_newer_guard).order_by("id")
    if _position.until is None:
        _position.until = found.order_by("-id").values_list("id", flat=True).first() or 0
    seen, filed = 0, 0
    for row in _next_rows(found.filter(id__gt=_position.at, id__lte=_position.until)):
        seen += 1
        filed += _file_again(row)
        _position.at = row.id
    if filed:
        log.info("%d reports of a newer guard, kept until they could be read, are filed.", filed)
    return seen > 0


def _next_rows(found: QuerySet[Unfiled]) -> Iterator[Unfiled]:
    """Rows one at a time, up to a bound of bytes: a report may hold a message of 16 MB."""
    size = 0
    for number, row in found.values_list("id", "size")[:_AT_ONCE]:
        if size and size + row > _BYTES_AT_ONCE:
            return
        size += row
        if row_found := Unfiled.objects.filter(pk=number).first():
            yield row_found


def _file_accepted(unfiled: Unfiled) -> None:
    """File a report without a check of its signature. If that fails, it is stored as any other such report."""
    try:
        fields, key = raw_entries.decode(config.payload_keys().decrypt(bytes(unfiled.body)))
    except (InvalidToken, ValueError) as error:
        why = f"{unfiled.why}; to be filed, but it cannot be opened: {type(error).__name__}"
        Unfiled.objects.filter(pk=unfiled.pk).update(cause="", why=why[:2000])
        return
    with unsealing.stored_key(key):
        ingest.file([ingest.Entry.of_name(unfiled.entry_id, fields)], is_trusted=True)
    row = Unfiled.objects.filter(pk=unfiled.pk)
    if not row.filter(why=unfiled.why).delete()[0]:  # it was refused for another reason, which is in its row now
        row.update(cause="")


def _file_again(unfiled: Unfiled) -> bool:
    try:
        fields, key = raw_entries.decode(config.payload_keys().decrypt(bytes(unfiled.body)))
        with unsealing.stored_key(key):
            unsealing.opened(decode(fields))
    except (Unreadable, InvalidToken, ValueError):
        return False
    with unsealing.stored_key(key):
        ingest.file([ingest.Entry.of_name(unfiled.entry_id, fields)])
    # Not where it was refused for another reason: its row has that now.
    return bool(Unfiled.objects.filter(pk=unfiled.pk, why=unfiled.why).delete()[0])
