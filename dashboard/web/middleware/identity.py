"""The user of a request. For pages that only read, it is cached for a moment; every act looks it up again.

A page queries its session, its user and their roles before it shows anything. A page that refreshes itself queries the
same three rows again and again.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import auth
from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db.models.signals import post_delete, post_save
from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

from dashboard.web.access import READS
from jobs_admin.models import Role
from jobs_admin.models.access import Viewer, viewer_of

# So long may somebody still look who was logged out, or lost a role, by another process than this one.
REMEMBERED_S = 2.0
_MOST = 1_000


@dataclass(frozen=True, slots=True)
class Known:
    """A logged-in user with their roles, as at `at` (monotonic seconds)."""

    at: float
    session: dict[str, Any]
    user: Any
    viewer: Viewer


_known: dict[str, Known] = {}  # by the key of the session


def forget(**_signal: object) -> None:
    """Drop all cached users, on a login, a logout or a change of users or roles."""
    _known.clear()


for _changed in (post_save, post_delete):
    for _model in (Session, Role, get_user_model()):
        _changed.connect(forget, sender=_model, weak=False)
for _moved in (user_logged_in, user_logged_out):
    _moved.connect(forget, weak=False)


class IdentityMiddleware:
    """After Django's own: `request.user`, and `request.known_viewer`, from memory where the request only looks."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method in READS and request.session.session_key:
            request.user = SimpleLazyObject(lambda: _recognised(request))
        return self.get_response(request)


def _recognised(request: HttpRequest) -> Any:
    key, now = request.session.session_key, time.monotonic()
    found = _known.get(key)
    if found is None or now - found.at > REMEMBERED_S:
        user = auth.get_user(request)
        if not user.is_authenticated or request.session.modified:
            return user
        # Shown to later requests: what this one does to its session and user is its own.
        found = Known(now, dict(request.session.items()), copy.copy(user), viewer_of(user))
        if len(_known) >= _MOST:
            _known.clear()
        _known[key] = found
    else:
        # In place of Django's own reading of the row.
        request.session._session_cache = dict(found.session)
        request.session.accessed = True
        user = copy.copy(found.user)
    request.known_viewer = found.viewer
    return user


def holder(kind: str, shown: str) -> str:
    """Return the owner of a `session` or `token` (`user 5`, `token 7`); "" if it is unknown or no longer valid."""
    from dashboard.web.access import viewer_of_header  # it needs the models

    if kind == "token":
        viewer = viewer_of_header(shown)
        if viewer is None:
            return ""
        return f"user {viewer.owner_id}" if viewer.owner_id else f"token {viewer.token_id}"
    session = SessionStore(shown)
    user = get_user_model()._default_manager.filter(pk=session.get(auth.SESSION_KEY), is_active=True).first()
    if user is None:
        return ""
    # Of the present password, as Django checks; `auth.get_user` would write.
    valid = {user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()}
    return f"user {user.pk}" if session.get(auth.HASH_SESSION_KEY) in valid else ""
