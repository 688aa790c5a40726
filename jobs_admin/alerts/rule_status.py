"""Status of rules: open alerts, last firing, and the channels that they notify."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, OuterRef, Q, Subquery

from jobs_admin.models import Alert, Rule
from jobs_admin.models.access import Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.rights import alert_sight

_FIRING = (AlertState.FIRING, AlertState.ACKNOWLEDGED)
_QUIET = (AlertState.PENDING, AlertState.SILENCED)


@dataclass(frozen=True, slots=True)
class RuleStatus:
    firing: int  # acknowledged ones too
    open: int  # pending and silenced ones too
    last_fired_at: datetime | None


def read_rule_status(viewer: Viewer, rules: Iterable[Rule]) -> dict[int, RuleStatus]:
    """Return the status by number of the rule, of the alerts that the viewer sees; one without an alert may be omitted.

    Reads the open alerts, and of each rule its last alert that fired, however many it had.
    """
    pks = [one.pk for one in rules]
    seen = Alert.objects.filter(alert_sight.visible(viewer))
    opened = seen.filter(rule__in=pks, state__in=(*_FIRING, *_QUIET)).order_by().values("rule")
    counted = opened.annotate(firing=Count("pk", filter=Q(state__in=_FIRING)), open=Count("pk"))
    of_rule = {one["rule"]: (one["firing"], one["open"]) for one in counted}
    fired = seen.filter(rule=OuterRef("pk"), fired_at__isnull=False).order_by("-fired_at").values("fired_at")[:1]
    last = dict(Rule.objects.filter(pk__in=pks).order_by().values_list("pk", Subquery(fired)))
    return {
        pk: RuleStatus(*of_rule.get(pk, (0, 0)), last.get(pk))
        for pk in pks
        if pk in of_rule or last.get(pk) is not None
    }


def rules_by_channel(viewer: Viewer) -> dict[int, list[str]]:
    """Return channel number -> names of the rules that notify it, at once or when they escalate, if the viewer sees
    them.
    """
    found = Rule.objects.filter(deleted_at=None).select_related("view").only("name", "source", "deleted_at", "view")
    names = {one.pk: one.name for one in found if alert_sight.sees_rule(viewer, one)}
    links = {
        pair
        for through in (Rule.channels.through, Rule.escalate_to.through)
        for pair in through.objects.values_list("channel_id", "rule_id")
    }
    names_by_channel: dict[int, list[str]] = defaultdict(list)
    for channel, rule in links:
        if rule in names:
            names_by_channel[channel].append(names[rule])
    return {channel: sorted(by) for channel, by in names_by_channel.items()}
