"""People: possible assignees, and operators of sources."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import Exists, OuterRef, Q, QuerySet

from jobs_admin.models import Role
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, Viewer

MOST_NAMED = 200
_CACHED_S = 5.0
_MOST_CACHED = 100
_cached: dict[tuple[str, ...] | None, tuple[float, list[str]]] = {}  # by the viewer's sources


def names(viewer: Viewer) -> list[str]:
    """Return the users whom the viewer can assign, by name; at most five seconds old, and limited in number."""
    sources = viewer.sources()
    key = None if sources is None else tuple(sources)
    now = time.monotonic()
    if key not in _cached or not 0 <= now - _cached[key][0] < _CACHED_S:
        if len(_cached) >= _MOST_CACHED:
            _cached.clear()
        _cached[key] = now, list(users(viewer).values_list(get_user_model().USERNAME_FIELD, flat=True)[:MOST_NAMED])
    return _cached[key][1]


def users(viewer: Viewer) -> QuerySet[Any]:
    """Return the active users who have a role on a source that the viewer sees, by name."""
    roles, sources = Role.objects.filter(user=OuterRef("pk")), viewer.sources()
    if sources is not None:
        roles = roles.filter(source__in=[*sources, EVERY_SOURCE])
    found = get_user_model()._default_manager.filter(Q(is_superuser=True) | Exists(roles), is_active=True)
    return found.order_by(get_user_model().USERNAME_FIELD)


def operators(sources: Sequence[str], *, only_admins: bool = False) -> list[str]:
    """Return the active users who are operators of all these sources, or admins of each, by name; limited in number."""
    roles = (ADMIN,) if only_admins else (OPERATOR, ADMIN)
    found = get_user_model()._default_manager.filter(is_active=True)
    for source in sources:
        matching = Role.objects.filter(user=OuterRef("pk"), role__in=roles, source__in=(source, EVERY_SOURCE))
        found = found.filter(Q(is_superuser=True) | Exists(matching))
    name = get_user_model().USERNAME_FIELD
    return list(found.order_by(name).values_list(name, flat=True)[:MOST_NAMED])
