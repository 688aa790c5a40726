"""Time range of the charts: one picker in the shell for all pages. The latest choice is stored in a cookie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.http import HttpRequest, HttpResponse
from django.urls import get_script_prefix

PARAMETER, COOKIE = "span", "redrive-time-range"
CHOSEN = "remember"  # only in the picker's own links: a range in any other link is not a choice
_HOURS = {"1h": 1, "6h": 6, "24h": 24, "7d": 7 * 24, "30d": 30 * 24, "90d": 90 * 24, "400d": 400 * 24}
RANGES = {name: timedelta(hours=hours) for name, hours in _HOURS.items()}
DAY = "24h"
_STORED_S = 365 * 86_400


@dataclass(frozen=True, slots=True)
class Choice:
    words: str
    url: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Picker:
    """The picker of a page."""

    current: str  # label
    choices: list[Choice]


def words(name: str) -> str:
    """Return `24 h` for `24h`."""
    return f"{name[:-1]} {name[-1]}"


def with_data(since: datetime | None, now: datetime, names: Iterable[str] = RANGES) -> list[str]:
    """Return the ranges up to the first that contains all data, which begins at `since`; None: unknown."""
    found = []
    for name in names:
        found.append(name)
        if since is not None and now - since <= RANGES[name]:
            break
    return found


def requested(request: HttpRequest) -> str:
    """Return the range in the address; "" if it has no valid one."""
    name = request.GET.get(PARAMETER, "")
    return name if name in RANGES else ""


def chosen(request: HttpRequest, offered: list[str], usual: str = DAY) -> str:
    """Return the range of a page: that of the URL, else the stored one, else `usual`; the nearest that is available."""
    stored = request.COOKIES.get(COOKIE, "")
    name = requested(request) or (stored if stored in RANGES else usual)
    return min(offered, key=lambda one: (abs(_HOURS[one] - _HOURS[name]), _HOURS[one]))


def picker(
    request: HttpRequest, offered: list[str], current: str, other: Choice | None = None, url: str = ""
) -> Picker:
    """Return the picker of a page at `current`; "" is a custom range or `other`, a first choice of this page.

    `url`: of the page, because the request may be an act.
    """
    here = request.GET.copy()
    for name in ("since", "until", "example"):
        here.pop(name, None)
    choices = [] if other is None else [other]
    # A range in the URL is always among the choices.
    for name in offered if not current or current in offered else [*offered, current]:
        here[PARAMETER], here[CHOSEN] = name, "1"
        choices.append(Choice(f"Last {words(name)}", f"{url or request.path}?{here.urlencode()}", name == current))
    shown = next((one.words for one in choices if one.is_current), "Custom range")
    return Picker(shown.removeprefix("Last "), choices)


def remember(request: HttpRequest, response: HttpResponse) -> None:
    """Store the range selected in the picker for other pages. A part that refreshes itself stores nothing."""
    if (
        CHOSEN in request.GET
        and (name := requested(request))
        and name != request.COOKIES.get(COOKIE)
        and not request.htmx
    ):
        response.set_cookie(
            COOKIE,
            name,
            max_age=_STORED_S,
            path=get_script_prefix(),
            secure=request.is_secure(),
            httponly=True,
            samesite="Lax",
        )
