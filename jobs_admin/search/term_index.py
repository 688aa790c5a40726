"""What a search asks of the index of terms, in the words of either database.

An expression holds exactly the rows that match; what it is made of are terms of ours, never a user's text.
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


def expression(asked: IndexQuery) -> str:
    """The expression for the database in use: a parameter of `MATCH`, or of `@@`."""
    return fts5(asked) if connection.vendor == "sqlite" else tsquery(asked)


def fts5(asked: IndexQuery) -> str:
    if isinstance(asked, Phrase):
        return f'"{" ".join(asked.terms)}"{"*" if asked.prefix else ""}'
    if isinstance(asked, AnyOf):
        return f"({' OR '.join(fts5(one) for one in asked.of)})"
    found = " AND ".join(fts5(one) for one in asked.of)
    return f"(({found}) NOT {fts5(any_of(asked.but))})" if asked.but else f"({found})"


def tsquery(asked: IndexQuery) -> str:
    if isinstance(asked, Phrase):
        *before, last = asked.terms
        return "(" + " <-> ".join([*(f"'{t}'" for t in before), f"'{last}'{':*' if asked.prefix else ''}"]) + ")"
    if isinstance(asked, AnyOf):
        return f"({' | '.join(tsquery(one) for one in asked.of)})"
    parts = [*(tsquery(one) for one in asked.of), *(f"!{tsquery(one)}" for one in asked.but)]
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

    def __init__(self, asked: IndexQuery, table: str = FAILURES, field: str = "pk") -> None:
        super().__init__(F(field))
        self.asked, self.table = asked, table

    def __repr__(self) -> str:
        return f"InIndex({self.asked!r})"

    def as_sql(self, compiler, connection, **more):
        column, parameters = compiler.compile(self.source_expressions[0])
        inside = f"SELECT {key_column(self.table)} FROM {self.table} WHERE {match_condition(self.table)}"
        return f"({column} IN ({inside}))", [*parameters, expression(self.asked)]


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
