"""Translation of a Query to SQL. User text only becomes parameters: never a field name, never an unescaped pattern.

Both databases give the same results: words are compared as terms that Redrive builds itself (`core/search_terms.py`),
text without a word ignoring ASCII case, names exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import connection
from django.db.models import BooleanField, Exists, F, Func, OuterRef, Q, QuerySet, TextField, Value
from django.db.models.functions import Concat

from jobs_admin.core import query as language
from jobs_admin.core import search_terms
from jobs_admin.core.envelope import KINDS
from jobs_admin.core.query import Age, All, Any, Match, Numbers, Query, Term, Text, Time
from jobs_admin.core.search_terms import Phrase
from jobs_admin.core.text import fits
from jobs_admin.db import abilities
from jobs_admin.models import (
    Attempt,
    Failure,
    FailureCount,
    Group,
    GroupAlias,
    GroupSource,
    ReplayItem,
    Traceback,
)  # fmt: skip
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.group import TAKEN_IN
from jobs_admin.models.terms import STACKS
from jobs_admin.search.term_index import IndexQuery, InIndex, all_of, any_of, expression, key_column, match_condition

# Fields that `FailureCount` can answer without reading a failure.
COUNTED = {"source", "queue", "task", "group", "state", "dependency"}


class Contains(Func):
    """`text LIKE pattern`, ignoring ASCII case on both databases."""

    output_field = BooleanField()
    arity = 2

    def as_sqlite(self, compiler, connection, **more):
        return super().as_sql(
            compiler, connection, template=r"(%(expressions)s ESCAPE '\')", arg_joiner=" LIKE ", **more
        )

    def as_postgresql(self, compiler, connection, **more):
        # The "C" collation folds only ASCII, as SQLite does, so that both databases find the same rows.
        return super().as_sql(
            compiler, connection, template=r"(%(expressions)s ESCAPE '\')", arg_joiner=' COLLATE "C" ILIKE ', **more
        )


def like(text: str, *, glob: bool = False) -> str:
    """Return the LIKE pattern for "contains text"; with `glob`, each `*` matches anything."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped.replace('*', '%') if glob else escaped}%"


class Fits(Func):
    """Case-sensitive match of the complete name against a pattern whose only wildcard is `*`."""

    output_field = BooleanField()
    arity = 2

    def as_sqlite(self, compiler, connection, **more):
        name, pattern = self.get_source_expressions()
        # GLOB also has the wildcards ? and [, which are escaped as a character class.
        text = pattern.value.replace("[", "[[]").replace("?", "[?]")
        changed = self.copy()
        changed.set_source_expressions([name, Value(text)])
        return super(Fits, changed).as_sql(
            compiler, connection, template="(%(expressions)s)", arg_joiner=" GLOB ", **more
        )

    def as_postgresql(self, compiler, connection, **more):
        name, pattern = self.get_source_expressions()
        changed = self.copy()
        changed.set_source_expressions([name, Value(like(pattern.value, glob=True)[1:-1])])
        return super(Fits, changed).as_sql(
            compiler, connection, template=r"(%(expressions)s ESCAPE '\')", arg_joiner=" LIKE ", **more
        )


def visible(viewer: Viewer, role: str = VIEWER) -> Q:
    """Return the condition for rows of sources where the viewer has at least `role`."""
    sources = viewer.sources(role)
    return Q() if sources is None else Q(source__in=sources)


def build_condition(query: Query, *, states: bool = True) -> Q:
    """Return the condition of the query; `states=False` omits its top-level states, which `states_of` returns."""
    return all_conditions(part.alone for _, part in build_parts(query, states=states))


@dataclass(frozen=True, slots=True)
class Part:
    """Condition of a term on a failure."""

    alone: Q  # the complete condition
    index_query: IndexQuery | None = None  # query of the term index; None if the index cannot help
    rest: Q | None = None  # condition still to be checked on a row that the index returned; None for nothing
    is_sure: bool = True  # the index alone returns no false positives
    but: IndexQuery | None = None  # instead of `index_query`: what the index must not contain


def build_parts(query: Query, *, states: bool = True) -> list[tuple[Term | None, Part]]:
    """Return each top-level term with its condition; the default states are a part without a term."""
    compiler = _Compiler(query)
    found: list[tuple[Term | None, Part]] = [
        (term, compiler.part(term)) for term in query.terms if states or not is_state(term)
    ]
    if states and not query.names_state:
        found.append((None, Part(Q(state__in=language.DEFAULT_STATES))))
    return found


def states_of(query: Query) -> tuple[str, ...]:
    """Return the states that a match can have by the top-level terms; the default states if the query names none."""
    if not query.names_state:
        return language.DEFAULT_STATES
    states = set(language.STATES)
    for term in query.terms:
        if is_state(term):
            named = set(language.expand_states(term.values))
            states = states - named if term.negated else states & named
    return tuple(s for s in language.STATES if s in states)


def is_state(term: Term) -> bool:
    return isinstance(term, Match) and term.field == "state"


class _Compiler:
    """Compiler of the terms of one query; lookups are shared by all terms."""

    def __init__(self, query: Query) -> None:
        self.now = query.now or datetime.now(UTC)
        self.renamed = _find_resent_ids(query)
        self.stacks: dict[language.Value, list[int] | None] = {}

    def part(self, term: Term) -> Part:
        if isinstance(term, All):
            return _all_parts([self.part(one) for one in term.of])
        if isinstance(term, Any):
            return _any_part([self.part(one) for one in term.of])
        found = self._leaf(term)
        if not term.negated or isinstance(term, Age | Time):
            return found
        sure = found.index_query is not None and found.rest is None
        return Part(~found.alone, but=found.index_query if sure else None)

    def _leaf(self, term: Text | Match | Numbers | Age | Time) -> Part:
        if isinstance(term, Text):
            return self._text(term)
        if isinstance(term, Match):
            if term.field in language.CONTAINED:
                return _any_part([_contained_part(term.field, value) for value in term.values])
            if term.field == "trace":
                ids = [one for value in term.values for one in search_terms.other_id(value.text)]
                return _any_part([*map(self._traceback, term.values), *map(_index_part, ids)])
            if language.is_argument(term.field):
                return _any_part([_argument_part(term.field, value) for value in term.values])
            if term.field in search_terms.NAMED:
                return _any_part([_name_part(term.field, value) for value in term.values])
        return Part(_column_condition(term, self.now))

    def _text(self, term: Text) -> Part:
        found = _text_part(term.value, term.glob, search_terms.phrases_of_error, error_text())
        if not language.may_be_job_id(term):
            return found
        ids: list[IndexQuery] = [
            Phrase((search_terms.name("job", term.value),)),
            *self.renamed.get(term.value, ()),
            *search_terms.other_id(term.value),
        ]
        if found.index_query is not None:
            return _index_part(any_of((found.index_query, *ids)))
        return Part(found.alone | Q(job_id=term.value) | Q(first_job_id=term.value))

    def _traceback(self, value: language.Value) -> Part:
        head, _ = language.before_star(value.text) if value.glob else (value.text, True)
        phrases = search_terms.phrases(head, prefix=value.glob and search_terms.is_word_end(head))
        texts = (
            Traceback.objects.filter(_contains(F("text"), like(value.text, glob=value.glob))).order_by().values("pk")
        )
        if value not in self.stacks:
            self.stacks[value] = _find_stacks(any_of(phrases)) if phrases else _first_stacks(texts)
        ids = self.stacks[value]
        if ids is None and not phrases:
            return Part(Q(traceback_id__in=texts) & Q(traceback_id__isnull=False))
        if ids is None:
            return Part(Q(InIndex(any_of(phrases), STACKS, "traceback_id")) & Q(traceback_id__isnull=False))
        own = Q(traceback_id__in=ids) & Q(traceback_id__isnull=False)
        return Part(own, any_of(Phrase((search_terms.name("stack", str(pk)),)) for pk in ids), own)


_MOST_STACKS = 500


def _find_stacks(index_query: IndexQuery) -> list[int] | None:
    """Return the ids of the stacks that match in the index; None if there are more than _MOST_STACKS."""
    with connection.cursor() as cursor:
        statement = (
            f"SELECT {key_column(STACKS)} FROM {STACKS} WHERE {match_condition(STACKS)} LIMIT {_MOST_STACKS + 1}"
        )
        cursor.execute(statement, [expression(index_query)])
        found = [row[0] for row in cursor.fetchall()]
    return None if len(found) > _MOST_STACKS else found


def _first_stacks(stacks: QuerySet[Traceback]) -> list[int] | None:
    """Return the ids of these stacks; None if there are more than _MOST_STACKS."""
    found = [row["pk"] for row in stacks[: _MOST_STACKS + 1]]
    return None if len(found) > _MOST_STACKS else found


def _find_resent_ids(query: Query) -> dict[str, tuple[IndexQuery, ...]]:
    """Return job id -> index queries of the jobs that got this id when resent, and have not failed since."""
    ids = {t.value for t in language.leaves(query.terms) if isinstance(t, Text) and language.may_be_job_id(t)}
    if not ids:
        return {}
    found: dict[str, tuple[IndexQuery, ...]] = {}
    rows = Failure.objects.filter(job_id__in=ids).exclude(job_id=F("first_job_id"))
    for job_id, *name in rows.values_list("job_id", "source", "queue", "first_job_id")[:1_000]:
        own = all_of(Phrase((search_terms.name(f, v),)) for f, v in zip(("source", "queue", "job"), name, strict=True))
        found[job_id] = (*found.get(job_id, ()), own)
    return found


def _all_parts(found: list[Part]) -> Part:
    known = [part.index_query for part in found if part.index_query is not None]
    remaining = [part.alone if part.index_query is None else part.rest for part in found]
    rest = [q for q in remaining if q is not None]
    return Part(
        all_conditions(part.alone for part in found),
        all_of(known) if known else None,
        all_conditions(rest) if rest else None,
        all(part.index_query is not None and part.is_sure for part in found),
    )


def _any_part(found: list[Part]) -> Part:
    if len(found) == 1:
        return found[0]
    alone = any_condition(part.alone for part in found)
    known = [part.index_query for part in found if part.index_query is not None]
    if len(known) < len(found):
        return Part(alone)
    index_query = any_of(known)
    if all(part.rest is None for part in found):
        return _index_part(index_query)
    return Part(alone, index_query, alone, all(part.is_sure for part in found))


def _index_part(index_query: IndexQuery) -> Part:
    return Part(Q(InIndex(index_query)), index_query)


def _text_part(text: str, glob: bool, phrases_of: Callable[..., tuple[Phrase, ...]], column: F | Concat) -> Part:
    """Return the condition for a text with words; with `glob`, `*` matches anything."""
    head, is_all = language.before_star(text) if glob else (text, True)
    phrases = phrases_of(head, prefix=glob and search_terms.is_word_end(head)) if head else ()
    holds = _contains(column, like(text, glob=glob))
    if not phrases:
        return Part(holds)
    found = _index_part(any_of(phrases))
    return found if is_all else Part(found.alone & holds, found.index_query, holds, False)


def _contained_part(field: str, value: language.Value) -> Part:
    if not value.exact:
        of_error = field == "error"
        column = error_text() if of_error else F("message")
        return _text_part(
            value.text, value.glob, search_terms.phrases_of_error if of_error else search_terms.phrases, column
        )
    if field == "error":
        return _index_part(Phrase((search_terms.name("error", value.text),)))
    own, phrases = Q(message=value.text), search_terms.phrases(value.text)
    return Part(own, any_of(phrases), own, False) if phrases else Part(own)


def _argument_part(path: str, value: language.Value) -> Part:
    if value.glob:
        return _index_part(search_terms.argument(path, language.before_star(value.text)[0], prefix=True))
    return _index_part(search_terms.argument(path, value.text))


def _name_part(field: str, value: language.Value) -> Part:
    """Return the condition for a name: the index finds candidates, the column decides."""
    if not value.glob:
        own = Q(**{field: value.text})
        if not value.text:
            return Part(own)
        return Part(own, Phrase((search_terms.name(field, value.text),)), own)
    if not value.text.strip("*"):
        return Part(~Q(pk__in=[]))  # not `Q()`, which cannot be negated or combined
    head, is_all = language.before_star(value.text)
    own = Q(Fits(F(field), Value(value.text)))
    if field in ("source", "queue", "task"):  # few names, and counters list them
        listed = FailureCount.objects.filter(Fits(F(field), Value(value.text)))
        own = Q(**{f"{field}__in": list(listed.values_list(field, flat=True).distinct())})
    if not head:
        return Part(own)
    return Part(own, search_terms.name_begins(field, head), own, is_all and search_terms.is_unabridged(head))


def _column_condition(term: Match | Numbers | Age | Time, now: datetime) -> Q:
    if isinstance(term, Age | Time):
        is_after, moment = named_time(term, now)
        if term.negated:  # not as a negation, because an index is not used for NOT of a range
            return Q(failed_at__lt=moment) if is_after else Q(failed_at__gt=moment)
        return Q(failed_at__gte=moment) if is_after else Q(failed_at__lte=moment)
    if isinstance(term, Numbers):
        return _numbers_condition(term)
    if term.field == "state":
        return Q(state__in=language.expand_states(term.values))
    if term.field == "group":
        return Q(group_id__in=groups_named(term)) & Q(group_id__isnull=False)
    if term.field == "dependency":
        return _dependency_condition(term)
    if term.field == "priority":
        return abilities.of_levels([v.text for v in term.values])
    if term.field == "policy":
        return Q(Exists(Attempt.objects.filter(policy__in=policies_named(term), failure=OuterRef("pk"))))
    return Q(kind__in=kinds_named(term))


def named_time(term: Age | Time, now: datetime) -> tuple[bool, datetime]:
    """Return the time of the term, and whether it selects failures after that time, ignoring its sign."""
    if isinstance(term, Age):
        return term.younger, language.before(now, term.seconds)
    return term.field == "since", term.at or language.before(now, term.ago or 0)


def kinds_named(term: Match) -> list[str]:
    """Return the kinds of the term, ignoring its sign."""
    return sorted({kind for v in term.values for kind in KINDS if (fits(v.text, kind) if v.glob else v.text == kind)})


def policies_named(term: Match) -> list[str]:
    """Return `name@version` of every policy with an attempt that matches a value, given with or without version."""
    return [name for name in _policies() if any(_is_policy(v, name) for v in term.values)]


def _is_policy(value: language.Value, name: str) -> bool:
    return fits(value.text, name) if value.glob else name == value.text or name.startswith(f"{value.text}@")


def _policies() -> list[str]:
    # One step in the index per name: `DISTINCT` would scan every attempt.
    table = Attempt._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE named(policy) AS (SELECT MIN(policy) FROM {table} WHERE policy > '' UNION ALL "
            f"SELECT (SELECT MIN(policy) FROM {table} WHERE policy > named.policy AND policy > '') "
            "FROM named WHERE named.policy IS NOT NULL) SELECT policy FROM named WHERE policy IS NOT NULL"
        )
        return [row[0] for row in cursor.fetchall()]


# -- text of any table ------------------------------------------------------------------------------------------


def is_text_search(leaf: Text | Match | Numbers | Age | Time) -> bool:
    """Return whether the term searches only the error text, which groups have too."""
    return isinstance(leaf, Text) or (isinstance(leaf, Match) and leaf.field in language.CONTAINED)


def is_only_text_search(term: Term) -> bool:
    return all(is_text_search(leaf) for leaf in language.leaves((term,)))


def text_condition(term: Term) -> Q:
    """Return the condition of a term of text searches, on any table with `error_type` and `message`."""
    if isinstance(term, All):
        return all_conditions(text_condition(one) for one in term.of)
    if isinstance(term, Any):
        return any_condition(text_condition(one) for one in term.of)
    if isinstance(term, Text):
        found = _contains(error_text(), like(term.value, glob=term.glob))
    else:
        assert isinstance(term, Match)
        found = any_condition(_text_value_condition(term.field, value) for value in term.values)
    return ~found if term.negated else found


def _text_value_condition(field: str, value: language.Value) -> Q:
    if value.exact:
        return Q(error_type=value.text) if field == "error" else Q(message=value.text)
    return _contains(error_text() if field == "error" else F("message"), like(value.text, glob=value.glob))


def error_text():
    """Return the expression `Type: message`, the form in which people copy an error."""
    return Concat(F("error_type"), Value(": "), F("message"), output_field=TextField())


def _contains(text, pattern: str) -> Q:
    return Q(Contains(text, Value(pattern)))


def _numbers_condition(term: Numbers) -> Q:
    found = range_condition(term, "replay_id" if term.field == "replay" else term.field)
    if term.field == "replay":
        return Q(Exists(ReplayItem.objects.filter(found, failure=OuterRef("pk"))))
    return found


def range_condition(term: Numbers, name: str) -> Q:
    """Return the condition that the column `name` is within the ranges of a term, ignoring its sign."""
    found = Q(pk__in=[])
    for low, high in term.ranges:
        # A comparison with null is null, and so is its negation: a row without a number is outside of every range.
        one = Q(**{f"{name}__isnull": False})
        if low is not None:
            one &= Q(**{f"{name}__gte": low})
        if high is not None:
            one &= Q(**{f"{name}__lte": high})
        found |= one
    return found


def groups_named(term: Match):
    """Return the ids of the groups with a fingerprint, current or former, among the term's values."""
    plain = [value.text for value in term.values if not value.glob]
    former = GroupAlias.objects.filter(fingerprint__in=plain).values("group_id")
    named = Q(fingerprint__in=plain) | Q(pk__in=former)
    if patterns := [Fits(F("fingerprint"), Value(value.text)) for value in term.values if value.glob]:
        named |= Q(_balanced_or(patterns))
    found = Group.objects.filter(named)
    # Fingerprints of a group that is being merged already belong to the target, although some jobs have not moved yet.
    names = GroupAlias.objects.filter(group__in=found.values("pk")).annotate(was=Concat(Value(TAKEN_IN), "fingerprint"))
    return Group.objects.filter(Q(pk__in=found.values("pk")) | Q(fingerprint__in=names.values("was"))).values("pk")


def parts_named(term: Match) -> QuerySet[GroupSource]:
    """Return the parts of groups whose dependency is among the term's values; names are in lower case."""
    named = Q(dependency__in=[value.text.lower() for value in term.values if not value.glob])
    if patterns := [Fits(F("dependency"), Value(value.text.lower())) for value in term.values if value.glob]:
        named |= Q(_balanced_or(patterns))
    return GroupSource.objects.filter(named, dependency__gt="")


def groups_of_dependency(term: Match) -> list[int] | None:
    """Return the groups that a term selects completely; None if one has jobs of a source with another dependency."""
    named = parts_named(term)
    others = FailureCount.objects.filter(~Exists(_same_part(named)), group_id__in=named.values("group_id"), count__gt=0)
    return None if others.exists() else sorted(set(named.order_by().values_list("group_id", flat=True)))


def _same_part(parts: QuerySet[GroupSource]) -> QuerySet[GroupSource]:
    return parts.filter(group_id=OuterRef("group_id"), source=OuterRef("source"))


_MOST_LISTED = 1_000  # groups listed one by one in a statement


def _dependency_condition(term: Match) -> Q:
    named, groups = parts_named(term), groups_of_dependency(term)
    if groups is not None and len(groups) <= _MOST_LISTED:
        return Q(group_id__in=groups) & Q(group_id__isnull=False)
    found = Q(group_id__in=named.values("group_id")) & Q(group_id__isnull=False)
    return found if groups is not None else found & Q(Exists(_same_part(named)))


def _balanced_or(conditions: list[Func]) -> Func:
    """Return the OR as a shallow tree: SQLite refuses a chain of a thousand, and Q flattens trees into chains."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    halves = (_balanced_or(conditions[:half]), _balanced_or(conditions[half:]))
    return Func(*halves, template="(%(expressions)s)", arg_joiner=" OR ", output_field=BooleanField())


def any_condition(conditions: Iterable[Q]) -> Q:
    found = None
    for one in conditions:
        found = one if found is None else found | one
    return found if found is not None else Q(pk__in=[])


def all_conditions(conditions: Iterable[Q]) -> Q:
    found = Q()
    for one in conditions:
        found &= one
    return found


def is_counted(query: Query) -> bool:
    """Return whether counters answer the query: it uses only source, queue, task, group, dependency and state."""
    return query.fields <= COUNTED


def matching_counts(viewer: Viewer, query: Query, role: str = VIEWER):
    """Return the counters that match a query for which `is_counted` is true."""
    return FailureCount.objects.filter(visible(viewer, role), build_condition(query), count__gt=0)
