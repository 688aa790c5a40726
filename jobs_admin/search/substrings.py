"""Trigram filters of blocks of failures, and text search with them.

`step` builds filters in the background, in short transactions: first of blocks whose failures changed, then of new
blocks, then of older ones, latest first. The last block has none until its ids are used up. A search compares the rows
of blocks without a filter, so results are exact at any time. Matches are compared part by part until enough are found.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

from django.db import OperationalError, connection, transaction

from jobs_admin.core import query as language
from jobs_admin.core import trigrams
from jobs_admin.core.query import All, Any, Match, Term, Text
from jobs_admin.core.trigrams import Required, require_all, require_any
from jobs_admin.db import turns
from jobs_admin.db.statements import fetch_number, fetch_rows
from jobs_admin.models import Failure
from jobs_admin.models.terms import STATE
from jobs_admin.models.text_filters import BLOCK, COLUMNS, FILTERS, LOCK, STALE

_AT_ONCE = 32  # blocks per transaction, fewer if they take long: no other process can write failures during it
_TRANSACTION_S = 0.06
_READ_AT_ONCE = 2_000  # filters
_LONG_GAP = 64  # blocks without a filter, beyond which the existence of failures is checked
_WAIT_MS = 200  # maximum wait for writers of failures, on PostgreSQL
_LOCK_NOT_AVAILABLE = "55P03"

_TABLE = Failure._meta.db_table
_WORD = re.compile("[A-Za-z0-9]")

_NAMES = ("tenant", "release", "host", "worker")


# -- filling ----------------------------------------------------------------------------------------------------

_MERGED = 256  # matches of several sides merged at once


def step() -> bool:
    """Build filters for the next few blocks; return False if there are none, or writers blocked it for too long."""
    if not _next_blocks():
        return False
    began = time.monotonic()
    try:
        with transaction.atomic():
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL lock_timeout = {_WAIT_MS}")
                    cursor.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
            if not (blocks := _next_blocks()) or not _is_by_these_rules():
                return False
            _fill(blocks)
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", "") != _LOCK_NOT_AVAILABLE:
            raise
        return False
    turns.rest(began)
    return True


def _is_by_these_rules() -> bool:
    """Return whether the filters follow this version's rules: False after a newer release has migrated the database."""
    return fetch_number(f"SELECT version FROM {STATE} WHERE name = %s", [FILTERS]) == trigrams.VERSION


def is_complete() -> bool:
    """Return whether every complete block has a filter."""
    return not _next_blocks()


def clear() -> None:
    """Delete every filter, so that `step` rebuilds them."""
    with transaction.atomic(), connection.cursor() as cursor:
        for table in (FILTERS, STALE):
            cursor.execute(f"DELETE FROM {table}")


def count_unfilled() -> int:
    """Approximate number of failures that no filter covers."""
    lowest, highest = _edges()
    top = (fetch_number("SELECT MAX(id) FROM " + _TABLE) or 0) // BLOCK
    newer = 0 if highest is None else max(0, top - highest - 1)
    older = (
        fetch_number(f"SELECT COUNT(*) FROM {_TABLE} WHERE id < %s", [(top if lowest is None else lowest) * BLOCK]) or 0
    )
    stale = fetch_number(f"SELECT COUNT(DISTINCT block) FROM {STALE}") or 0
    return older + (newer + stale) * BLOCK


def _next_blocks() -> Sequence[int]:
    if stale := [
        row[0] for row in fetch_rows(f"SELECT DISTINCT block FROM {STALE} ORDER BY block DESC LIMIT {_AT_ONCE}")
    ]:
        return stale
    lowest, highest = _edges()
    full = (fetch_number(f"SELECT MAX(id) FROM {_TABLE}") or 0) // BLOCK  # the last block is not complete
    if lowest is None or highest is None:
        lowest = full
    elif (newer := fetch_number(f"SELECT MIN(id) FROM {_TABLE} WHERE id >= %s", [(highest + 1) * BLOCK])) is not None:
        first = newer // BLOCK
        if first < full:
            return range(first, min(first + _AT_ONCE, full))
    older = fetch_number(f"SELECT MAX(id) FROM {_TABLE} WHERE id < %s", [lowest * BLOCK])
    if older is None:
        return ()
    last = older // BLOCK
    return range(last, max(-1, last - _AT_ONCE), -1)


def _edges() -> tuple[int | None, int | None]:
    """Return the lowest and the highest block with a filter."""
    return fetch_number(f"SELECT MIN(block) FROM {FILTERS}"), fetch_number(f"SELECT MAX(block) FROM {FILTERS}")


def _fill(blocks: Sequence[int]) -> None:
    """Build the filters of these blocks in order, as many as the time allows but at least one."""
    ends, done, filters = time.monotonic() + _TRANSACTION_S, [], []
    columns = ", ".join(COLUMNS)
    for block in blocks:
        rows = fetch_rows(
            f"SELECT {columns} FROM {_TABLE} WHERE id BETWEEN %s AND %s", [block * BLOCK, (block + 1) * BLOCK - 1]
        )
        done.append([block])
        if rows:
            filters.append([block, trigrams.build_filter({text for row in rows for text in _texts(*row)})])
        if time.monotonic() > ends:
            break
    with connection.cursor() as cursor:
        for table in (FILTERS, STALE):
            cursor.executemany(f"DELETE FROM {table} WHERE block = %s", done)
        cursor.executemany(f"INSERT INTO {FILTERS} (block, filter) VALUES (%s, %s)", filters)


def _texts(error_type: str, message: str, *more: str) -> Iterator[str]:
    """Return the searchable texts of a failure."""
    yield f"{error_type}: {message}"
    yield from more[: len(_NAMES)]
    for job_id in more[len(_NAMES) :]:
        if not _WORD.search(job_id):  # an id with words is in the term index
            yield job_id


# -- required trigrams --------------------------------------------------------------------------------------------


def required(term: Term) -> Required | None:
    """Return the trigrams that a failure must have to match the term; None if the term requires none."""
    if isinstance(term, All):
        return require_all(required(one) for one in term.of)
    if isinstance(term, Any):
        return require_any(required(one) for one in term.of)
    if term.negated or not language.is_scanned(term):
        return None
    if isinstance(term, Text):
        return _required_text(term.value, term.glob)
    if not isinstance(term, Match) or term.field == "trace":
        return None  # a stack is shared by many failures: no filter contains its text
    if term.field in language.CONTAINED and not all(is_without_words(v.text, v.glob) for v in term.values):
        return None
    return require_any(_required_text(v.text, v.glob) for v in term.values)


def is_unfiltered(term: Term) -> bool:
    """Return whether part of the term is text that no filter contains: under three characters, or of a stack."""
    return any(
        language.is_scanned(leaf) and required(replace(leaf, negated=False)) is None
        for leaf in language.leaves((term,))
        if isinstance(leaf, Text | Match)
    )


def is_without_words(text: str, glob: bool) -> bool:
    return language.is_scanned(Text(text, glob))


def _required_text(text: str, glob: bool) -> Required | None:
    found = trigrams.hash_trigrams(text.split("*") if glob else [text])
    return Required(frozenset(found)) if found else None


# -- candidates ---------------------------------------------------------------------------------------------------


def find_blocks(needed: Required | None, below: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of blocks (first, last), in descending order, that may contain a match with an id below `below`."""
    test = trigrams.build_test(needed) if needed is not None else _always
    # Read before the filters: the transaction that rebuilds a filter also deletes its mark.
    stale = {row[0] for row in fetch_rows(f"SELECT block FROM {STALE}")}
    last = (below - 1) // BLOCK  # the highest block not yet checked
    while rows := fetch_rows(
        f"SELECT block, filter FROM {FILTERS} WHERE block <= %s ORDER BY block DESC LIMIT {_READ_AT_ONCE}", [last]
    ):
        for block, found in rows:
            if block < last:
                yield from _gap(block + 1, last)
            if block in stale or test(bytes(found)):
                yield block, block
            last = block - 1
    yield from _gap(0, last)


def _always(_: bytes) -> bool:
    return True


def _gap(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Return the blocks without filters from `first` to `last`, except long runs without failures."""
    while first <= last:
        if last - first >= _LONG_GAP:
            highest = fetch_number(f"SELECT MAX(id) FROM {_TABLE} WHERE id < %s", [(last + 1) * BLOCK])
            if highest is None or highest // BLOCK < first:
                return
            last = highest // BLOCK
        low = max(first, last - _LONG_GAP + 1)
        yield low, last
        last = low - 1


def take_blocks(ranges: Iterator[tuple[int, int]], most: int) -> list[int]:
    """Return about `most` of the next blocks of these ranges; none at the end."""
    found: list[int] = []
    while len(found) < most and (one := next(ranges, None)) is not None:
        first, last = one
        found += range(last, first - 1, -1)
    return found


def join_blocks(blocks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the id ranges of blocks given in descending order, with adjacent blocks joined."""
    found: list[tuple[int, int]] = []
    for block in blocks:
        low, high = block * BLOCK, (block + 1) * BLOCK - 1
        if found and found[-1][0] == high + 1:
            found[-1] = low, found[-1][1]
        else:
            found.append((low, high))
    return found


@dataclass(frozen=True, slots=True)
class Compared:
    """Result of comparing one part of the failures."""

    matches: list[int]  # highest first
    number: int  # number of failures compared, at most


class Matches:
    """Matches of a text search, highest id first, found on demand."""

    def __init__(self, parts: Iterator[Compared]) -> None:
        self.found: list[int] = []
        self.compared = 0
        self.is_complete = False
        self._parts = parts

    def read(self, limit: int) -> list[int]:
        self.count(limit)
        return self.found[:limit]

    def count(self, most: int, *, compared: int | None = None) -> int:
        """Return the number of matches, counted up to `most`, or fewer once `compared` failures have been compared."""
        while len(self.found) < most and not self.is_complete and (compared is None or self.compared < compared):
            if (part := next(self._parts, None)) is None:
                self.is_complete = True
            else:
                self.found += part.matches
                self.compared += part.number
        return len(self.found) if self.is_complete else min(len(self.found), most)


def merge(sides: Sequence[Iterator[Compared]]) -> Iterator[Compared]:
    """Yield the matches of any side, highest first, each once."""
    each = [(pk for part in side for pk in part.matches) for side in sides]
    merged = (pk for pk, _ in groupby(heapq.merge(*each, reverse=True)))
    while found := list(islice(merged, _MERGED)):
        yield Compared(found, len(found))
