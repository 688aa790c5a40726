"""Sessions in Redrive's own project: recorded, listed and ended. Django's table contains the sessions themselves."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.apps import apps
from django.contrib.auth import SESSION_KEY
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from jobs_admin import config
from jobs_admin.db import audit
from jobs_admin.models import SignIn
from jobs_admin.models.access import Viewer
from jobs_admin.rights import slack_links


def record(user: Any, session_key: str, address: str, browser: str) -> None:
    """Record a session, or its latest request. Records of ended sessions are deleted with the person's next session."""
    now = timezone.now()
    if SignIn.objects.filter(session_key=session_key, user=user).update(seen_at=now):
        return
    SignIn.objects.filter(user=user).exclude(session_key__in=_open_keys(now)).delete()
    found = {"user": user, "address": address, "browser": browser, "seen_at": now}
    SignIn.objects.update_or_create(session_key=session_key, defaults=found)


def list_open(user: Any) -> QuerySet[SignIn]:
    """Return the person's open sessions, most recently used first."""
    open_keys = _open_keys(timezone.now())
    return SignIn.objects.filter(user=user, session_key__in=open_keys).order_by("-seen_at", "-pk")


def end(viewer: Viewer, user: Any, pk: int | None = None, *, but: str = "") -> int:
    """End the person's session with this record, or all, except the one with the key `but`; return their number.

    They are invalid from the next act on. Except with one session, the person's link to Slack ends too.
    """
    with transaction.atomic():
        ended = _delete(user, pk, but)
        if pk is None:
            slack_links.unlink(viewer, user)
        if ended:
            audit.record(viewer, "session.end", f"user:{user.get_username()}", after={"sessions": ended})
    return ended


def change_password(viewer: Viewer, user: Any, password: str) -> None:
    """Set the validated password, and end the person's sessions and link to Slack."""
    with transaction.atomic():
        user.set_password(password)
        user.save(update_fields=["password"])
        drop(viewer, user)
        audit.record(viewer, "user.password", f"user:{user.get_username()}")


def drop(viewer: Viewer, user: Any) -> None:
    """End all sessions of the person and the link to Slack, within an act that is itself recorded."""
    _delete(user)
    slack_links.unlink(viewer, user)


def _delete(user: Any, pk: int | None = None, but: str = "") -> int:
    if not config.is_own_project():  # a host project may have no table of sessions
        return 0
    recorded = SignIn.objects.filter(user=user) if pk is None else SignIn.objects.filter(user=user, pk=pk)
    keys = {*recorded.values_list("session_key", flat=True), *(_find_unrecorded(user) if pk is None else ())} - {but}
    ended, _ = _sessions().filter(session_key__in=keys).delete()
    SignIn.objects.filter(session_key__in=keys).delete()
    return ended


def _find_unrecorded(user: Any) -> list[str]:
    """Return the keys of the person's open sessions without a record: unused since the upgrade that added records."""
    unrecorded = _sessions().filter(expire_date__gt=timezone.now())
    unrecorded = unrecorded.exclude(session_key__in=SignIn.objects.values("session_key"))
    user_id = user._meta.pk.value_to_string(user)
    return [one.session_key for one in unrecorded.iterator() if one.get_decoded().get(SESSION_KEY) == user_id]


def _open_keys(now: datetime) -> QuerySet[Any, Any]:
    return _sessions().filter(expire_date__gt=now).values("session_key")


def _sessions() -> QuerySet[Any]:
    """Return Django's sessions. Resolved on each call: a host project that imports this module may lack the table."""
    return apps.get_model("sessions", "Session")._default_manager.all()
