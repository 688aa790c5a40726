"""From a Query to SQL. User text becomes parameters and nothing else: never a field's name, never a pattern unescaped.

Both databases give the same answers: words are compared by terms of our own making (`core/search_terms.py`), text that has no
word without regard to the case of ASCII letters, names exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import connection
from django.db.models import BooleanField, Count, Exists, F, Func, OuterRef, Q, QuerySet, TextField, Value
from django.db.models.functions import Concat

from jobs_admin.core import query as language
from jobs_admin.core import search_terms
from jobs_admin.core.envelope import KINDS
from jobs_admin.core.query import Age, All, Any, Match, Numbers, Query, Term, Text, Time
from jobs_admin.core.search_terms import Phrase
from jobs_admin.core.text import fits
from jobs_admin.db import priorities
from jobs_admin.models import (
    Attempt,
    AuditEvent,
    Failure,
    FailureCount,
    FrozenBatch,
    Group,
    GroupAlias,
    Replay,
    ReplayItem,
    Traceback,
)  # fmt: skip
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.group import TAKEN_IN
from jobs_admin.models.replay import ItemState
from jobs_admin.models.terms import STACKS
from jobs_admin.search.term_index import IndexQuery, InIndex, all_of, any_of, expression, key_column, match_condition

# What `FailureCount` can answer, without looking at a single failure.
COUNTED = {"source", "queue", "task", "group", "state"}


class Contains(Func):
    """`text LIKE pattern`, without regard to the case of ASCII letters on either database."""

    output_field = BooleanField()
    arity = 2

    def as_sqlite(self, compiler, connection, **more):
        return super().as_sql(
            compiler, connection, template=r"(%(expressions)s ESCAPE '\')", arg_joiner=" LIKE ", **more
        )

    def as_postgresql(self, compiler, connection, **more):
        # The "C" collation folds ASCII only, as SQLite does: one search must not find more on one of them.
        return super().as_sql(
            compiler, connection, template=r"(%(expressions)s ESCAPE '\')", arg_joiner=' COLLATE "C" ILIKE ', **more
        )


def like(text: str, *, glob: bool = False) -> str:
    """The LIKE pattern for "contains text"; with `glob`, each `*` is anything."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped.replace('*', '%') if glob else escaped}%"


class Fits(Func):
    """The whole name fits a pattern whose only wildcard is `*`, with regard to case."""

    output_field = BooleanField()
    arity = 2

    def as_sqlite(self, compiler, connection, **more):
        name, pattern = self.get_source_expressions()
        # GLOB knows ? and [ too, and escapes them by a class of one.
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
    """Return the condition of rows of sources where the viewer holds at least `role`."""
    sources = viewer.sources(role)
    return Q() if sources is None else Q(source__in=sources)


_REASON_HIDDEN = "Why is not told: it has jobs of a source that you may not see."


def restrict_replays(viewer: Viewer, replays: Iterable[Replay]) -> None:
    """Reduce these replays, in memory, to the sources that the viewer may see.

    Their counts are then of these sources, and what names jobs, errors or queues of another is gone: why they are held or
    need approval, what was left out, search, patch, queue, and the reason that a person wrote. `seen_sources` says of
    which they are; it is None of one that is seen in full. The number of queries does not depend on the number of replays.
    """
    sources, replays = viewer.sources(), list(replays)
    begun = [replay for replay in replays if replay.started_at is not None]
    if sources is None or not begun:
        return
    named: dict[int, set[str]] = {replay.pk: set(replay.by_source) for replay in begun}
    older = [f"replay:{pk}" for pk, found in named.items() if not found]  # started before their sources were counted
    started = AuditEvent.objects.filter(object__in=older, act="replay.start", allowed=True)
    events = started.exclude(source="") if older else ()
    for event in events:
        named[int(event.object.partition(":")[2])].add(event.source)
    # Where its start names none, nobody knows whose jobs it has.
    partly = {replay.pk: replay for replay in begun if not (named[replay.pk] or {""}) <= {*sources}}
    if not partly:
        return
    items = ReplayItem.objects.filter(replay__in=partly, failure__source__in=sources).order_by()
    counts: dict[int, Counter[str]] = {pk: Counter() for pk in partly}
    for pk, state, count in items.values_list("replay", "state").annotate(n=Count("pk")):
        counts[pk][state] = count
    frozen = set(FrozenBatch.objects.filter(replay__in=partly).order_by().values_list("replay", flat=True).distinct())
    for pk, replay in partly.items():
        _restrict(replay, sources, counts[pk], is_frozen=pk in frozen)


def _restrict(replay: Replay, sources: Collection[str], counts: Counter[str], *, is_frozen: bool) -> None:
    if is_frozen:
        created = counts.total()
        counts["planned"] += max(0, sum(n for name, n in replay.by_source.items() if name in sources) - created)
    for state in ItemState.values:
        setattr(replay, state, counts[state])
    replay.total = replay.matched = counts.total()
    replay.taken, replay.blocked, replay.query, replay.selection = 0, [], "", []
    replay.patch, replay.edit, replay.to_queue, replay.reason = None, None, "", ""
    replay.by_source = {name: n for name, n in replay.by_source.items() if name in sources}
    if replay.held_because or replay.evidence:
        replay.held_because, replay.evidence = _REASON_HIDDEN, None
    if replay.approval_because:
        replay.approval_because = _REASON_HIDDEN
    replay.seen_sources = sorted(sources)


def build_condition(query: Query, *, states: bool = True) -> Q:
    """The whole query. `states=False` leaves out the states of its top level, which `states_of` gives."""
    return all_conditions(part.alone for _, part in build_parts(query, states=states))


@dataclass(frozen=True, slots=True)
class Part:
    """Condition of a term on a failure."""

    alone: Q  # the whole of it
    index_query: IndexQuery | None = None  # what the index is asked; None where it knows nothing of it …
    rest: Q | None = None  # … and what remains to be asked of a row that the index gave; None for nothing
    is_sure: bool = True  # the index by itself gives no row too many
    but: IndexQuery | None = None  # instead of `asked`: what the index must not hold


def build_parts(query: Query, *, states: bool = True) -> list[tuple[Term | None, Part]]:
    """Each term of the top level with what it asks; the default scope comes as a part without a term."""
    compiler = _Compiler(query)
    found: list[tuple[Term | None, Part]] = [
        (term, compiler.part(term)) for term in query.terms if states or not is_state(term)
    ]
    if states and not query.names_state:
        found.append((None, Part(Q(state__in=language.DEFAULT_STATES))))
    return found


def states_of(query: Query) -> tuple[str, ...]:
    """The states that a match can be in, by the top level of the query: the default scope where none is named."""
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
    """Terms of one query. What has to be looked up first is looked up once for all of them."""

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
                return _any_part([self._trace(value) for value in term.values])
            if language.is_argument(term.field):
                return _any_part([_argument_part(term.field, value) for value in term.values])
            if term.field in search_terms.NAMED:
                return _any_part([_name_part(term.field, value) for value in term.values])
        return Part(_column_condition(term, self.now))

    def _text(self, term: Text) -> Part:
        found = _text_part(term.value, term.glob, search_terms.phrases_of_error, error_text())
        if not language.may_be_job_id(term):
            return found
        ids: list[IndexQuery] = [Phrase((search_terms.name("job", term.value),)), *self.renamed.get(term.value, ())]
        if found.index_query is not None:
            return _index_part(any_of((found.index_query, *ids)))
        return Part(found.alone | Q(job_id=term.value) | Q(first_job_id=term.value))

    def _trace(self, value: language.Value) -> Part:
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
    """The ids of the stacks that the index holds for it; None where they are too many to be named."""
    with connection.cursor() as cursor:
        statement = (
            f"SELECT {key_column(STACKS)} FROM {STACKS} WHERE {match_condition(STACKS)} LIMIT {_MOST_STACKS + 1}"
        )
        cursor.execute(statement, [expression(index_query)])
        found = [row[0] for row in cursor.fetchall()]
    return None if len(found) > _MOST_STACKS else found


def _first_stacks(stacks: QuerySet[Traceback]) -> list[int] | None:
    """The ids of these stacks; None where they are too many to be named."""
    found = [row["pk"] for row in stacks[: _MOST_STACKS + 1]]
    return None if len(found) > _MOST_STACKS else found


def _find_resent_ids(query: Query) -> dict[str, tuple[IndexQuery, ...]]:
    """Job id -> what the index holds of the jobs that have this id since they were sent again, and did not yet fail."""
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
    """A text that has words; with `glob`, `*` is anything."""
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
    """A name: the column decides, the index only finds it."""
    if not value.glob:
        own = Q(**{field: value.text})
        if not value.text:
            return Part(own)
        return Part(own, Phrase((search_terms.name(field, value.text),)), own)
    if not value.text.strip("*"):
        return Part(~Q(pk__in=[]))  # not `Q()`, which is nothing to be negated or joined
    head, is_all = language.before_star(value.text)
    own = Q(Fits(F(field), Value(value.text)))
    if field in ("source", "queue", "task"):  # few, and counted
        listed = FailureCount.objects.filter(Fits(F(field), Value(value.text)))
        own = Q(**{f"{field}__in": list(listed.values_list(field, flat=True).distinct())})
    if not head:
        return Part(own)
    return Part(own, search_terms.name_begins(field, head), own, is_all and search_terms.is_unabridged(head))


def _column_condition(term: Match | Numbers | Age | Time, now: datetime) -> Q:
    if isinstance(term, Age | Time):
        is_after, moment = named_time(term, now)
        if term.negated:  # written so, as an index is not asked for what is NOT in a range
            return Q(failed_at__lt=moment) if is_after else Q(failed_at__gt=moment)
        return Q(failed_at__gte=moment) if is_after else Q(failed_at__lte=moment)
    if isinstance(term, Numbers):
        return _numbers_condition(term)
    if term.field == "state":
        return Q(state__in=language.expand_states(term.values))
    if term.field == "group":
        return Q(group_id__in=groups_named(term)) & Q(group_id__isnull=False)
    if term.field == "priority":
        return priorities.of_levels([v.text for v in term.values])
    if term.field == "policy":
        return Q(Exists(Attempt.objects.filter(policy__in=policies_named(term), failure=OuterRef("pk"))))
    return Q(kind__in=kinds_named(term))


def named_time(term: Age | Time, now: datetime) -> tuple[bool, datetime]:
    """Return the moment that a term names, and whether it asks for what failed after it, ignoring its sign."""
    if isinstance(term, Age):
        return term.younger, language.before(now, term.seconds)
    return term.field == "since", term.at or language.before(now, term.ago or 0)


def kinds_named(term: Match) -> list[str]:
    """Return the kinds that a term names, ignoring its sign."""
    return sorted({kind for v in term.values for kind in KINDS if (fits(v.text, kind) if v.glob else v.text == kind)})


def policies_named(term: Match) -> list[str]:
    """`name@version` of every policy that has decided an attempt and is among the values: whole, or without version."""
    return [name for name in _policies() if any(_is_policy(v, name) for v in term.values)]


def _is_policy(value: language.Value, name: str) -> bool:
    return fits(value.text, name) if value.glob else name == value.text or name.startswith(f"{value.text}@")


def _policies() -> list[str]:
    # One step of the index for each name: `DISTINCT` would walk through every attempt.
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
    """Return whether it searches only the error's text, which groups have too."""
    return isinstance(leaf, Text) or (isinstance(leaf, Match) and leaf.field in language.CONTAINED)


def is_only_text_search(term: Term) -> bool:
    return all(is_text_search(leaf) for leaf in language.leaves((term,)))


def text_condition(term: Term) -> Q:
    """A term of which every leaf `asks_text`, for any table with `error_type` and `message`: it contains the text."""
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
    """`Type: message`, as people copy it."""
    return Concat(F("error_type"), Value(": "), F("message"), output_field=TextField())


def _contains(text, pattern: str) -> Q:
    return Q(Contains(text, Value(pattern)))


def _numbers_condition(term: Numbers) -> Q:
    found = range_condition(term, "replay_id" if term.field == "replay" else term.field)
    if term.field == "replay":
        return Q(Exists(ReplayItem.objects.filter(found, failure=OuterRef("pk"))))
    return found


def range_condition(term: Numbers, name: str) -> Q:
    """The column `name` is in the ranges of a term without its sign."""
    found = Q(pk__in=[])
    for low, high in term.ranges:
        # A comparison with null is null, and its negation too: what has no number is outside of every range.
        one = Q(**{f"{name}__isnull": False})
        if low is not None:
            one &= Q(**{f"{name}__gte": low})
        if high is not None:
            one &= Q(**{f"{name}__lte": high})
        found |= one
    return found


def groups_named(term: Match):
    """The ids of the groups whose fingerprint, now or formerly, is among the term's values."""
    plain = [value.text for value in term.values if not value.glob]
    former = GroupAlias.objects.filter(fingerprint__in=plain).values("group_id")
    named = Q(fingerprint__in=plain) | Q(pk__in=former)
    if patterns := [Fits(F("fingerprint"), Value(value.text)) for value in term.values if value.glob]:
        named |= Q(_balanced_or(patterns))
    found = Group.objects.filter(named)
    # What one of them is taking in is its own already, although some of it has not moved yet.
    names = GroupAlias.objects.filter(group__in=found.values("pk")).annotate(was=Concat(Value(TAKEN_IN), "fingerprint"))
    return Group.objects.filter(Q(pk__in=found.values("pk")) | Q(fingerprint__in=names.values("was"))).values("pk")


def _balanced_or(conditions: list[Func]) -> Func:
    """Any of them, as a tree of little depth: SQLite refuses a chain of a thousand, and Q flattens trees into chains."""
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
    """Return whether counters suffice: it uses nothing but source, queue, task, group and state."""
    return query.fields <= COUNTED


def matching_counts(viewer: Viewer, query: Query, role: str = VIEWER):
    """The counters of what matches. Only for a query that `is_counted`."""
    return FailureCount.objects.filter(visible(viewer, role), build_condition(query), count__gt=0)
