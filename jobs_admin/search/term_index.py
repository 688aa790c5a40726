"""Queries of the term index, in the syntax of either database.

An expression matches exactly the intended rows; it contains Redrive's own terms, never user text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from django.db import connection, transaction
from django.db.models import BooleanField, F, Func

from jobs_admin.core.search_terms import Phrase
from jobs_admin.models.terms import FAILURES


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Rows that match any of these; no row if empty."""

    of: tuple[IndexQuery, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """Rows that match all of `of` (at least one) and none of `but`."""

    of: tuple[IndexQuery, ...]
    but: tuple[IndexQuery, ...] = ()


IndexQuery: TypeAlias = Phrase | AnyOf | AllOf

# Matches no document: a word always has letters.
_NOTHING = Phrase(("!nothing",))


def any_of(of: Iterable[IndexQuery]) -> IndexQuery:
    found = tuple(dict.fromkeys(of))
    return found[0] if len(found) == 1 else AnyOf(found or (_NOTHING,))


def all_of(of: Iterable[IndexQuery], but: Iterable[IndexQuery] = ()) -> IndexQuery:
    found, without = tuple(dict.fromkeys(of)), tuple(dict.fromkeys(but))
    return found[0] if len(found) == 1 and not without else AllOf(found, without)


def expression(index_query: IndexQuery) -> str:
    """Return the expression for the current database: a parameter of `MATCH` or `@@`."""
    return fts5(index_query) if connection.vendor == "sqlite" else tsquery(index_query)


def fts5(index_query: IndexQuery) -> str:
    if isinstance(index_query, Phrase):
        return f'"{" ".join(index_query.terms)}"{"*" if index_query.prefix else ""}'
    if isinstance(index_query, AnyOf):
        return f"({' OR '.join(fts5(one) for one in index_query.of)})"
    found = " AND ".join(fts5(one) for one in index_query.of)
    return f"(({found}) NOT {fts5(any_of(index_query.but))})" if index_query.but else f"({found})"


def tsquery(index_query: IndexQuery) -> str:
    if isinstance(index_query, Phrase):
        *before, last = index_query.terms
        return "(" + " <-> ".join([*(f"'{t}'" for t in before), f"'{last}'{':*' if index_query.prefix else ''}"]) + ")"
    if isinstance(index_query, AnyOf):
        return f"({' | '.join(tsquery(one) for one in index_query.of)})"
    parts = [*(tsquery(one) for one in index_query.of), *(f"!{tsquery(one)}" for one in index_query.but)]
    return f"({' & '.join(parts)})"


def key_column(table: str = FAILURES) -> str:
    return f"{table}.{'rowid' if connection.vendor == 'sqlite' else 'id'}"


def match_condition(table: str = FAILURES) -> str:
    """Return the condition, with the text of `expression` as its parameter."""
    if connection.vendor == "sqlite":
        return f"{table} MATCH %s"
    return f"{table}.terms @@ %s::tsquery"


class InIndex(Func):
    """Condition that the row with this key matches a query of the term index."""

    output_field = BooleanField()
    arity = 1

    def __init__(self, index_query: IndexQuery, table: str = FAILURES, field: str = "pk") -> None:
        super().__init__(F(field))
        self.index_query, self.table = index_query, table

    def __repr__(self) -> str:
        return f"InIndex({self.index_query!r})"

    def as_sql(self, compiler, connection, **more):
        column, parameters = compiler.compile(self.source_expressions[0])
        inside = f"SELECT {key_column(self.table)} FROM {self.table} WHERE {match_condition(self.table)}"
        return f"({column} IN ({inside}))", [*parameters, expression(self.index_query)]


@contextmanager
def prefer_term_index(are_most_in_scope: bool, *, ordered: bool) -> Iterator[None]:
    """Make PostgreSQL use its term index instead of scanning all documents for a word.

    If most failures are in scope, it looks up each hit instead of first reading all failures in scope.
    """
    if connection.vendor != "postgresql":
        yield
        return
    joins = "off" if are_most_in_scope else "on"
    settings = {
        "enable_seqscan": "off",
        # With an order, documents could be scanned by id. A count has no order and reads states from an index alone;
        # otherwise every failure in another state would be read.
        "enable_indexscan": "off" if ordered else "on",
        "work_mem": "'32MB'",
        "max_parallel_workers_per_gather": "0",  # starting a second process takes longer than most searches
        "jit": "off",  # so does compiling
        "enable_hashjoin": joins,
        "enable_mergejoin": joins,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items()))
        yield
        cursor.execute("; ".join(f"RESET {name}" for name in settings))
