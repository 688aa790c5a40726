"""Rebuilding of the search index for rows that ingest did not write, or that were indexed by other rules.

Short transactions, latest rows first, so that search is soon complete for recent failures. Each transaction continues
where the previous one ended, in any process. Ingest continues meanwhile and indexes new rows by the current rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection, transaction
from django.db.models import Max

from jobs_admin.core import search_terms
from jobs_admin.ingest.filing import search_document
from jobs_admin.models import Failure, Traceback
from jobs_admin.models.terms import FAILURES, STACKS, STATE, write_failures, write_stacks

AT_ONCE = {FAILURES: 300, STACKS: 20}  # rows per transaction: SQLite allows no other writer meanwhile
_MODELS = {FAILURES: Failure, STACKS: Traceback}
_COLUMNS = (
    "id",
    "first_job_id",
    "job_id",
    "traceback_id",
    "error_type",
    "message",
    "args",
    "kwargs",
    "headers",
    "event_id",
    *search_terms.NAMED,
)


def step() -> bool:
    """Rebuild the next rows. Return False if every row is indexed by the current rules."""
    for table in (STACKS, FAILURES):
        with transaction.atomic():
            version, below = _read_progress(table, is_locked=True)
            if version == search_terms.VERSION:
                continue
            done = _index_rows(table, below)
            _save_progress(table, *((0, done) if done is not None else (search_terms.VERSION, None)))
            return True
    return False


def is_complete(table: str) -> bool:
    """Return whether every row of the table is indexed by the current rules."""
    return _read_progress(table)[0] == search_terms.VERSION


def mark_all_outdated() -> None:
    """Mark every row to be rebuilt."""
    for table in AT_ONCE:
        _save_progress(table, 0, None)


def count_outdated() -> int:
    """Return the approximate number of rows still to be rebuilt."""
    total = 0
    for table in AT_ONCE:
        version, below = _read_progress(table)
        if version != search_terms.VERSION:
            rows = _MODELS[table].objects.all()
            total += (rows if below is None else rows.filter(pk__lt=below)).count()
    return total


def index(failures: Iterable[Failure]) -> None:
    """Index these failures and their stacks, however they were written."""
    pks = [failure.pk for failure in failures]
    for start in range(0, len(pks), AT_ONCE[FAILURES]):
        rows = Failure.objects.filter(pk__in=pks[start : start + AT_ONCE[FAILURES]])
        write_failures([(row["id"], search_document(row)) for row in rows.values(*_COLUMNS)])
        stacks = Traceback.objects.filter(pk__in=rows.values("traceback_id"))
        write_stacks([(pk, search_terms.stack_document(text)) for pk, text in stacks.values_list("pk", "text")])


def _index_rows(table: str, below: int | None) -> int | None:
    """Index the next rows below this id. Return the lowest of them; None if there were none."""
    rows = _MODELS[table].objects.order_by("-pk")
    if below is None:
        below = (rows.aggregate(highest=Max("pk"))["highest"] or 0) + 1
    rows = rows.filter(pk__lt=below)[: AT_ONCE[table]]
    if table == STACKS:
        stacks = list(rows.values_list("pk", "text"))
        write_stacks([(pk, search_terms.stack_document(text)) for pk, text in stacks])
        return min((pk for pk, _ in stacks), default=None)
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(no_key=True)  # do not overwrite concurrent writes of ingest
    failures = list(rows.values(*_COLUMNS))
    write_failures([(row["id"], search_document(row)) for row in failures])
    return min((row["id"] for row in failures), default=None)


def _read_progress(table: str, *, is_locked: bool = False) -> tuple[int, int | None]:
    lock = " FOR UPDATE" if is_locked and connection.features.has_select_for_update else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT version, below FROM {STATE} WHERE name = %s{lock}", [table])
        return cursor.fetchone() or (0, None)


def _save_progress(table: str, version: int, below: int | None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {STATE} SET version = %s, below = %s WHERE name = %s", [version, below, table])
