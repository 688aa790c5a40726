"""Suggestions: similar searches with results, and single jobs, for a search that finds nothing or only a few.

Every candidate is counted within the viewer's rights, up to MOST_COUNTED, before it is suggested. At most MOST_TRIED
are counted, so that an empty page takes some tens of milliseconds for any text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, product

from django.db.models import Sum

from jobs_admin.core import pasted_text
from jobs_admin.core import query as language
from jobs_admin.core import search_terms as index
from jobs_admin.core.pasted_text import Pasted
from jobs_admin.core.query import Match, Query, Term, Text, Value
from jobs_admin.core.search_terms import Phrase
from jobs_admin.core.text import representable, whole_number
from jobs_admin.db import statements
from jobs_admin.failures import completing
from jobs_admin.models import Failure, Group
from jobs_admin.models.access import Viewer
from jobs_admin.models.group import IS_TAKEN_IN
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes
from jobs_admin.search.failure_search import FailureSearch
from jobs_admin.search.term_index import any_of

MOST = 6  # suggestions
MOST_TRIED = 16
MOST_COUNTED = 1_000
_MOST_TERMS = 12  # terms of the search that are checked individually
_MOST_CHANGED = 3  # terms without matches that are replaced
_MOST_GROUPS = 2_000  # latest groups, whose titles are compared with a pasted one
_MOST_NAMES = 3
_SHORTEST_WORD = 3  # characters of a word that is extended to a longer one
_SHORTEST_TYPED, _LONGEST_TYPED, _MOST_AMISS = 4, 40, 2  # length of a word checked for typos; edits allowed
_SHORTEST_ID = 6  # characters of a job id that suffice to search for it

_MOST_PASTED = 40  # words of a pasted error
_MOST_PATHS = 60  # argument paths in which a bare value is searched
_VALUE = re.compile(r"[\d@]")  # characters that numbers, keys and addresses contain, but no English word

# Names that a bare word may be part of, and the factor by which such jobs must outnumber the results of the search.
_SEARCHED_NAMES = ("task", "queue", "tenant")
_CLEARLY_MORE = 2
_MOST_COMBINED = 4  # searches with all words as qualifiers

_EVERY_STATE = Match("state", (Value("any"),))


@dataclass(frozen=True, slots=True)
class Near:
    """A search with results, or one job."""

    text: str  # the search; for a job, the number of its failure
    why: str  # description, as text
    count: int
    count_is_capped: bool = False
    failure: int | None = None  # the job, instead of a search


def near(viewer: Viewer, query: Query, text: str) -> list[Near]:
    """Return suggestions for a search without results, most likely first; `text` as typed."""
    text = representable(text)
    block = pasted_text.read(text)
    found = list(_jobs(viewer, query, block))
    for candidate, why in islice(_candidates(viewer, query, text, block), MOST_TRIED):
        if len(found) >= MOST:
            break
        count = _count(viewer, candidate)
        if count:
            is_capped = count > MOST_COUNTED and not scopes.is_counted(candidate)
            found.append(Near(language.format(candidate), why, MOST_COUNTED if is_capped else count, is_capped))
    return found[:MOST]


def find_by_names(viewer: Viewer, query: Query, found: int) -> list[Near]:
    """Return searches for jobs with the one bare word in a name, most jobs first, if they are clearly more than `found`.

    A bare word is not searched in names.
    """
    places = [place for place, term in enumerate(query.terms) if _is_word(term)]
    if len(places) != 1 or query.is_cut:
        return []
    place, near = places[0], []
    for term, why in _named_like(viewer, query.terms[place].value):
        candidate = replace(query, terms=(*query.terms[:place], term, *query.terms[place + 1 :]))
        if language.parse(language.format(candidate)).terms != candidate.terms:
            continue
        count = _count(viewer, candidate)
        if count > found * _CLEARLY_MORE:
            is_capped = count > MOST_COUNTED and not scopes.is_counted(candidate)
            near.append(Near(language.format(candidate), why, MOST_COUNTED if is_capped else count, is_capped))
    return sorted(near, key=lambda one: -one.count)


def _is_word(term: Term) -> bool:
    is_plain = isinstance(term, Text) and not term.negated and not term.glob
    return is_plain and len(term.value) >= _SHORTEST_WORD and not any(c.isspace() for c in term.value)


def _named_like(viewer: Viewer, word: str) -> Iterator[tuple[Term, str]]:
    """Yield one search per field: for the known names that contain the word."""
    for field in _SEARCHED_NAMES:
        folded = word.casefold()
        names = [one.text for one in completing.values(viewer, field, word) if folded in one.text.casefold()]
        if len(names) > _MOST_NAMES:
            yield Match(field, (Value(f"*{word}*", glob=True),)), f"{field} names with this word"
        elif names:
            why = (
                f"{field} with this name"
                if names == [word]
                else f"{field} name{'s' if names[1:] else ''} with this word"
            )
            yield Match(field, tuple(Value(name) for name in names)), why


Candidates = Iterator[tuple[Query, str]]


def _candidates(viewer: Viewer, query: Query, text: str, block: Pasted) -> Candidates:
    """Yield searches that can be written as text, each once, in the order of trying."""
    seen = {query.terms}
    for candidate, why in chain.from_iterable(_ways(viewer, query, text, block)):
        is_written = language.parse(language.format(candidate)).terms == candidate.terms
        if is_written and candidate.terms not in seen and not candidate.is_bounded:
            seen.add(candidate.terms)
            yield candidate, why


def _ways(viewer: Viewer, query: Query, text: str, block: Pasted) -> Iterator[Candidates]:
    yield _of_errors(viewer, query, block)
    if query.is_cut:
        return  # the end of the text was not read, so nothing else can be suggested
    yield _wider(query)
    yield _as_argument(viewer, query, text)
    yield _qualified(viewer, query, text)
    yield _titled(viewer, query, text)
    if block.job_ids:
        return  # single words of a log line are not meaningful
    lost = _lost(viewer, query)
    yield _combined(viewer, query, lost)
    yield _changed(viewer, query, lost)
    yield _shorter(query, lost)


def _count(viewer: Viewer, query: Query, most: int = MOST_COUNTED + 1) -> int:
    if scopes.is_counted(query):
        return scopes.matching_counts(viewer, query).aggregate(n=Sum("count"))["n"] or 0
    return FailureSearch(viewer, query).count(most)


# -- single jobs -------------------------------------------------------------------------------------------------


def _jobs(viewer: Viewer, query: Query, block: Pasted) -> Iterator[Near]:
    """Yield the failure of this number, the jobs whose id begins with it, and those with ids in a pasted block."""
    first = query.terms[0] if len(query.terms) == 1 else None
    number, named = None, [Phrase((index.name("job", job_id),)) for job_id in block.job_ids]
    if isinstance(first, Text) and language.may_be_job_id(first) and not first.negated:
        word, number = first.value, whole_number(first.value.lstrip("#"))
        if len(word) >= _SHORTEST_ID and any(c.isdigit() for c in word):
            named.append(index.name_begins("job", word))
    ids = [] if number is None else [number]
    if named:
        begun = FailureSearch(viewer, Query((_EVERY_STATE,), now=query.now))
        begun.require(any_of(named))
        ids += begun.ids(None, _MOST_NAMES)
    if not ids:
        return
    rows = Failure.objects.filter(scopes.visible(viewer), pk__in=ids).values_list("pk", "task", "state", "job_id")
    for pk, task, state, job_id in rows.order_by("-pk"):
        what = f"failure {pk}" if pk == number else f"job {job_id}"
        yield Near(str(pk), f"{what}: {task}, {state}", 1, failure=pk)


# -- pasted blocks -----------------------------------------------------------------------------------------------


def find_pasted(viewer: Viewer, query: Query, text: str) -> Near | None:
    """Return the job of a pasted log line or traceback that matches nothing as text, otherwise its task and error.

    None for other text, and if several jobs or none are found.
    """
    text = representable(text)
    block = pasted_text.read(text)
    if not (block.job_ids or block.tasks or "Traceback (most recent call last)" in text):
        return None
    jobs = list(_jobs(viewer, query, replace(block, errors=()))) if len(query.terms) > 1 else []
    if jobs:
        return jobs[0] if len(jobs) == 1 else None
    for candidate, why in islice(_of_errors(viewer, query, block), 1):
        if language.parse(language.format(candidate)).terms == candidate.terms:
            return Near(language.format(candidate), why, _count(viewer, candidate))
    return None


def _of_errors(viewer: Viewer, query: Query, block: Pasted) -> Candidates:
    """Yield searches for the errors of the block: the first exact match; else by its known words, by its class.

    Restricted to the task that the block names, if that task has such failures.
    """
    found = False
    for task in block.tasks:
        for candidate, why in _of_each_error(viewer, query, block.errors, (Match("task", (Value(task),)),)):
            found = True
            yield candidate, f"{why}, in this task"
    if not found:
        yield from _of_each_error(viewer, query, block.errors, ())


def _of_each_error(viewer: Viewer, query: Query, errors: tuple[str, ...], beside: tuple[Term, ...]) -> Candidates:
    texts = [Text(" ".join(error.split()[:_MOST_PASTED])) for error in errors]
    words = [tuple(Text(word) for word in dict.fromkeys(language.bare_words(text.value))) for text in texts]
    ways = (
        [((text,), "error in the pasted text") for text in texts],
        [(each, "words of the error") for each in words if len(each) > 1],
        (_known_words(viewer, query, each) for each in words[:1] if len(each) > 2),
        [
            ((Match("error", (Value(name),)),), "errors of this class")
            for name in map(pasted_text.error_name, errors)
            if name
        ],
    )
    for terms, why in chain.from_iterable(ways):
        wider = Query((*beside, *terms), now=query.now)
        if terms and _count(viewer, wider, 1):
            yield wider, why
            return
        wider = replace(wider, terms=(*wider.terms, _EVERY_STATE))
        if terms and _count(viewer, wider, 1):
            yield wider, f"{why}, in any state"
            return


def _known_words(viewer: Viewer, query: Query, words: tuple[Term, ...]) -> tuple[tuple[Term, ...], str]:
    """Return those of the first words that match something; none if fewer than half of them do."""
    first = words[:_MOST_TERMS]
    known = tuple(word for word in first if _finds(viewer, query, word))
    return (known if len(known) * 2 > len(first) else ()), "most words of the error"


def _as_argument(viewer: Viewer, query: Query, text: str) -> Candidates:
    """Suggest a bare order number or e-mail as a value of the known argument that contains it."""
    value = text.strip()
    is_plain = all(isinstance(term, Text) and not term.negated and not term.glob for term in query.terms)
    if not is_plain or not 0 < len(value) <= index.LONGEST or not _VALUE.search(value) or len(value.split()) > 3:
        return
    known = completing.paths(viewer)[:_MOST_PATHS]
    searcher = FailureSearch(viewer, Query((_EVERY_STATE,), now=query.now))
    searcher.require(any_of(index.argument(path, value) for path in known))
    # One query for all, because usually none matches.
    if not known or not searcher.count(1):
        return
    for path in known:
        one = replace(query, terms=(Match(path, (Value(value),)), _EVERY_STATE))
        if _count(viewer, one, 1):
            alone = replace(one, terms=one.terms[:1])
            yield (alone, "as an argument") if _count(viewer, alone, 1) else (one, "as an argument, in any state")


def _combined(viewer: Viewer, query: Query, lost: list[int]) -> Candidates:
    """Yield searches with all bare words as qualifiers: `payments acme` as `queue:payments tenant:acme`."""
    places = [place for place, term in enumerate(query.terms[:_MOST_TERMS]) if _is_word(term)]
    if not 1 < len(places) <= _MOST_NAMES:
        return
    options = []
    for place in places:
        exact = [term for term, _ in _find_by_name(viewer, query.terms[place].value) if _finds(viewer, query, term)]
        found = exact or [term for term, _ in _named_like(viewer, query.terms[place].value)]
        if not found:
            return
        options.append(found)
    for terms in islice(product(*options), _MOST_COMBINED):
        named = dict(zip(places, terms, strict=True))
        remaining = [place for place in range(len(query.terms)) if place in named or place not in lost]
        yield replace(query, terms=tuple(named.get(place, query.terms[place]) for place in remaining)), "words as names"


# -- replaced words ----------------------------------------------------------------------------------------------


def _changed(viewer: Viewer, query: Query, lost: list[int]) -> Candidates:
    """Yield searches with one term without matches replaced, and the other terms without matches removed."""
    for place in lost[:_MOST_CHANGED]:
        left = [language.format_term(query.terms[other]) for other in lost if other != place]
        without = f", without {' '.join(left)}" if left else ""
        for other, why in _instead_of(viewer, query, query.terms[place]):
            terms = [other if n == place else term for n, term in enumerate(query.terms) if n == place or n not in lost]
            yield replace(query, terms=tuple(terms)), f"{why}{without}"


def _instead_of(viewer: Viewer, query: Query, term: Term) -> Iterator[tuple[Term, str]]:
    if isinstance(term, Text) and not term.negated and not term.glob:
        yield from _of_word(viewer, term.value)
    elif isinstance(term, Match) and not term.negated and len(term.values) == 1 and not term.values[0].glob:
        yield from _of_value(viewer, query, term.field, term.values[0])


def _of_word(viewer: Viewer, word: str) -> Iterator[tuple[Term, str]]:
    names = list(_find_by_name(viewer, word))
    yield from names
    if not names:
        for near in _words_near(viewer, word):
            yield Text(near), f"“{near}” for “{word}”"
    is_one = len(word) >= _SHORTEST_WORD and not any(c.isspace() for c in word) and index.is_word_end(word)
    if is_one:
        yield Text(f"{word}*", glob=True), "words with this prefix"
    yield Match("trace", (Value(word),)), "in the traceback"
    if is_one and not names:
        for name in _names_near(viewer, "task", word):
            yield Match("task", (Value(name),)), "task with a similar name"


def _words_near(viewer: Viewer, word: str) -> list[str]:
    """Return similarly spelled words from the errors of known groups."""
    if not _SHORTEST_TYPED <= len(word) <= _LONGEST_TYPED or any(c.isspace() or c.isdigit() for c in word):
        return []
    wanted = word.casefold()
    known: dict[str, str] = {}
    for one in completing.words_of_errors(viewer):
        if abs(len(one) - len(word)) <= _MOST_AMISS and one.casefold() != wanted:
            known.setdefault(one.casefold(), one)
    return [known[one] for one in difflib.get_close_matches(wanted, known, 2, 0.75)]


def _find_by_name(viewer: Viewer, name: str) -> Iterator[tuple[Term, str]]:
    """Yield searches with exactly this name. All are looked up at once, because most have no results."""
    searcher = FailureSearch(viewer, Query((_EVERY_STATE,)))
    searcher.require(any_of(Phrase((index.name(field, name),)) for field in index.NAMED))
    if searcher.count(1):
        for field in index.NAMED:
            yield Match(field, (Value(name),)), f"{field} with this name"


def _of_value(viewer: Viewer, query: Query, field: str, value: Value) -> Iterator[tuple[Term, str]]:
    begins = Value(f"{value.text}*", glob=True)
    if language.is_argument(field):
        yield Match(field, (begins,)), "values with this prefix"
        for path in _paths_near(viewer, field):
            yield Match(path, (value,)), "another argument"
        return
    if field in (*language.CONTAINED, "trace"):
        if field != "trace":
            for near in _words_near(viewer, value.text):
                yield Match(field, (Value(near),)), f"“{near}” for “{value.text}”"
        if value.exact:
            yield Match(field, (Value(value.text),)), "part of the text"
        elif index.is_word_end(value.text):
            yield Match(field, (begins,)), "words with this prefix"
        if field != "trace":
            yield Text(value.text), "in error or message"
            yield Match("trace", (Value(value.text),)), "in the traceback"
        return
    for name in _names_near(viewer, field, value.text):
        yield Match(field, (Value(name),)), f"{field} with a similar name"
    if field in (*index.NAMED, "group", "dependency"):
        yield Match(field, (begins,)), "names with this prefix"
        yield from _find_by_name(viewer, value.text)


def _names_near(viewer: Viewer, field: str, text: str) -> list[str]:
    """Return known values that contain the text or are spelled similarly."""
    holding = [option.text for option in islice(completing.values(viewer, field, text), _MOST_NAMES)]
    known = {option.text.casefold(): option.text for option in completing.values(viewer, field, "")}
    like = difflib.get_close_matches(text.casefold()[:100], list(known)[:1_000], _MOST_NAMES, 0.75)
    return list(dict.fromkeys([*holding, *(known[name] for name in like)]))[:_MOST_NAMES]


# -- unknown qualifiers ------------------------------------------------------------------------------------------

_UNKNOWN = re.compile(r"(?:(?<=\s)|\A)(-?)([A-Za-z_][\w.]{0,99}):([^\s\"(),:]{1,200})(?=\s|\Z)")


def _qualified(viewer: Viewer, query: Query, text: str) -> Candidates:
    """Correct an unknown qualifier (`custmer:42`) to a similarly named qualifier or argument."""
    for found in islice(_UNKNOWN.finditer(text), _MOST_NAMES):
        sign, name, value = found.groups()
        if name in language.QUALIFIERS or language.is_argument(name):
            continue
        near = difflib.get_close_matches(name.lower(), language.QUALIFIERS, 1, 0.7)
        for field in (*near, *_paths_near(viewer, name)):
            meant = f"{text[: found.start()]}{sign}{field}:{value}{text[found.end() :]}"
            yield language.parse(meant, query.now), f"“{field}:” for “{name}:”"


def _paths_near(viewer: Viewer, name: str) -> list[str]:
    """Return argument paths of the latest jobs that continue it, end with it, or have a similarly spelled part."""
    wanted = name.casefold()
    last = wanted.rpartition(".")[2]
    known = [path for path in completing.paths(viewer) if path != name]
    on = [path for path in known if path.casefold().startswith(f"{wanted}.")]
    same = [path for path in known if last in path.casefold().split(".")[1:]]
    parts = {part for path in known for part in path.casefold().split(".")[1:] if not part.isdigit()}
    like = set(difflib.get_close_matches(last, sorted(parts), 2, 0.75))
    nearly = [path for path in known if like & set(path.casefold().split(".")[1:])]
    return list(dict.fromkeys([*on, *same, *nearly]))[:4]


# -- pasted titles of groups -------------------------------------------------------------------------------------


def _titled(viewer: Viewer, query: Query, text: str) -> Candidates:
    """Search for the group of a pasted title.

    No failure matches its words, because a title has placeholders (`order <number>`).
    """
    wanted = " ".join(text.casefold().split())
    if "<" not in wanted or len(wanted) < 10:
        return
    rows = Group.objects.filter(~IS_TAKEN_IN).order_by(group_sight.seen_at(viewer, "last_seen").desc())[:_MOST_GROUPS]
    found = statements.fetch_instances(rows)
    group_sight.restrict(viewer, found)
    for one in found:
        if wanted in " ".join(f"{one.error_type}: {one.message}".casefold().split()):
            yield Query((Match("group", (Value(one.fingerprint),)),), now=query.now), "group with this title"


# -- fewer terms -------------------------------------------------------------------------------------------------


def _wider(query: Query) -> Candidates:
    if not query.names_state:
        yield replace(query, terms=(*query.terms, _EVERY_STATE)), "in any state"


def _shorter(query: Query, lost: list[int]) -> Candidates:
    """Yield the search without terms that have no matches of their own; if there are none, without each term."""
    terms = query.terms
    for places in [lost] if lost else [[place] for place in range(len(terms))]:
        left = [language.format_term(terms[place]) for place in places]
        remaining = tuple(term for place, term in enumerate(terms) if place not in places)
        if remaining:
            yield replace(query, terms=remaining), f"without {' '.join(left)}"


def _lost(viewer: Viewer, query: Query) -> list[int]:
    """Return the places of the terms that have no matches of their own, in any state."""
    first = query.terms[:_MOST_TERMS]
    return [0] if len(first) == 1 else [place for place, term in enumerate(first) if not _finds(viewer, query, term)]


def _finds(viewer: Viewer, query: Query, term: Term) -> bool:
    if getattr(term, "negated", False):
        return True
    alone = Query((term,) if scopes.is_state(term) else (term, _EVERY_STATE), now=query.now)
    return alone.is_bounded or bool(_count(viewer, alone, 1))


def in_words(one: Near) -> str:
    """Return one line of plain text, for terminals."""
    if one.failure is not None:
        return one.why
    return f"{one.text}  {one.count:,}{'+' if one.count_is_capped else ''} ({one.why})"
