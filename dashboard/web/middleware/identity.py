"""The user of a request, cached briefly for pages that only read, and queried for every act.

A page queries its session, user and roles before it shows anything, and a page that refreshes itself would query the
same three rows again and again.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import auth
from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db.models.signals import post_delete, post_save
from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

from dashboard.web.access import READS
from dashboard.web.sign_ins import record_request
from jobs_admin.models import Role
from jobs_admin.models.access import Viewer, viewer_of

# Seconds for which a user can still read after logging out or losing a role in another process.
REMEMBERED_S = 2.0
_MOST = 1_000


@dataclass(frozen=True, slots=True)
class Known:
    """Logged-in user with their roles, as of `at` (monotonic seconds)."""

    at: float
    session: dict[str, Any]
    user: Any
    viewer: Viewer


_known: dict[str, Known] = {}  # by session key


def forget(**_signal: object) -> None:
    """Drop all cached users, on a login, a logout or a change of users or roles."""
    _known.clear()


for _changed in (post_save, post_delete):
    for _model in (Session, Role, get_user_model()):
        _changed.connect(forget, sender=_model, weak=False)
for _moved in (user_logged_in, user_logged_out):
    _moved.connect(forget, weak=False)


class IdentityMiddleware:
    """Middleware after Django's own that sets `request.user` and `known_viewer`, cached for requests that only read."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method in READS and request.session.session_key:
            request.user = SimpleLazyObject(lambda: _recognised(request))
        response = self.get_response(request)
        record_request(request)
        return response


def _recognised(request: HttpRequest) -> Any:
    key, now = request.session.session_key, time.monotonic()
    found = _known.get(key)
    if found is None or now - found.at > REMEMBERED_S:
        user = auth.get_user(request)
        if not user.is_authenticated or request.session.modified:
            return user
        # Shared with later requests, so this request changes only copies.
        found = Known(now, dict(request.session.items()), copy.copy(user), viewer_of(user))
        if len(_known) >= _MOST:
            _known.clear()
        _known[key] = found
    else:
        # Replaces Django's own query of the row.
        request.session._session_cache = dict(found.session)
        request.session.accessed = True
        user = copy.copy(found.user)
    request.known_viewer = found.viewer
    return user


def holder(kind: str, shown: str, *, meta: Mapping[str, str]) -> str:
    """Return the owner of a `session` or `token` (`user 5`, `token 7`).

    "" if it is unknown or no longer valid, or the request with this `META` comes from outside the token's networks.
    """
    from dashboard.web.access import viewer_of_header  # requires the models

    if kind == "token":
        viewer = viewer_of_header(shown, meta=meta)
        if viewer is None:
            return ""
        return f"user {viewer.owner_id}" if viewer.owner_id else f"token {viewer.token_id}"
    session = SessionStore(shown)
    backend = session.get(auth.BACKEND_SESSION_KEY)
    if backend not in settings.AUTHENTICATION_BACKENDS:
        return ""
    user = auth.load_backend(backend).get_user(session[auth.SESSION_KEY])
    if user is None:
        return ""
    # Hashes of the current password, as Django checks them; `auth.get_user` would write.
    valid = {user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()}
    return f"user {user.pk}" if session.get(auth.HASH_SESSION_KEY) in valid else ""
