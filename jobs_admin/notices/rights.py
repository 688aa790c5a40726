"""Channels belong to the whole desk: an admin of every source changes them. Whoever sees a source sees their names."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q

from jobs_admin import config
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db import audit
from jobs_admin.models import Alert, Notice
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.rights import alert_sight


def sees_addresses(viewer: Viewer) -> bool:
    """Where a channel leads, and what came back from there."""
    return viewer.may(ADMIN, EVERY_SOURCE)


def may_change(viewer: Viewer) -> bool:
    return not config.is_read_only() and sees_addresses(viewer)


def may_resend(viewer: Viewer, notice: Notice) -> bool:
    return not config.is_read_only() and viewer.may(OPERATOR, notice.source or EVERY_SOURCE)


def must_see(viewer: Viewer) -> None:
    """Raises NotFound."""
    if not viewer.may_anywhere(VIEWER):
        raise NotFound("There is no such channel, or none that you may see.")


def must_change(viewer: Viewer, act: str, what: str) -> None:
    """Raises Refused, and writes that down."""
    if may_change(viewer):
        return
    _refuse(viewer, act, what, "This takes the role admin on every source. Nothing was changed.")


def must_resend(viewer: Viewer, notice: Notice, what: str) -> None:
    """Raises Refused, and writes that down."""
    if may_resend(viewer, notice):
        return
    known = bool(notice.source) and notice.source != EVERY_SOURCE
    where = notice.source if known else "every source"
    message = f"This takes the role operator on {where}. Nothing was changed."
    _refuse(viewer, "delivery.resend", what, message, notice.source if known else "")


def seen(viewer: Viewer, prefix: str = "") -> Q:
    """Notices that the viewer may see: of a source, or of the desk itself; those of several take seeing every source.
    Those of an alert take seeing the alert.
    """
    theirs = viewer.sources()
    if theirs is None:
        return Q()
    if not theirs:
        return Q(pk__in=[])
    alerts = Alert.objects.filter(alert_sight.visible(viewer)).values("pk")
    its_alert = Q(**{f"{prefix}alert": None}) | Q(**{f"{prefix}alert__in": alerts})
    return Q(**{f"{prefix}source__in": [*theirs, ""]}) & its_alert


def _refuse(viewer: Viewer, act: str, what: str, message: str, source: str = "") -> None:
    code = "forbidden"
    if config.is_read_only():
        code, message = "read_only", config.READ_ONLY
    with transaction.atomic():
        audit.record(viewer, act, what, source=source, reason=message, allowed=False)
    raise Refused(code, message)
