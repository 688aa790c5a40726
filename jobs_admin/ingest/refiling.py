"""Filing of reports that were stored raw (`Unfiled`): those that an operator accepted, and those of a newer guard.

A fleet is upgraded in any order. Reports that the desk could not read yet are retried by each `watch` when it starts:
either its version can read them, or they stay stored for the next.
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
from jobs_admin.trust import Cause, unsealing

_AT_ONCE = 20
_BYTES_AT_ONCE = 32 * 2**20

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Position:
    """Progress of this process: everything stored when it started is tried once."""

    at: int = 0
    until: int | None = None


_position = _Position()


def restart() -> None:
    """Try all of them again, like a process that has just started."""
    _position.at, _position.until = 0, None


def step() -> bool:
    """File the next accepted or now readable reports.

    Return True while there are more. Idempotent, also after a crash.
    """
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
    """Yield rows individually, up to a limit in bytes: a report may contain a message of 16 MB."""
    size = 0
    for number, row in found.values_list("id", "size")[:_AT_ONCE]:
        if size and size + row > _BYTES_AT_ONCE:
            return
        size += row
        if row_found := Unfiled.objects.filter(pk=number).first():
            yield row_found


def _file_accepted(unfiled: Unfiled) -> None:
    """File a report without verifying its signature. If that fails, it is stored like any other unfiled report."""
    try:
        fields, key = unsealing.decode_entry(config.payload_keys().decrypt(bytes(unfiled.body)))
    except (InvalidToken, ValueError) as error:
        why = f"{unfiled.why}; to be filed, but it cannot be opened: {type(error).__name__}"
        Unfiled.objects.filter(pk=unfiled.pk).update(cause="", why=why[:2000])
        return
    with unsealing.stored_key(key):
        filed = ingest.file([ingest.Entry.of_name(unfiled.entry_id, fields)], is_trusted=True)
    row = Unfiled.objects.filter(pk=unfiled.pk)
    if filed.known_unfiled or filed.left:  # the row has the new reason
        row.update(cause="")
    else:
        row.delete()


def _file_again(unfiled: Unfiled) -> bool:
    try:
        fields, key = unsealing.decode_entry(config.payload_keys().decrypt(bytes(unfiled.body)))
        with unsealing.stored_key(key):
            unsealing.opened(decode(fields))
    except (Unreadable, InvalidToken, ValueError):
        return False
    with unsealing.stored_key(key):
        filed = ingest.file([ingest.Entry.of_name(unfiled.entry_id, fields)])
    # Not if it was refused again: its row has the new reason.
    return not (filed.known_unfiled or filed.left) and bool(Unfiled.objects.filter(pk=unfiled.pk).delete()[0])
