"""Queries of the index of terms, in the syntax of either database.

An expression matches exactly the intended rows; it consists of our terms, never of a user's text.
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
    """Rows that one of them holds; without any, no row."""

    of: tuple[IndexQuery, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """Rows that every one of `of` holds, at least one, and none of `but`."""

    of: tuple[IndexQuery, ...]
    but: tuple[IndexQuery, ...] = ()


IndexQuery: TypeAlias = Phrase | AnyOf | AllOf

# No document holds a word without letters.
_NOTHING = Phrase(("!nothing",))


def any_of(of: Iterable[IndexQuery]) -> IndexQuery:
    found = tuple(dict.fromkeys(of))
    return found[0] if len(found) == 1 else AnyOf(found or (_NOTHING,))


def all_of(of: Iterable[IndexQuery], but: Iterable[IndexQuery] = ()) -> IndexQuery:
    found, without = tuple(dict.fromkeys(of)), tuple(dict.fromkeys(but))
    return found[0] if len(found) == 1 and not without else AllOf(found, without)


def expression(index_query: IndexQuery) -> str:
    """The expression for the database in use: a parameter of `MATCH`, or of `@@`."""
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


# Table, its key and what is asked of it.
def key_column(table: str = FAILURES) -> str:
    return f"{table}.{'rowid' if connection.vendor == 'sqlite' else 'id'}"


def match_condition(table: str = FAILURES) -> str:
    """The condition, with `written(…)` as its parameter."""
    if connection.vendor == "sqlite":
        return f"{table} MATCH %s"
    return f"{table}.terms @@ %s::tsquery"


class InIndex(Func):
    """The row of this key is among those that the index holds for `asked`."""

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
    """PostgreSQL asks its index of terms, instead of walking through all documents in the hope of meeting the word.
    Where most failures are in scope it looks up each hit, instead of reading all that are in scope beforehand.
    """
    if connection.vendor != "postgresql":
        yield
        return
    joins = "off" if are_most_in_scope else "on"
    settings = {
        "enable_seqscan": "off",
        # Documents could be walked through in order of their ids. What is only counted has no order, and is told its
        # states by an index alone: without, every failure in another state would be read.
        "enable_indexscan": "off" if ordered else "on",
        "work_mem": "'32MB'",
        "max_parallel_workers_per_gather": "0",  # to start a second process takes longer than most searches
        "jit": "off",  # and so does compiling
        "enable_hashjoin": joins,
        "enable_mergejoin": joins,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items()))
        yield
        cursor.execute("; ".join(f"RESET {name}" for name in settings))
