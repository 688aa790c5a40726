"""The rights of pages and acts, by the viewer's roles per source; and the viewer behind an API token."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import wraps

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch

from jobs_admin.db import audit
from jobs_admin.models import ApiToken
from jobs_admin.models.access import ADMIN, ADMIN_OF_ALL, EVERY_SOURCE, Viewer, lent, viewer_of

READS = frozenset({"GET", "HEAD", "OPTIONS"})


def address_name(match: ResolverMatch) -> str:
    """The name of an address within the desk, as `failure-detail` or `api:list_queues`, without the namespace of its mount."""
    spaces = match.namespaces[1:] if match.app_names[:1] == ["redrive"] else match.namespaces
    return ":".join([*spaces, match.url_name or ""])


def record_refusal(request: HttpRequest, reason: str) -> None:
    """Record in the audit, once a request, that an act of a logged-in user was refused."""
    if request.method in READS or not request.user.is_authenticated or getattr(request, "is_refusal_recorded", False):
        return
    request.is_refusal_recorded = True
    name = address_name(request.resolver_match) if request.resolver_match else request.path
    with transaction.atomic():
        audit.record(viewer_of(request.user), name, request.path, reason=reason, allowed=False)


def can(role: str) -> Callable:
    """Require `role` on at least one source, or ADMIN_OF_ALL, and put the viewer into `request.viewer`.

    The service that acts checks the rights on the source again. Pages may be private, so no cache stores them.
    `view.right` is the role, for tests and the documentation of rights.
    """

    def guard(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
            # Remembered for a moment where the request only looks (dashboard.web.middleware.identity).
            request.viewer = getattr(request, "known_viewer", None) or viewer_of(request.user)
            try:
                if not _holds(request.viewer, role):
                    what = "role admin on every source" if role == ADMIN_OF_ALL else f"role {role}"
                    raise PermissionDenied(f"You need the {what} for this. Ask an admin of this desk.")
                response = view(request, *args, **kwargs)
            except PermissionDenied as refused:
                record_refusal(request, str(refused))
                raise
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        guarded.right = role
        return guarded

    return guard


def _holds(viewer: Viewer, right: str) -> bool:
    return viewer.may(ADMIN, EVERY_SOURCE) if right == ADMIN_OF_ALL else viewer.may_anywhere(right)


def needs(role: str) -> Callable[[Callable], Callable]:
    """A call of the API needs `role` on at least one source: asked at its door (`dashboard.web.api.errors.door`)."""

    def mark(call: Callable) -> Callable:
        call.right = role
        return call

    return mark


# The viewer behind an API token.

_BEARER = re.compile(r"bearer +(\S+)\Z", re.IGNORECASE)


def viewer_of_token(token: str) -> Viewer | None:
    """Return the viewer of a token; None if it is unknown or revoked, or its user may not log in."""
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
    # Looked up by its hash, so that the time taken reveals nothing about the token.
    found = ApiToken.objects.select_related("owner").filter(sha256=digest, revoked_at=None).first()
    if found is None or (found.owner is not None and not found.owner.is_active):
        return None
    roles = {found.source: found.role}
    if found.owner is not None:
        roles = lent(found.role, found.source, viewer_of(found.owner))
    return Viewer(name=f"token {found.name}", roles=roles, token_id=found.pk, owner_id=found.owner_id)


def viewer_of_request(request: HttpRequest) -> Viewer | None:
    """The viewer behind the request's token; None where there is none in force. Looked up once a request."""
    if not hasattr(request, "caller"):
        request.caller = viewer_of_header(request.headers.get("Authorization", ""))
    return request.caller


def viewer_of_header(header: str) -> Viewer | None:
    """The viewer behind the text of an `Authorization` header; None where there is none in force."""
    found = _BEARER.match(header)
    return viewer_of_token(found[1]) if found else None
