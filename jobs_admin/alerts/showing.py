"""Alert history for charts, and the alerts that a silence covers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q

from jobs_admin.alerts.reading import filter_place
from jobs_admin.alerts.silencing import in_force, may_see, silenced_by
from jobs_admin.models import Alert, Silence
from jobs_admin.models.access import Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.rights import alert_sight

MOST_OPEN = 2_000  # looked at, for those that a silence fits


def episodes(
    viewer: Viewer, since: datetime, *, source: str = "", queue: str = "", rule: str = "", limit: int = 2_000
) -> list[Alert]:
    """Return the alerts that fired and were not resolved before `since`, latest first, with their rules. `rule`: its
    number or name.
    """
    fired = Alert.objects.filter(alert_sight.visible(viewer), fired_at__isnull=False)
    found = fired.filter(Q(resolved_at=None) | Q(resolved_at__gte=since))
    found = filter_place(found, source, queue, rule)
    return list(found.select_related("rule").order_by("-pk")[:limit])


def silencing(viewer: Viewer, alert: Alert, now: datetime) -> list[Silence]:
    """Return the silences in force that cover it, if the viewer may see them."""
    fitting = [one for one in in_force(now) if silenced_by([one], alert, alert.rule.name)]
    return [one for one in fitting if may_see(viewer, one)]


def fitting(viewer: Viewer, matchers: Mapping[str, Any], limit: int = 20) -> tuple[list[Alert], int]:
    """Return open alerts that a silence with these matchers would cover: the first of them, and how many. Changes
    nothing.
    """
    would = Silence(matchers=dict(matchers))
    opened = Alert.objects.filter(alert_sight.visible(viewer)).exclude(state=AlertState.RESOLVED)
    rows = opened.select_related("rule").order_by("-pk")[:MOST_OPEN]
    found = [one for one in rows if silenced_by([would], one, one.rule.name)]
    return found[:limit], len(found)
