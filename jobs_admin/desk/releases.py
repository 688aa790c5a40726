"""Releases of the user's code, recorded at deployment; an unrecorded one appears with its first report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.models import Release, Source
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer

LONGEST_VERSION = 100
OLDEST = timedelta(days=400)  # the longest range of a chart
_AHEAD = timedelta(minutes=5)  # of another machine's clock


@dataclass(frozen=True, slots=True)
class RecordedRelease:
    release: Release
    is_new: bool  # False: it was already recorded, and is unchanged


def record_release(
    viewer: Viewer, source: str, version: str, at: datetime | None = None, *, now: datetime | None = None
) -> RecordedRelease:
    """Record that a version was deployed, now or at a given time. Recording it again changes nothing.

    Raises NotFound and Refused.
    """
    now = now or timezone.now()
    if not viewer.may(VIEWER, source) or not _is_known(source):
        raise NotFound("Source not found. Nothing was changed.")
    message = "Reporting a release needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source, "release.tell", _parse_version(version), message=message)
    version = _checked(version, at, now)
    with transaction.atomic():
        release, is_new = Release.objects.get_or_create(
            source=source, version=version, defaults={"at": at or now, "told_by": viewer.name[:150]}
        )
        if is_new:
            audit.record(viewer, "release.tell", _parse_version(version), source=source, after={"at": release.at})
    return RecordedRelease(release, is_new)


def _is_known(source: str) -> bool:
    return source in config.sources() or Source.objects.filter(name=source).exists()


def _checked(version: str, at: datetime | None, now: datetime) -> str:
    version = representable(version).strip()
    if not 0 < len(version) <= LONGEST_VERSION:
        message = f"A version must have 1 to {LONGEST_VERSION} characters. Nothing was changed."
        raise Refused("invalid", message, "version")
    if at is not None and not now - OLDEST <= at <= now + _AHEAD:
        message = f"The time of a release must be in the last {OLDEST.days} days. Nothing was changed."
        raise Refused("invalid", message, "at")
    return version


def _parse_version(version: str) -> str:
    return f"release:{version}"
