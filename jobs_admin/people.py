"""Who can be given something to look after, and who may act."""

from __future__ import annotations

import time
from collections.abc import Sequence

from django.contrib.auth import get_user_model
from django.db.models import Exists, OuterRef, Q

from jobs_admin.models import Role
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR

MOST_NAMED = 200
_HELD_S = 5.0
_held: tuple[float, list[str]] | None = None


def names() -> list[str]:
    """Active users who hold a role on some source, by name, as they were at most five seconds ago; a bounded list."""
    global _held
    now = time.monotonic()
    if _held is None or not 0 <= now - _held[0] < _HELD_S:
        _held = now, _names()
    return _held[1]


def _names() -> list[str]:
    roles = Role.objects.filter(user=OuterRef("pk"))
    users = get_user_model().objects.filter(Q(is_superuser=True) | Exists(roles), is_active=True)
    return list(users.order_by("username").values_list("username", flat=True)[:MOST_NAMED])


def operators(sources: Sequence[str], *, only_admins: bool = False) -> list[str]:
    """Active users who may act on every one of these sources, or are admins of each, by name; a bounded list."""
    roles = (ADMIN,) if only_admins else (OPERATOR, ADMIN)
    found = get_user_model().objects.filter(is_active=True)
    for source in sources:
        held = Role.objects.filter(user=OuterRef("pk"), role__in=roles, source__in=(source, EVERY_SOURCE))
        found = found.filter(Q(is_superuser=True) | Exists(held))
    return list(found.order_by("username").values_list("username", flat=True)[:MOST_NAMED])
