"""From a Query to SQL. User text becomes parameters and nothing else: never a field's name, never a pattern unescaped.

Both databases give the same answers: text is compared without regard to the case of ASCII letters, names exactly.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.db.models import BooleanField, Exists, F, Func, OuterRef, Q, TextField, Value
from django.db.models.functions import Concat

from jobs_admin.core import query as language
from jobs_admin.core.query import Age, All, Any, Match, Numbers, Query, Term, Text, Time
from jobs_admin.models import Attempt, FailureCount, Group, GroupAlias, ReplayItem
from jobs_admin.models.access import VIEWER, Viewer

# What `FailureCount` can answer, without looking at a single failure.
COUNTED = {"source", "queue", "task", "group", "state"}
_COLUMNS = {name: name for name in ("source", "queue", "task", "state", "worker", "host", "tenant", "release", "kind")}


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
    """Only what the viewer holds at least `role` on."""
    sources = viewer.sources(role)
    return Q() if sources is None else Q(source__in=sources)


def compiled(query: Query, *, states: bool = True) -> Q:
    """The whole query. `states=False` leaves out the states of its top level, which `states_of` gives."""
    now = query.now or datetime.now(UTC)
    found = Q()
    for term in query.terms:
        if not states and _is_state(term):
            continue
        found &= _term(term, now)
    if states and not query.names_state:
        found &= Q(state__in=language.DEFAULT_STATES)
    return found


def states_of(query: Query) -> tuple[str, ...]:
    """The states that a match can be in, by the top level of the query: the default scope where none is named."""
    if not query.names_state:
        return language.DEFAULT_STATES
    held = set(language.STATES)
    for term in query.terms:
        if _is_state(term):
            named = set(language.expand_states(term.values))
            held = held - named if term.negated else held & named
    return tuple(s for s in language.STATES if s in held)


def _is_state(term: Term) -> bool:
    return isinstance(term, Match) and term.field == "state"


def _term(term: Term, now: datetime, *, jobs: bool = True) -> Q:
    """`jobs`: the table has jobs' ids, which words may be."""
    if isinstance(term, Any | All):
        parts = [_term(t, now, jobs=jobs) for t in term.of]
        found = parts[0]
        for part in parts[1:]:
            found = found | part if isinstance(term, Any) else found & part
        return found
    found = _text(term, jobs) if isinstance(term, Text) else _leaf(term, now)
    return ~found if term.negated else found


def _text(term: Text, jobs: bool) -> Q:
    found = _holds(error_text(), like(term.value, glob=term.glob))
    if jobs and language.may_be_job_id(term):
        found |= Q(job_id=term.value) | Q(first_job_id=term.value)
    return found


def _leaf(term: Match | Numbers | Age | Time, now: datetime) -> Q:
    if isinstance(term, Age):
        moment = language.before(now, term.seconds)
        return Q(failed_at__gte=moment) if term.younger else Q(failed_at__lte=moment)
    if isinstance(term, Time):
        moment = term.at or language.before(now, term.ago or 0)
        return Q(failed_at__gte=moment) if term.field == "since" else Q(failed_at__lte=moment)
    if isinstance(term, Numbers):
        return _numbers(term)
    return _match(term)


def asks_text(leaf: Text | Match | Numbers | Age | Time) -> bool:
    """Whether it asks only for the error's text, which groups have too."""
    return isinstance(leaf, Text) or (isinstance(leaf, Match) and leaf.field in language.CONTAINED)


def text_condition(term: Term) -> Q:
    """A term of which every leaf `asks_text`, for any table with `error_type` and `message`."""
    return _term(term, datetime.now(UTC), jobs=False)


def error_text():
    """`Type: message`, as people copy it."""
    return Concat(F("error_type"), Value(": "), F("message"), output_field=TextField())


def _holds(text, pattern: str) -> Q:
    return Q(Contains(text, Value(pattern)))


def _numbers(term: Numbers) -> Q:
    name = "replay_id" if term.field == "replay" else term.field
    found = Q(pk__in=[])
    for low, high in term.ranges:
        # A comparison with null is null, and its negation too: what has no number is outside of every range.
        one = Q(**{f"{name}__isnull": False})
        if low is not None:
            one &= Q(**{f"{name}__gte": low})
        if high is not None:
            one &= Q(**{f"{name}__lte": high})
        found |= one
    if term.field == "replay":
        return Q(Exists(ReplayItem.objects.filter(found, failure=OuterRef("pk"))))
    return found


def _match(term: Match) -> Q:
    if term.field == "state":
        return Q(state__in=language.expand_states(term.values))
    if term.field in language.CONTAINED:
        return _any(_contained(term.field, v) for v in term.values)
    if term.field == "group":
        return Q(group_id__in=groups_named(term)) & Q(group_id__isnull=False)
    if term.field == "policy":
        return _any(_policy(v) for v in term.values)
    column = _COLUMNS[term.field]
    plain = [v.text for v in term.values if not v.glob]
    found = [Q(**{f"{column}__in": plain})] if plain else []
    return _any([*found, *(Q(Fits(F(column), Value(v.text))) for v in term.values if v.glob)])


def _contained(field: str, value: language.Value) -> Q:
    if value.exact:
        return Q(error_type=value.text) if field == "error" else Q(message=value.text)
    text = error_text() if field == "error" else F("message")
    return _holds(text, like(value.text, glob=value.glob))


def groups_named(term: Match):
    """The ids of the groups whose fingerprint, now or formerly, is among the term's values."""
    named = Q(pk__in=[])
    for value in term.values:
        if value.glob:
            named |= Q(Fits(F("fingerprint"), Value(value.text)))
        else:
            former = GroupAlias.objects.filter(fingerprint=value.text).values("group_id")
            named |= Q(fingerprint=value.text) | Q(pk__in=former)
    return Group.objects.filter(named).values("pk")


def _policy(value: language.Value) -> Q:
    attempts = Attempt.objects.filter(failure=OuterRef("pk"))
    if value.glob:
        return Q(Exists(attempts.filter(Q(Fits(F("policy"), Value(value.text))))))
    return Q(Exists(attempts.filter(Q(policy=value.text) | Q(policy__startswith=f"{value.text}@"))))


def _any(parts) -> Q:
    found = None
    for part in parts:
        found = part if found is None else found | part
    return found if found is not None else Q(pk__in=[])


def is_counted(query: Query) -> bool:
    """Whether counters can answer it: it touches nothing but source, queue, task, group and state."""
    return query.fields <= COUNTED


def counts(viewer: Viewer, query: Query, role: str = VIEWER):
    """The counters of what matches. Only for a query that `is_counted`."""
    return FailureCount.objects.filter(visible(viewer, role), compiled(query), count__gt=0)
