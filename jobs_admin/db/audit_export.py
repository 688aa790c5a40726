"""The audit as a file, and one event as a document: in exports, in the API and for receivers of forwarded events."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC
from typing import Any

from django.db import transaction

from jobs_admin.core.export_lines import csv_cell, csv_lines, json_line
from jobs_admin.db import audit
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import Viewer

log = logging.getLogger(__name__)

COLUMNS = ("id", "when", "who", "act", "source", "object", "reason", "before", "after", "allowed", "mac")
_AT_ONCE = 500


def document(event: AuditEvent) -> dict[str, Any]:
    """Return an event as a JSON object with the keys COLUMNS. Keys may be added, and none is removed."""
    at = event.at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"id": event.pk, "when": at, "who": event.actor} | {name: getattr(event, name) for name in COLUMNS[3:]}


def stream(viewer: Viewer, form: str, *, act: str = "", object: str = "", after: int = 0) -> Iterator[bytes]:
    """Yield the file in pieces: the events that `audit.find_events` returns, with an id above `after`, oldest first.

    The last line marks the end and has the number of events: `{"end": true, "events": n}`, or in CSV a record of `end`
    and the number. A file without it is truncated; if the export had to stop early, it has `false`, or `cut`.
    """
    found = audit.find_events(viewer, act=act, object=object).order_by("pk")
    latest = found.values_list("pk", flat=True).last() or 0
    count = 0
    if form == "csv":
        yield csv_lines([COLUMNS])
    try:
        while events := list(found.filter(pk__gt=after, pk__lte=latest)[:_AT_ONCE]):
            documents = [document(event) for event in events]
            if form == "csv":
                yield csv_lines([_cell(value) for value in one.values()] for one in documents)
            else:
                yield b"".join(map(json_line, documents))
            count, after = count + len(events), events[-1].pk
    except Exception:
        # The status is already sent, so the file has to report the failure.
        log.exception("An export of the audit stopped after %d events", count)
        yield _end(form, count, is_complete=False)
        return
    yield _end(form, count)


def is_complete(end: bytes) -> bool:
    """Return whether the last piece of a file says that it has all events."""
    return end.startswith((b"end,", b'{"end":true'))


def note(viewer: Viewer, form: str, *, act: str = "", object: str = "") -> None:
    """Record in the audit who exports which part of it."""
    with transaction.atomic():
        audit.record(viewer, "audit.export", "audit", after={"form": form, "act": act, "object": object})


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return csv_cell(value)


def _end(form: str, count: int, *, is_complete: bool = True) -> bytes:
    if form == "csv":
        return csv_lines([["end" if is_complete else "cut", count, *[""] * (len(COLUMNS) - 2)]])
    return json_line({"end": is_complete, "events": count})
