"""Completion of a search: qualifiers and known values, most frequent first, of sources that the viewer may see.

Counts are those of failures in the default states, and are shown if counters have them. All data comes from small
tables, from index ranges, or from the latest SAMPLED failures.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import Exists, OuterRef, QuerySet, Sum

from jobs_admin.core import query as language
from jobs_admin.core.envelope import KINDS
from jobs_admin.core.matching import matches
from jobs_admin.core.priority import LEVELS
from jobs_admin.core.query import Query, Value
from jobs_admin.core.redaction import PLACEHOLDER
from jobs_admin.core.text import representable
from jobs_admin.db import statements
from jobs_admin.groups import dependencies
from jobs_admin.models import Failure, FailureCount, Group, PolicyVersion, Release, Worker
from jobs_admin.models.access import Viewer
from jobs_admin.models.group import IS_TAKEN_IN
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes
from jobs_admin.search.failure_search import FailureSearch

MOST = 12
SAMPLED = 100  # latest failures, whose arguments, hosts and tenants are suggested
_MOST_GROUPS, _MOST_WORDS = 500, 5_000  # groups whose words are suggested; words in total
_PLAIN_WORD = re.compile(r"[^\W\d_]{4,40}")
_SUB_WORD = re.compile(r"[A-Z]?[a-z]{3,40}|[A-Z]{4,40}(?![a-z])")
_READ = 300  # characters before the caret; no word is longer

DESCRIPTIONS = {
    "queue": "queue name",
    "task": "task name",
    "error": "error type or message",
    "state": "dead, retrying, recovered …",
    "message": "error message only",
    "group": "failures of one group",
    "dependency": "host or service that failed the job",
    "tenant": "tenant of the job",
    "kwargs.": "keyword argument, by path",
    "args.": "positional argument, by path",
    "trace": "words in the traceback",
    "age": "time since the last failure",
    "attempts": "number of attempts",
    "source": "source name",
    "worker": "worker name",
    "host": "host name",
    "release": "release of the failed job",
    "since": "failed after a time",
    "until": "failed before a time",
    "kind": "how the latest attempt ended",
    "policy": "policy that decided an attempt",
    "priority": "priority, as a level or number",
    "replay": "replay number",
}
_EXAMPLES = {
    "age": ["<1h", "<24h", "<7d", ">30d"],
    "since": ["1h", "24h", "7d"],
    "until": ["1h", "24h", "7d"],
    "attempts": [">=3", "1", ">=10"],
    "priority": [*LEVELS, ">=5"],
}
# A qualifier with the values typed so far; the last one may have an open quote.
_OPEN = re.compile(
    r"(?:^|[\s(])-?(?P<field>[a-z]+(?:\.[^\s:,()\"*=]{1,200})?):(?P<before>(?:(?:=?\"[^\"]*\"|[^\s,\"]*),)*)(?P<value>=?\"[^\"]*|[^\s,\"]*)\Z"
)
_WORD = re.compile(r"(?:^|(?<=[\s(]))-?(?P<word>[a-z]*(?:\.[^\s:,()\"*=]*)?)\Z")
_REST_OF_VALUE = re.compile(r'[^\s,()"]*"?')


class Option(NamedTuple):
    text: str  # replaces the text between `start` and `end`
    kind: str  # short description of the type
    count: int | None  # None: unknown


@dataclass(frozen=True, slots=True)
class Completions:
    start: int
    end: int
    options: tuple[Option, ...] = ()


def complete(viewer: Viewer, text: str, at: int) -> Completions:
    """Return at most MOST options at the caret, `at` characters from the start of the text."""
    at = max(0, min(at, len(text)))
    begins = max(0, at - _READ)
    head = text[begins:at]
    found = _OPEN.search(head)
    if found and (found["field"] in language.QUALIFIERS or language.is_argument(found["field"])):
        rest = _REST_OF_VALUE.match(text, at)
        end = rest.end() if rest else at
        return _of_values(viewer, found, begins + found.start("value"), end, text[at:end])
    word = _WORD.search(head)
    if word is None or not (word["word"] or not text.strip() or head.endswith(("(", "-"))):
        return Completions(at, at)
    start, prefix = begins + word.start("word"), word["word"]
    if prefix.startswith(("args.", "kwargs.")):
        return Completions(start, at, tuple(_paths(viewer, prefix)))
    fitting = [(name, why) for name, why in DESCRIPTIONS.items() if name.startswith(prefix) and name != prefix]
    options = [Option(name if name.endswith(".") else f"{name}:", why, None) for name, why in fitting]
    return Completions(start, at, tuple(options[:MOST]))


def _of_values(viewer: Viewer, found: re.Match[str], start: int, end: int, after: str) -> Completions:
    field, typed = found["field"], found["value"].removeprefix("=").removeprefix('"')
    have = set(re.findall(r'"([^"]*)"|([^,"]+)', found["before"]))
    there = {one or other for one, other in have}
    wanted = (typed + after.rstrip('"')).casefold()
    options = []
    for option in values(viewer, field, typed):
        if option.text in there or len(options) == MOST:
            continue
        if wanted and option.text.casefold() == wanted and not found["value"].startswith('"'):
            return Completions(start, end)  # it is complete
        # A range is written literally: `<2d` needs no quotes.
        options.append(option._replace(text=language.format_value(Value(option.text, glob=field in _EXAMPLES))))
    return Completions(start, end, tuple(options))


Values = Callable[[Viewer, str], Iterable[Option]]


def _examples(field: str) -> Values:
    if language.is_argument(field):
        return lambda viewer, typed: _arguments(viewer, field, typed)
    return lambda viewer, typed: [Option(one, "", None) for one in _EXAMPLES.get(field, ()) if one.startswith(typed)]


def _fits(value: str, typed: str) -> bool:
    return typed.casefold() in value.casefold()


def _ranked(
    counted: dict[str, int], typed: str, kind: str = "", *, known: bool = True, may_be_empty: bool = False
) -> list[Option]:
    """Return matching options: those that start with the typed text first, then by frequency."""
    fitting = [(value, n) for value, n in counted.items() if (value or may_be_empty) and _fits(value, typed)]
    folded = typed.casefold()
    fitting.sort(key=lambda pair: (not pair[0], not pair[0].casefold().startswith(folded), -pair[1], pair[0]))
    return [Option(value, kind, n if known else None) for value, n in fitting]


def _count_column(column: str) -> Values:
    def values(viewer: Viewer, typed: str) -> list[Option]:
        return _ranked(_numbers(viewer, column), typed, may_be_empty=column in language.EMPTY)

    return values


def _numbers(viewer: Viewer, column: str) -> dict[str, int]:
    """Return value -> failures in the default states; 0 for values that occur only in others."""
    found: Counter[str] = Counter()
    counters = FailureCount.objects.filter(scopes.visible(viewer), count__gt=0).order_by()
    for value, state, n in counters.values_list(column, "state").annotate(n=Sum("count")):
        found[value] += n if state in language.DEFAULT_STATES or column == "state" else 0
    return dict(found)


def _states(viewer: Viewer, typed: str) -> list[Option]:
    counted = _numbers(viewer, "state")
    return _ranked({state: counted.get(state, 0) for state in language.STATES}, typed)


def _of_groups(viewer: Viewer) -> dict[int, int]:
    counted = _numbers(viewer, "group_id")
    return {int(pk): n for pk, n in counted.items() if pk}


def _with_jobs(viewer: Viewer) -> QuerySet[Group]:
    """Return groups with jobs, found by a join: there can be more groups than a statement takes parameters."""
    counts = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), count__gt=0)
    return Group.objects.filter(Exists(counts))


def _read(viewer: Viewer, groups: QuerySet[Group]) -> list[Group]:
    """Return these groups with the fields that the viewer may read."""
    found = statements.fetch_instances(groups)
    group_sight.restrict(viewer, found)
    return found


def _groups(viewer: Viewer, typed: str) -> list[Option]:
    counted = _of_groups(viewer)
    groups = _read(viewer, _with_jobs(viewer).filter(~IS_TAKEN_IN))
    fitting = [
        one
        for one in groups
        if one.pk in counted and (_fits(one.fingerprint, typed) or _fits(f"{one.error_type}: {one.message}", typed))
    ]
    fitting.sort(key=lambda one: -counted[one.pk])
    return [Option(one.fingerprint, f"{one.error_type}: {one.message}"[:80], counted[one.pk]) for one in fitting]


def _errors(viewer: Viewer, typed: str) -> list[Option]:
    counted, by_type = _of_groups(viewer), Counter[str]()
    for one in _read(viewer, _with_jobs(viewer)):
        by_type[one.error_type] += counted.get(one.pk, 0)
    return _ranked(dict(by_type), typed)


def words_of_errors(viewer: Viewer) -> list[str]:
    """Return the words in the errors of the latest groups, latest first: as written, and the sub-words of names."""
    rows = _with_jobs(viewer).filter(~IS_TAKEN_IN).order_by(group_sight.seen_at(viewer, "last_seen").desc())
    words: dict[str, None] = {}
    for one in _read(viewer, rows[:_MOST_GROUPS]):
        for word in (one.error_type.rpartition(".")[2], *_PLAIN_WORD.findall(f"{one.error_type} {one.message[:500]}")):
            words.setdefault(word)
            if not word.islower():
                words.update(dict.fromkeys(part.lower() for part in _SUB_WORD.findall(word)))
        if len(words) > _MOST_WORDS:
            break
    return [word for word in words if len(word) > 3][:_MOST_WORDS]


def _tenants(viewer: Viewer, typed: str) -> list[Option]:
    found = _count_seen(viewer, "tenant")
    if viewer.sources() is None and sum(_fits(tenant, typed) for tenant in found) < MOST:
        # Skip scan of the index, from one tenant with this prefix to the next, however many failures each has.
        onward = Failure.objects.filter(tenant__gte=typed).exclude(tenant="")
        for _ in range(MOST):
            tenant = onward.order_by("tenant").values_list("tenant", flat=True).first()
            if tenant is None:
                break
            found.setdefault(tenant, 0)
            onward = Failure.objects.filter(tenant__gt=tenant)
    return _ranked(found, typed, known=False, may_be_empty=True)


def _workers(column: str, field: str) -> Values:
    def values(viewer: Viewer, typed: str) -> list[Option]:
        found = _count_seen(viewer, field)
        for name in Worker.objects.filter(scopes.visible(viewer)).values_list(column, flat=True)[:500]:
            found.setdefault(name, 0)
        return _ranked(found, typed, known=False)

    return values


def _releases(viewer: Viewer, typed: str) -> list[Option]:
    rows = Release.objects.filter(scopes.visible(viewer)).order_by("-at", "-pk").values_list("version", flat=True)
    return [Option(version, "", None) for version in dict.fromkeys(rows[:200]) if _fits(version, typed)]


def _kinds(viewer: Viewer, typed: str) -> list[Option]:
    return [Option(kind, "", None) for kind in KINDS if kind.startswith(typed) and kind != "success"]


def _policies(viewer: Viewer, typed: str) -> list[Option]:
    rows = PolicyVersion.objects.order_by("name").values_list("name", "match_source").distinct()[:1_000]
    theirs = viewer.sources()
    seen = [name for name, glob in rows if theirs is None or any(matches(glob, source) for source in theirs)]
    return [Option(name, "", None) for name in dict.fromkeys(seen) if _fits(name, typed)]


_VALUES: dict[str, Values] = {
    "queue": _count_column("queue"),
    "task": _count_column("task"),
    "source": _count_column("source"),
    "state": _states,
    "group": _groups,
    "dependency": lambda viewer, typed: _ranked(dependencies.names(viewer), typed),
    "error": _errors,
    "tenant": _tenants,
    "worker": _workers("name", "worker"),
    "host": _workers("host", "host"),
    "release": _releases,
    "kind": _kinds,
    "policy": _policies,
}


# -- from the latest failures -------------------------------------------------------------------------------------


def _read_latest(viewer: Viewer, *columns: str) -> list[tuple[str, ...]]:
    ids = FailureSearch(viewer, Query()).ids(None, SAMPLED)
    return list(Failure.objects.filter(pk__in=ids).values_list(*columns))


def _count_seen(viewer: Viewer, column: str) -> dict[str, int]:
    return dict(Counter(value for (value,) in _read_latest(viewer, column) if value or column in language.EMPTY))


def values(viewer: Viewer, field: str, typed: str) -> Iterable[Option]:
    """Return known values of a qualifier that contain the typed text: prefixes first, then by frequency."""
    return _VALUES.get(field, _examples(field))(viewer, representable(typed))


def paths(viewer: Viewer) -> list[str]:
    """Return the argument paths of the latest failures, most frequent first, in the syntax of a search."""
    counted: Counter[str] = Counter()
    for args, kwargs in _read_latest(viewer, "args", "kwargs"):
        counted.update({path for path, _ in (*_leaves("kwargs", kwargs), *_leaves("args", args))})
    return [path for path, _ in counted.most_common() if language.is_path(path)]


def _paths(viewer: Viewer, prefix: str) -> list[Option]:
    root = prefix.partition(".")[0]
    counted: Counter[str] = Counter()
    for (copy,) in _read_latest(viewer, root):
        counted.update({path for path, _ in _leaves(root, copy) if path.casefold().startswith(prefix.casefold())})
    # Paths that cannot be written as a qualifier are omitted.
    return [Option(f"{path}:", "", None) for path, _ in counted.most_common() if language.is_path(path)][:MOST]


def _arguments(viewer: Viewer, field: str, typed: str) -> list[Option]:
    root = field.partition(".")[0]
    counted: Counter[str] = Counter()
    for (copy,) in _read_latest(viewer, root):
        counted.update({value for path, value in _leaves(root, copy) if path == field and len(value) <= 100})
    return [option for option in _ranked(dict(counted), typed, known=False) if PLACEHOLDER not in option.text]


def _leaves(root: str, copy: str) -> list[tuple[str, str]]:
    """Return path and value of the scalars in a display copy."""
    try:
        waiting = [(root, json.loads(copy, parse_int=str, parse_float=str, parse_constant=str))] if copy else []
    except (ValueError, RecursionError):
        return []
    found = []
    while waiting and len(found) < 100:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}", inner) for key, inner in list(value.items())[:100]]
        elif isinstance(value, list):
            waiting += [(f"{path}.{n}", inner) for n, inner in enumerate(value[:100])]
        else:
            found.append((path, value if isinstance(value, str) else json.dumps(value)))
    return found
