"""The shell of every page: navigation, rights of the viewer, and messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from django.urls import get_script_prefix, reverse

from dashboard.web.links import url_of
from dashboard.web.templates import render_to_string
from dashboard.web.toasts import toasts as messages_of
from jobs_admin import config
from jobs_admin.installation import COMMAND
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, viewer_of
from jobs_admin.queues import liveness


@dataclass(frozen=True, slots=True)
class Place:
    """A page of the rail."""

    name: str
    url: str
    icon: str
    key: str  # pressed after `g`
    is_here: bool
    is_apart: bool  # the first of a group


@dataclass(frozen=True, slots=True)
class Shell:
    places: tuple[Place, ...]
    is_read_only: bool
    may_see: bool
    may_operate: bool
    admin_url: str  # of Django's admin; "" where the person may not, or the project has none


_PLACES = (
    ("Overview", "overview", "overview", "o", ()),
    ("Alerts", "alert-list", "warning", "l", ("alert-", "silence-", "channel-", "delivery-", "runbook-")),
    ("Groups", "group-list", "groups", "u", ("group-",)),
    ("Failures", "failure-list", "failures", "f", ("failure-", "view-", "search-")),
    ("Quarantine", "quarantine-list", "quarantine", "k", ("quarantine-",)),
    ("Replays", "replay-list", "replays", "r", ("replay-",)),
    ("Policies", "policy-list", "policies", "p", ("policy-",)),
    ("Queues", "queue-list", "queues", "q", ("queue-", "pause-")),
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
    return Shell(
        _places(here, sees_demo, is_admin, get_script_prefix()),
        config.is_read_only(),
        bool(viewer and viewer.may_anywhere(VIEWER)),
        bool(viewer and viewer.may_anywhere(OPERATOR)),
        url_of("admin:index") if is_admin and getattr(request, "user", None) and request.user.is_staff else "",
    )


@lru_cache(maxsize=256)
def _places(here: str, sees_demo: bool, is_admin: bool, prefix: str) -> tuple[Place, ...]:
    hidden = {"demo"} if not sees_demo else set()
    if not is_admin:
        hidden |= {"audit-list", "source-list"}
    return tuple(
        Place(
            name,
            reverse(f"redrive:{url_name}"),
            icon_name,
            key,
            here == url_name or here.startswith(prefixes or ("\0",)),
            url_name in _FIRST_OF_GROUP,
        )
        for name, url_name, icon_name, key, prefixes in _PLACES
        if url_name not in hidden
    )


def cached(template_name: str, shell: Shell | None = None):
    """Render a part that is the same for everyone with the same shell once, and cache its text.

    The shell is its only context, so that it cannot show data of one person or one page.
    """
    return _render_cached(template_name, shell, get_script_prefix())


@lru_cache(maxsize=512)
def _render_cached(template_name: str, shell: Shell | None, prefix: str):
    return render_to_string(template_name, {"shell": shell})


def stale_state() -> liveness.Stale | None:
    """Return why the shown data may be old: the watch or the store; None while both are alive."""
    return liveness.current_state().stale


def guard_state() -> str:
    """Return the state of the guard switch: `on`, `off` or `drain`."""
    return liveness.current_state().guard


def command() -> str:
    """Return the start of a command line, such as `redrive`."""
    return COMMAND


def toasts(context):
    """The messages of this answer (dashboard.web.toasts)."""
    request = context.get("request")
    return messages_of(request) if request is not None and hasattr(request, "_messages") else []
