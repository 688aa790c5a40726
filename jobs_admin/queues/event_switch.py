"""Celery's events of jobs, switched on or off in running workers by its remote control, because an operator asked for it."""

from __future__ import annotations

from typing import Any, cast

from django.db import transaction

from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.models.access import ADMIN, Viewer
from jobs_admin.queues import coverage
from jobs_admin.sources.base import SourceError


def switch(viewer: Viewer, source: str, *, on: bool) -> None:
    """Ask all workers of a source to send events of their jobs, or to stop. It lasts until a worker restarts.

    Raises Refused; then nothing was sent.
    """
    act = "source.enable_events" if on else "source.disable_events"
    authorize(viewer, ADMIN, source, act, f"source:{source}")
    if not coverage.is_followed(source):
        raise Refused("wrong_state", f"{source} is not a source in guest mode (`guard = false`). Nothing was sent.")
    try:
        with transaction.atomic():
            audit.record(viewer, act, f"source:{source}", source=source)
            cast(Any, config.adapter(source)).switch_events(on)
    except SourceError as error:
        raise Refused("unreachable", f"{error} Nothing was sent.") from error
