"""The source switcher of the shell: `?source=` in the URL of a page, or `source:` in the search of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from django.http import HttpRequest

from dashboard.web.time_range import CHOSEN, Choice
from jobs_admin import config
from jobs_admin.core import query as language
from jobs_admin.core.query import Match
from jobs_admin.models.access import VIEWER, Viewer

PARAMETER = "source"
# Pages that select a source by parameter, and those that have it in their search.
BY_PARAMETER = (
    "overview", "alert-list", "queue-list", "worker-list", "replay-list", "pause-list", "breaker-list", "dependency-list"
)  # fmt: skip
BY_SEARCH = ("group-list", "failure-list")
ALL = "All sources"
MOST = 50
_OF_A_PLACE = ("after", "example", "selection", CHOSEN)


@dataclass(frozen=True, slots=True)
class Switcher:
    source: str  # the selected source; "" for all or several
    words: str
    choices: list[Choice]


def focused(request: HttpRequest, viewer: Viewer) -> Viewer:
    """Return the viewer limited to the source in the URL, if it exists and is visible."""
    source = request.GET.get(PARAMETER, "")
    return replace(viewer, focus=source) if _is_seen(source, viewer) else viewer


def _is_seen(source: str, viewer: Viewer) -> bool:
    return source in config.sources() and viewer.may(VIEWER, source)


def with_focus(url: str, viewer: Viewer) -> str:
    """Return the URL of a page for the selected source; unchanged for all sources."""
    if not viewer.focus:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode({PARAMETER: viewer.focus})}"


def switcher(request: HttpRequest, viewer: Viewer, page: str) -> Switcher | None:
    """Return the switcher of a page; None if there is no choice. On a page of BY_PARAMETER the viewer is `focused`."""
    if page not in BY_PARAMETER + BY_SEARCH or "by" in request.GET:  # groups by queue or tenant have no search
        return None
    names = sorted(name for name in config.sources() if viewer.may(VIEWER, name))[:MOST]
    if len(names) < 2:
        return None
    terms = language.parse(request.GET.get("q", "")) if page in BY_SEARCH else language.Query()
    current = _find_source(terms, viewer) if page in BY_SEARCH else viewer.focus
    is_all = not current and not _source_terms(terms)
    here = request.GET.copy()
    for name in _OF_A_PLACE:
        here.pop(name, None)
    choices = []
    for source in ["", *names]:
        if page in BY_SEARCH:
            here["q"] = _with_source(terms, source)
        else:
            here[PARAMETER] = source
        query = "&".join(part for part in here.urlencode().split("&") if not part.endswith("="))
        choices.append(
            Choice(
                source or ALL,
                f"{request.path}?{query}" if query else request.path,
                source == current if source else is_all,
            )
        )
    return Switcher(current, current or (ALL if is_all else "Several sources"), choices)


def address(page: str, url: str, source: str) -> str:
    """Return the URL of a page of the rail, for one source if the page has a switcher."""
    if not source or page not in BY_PARAMETER + BY_SEARCH:
        return url
    pair = ("q", with_source("", source)) if page in BY_SEARCH else (PARAMETER, source)
    return f"{url}?{urlencode([pair])}"


def _find_source(terms: language.Query, viewer: Viewer) -> str:
    """Return the only source that a search names; "" for none, several, or one that the viewer does not see."""
    found = [value for term in _source_terms(terms) for value in term.values if not term.negated]
    is_one = len(found) == 1 and not found[0].glob and _is_seen(found[0].text, viewer)
    return found[0].text if is_one else ""


def has_menus_to_update(request: HttpRequest) -> bool:
    """Return whether a search replaces only part of the page, so that menus need an update; not a refresh."""
    match = request.resolver_match
    return bool(match) and match.url_name in BY_SEARCH and request.htmx.trigger != request.htmx.target


def _source_terms(terms: language.Query) -> Sequence[Match]:
    return [term for term in terms.terms if isinstance(term, Match) and term.field == "source"]


def with_source(text: str, source: str) -> str:
    """Return the search for this source alone."""
    return _with_source(language.parse(text), source)


def _with_source(terms: language.Query, source: str) -> str:
    rest = replace(terms, terms=tuple(term for term in terms.terms if term not in _source_terms(terms)))
    return " ".join(part for part in (language.format(rest), source and language.qualifier("source", source)) if part)
