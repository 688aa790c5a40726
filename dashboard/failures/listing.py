"""The list of failures as displayed: reading of the search, acts, and facets that narrow it. Rows: `columns`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard.failures.page import short
from dashboard.web import links
from dashboard.web.figures import number
from dashboard.web.pictures import state
from dashboard.web.text import visible, visible_text
from jobs_admin import config
from jobs_admin.core import query as language
from jobs_admin.core.query import Match, Query
from jobs_admin.core.text import fits, whole_number
from jobs_admin.db import abilities
from jobs_admin.failures import Facets, Page
from jobs_admin.failures.nearest import Near
from jobs_admin.holds import in_force
from jobs_admin.models import Failure
from jobs_admin.models.access import Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.search import scope as scopes

FACETS = (
    ("state", "State"), ("source", "Source"), ("queue", "Queue"), ("error", "Error"), ("dependency", "Dependency"),
    ("task", "Task"), ("tenant", "Tenant"), ("release", "Release"),
)  # fmt: skip
# Values of a facet shown at once; the others are behind "more".
VALUES_SHOWN = 6
# Number of previous pages that can be reached one by one; before those, only the first page.
MOST_BACK = 20


# --- URLs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paths:
    """Links to the previous and next pages of the list; empty if there is none."""

    first: str
    newer: str
    older: str


def hold_links(viewer: Viewer, query: Query) -> list[tuple[str, str]]:
    """Return text and URL of each breaker that holds jobs, if the query has `state:held`."""
    return [
        (f"{name} of {source}: {number(count)} held", reverse("redrive:breaker-detail", args=[source, name]))
        for (source, name), count in in_force.find_searched(viewer, query).items()
    ]


def trail_of(text: str) -> tuple[str, ...]:
    """Return the valid cursors of the pages before this one, latest last."""
    words = text.split(".")[-MOST_BACK:]
    return tuple(word for word in words if whole_number(word) is not None)


def paths(text: str, page: Page, after: str | None, back: tuple[str, ...], columns: str = "") -> Paths:
    """Return the links. Pages are found by key, so a page knows only the pages that led to it, not its number."""

    def to(after: str, back: tuple[str, ...]) -> str:
        more = {"columns": columns} if columns else {}
        more |= {"after": after} if after else {}
        return links.list_url(text, **more, **({"back": ".".join(back)} if back else {}))

    first = to("", ()) if after else ""
    newer = "" if not after else to(back[-1], back[:-1]) if back else first
    older = to(page.next, (*back, after)[-MOST_BACK:] if after else ()) if page.next else ""
    return Paths(first, newer, older)


# --- reading of the search ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chip:
    """A term of the search, with the search without it, and the search with its negation if there is one."""

    text: str
    words: str
    url: str
    opposite: str = ""
    verb: str = ""  # is, has, not …
    is_negated: bool = False

    @property
    def search_text(self) -> str:
        return self.text.removeprefix("-") if self.is_negated else self.text


@dataclass(frozen=True, slots=True)
class Head:
    count: str
    noun: str
    chips: list[Chip]
    is_default_state: bool
    any_state_url: str
    formatted: str  # the search in the form shown by the chips
    searched: str  # number of failures searched, if not all
    all_jobs: str  # what an act on all matches affects: "1,263 jobs"


def head(page: Page, text: str) -> Head:
    return Head(
        count=page.count.text,
        noun="failure" if page.count.number == 1 else "failures",
        chips=chips(page.query),
        is_default_state=not page.query.names_state,
        any_state_url=links.list_url(f"{text} state:any".strip()),
        formatted=language.format(page.query),
        searched=number(page.searched) if page.searched is not None else "",
        all_jobs=_all_jobs(page),
    )


def _all_jobs(page: Page) -> str:
    """Return the count as text. An act may affect fewer jobs of some states, which only another search could count."""
    count = page.count
    if count.is_capped:
        return f"more than {number(count.number)} jobs"
    is_bound = len(scopes.states_of(page.query)) > 1 and not count.is_estimate
    return f"{'up to ' if is_bound else ''}{count.text} {'job' if count.number == 1 else 'jobs'}"


def chips(query: Query) -> list[Chip]:
    return [_chip(query, n, term) for n, term in enumerate(query.terms)]


def _chip(query: Query, n: int, term: language.Term) -> Chip:
    without = links.list_url(language.format(language.without(query, n)))
    return Chip(
        language.format_term(term),
        language.in_words(term),
        without,
        _opposite(query, n, term),
        _verb(term),
        bool(getattr(term, "negated", False)),
    )


def _verb(term: language.Term) -> str:
    if getattr(term, "negated", False):
        return "not"
    if isinstance(term, language.Age | language.Time):
        return "when"
    is_text = isinstance(term, language.Text) or getattr(term, "field", "") in language.CONTAINED
    return "has" if is_text else "is"


def _opposite(query: Query, n: int, term: language.Term) -> str:
    """Return the search with this term negated; "" if the language cannot express that."""
    if not hasattr(term, "negated"):
        return ""
    turned = replace(term, negated=not term.negated)
    terms = (*query.terms[:n], turned, *query.terms[n + 1 :])
    text = language.format(replace(query, terms=terms))
    return links.list_url(text) if language.parse(text).terms == terms else ""


# --- completions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    text: str  # text after completion
    shown: SafeString | str
    kind: SafeString | str
    count: str


def options(found: Iterable[tuple[str, str, int | None]]) -> list[Option]:
    return [
        Option(text, visible(text), visible(kind), number(count) if count is not None else "")
        for text, kind, count in found
    ]


# --- suggested searches ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    url: str
    text: str
    why: str
    count: str  # "" for a single job


def near(found: Iterable[Near]) -> list[Offer]:
    return [offer(one) for one in found]


def offer(one: Near) -> Offer:
    """Return a suggested search, or a job, with its link."""
    if one.failure is not None:
        return Offer(reverse("redrive:failure-detail", args=[one.failure]), one.why, "", "")
    count = f"{number(one.count)}{'+' if one.count_is_capped else ''}"
    return Offer(links.list_url(one.text), one.text, one.why, count)


# --- acts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acts:
    """Acts allowed by the states in the scope."""

    discard: bool
    restore: bool
    readmit: bool
    reschedule: bool  # all listed jobs are waiting for a retry, and a source can reschedule retries


# Acts on the groups of the selected jobs, with the labels of the group's page.
GROUP_ACTS = (
    ("resolve", "Resolve"), ("mute_day", "Mute for a day"), ("mute_week", "Mute for a week"),
    ("assign_me", "Assign to me"),
)  # fmt: skip


def acts(query: Query, shown: Sequence[Failure]) -> Acts:
    """Return the allowed acts. `shown`: jobs of the page, checked for quarantine if the search names no state."""
    states = scopes.states_of(query)
    may_hold_quarantined = query.names_state or any(one.state == FailureState.QUARANTINED for one in shown)
    return Acts(
        discard=FailureState.DEAD in states or FailureState.QUARANTINED in states,
        restore=FailureState.DISCARDED in states,
        readmit=FailureState.QUARANTINED in states and may_hold_quarantined,
        reschedule=states == (FailureState.RETRYING,) and _some_reschedule(query),
    )


def _some_reschedule(query: Query) -> bool:
    """Return whether a source of the listed jobs can reschedule retries."""
    source_terms = [term for term in query.terms if isinstance(term, Match) and term.field == "source"]
    return any(
        (can := abilities.capabilities(name)) is not None and can.reschedule
        for name in config.sources()
        if all(_names(term, name) != term.negated for term in source_terms)
    )


def _names(term: Match, source: str) -> bool:
    return any(fits(value.text, source) if value.glob else value.text == source for value in term.values)


# --- facets -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Value of a facet: its jobs, the search with it (without it if it is on), and the search excluding it."""

    value: str
    shown: str
    count: int
    url: str
    is_on: bool
    but_url: str = ""


@dataclass(frozen=True, slots=True)
class Facet:
    name: str
    title: str
    values: list[Narrowing]
    rest: list[Narrowing]
    counted_over: int | None  # only this many latest failures were counted

    @property
    def lines(self) -> list[SafeString]:
        return [_line(self.name, one) for one in self.values]

    @property
    def more(self) -> list[SafeString]:
        return [_line(self.name, one) for one in self.rest]


def facets(query: Query, found: Facets) -> list[Facet]:
    shown, text = [], language.format(query)
    for name, title in FACETS:
        values = [_narrowing(query, text, name, value, n) for value, n in found.get(name, [])]
        # A single source is not a choice, unless the search names it.
        if values and (name != "source" or len(values) > 1 or values[0].is_on):
            over = None if counted_over_all(found) else found.counted_over.get(name)
            shown.append(Facet(name, title, values[:VALUES_SHOWN], values[VALUES_SHOWN:], over))
    return shown


def counted_over_all(found: Facets) -> int | None:
    """Return the number of latest failures counted for every facet; None if it differs, or all were counted."""
    over = {found.counted_over.get(name) for name, values in found.items() if values}
    return over.pop() if len(over) == 1 else None


def _narrowing(query: Query, text: str, name: str, value: str, count: int) -> Narrowing:
    shown = short(value) if name == "error" else value
    on = next((n for n, term in enumerate(query.terms) if _is_just(term, name, value)), None)
    if on is not None:
        without = language.format(language.without(query, on))
        return Narrowing(value, shown, count, links.list_url(without), True)
    added = language.qualifier(name, value, exact=True)
    return Narrowing(
        value,
        shown,
        count,
        links.list_url(f"{text} {added}".strip()),
        False,
        links.list_url(f"{text} -{added}".strip()),
    )


def _is_just(term: language.Term, name: str, value: str) -> bool:
    return (
        isinstance(term, Match)
        and term.field == name
        and not term.negated
        and len(term.values) == 1
        and term.values[0].text == value
    )


_VALUE = (
    '<li><a href="{}" hx-get="{}" title="{}"><span class="clip{}">{}</span><span class="number">{}</span></a>'
    '<a class="but" href="{}" hx-get="{}" title="Without {}" aria-label="Without {}">−</a></li>'
)
_VALUE_ON = (
    '<li><a href="{}" hx-get="{}" aria-current="true" title="{}: remove filter"><span class="clip{}">{}</span>'
    '<span class="number">{}</span></a></li>'
)


def _line(name: str, one: Narrowing) -> SafeString:
    words = state(one.value) if name == "state" else visible(one.shown)
    css_class = "" if name == "state" else " mono"
    title = visible_text(one.value)
    count = number(one.count)
    if one.is_on:
        return format_html(_VALUE_ON, one.url, one.url, title, css_class, words, count)
    return format_html(_VALUE, one.url, one.url, title, css_class, words, count, one.but_url, one.but_url, title, title)
