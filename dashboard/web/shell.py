"""The shell of every page: navigation, rights of the viewer, and messages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from django.db import DatabaseError
from django.urls import get_script_prefix, reverse
from django.utils import timezone

from dashboard.web import source_switcher
from dashboard.web.htmx import render_to_string
from dashboard.web.links import url_of
from dashboard.web.toasts import toasts as messages_of
from jobs_admin import config
from jobs_admin.core.text import whole_number
from jobs_admin.desk import activity
from jobs_admin.installation import COMMAND
from jobs_admin.models.access import ADMIN, AUDITOR, OPERATOR, VIEWER, viewer_of
from jobs_admin.queues import liveness


@dataclass(frozen=True, slots=True)
class Place:
    """Page in the navigation rail."""

    name: str
    url: str
    icon: str
    key: str  # pressed after `g`
    is_here: bool
    is_apart: bool  # first of a section


@dataclass(frozen=True, slots=True)
class Shell:
    places: tuple[Place, ...]
    is_read_only: bool
    may_see: bool
    may_operate: bool
    account_url: str  # "" in a host project, which has its own
    admin_url: str  # URL of Django's admin; "" without access, or if the project has none


_PLACES = (
    ("Overview", "overview", "overview", "o", ()),
    ("Alerts", "alert-list", "warning", "l", ("alert-", "silence-", "channel-", "delivery-", "runbook-")),
    ("Groups", "group-list", "groups", "u", ("group-", "dependency-")),
    ("Failures", "failure-list", "failures", "f", ("failure-", "view-", "search-")),
    ("Quarantine", "quarantine-list", "quarantine", "k", ("quarantine-",)),
    ("Replays", "replay-list", "replays", "r", ("replay-", "automation-")),
    ("Policies", "policy-list", "policies", "p", ("policy-",)),
    ("Queues", "queue-list", "queues", "q", ("queue-", "pause-", "breaker-")),
    ("Workers", "worker-list", "worker", "w", ("worker-",)),
    ("Sources", "source-list", "lock", "s", ("source-",)),
    ("Audit", "audit-list", "table", "a", ("audit-",)),
    ("Demo", "demo", "demo", "d", ("demo",)),
)
_FIRST_OF_GROUP = {"group-list", "replay-list", "queue-list", "audit-list"}


def shell(context) -> Shell:
    """Return the shell of a page: the navigation and the rights of the viewer."""
    request = context.get("request")
    here = (request.resolver_match.url_name or "") if request and request.resolver_match else ""
    viewer = getattr(request, "viewer", None)
    if viewer is None and request is not None and getattr(request, "user", None) and request.user.is_authenticated:
        viewer = viewer_of(request.user)
    sees_demo = bool(config.setting("DEMO_BROKER_URL") and viewer and viewer.role_on("shop"))
    is_admin = bool(viewer and viewer.may_anywhere(ADMIN))
    reads_audit = bool(viewer and viewer.may_anywhere(AUDITOR))
    chosen = source_switcher.switcher(request, viewer, here) if request and viewer else None
    return Shell(
        _places(here, sees_demo, is_admin, reads_audit, get_script_prefix(), chosen.source if chosen else ""),
        config.is_read_only(),
        bool(viewer and viewer.may_anywhere(VIEWER)),
        bool(viewer and viewer.may_anywhere(OPERATOR)),
        url_of("redrive:account") if config.is_own_project() else "",
        url_of("admin:index") if is_admin and getattr(request, "user", None) and request.user.is_staff else "",
    )


@lru_cache(maxsize=256)
def _places(
    here: str, sees_demo: bool, is_admin: bool, reads_audit: bool, prefix: str, source: str
) -> tuple[Place, ...]:
    shown = {"demo": sees_demo, "audit-list": reads_audit, "source-list": is_admin}
    return tuple(
        Place(
            name,
            source_switcher.address(url_name, reverse(f"redrive:{url_name}"), source),
            icon_name,
            key,
            here == url_name or here.startswith(prefixes or ("\0",)),
            url_name in _FIRST_OF_GROUP,
        )
        for name, url_name, icon_name, key, prefixes in _PLACES
        if shown.get(url_name, True)
    )


SEEN_COOKIE = "redrive-seen-until"  # cookie with milliseconds since 1970, and the user: `1795000000000-7`
FIRST_VISIT = timedelta(days=1)


def last_visit(request, now: datetime) -> datetime | None:
    """Return the time of this user's last visit to the events page; None if there is none in this browser."""
    at, _, user = request.COOKIES.get(SEEN_COOKIE, "").partition("-")
    given = whole_number(at) if user == str(request.user.pk) else None
    return None if given is None else datetime.fromtimestamp(min(given / 1000, now.timestamp()), UTC)


def new_events(context) -> str:
    """Return the number of new events at all sources, at most `99+`.

    "" for none, and on the page shown while the database does not answer.
    """
    request = context.get("request")
    viewer = getattr(request, "viewer", None)
    match = getattr(request, "resolver_match", None)  # None: unknown URL
    if viewer is None or not viewer.may_anywhere(VIEWER) or (match and match.url_name == "activity"):
        return ""
    now = timezone.now()
    try:
        seen = last_visit(request, now) or now - FIRST_VISIT
        count = activity.count_since(viewer.unfocused, seen, now)
    except DatabaseError:
        return ""
    return f"{activity.MOST_COUNTED}+" if count > activity.MOST_COUNTED else str(count or "")


def switcher(context) -> source_switcher.Switcher | None:
    """Return the source switcher of the page."""
    request = context.get("request")
    viewer = getattr(request, "viewer", None)
    here = (request.resolver_match.url_name or "") if viewer and request.resolver_match else ""
    return source_switcher.switcher(request, viewer, here) if viewer else None


def cached(template_name: str, shell: Shell | None = None):
    """Render a part that is the same for everyone with the same shell, and cache its text.

    The shell is its only context, so it cannot contain data of one person or page.
    """
    return _render_cached(template_name, shell, get_script_prefix())


@lru_cache(maxsize=512)
def _render_cached(template_name: str, shell: Shell | None, prefix: str):
    return render_to_string(template_name, {"shell": shell})


def stale_state() -> liveness.Stale | None:
    """Return why the displayed data may be outdated: the watch or the store; None while both are alive."""
    return liveness.current_state().stale


def guard_state() -> str:
    """Return the state of the guard switch: `on`, `off` or `drain`."""
    return liveness.current_state().guard


def command() -> str:
    """Return the start of a command line, such as `redrive`."""
    return COMMAND


def toasts(context):
    """Return the messages of this response (dashboard.web.toasts)."""
    request = context.get("request")
    return messages_of(request) if request is not None and hasattr(request, "_messages") else []
