"""The list of failures as a page shows it: how the search was read, and what narrows it further. Rows: `columns`."""

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
from jobs_admin.models import Failure
from jobs_admin.models.failure import FailureState
from jobs_admin.search import scope as scopes

FACETS = (
    ("state", "State"), ("source", "Source"), ("queue", "Queue"), ("error", "Error"), ("task", "Task"),
    ("tenant", "Tenant"), ("release", "Release"),
)  # fmt: skip
# A facet shows these at once, the rest behind "more".
VALUES_SHOWN = 6
# Pages that one can go back through one by one; beyond them there is the first.
MOST_BACK = 20


# --- addresses --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paths:
    """The links to the neighbouring pages of the list. Empty if there is none."""

    first: str
    newer: str
    older: str


def trail_of(text: str) -> tuple[str, ...]:
    """The cursors of the pages before this one, the latest last. What is no cursor is left out."""
    words = text.split(".")[-MOST_BACK:]
    return tuple(word for word in words if whole_number(word) is not None)


def paths(text: str, page: Page, after: str | None, back: tuple[str, ...], columns: str = "") -> Paths:
    """Rows are found by key, so a page does not know its number: it knows the pages that led to it."""

    def to(after: str, back: tuple[str, ...]) -> str:
        more = {"columns": columns} if columns else {}
        more |= {"after": after} if after else {}
        return links.list_url(text, **more, **({"back": ".".join(back)} if back else {}))

    first = to("", ()) if after else ""
    newer = "" if not after else to(back[-1], back[:-1]) if back else first
    older = to(page.next, (*back, after)[-MOST_BACK:] if after else ()) if page.next else ""
    return Paths(first, newer, older)


# --- how it was read --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chip:
    """A term of the search, the search without it, and the search with its opposite where it has one."""

    text: str
    words: str
    url: str
    opposite: str = ""
    verb: str = ""  # what it asks: is, has, not …
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
    formatted: str  # the search as the chips say it
    searched: str  # how many were looked at, where not everything was
    all_jobs: str  # what an act on all that match is about: "1,263 jobs"


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
    """Return the count in words. An act may take fewer of some states, which another search would have to count."""
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
    """The search with this term turned round; empty where the language cannot say that."""
    if not hasattr(term, "negated"):
        return ""
    turned = replace(term, negated=not term.negated)
    terms = (*query.terms[:n], turned, *query.terms[n + 1 :])
    text = language.format(replace(query, terms=terms))
    return links.list_url(text) if language.parse(text).terms == terms else ""


# --- what the word at the caret could become ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    text: str  # what it becomes
    shown: SafeString | str
    kind: SafeString | str
    count: str


def options(found: Iterable[tuple[str, str, int | None]]) -> list[Option]:
    return [
        Option(text, visible(text), visible(kind), number(count) if count is not None else "")
        for text, kind, count in found
    ]


# --- what a search without a result may have meant ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    url: str
    text: str
    why: str
    count: str  # empty where it is one job, by itself


def near(found: Iterable[Near]) -> list[Offer]:
    return [offer(one) for one in found]


def offer(one: Near) -> Offer:
    """A search near to the one that found nothing, or a job, with the link to it."""
    if one.failure is not None:
        return Offer(reverse("redrive:failure-detail", args=[one.failure]), one.why, "", "")
    count = f"{number(one.count)}{'+' if one.count_is_capped else ''}"
    return Offer(links.list_url(one.text), one.text, one.why, count)


# --- acts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acts:
    """The acts that the states in the scope allow."""

    discard: bool
    restore: bool
    readmit: bool
    reschedule: bool  # all that is listed waits for a retry, and some source can be told when that is due


# What can be done to the groups of the jobs that are chosen, as their own page names it.
GROUP_ACTS = (
    ("resolve", "Resolve"), ("mute_day", "Mute for a day"), ("mute_week", "Mute for a week"),
    ("assign_me", "Assign to me"),
)  # fmt: skip


def acts(query: Query, shown: Sequence[Failure]) -> Acts:
    """Return the allowed acts. `shown`: the jobs of the page, which are checked for quarantine if the search names no state."""
    states = scopes.states_of(query)
    may_hold_quarantined = query.names_state or any(one.state == FailureState.QUARANTINED for one in shown)
    return Acts(
        discard=FailureState.DEAD in states or FailureState.QUARANTINED in states,
        restore=FailureState.DISCARDED in states,
        readmit=FailureState.QUARANTINED in states and may_hold_quarantined,
        reschedule=states == (FailureState.RETRYING,) and _some_reschedule(query),
    )


def _some_reschedule(query: Query) -> bool:
    """Return whether a source whose jobs the list can show can reschedule retries."""
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
    """A value of a facet: what it holds, the search with it (or without it where it is on), and without its jobs."""

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
    counted_over: int | None  # only the newest so many were looked at

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
        # A single source is no choice, unless the search names it.
        if values and (name != "source" or len(values) > 1 or values[0].is_on):
            over = None if counted_over_all(found) else found.counted_over.get(name)
            shown.append(Facet(name, title, values[:VALUES_SHOWN], values[VALUES_SHOWN:], over))
    return shown


def counted_over_all(found: Facets) -> int | None:
    """Return the number of latest failures over which every facet was counted; None if they differ, or all were counted."""
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
