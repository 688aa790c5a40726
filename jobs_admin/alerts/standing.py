"""How rules stand: what of each is open now, and when it fired last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Q

from jobs_admin.alerts import rights
from jobs_admin.models import Alert, Rule
from jobs_admin.models.access import Viewer
from jobs_admin.models.alert import AlertState

_FIRING = Q(state__in=(AlertState.FIRING, AlertState.ACKNOWLEDGED))
_QUIET = Q(state__in=(AlertState.PENDING, AlertState.SILENCED))


@dataclass(frozen=True, slots=True)
class Standing:
    firing: int  # acknowledged ones too
    open: int  # pending and silenced ones too
    last_fired_at: datetime | None


def standing(viewer: Viewer, rules: Iterable[Rule]) -> dict[int, Standing]:
    """By number of the rule, of the alerts that the viewer sees; one that never had an alert is left out."""
    seen = Alert.objects.filter(rights.visible_alerts(viewer), rule__in=[one.pk for one in rules])
    counted = seen.order_by().values("rule").annotate(
        firing=Count("pk", filter=_FIRING),
        quiet=Count("pk", filter=_QUIET),
        last=Max("fired_at"),
    )  # fmt: skip
    return {one["rule"]: Standing(one["firing"], one["firing"] + one["quiet"], one["last"]) for one in counted}
