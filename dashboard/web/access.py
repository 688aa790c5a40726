"""Who may open a page or do an act. The tables decide (roles per source); this is only the door."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from jobs_admin.admin.records import ADMIN_OF_ALL
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer, viewer_of

READS = frozenset({"GET", "HEAD", "OPTIONS"})


def can(role: str) -> Callable:
    """The view needs `role` on at least one source, or ADMIN_OF_ALL; it finds who asks in `request.viewer`.

    What the viewer may do on *which* source is asked again by the service that does it. What the page
    shows may be private, so no cache keeps it. `view.right` tells the role, for tests and for people.
    """

    def guard(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
            # Remembered for a moment where the request only looks (dashboard.web.middleware.identity).
            request.viewer = getattr(request, "known_viewer", None) or viewer_of(request.user)
            if not _holds(request.viewer, role):
                what = "role admin on every source" if role == ADMIN_OF_ALL else f"role {role}"
                raise PermissionDenied(f"This needs the {what}. Ask an admin of this desk for it.")
            response = view(request, *args, **kwargs)
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
