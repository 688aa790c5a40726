"""The list of failures as a page shows it: how the search was read, what narrows it further, the rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone

from dashboard.screens.failure_page import short
from dashboard.templatetags.redrive import ago, state, visible, visible_text
from jobs_admin.core import query as language
from jobs_admin.core.query import Match, Query
from jobs_admin.failures import Facets, Page
from jobs_admin.models import Failure
from jobs_admin.models.failure import FailureState

FACETS = (("state", "State"), ("queue", "Queue"), ("error", "Error"), ("task", "Task"), ("tenant", "Tenant"))
# A facet shows these at once, the rest behind "more".
VALUES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Chip:
    """A term of the search, and the search without it."""

    text: str
    words: str
    url: str


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A value of a facet: what it holds, and the search with it, or without it where it is on."""

    value: str
    shown: str
    count: int
    url: str
    is_on: bool


@dataclass(frozen=True, slots=True)
class Facet:
    name: str
    title: str
    values: list[Narrowing]
    rest: list[Narrowing]
    counted_over: int | None  # only the newest so many were looked at


class Row(TypedDict):
    """A row with all its words ready. A dictionary, because a template reads one at half the cost of an object."""

    pk: str
    url: str
    error: str
    error_title: str
    message: str
    task: str
    task_title: str
    queue: str
    tenant: str
    state: str
    due: str
    attempts: str
    most: str  # attempts allowed; empty where that is not known or played no part
    run: str  # empty in run 1
    failed: str


def list_url(text: str = "", **more: object) -> str:
    pairs = {"q": text, **more} if text else more
    return f"{reverse('failure-list')}?{urlencode(pairs)}" if pairs else reverse("failure-list")


def chips(query: Query) -> list[Chip]:
    return [
        Chip(language.format_term(term), language.in_words(term), list_url(language.format(language.without(query, n))))
        for n, term in enumerate(query.terms)
    ]


def facets(query: Query, found: Facets) -> list[Facet]:
    shown, text = [], language.format(query)
    for name, title in FACETS:
        values = [_narrowing(query, text, name, value, n) for value, n in found.get(name, [])]
        if values:
            shown.append(Facet(name, title, values[:VALUES_SHOWN], values[VALUES_SHOWN:], found.counted_over.get(name)))
    return shown


def _narrowing(query: Query, text: str, name: str, value: str, count: int) -> Narrowing:
    on = next((n for n, term in enumerate(query.terms) if _is_just(term, name, value)), None)
    if on is not None:
        text = language.format(language.without(query, on))
    else:
        added = language.qualifier(name, value, exact=True)
        text = f"{text} {added}".strip()
    return Narrowing(value, short(value) if name == "error" else value, count, list_url(text), on is not None)


def _is_just(term: language.Term, name: str, value: str) -> bool:
    return (
        isinstance(term, Match)
        and term.field == name
        and not term.negated
        and len(term.values) == 1
        and term.values[0].text == value
    )


def rows(page: Page) -> list[Row]:
    base, now = reverse("failure-list"), timezone.now()
    return [_row(failure, f"{base}{failure.pk}/", now) for failure in page.rows]


def most_attempts(failure: Failure) -> str:
    """How many attempts it may have: said where they count. A job that died at once was not stopped by a limit."""
    allowed = failure.max_attempts or 0
    counts = failure.state == FailureState.RETRYING or failure.attempts >= allowed > 1
    return str(allowed) if allowed and counts else ""


def _row(failure: Failure, url: str, now: datetime) -> Row:
    is_waiting = failure.due_at and failure.state == FailureState.RETRYING
    return Row(
        pk=str(failure.pk),
        url=url,
        error=visible(short(failure.error_type) or failure.kind),
        error_title=visible_text(failure.error_type),
        message=visible(failure.message),
        task=visible(failure.task),
        task_title=visible_text(failure.task),
        queue=visible(failure.queue),
        tenant=visible(failure.tenant) or "–",
        state=state(failure.state),
        due=ago(failure.due_at, now) if is_waiting else "",
        attempts=str(failure.attempts),
        most=most_attempts(failure),
        run=str(failure.run) if failure.run > 1 else "",
        failed=ago(failure.failed_at, now),
    )
