"""Export of a search as a file: the redacted copy of every matching failure, streamed with bounded memory.

Rows come latest first, in batches by key, from the failures that existed when the export started. Each has its state at
the time its batch is read. Names and order of the columns are stable; new columns are appended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.db.models import Max, OuterRef, Subquery, Value
from django.db.models.functions import Coalesce

from jobs_admin import failures
from jobs_admin.core import query as language
from jobs_admin.core.export_lines import FORMS, csv_cell, csv_lines, json_line
from jobs_admin.core.refused import Refused
from jobs_admin.core.trace_context import find_trace
from jobs_admin.db import audit
from jobs_admin.models import Failure, GroupSource
from jobs_admin.models.access import Viewer
from jobs_admin.models.group import TAKEN_IN
from jobs_admin.search import scope
from jobs_admin.search.failure_search import FailureSearch

__all__ = ["COLUMNS", "DEFAULT_COLUMNS", "FORMS", "note", "parse_columns", "stream"]

log = logging.getLogger(__name__)

AT_ONCE = 500
COLUMNS = (
    "id", "source", "queue", "task", "job_id", "first_job_id", "run", "state", "kind", "reason", "error_type",
    "message", "fingerprint", "attempts", "max_attempts", "due_at", "first_failed_at", "failed_at", "received_at",
    "worker", "host", "tenant", "priority", "release", "args", "kwargs", "redacted",
    "dependency", "trace_id", "event_id",
)  # fmt: skip
DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "trace_id")  # which needs the headers of each failure
_ALWAYS = ("id", "source", "queue")  # the record at the end of a CSV has three values and does not start with an id
_READ_FROM = {"fingerprint": "group__fingerprint", "trace_id": "headers"}
_JSON = {"args", "kwargs"}


def parse_columns(names: Collection[str]) -> Sequence[str]:
    """Return the columns with these names, plus id, source and queue, in the order of the file.

    If empty, DEFAULT_COLUMNS. Raises Refused for an unknown name.
    """
    if unknown := next((name for name in names if name not in COLUMNS), None):
        raise Refused("invalid", f"No column {unknown[:40]!r}. The columns are {', '.join(COLUMNS)}.", "columns")
    return tuple(name for name in COLUMNS if name in names or name in _ALWAYS) if names else DEFAULT_COLUMNS


def stream(
    viewer: Viewer, text: str, form: str, *, columns: Sequence[str] = DEFAULT_COLUMNS, now: datetime | None = None
) -> Iterator[bytes]:
    """Yield the file in pieces; `form` is one of FORMS, `columns` as returned by `parse_columns`.

    The last line marks the end and has the number of failures: `{"end": true, "failures": n}`, or in CSV a record of
    `end` and the number. A file without it is truncated; if the export had to stop early, it has `false`, or `cut`. If
    only the latest failures could be searched (no index serves the search), it also has their number: `"searched":
    5000`, or the third value of the record.
    """
    now = now or datetime.now(UTC)
    query = language.pin(language.parse(text, now), now)
    writer = {"jsonl": _Jsonl, "csv": _Csv}[form](columns)
    below = (Failure.objects.aggregate(highest=Max("pk"))["highest"] or 0) + 1
    count = 0
    yield writer.head()
    try:
        search = FailureSearch(viewer, query)
        searched = search.searched
        while ids := search.ids(below, AT_ONCE):
            batch = _batch(viewer, ids, columns)
            yield writer.rows(batch)
            count += len(batch)
            below = ids[-1]
    except Exception:
        # The status is already sent, and web servers end the response as if it were complete. So the file has to report
        # the failure.
        log.exception("An export of %r broke off after %d failures", text[:200], count)
        yield writer.end(count, is_complete=False)
        return
    yield writer.end(count, searched=searched)


def note(viewer: Viewer, text: str, form: str) -> None:
    """Record in the audit who exports which failures."""
    count = failures.count(viewer, language.parse(text))
    with transaction.atomic():
        after = {"query": text, "form": form, "count": count.number, "count_is_capped": count.is_capped}
        after["count_is_estimate"] = count.is_estimate
        audit.record(viewer, "failures.export", "failures", after=after)


def _batch(viewer: Viewer, ids: list[int], columns: Sequence[str]) -> list[dict[str, object]]:
    part = GroupSource.objects.filter(group=OuterRef("group"), source=OuterRef("source")).values("dependency")
    wanted = [_READ_FROM.get(name, name) for name in columns]
    found = Failure.objects.annotate(dependency=Coalesce(Subquery(part), Value("")))
    rows = found.filter(scope.visible(viewer), pk__in=ids).order_by("-pk").values_list(*wanted)
    return [dict(zip(columns, map(_plain, columns, row), strict=True)) for row in rows]


def _plain(name: str, value: object) -> object:
    if name == "fingerprint" and isinstance(value, str):
        return value.removeprefix(TAKEN_IN)
    if name == "trace_id" and isinstance(value, str):
        return trace.trace_id if (trace := find_trace(value)) else ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


class _Jsonl:
    def __init__(self, columns: Sequence[str]) -> None:
        self._arguments = _JSON & set(columns)

    def head(self) -> bytes:
        return b""

    def rows(self, batch: list[dict[str, object]]) -> bytes:
        return b"".join(
            json_line(row | {name: _parse_json(str(row[name])) for name in self._arguments}) for row in batch
        )

    def end(self, count: int, *, is_complete: bool = True, searched: int | None = None) -> bytes:
        searched_part = {"searched": searched} if searched is not None else {}
        return json_line({"end": is_complete, "failures": count, **searched_part})


def _parse_json(text: str) -> object:
    """Return stored arguments as JSON, or as text if the copy was truncated."""
    try:
        return json.loads(text, parse_constant=_refuse) if text else None
    except (ValueError, RecursionError):
        return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


class _Csv:
    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns

    def head(self) -> bytes:
        return csv_lines([self._columns])

    def rows(self, batch: list[dict[str, object]]) -> bytes:
        return csv_lines([csv_cell(value) for value in row.values()] for row in batch)

    def end(self, count: int, *, is_complete: bool = True, searched: int | None = None) -> bytes:
        searched_part = "" if searched is None else searched
        return csv_lines([["end" if is_complete else "cut", count, searched_part, *[""] * (len(self._columns) - 3)]])
