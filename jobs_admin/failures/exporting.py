"""Export of a search as a file: the redacted copy of every matching failure, streamed with bounded memory.

Rows come latest first, in batches by key, from the failures that existed when the export began. Each has its state when
its batch is read. The columns keep their names and order; new ones come at the end.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from django.db import transaction
from django.db.models import Max

from jobs_admin import failures
from jobs_admin.core import query as language
from jobs_admin.db import audit
from jobs_admin.models import Failure
from jobs_admin.models.access import Viewer
from jobs_admin.models.group import TAKEN_IN
from jobs_admin.search import scope
from jobs_admin.search.failure_search import FailureSearch

log = logging.getLogger(__name__)

AT_ONCE = 500
COLUMNS = (
    "id", "source", "queue", "task", "job_id", "first_job_id", "run", "state", "kind", "reason", "error_type",
    "message", "fingerprint", "attempts", "max_attempts", "due_at", "first_failed_at", "failed_at", "received_at",
    "worker", "host", "tenant", "priority", "release", "args", "kwargs", "redacted",
)  # fmt: skip
_TIMES = {"due_at", "first_failed_at", "failed_at", "received_at"}
_JSON = {"args", "kwargs"}
# A cell that begins so is a formula to spreadsheets.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

FORMS = {"jsonl": "application/x-ndjson; charset=utf-8", "csv": "text/csv; charset=utf-8; header=present"}


def stream(viewer: Viewer, text: str, form: str, *, now: datetime | None = None) -> Iterator[bytes]:
    """Yield the file in pieces; `form` is one of FORMS.

    The last line marks the end, with the number of failures: `{"end": true, "failures": n}`, or in CSV a record of
    `end` and the number. A file without it was cut off; one that had to be cut has `false`, or `cut`. If only the
    latest could be searched (no index serves the search) it also has their number: `"searched": 5000`, or the third
    value of the record.
    """
    now = now or datetime.now(UTC)
    query = language.pin(language.parse(text, now), now)
    writer = {"jsonl": _Jsonl, "csv": _Csv}[form]()
    below = (Failure.objects.aggregate(highest=Max("pk"))["highest"] or 0) + 1
    count = 0
    yield writer.head()
    try:
        search = FailureSearch(viewer, query)
        searched = search.searched
        while ids := search.ids(below, AT_ONCE):
            batch = _batch(viewer, ids)
            yield writer.rows(batch)
            count += len(batch)
            below = ids[-1]
    except Exception:
        # The answer is under way and its status sent; web servers end it as if it were whole. So the file has to say it.
        log.exception("An export of %r broke off after %d failures", text[:200], count)
        yield writer.end(count, is_complete=False)
        return
    yield writer.end(count, searched=searched)


def note(viewer: Viewer, text: str, form: str) -> None:
    """Write down who takes what out of the desk."""
    count = failures.count(viewer, language.parse(text))
    with transaction.atomic():
        after = {"query": text, "form": form, "count": count.number, "count_is_capped": count.is_capped}
        after["count_is_estimate"] = count.is_estimate
        audit.record(viewer, "failures.export", "failures", after=after)


def _batch(viewer: Viewer, ids: list[int]) -> list[dict[str, object]]:
    wanted = ["group__fingerprint" if name == "fingerprint" else name for name in COLUMNS]
    rows = Failure.objects.filter(scope.visible(viewer), pk__in=ids).order_by("-pk").values_list(*wanted)
    return [dict(zip(COLUMNS, map(_plain, COLUMNS, row), strict=True)) for row in rows]


def _plain(name: str, value: object) -> object:
    if name == "fingerprint" and isinstance(value, str):
        return value.removeprefix(TAKEN_IN)
    if name in _TIMES and value is not None:
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


class _Jsonl:
    def head(self) -> bytes:
        return b""

    def rows(self, batch: list[dict[str, object]]) -> bytes:
        return b"".join(_line(_read(row)) for row in batch)

    def end(self, count: int, *, is_complete: bool = True, searched: int | None = None) -> bytes:
        searched_part = {"searched": searched} if searched is not None else {}
        return _line({"end": is_complete, "failures": count, **searched_part})


def _line(value: dict[str, object]) -> bytes:
    return f"{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n".encode("utf-8", "backslashreplace")


def _read(row: dict[str, object]) -> dict[str, object]:
    """Arguments as JSON where the kept copy is whole; else the text as far as it goes."""
    return row | {name: _json(str(row[name])) for name in _JSON}


def _json(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse) if text else None
    except (ValueError, RecursionError):
        return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


class _Csv:
    def head(self) -> bytes:
        # Without a mark of UTF-8: programs would take it for part of the first column's name.
        return _lines([COLUMNS])

    def rows(self, batch: list[dict[str, object]]) -> bytes:
        return _lines([_cell(value) for value in row.values()] for row in batch)

    def end(self, count: int, *, is_complete: bool = True, searched: int | None = None) -> bytes:
        searched_part = "" if searched is None else searched
        return _lines([["end" if is_complete else "cut", count, searched_part, *[""] * (len(COLUMNS) - 3)]])


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\r\n").writerows(rows)  # RFC 4180
    return buffer.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: object) -> object:
    """Text that a spreadsheet would obey is kept from that by a quote in front. Numbers are ours."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value
