"""Alert rules: read with their status (open alerts, last firing, channels), create, change, delete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Count, OuterRef, Q, Subquery
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from jobs_admin.alerts import checking, closing
from jobs_admin.core.figures import dated
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import audited, authorize, may_write
from jobs_admin.models import Alert, Rule
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.rights import alert_sight

MOST = 1_000  # rules per desk

_FIRING = (AlertState.FIRING, AlertState.ACKNOWLEDGED)
_QUIET = (AlertState.PENDING, AlertState.SILENCED)


def rules(viewer: Viewer, *, with_channels: bool = True) -> list[Rule]:
    """Return the rules that may fire about the viewer's sources, by name. Without channels if only names are needed."""
    found = Rule.objects.filter(deleted_at=None).select_related("view")
    if with_channels:
        found = found.prefetch_related("channels", "escalate_to")
    return [one for one in found.order_by("name") if alert_sight.sees_rule(viewer, one)]


def rule(viewer: Viewer, pk: int) -> Rule:
    """Return the rule. Raises NotFound."""
    found = Rule.objects.filter(pk=pk, deleted_at=None).select_related("view")
    one = found.prefetch_related("channels", "escalate_to").first()
    if one is None or not alert_sight.sees_rule(viewer, one):
        raise NotFound("No such rule, or you cannot view it.")
    return one


def may_change(viewer: Viewer, rule: Rule) -> bool:
    """Return whether the viewer may change, delete, enable and disable it."""
    return may_write(viewer, OPERATOR, rule.source) and alert_sight.sees_rule(viewer, rule)


def document(rule: Rule) -> dict[str, Any]:
    """Return the content of a rule, in the format of `save_rule`."""
    values = {name: getattr(rule, name) for name in checking.FIELDS}
    values["view"] = rule.view_id
    for name in ("channels", "escalate_to"):
        values[name] = sorted(one.name for one in getattr(rule, name).all())
    return values


def check_rule(viewer: Viewer, document: object) -> Rule:
    """Return the unsaved rule that saving this would create, without its channels. Raises Refused."""
    values = checking.parse_rule(viewer, _content(document)[0])
    return Rule(**{name: value for name, value in values.items() if name not in ("channels", "escalate_to")})


def save_rule(viewer: Viewer, document: object, pk: int | None = None) -> Rule:
    """Create a rule, or change the one with this number; an omitted field has its default.

    If the document contains `changed_at`, as it was read, the edit is refused if the rule was changed since. Raises
    Refused, and NotFound.
    """
    act = "rule.create" if pk is None else "rule.change"
    before = None if pk is None else rule(viewer, pk)
    touched = [] if before is None else [before.source]
    _authorize(viewer, touched, act, pk)
    content, expected = _content(document)
    values = checking.parse_rule(viewer, content)
    _authorize(viewer, [*touched, values["source"]], act, pk)
    with transaction.atomic():
        made = _store(viewer, before, values, expected)
    return rule(viewer, made.pk)


def delete_rule(viewer: Viewer, pk: int) -> None:
    """Delete a rule and close its open alerts. Its notices remain. Raises Refused, and NotFound."""
    found = rule(viewer, pk)
    _authorize(viewer, [found.source], "rule.delete", pk)
    now, values = timezone.now(), document(found)
    with transaction.atomic():
        gone = Rule.objects.filter(pk=pk, deleted_at=None)
        if not gone.update(deleted_at=now, enabled=False, view=None, changed_by=viewer.name[:150], changed_at=now):
            raise NotFound("No such rule, or you cannot view it.")
        closing.close_rule(found, f"Rule deleted by {viewer.name}.", now)
        _record(viewer, "rule.delete", found.pk, values, None)


def _authorize(viewer: Viewer, sources: Sequence[str], act: str, pk: int | None) -> None:
    message = "Changing this rule needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, sources, act, f"alert-rule:{pk or ''}", message=message, field="source")


def _store(viewer: Viewer, read: Rule | None, values: Mapping[str, Any], expected: datetime | None) -> Rule:
    fields = {name: value for name, value in values.items() if name not in ("channels", "escalate_to")}
    before, now = None, timezone.now()
    if read is None:
        if Rule.objects.filter(deleted_at=None).count() >= MOST:
            raise Refused("too_many", f"The limit of {MOST:,} rules is reached. Delete one first. Nothing was changed.")
        row = Rule()
    else:
        row = Rule.objects.select_for_update().get(pk=read.pk)
        if row.deleted_at is not None:
            raise NotFound("No such rule, or you cannot view it.")
        # JSON times have a precision of milliseconds.
        is_stale = expected is not None and abs(expected - row.changed_at) >= timedelta(milliseconds=1)
        if is_stale or row.source != read.source:  # with another source, the rights on it were not checked
            by = row.changed_by or "Another operator"
            at = dated(row.changed_at, timezone.now(), with_seconds=True)
            message = f"{by} changed this rule at {at} UTC. Nothing was changed. Review the new version."
            raise Refused("stale", message)
        before = document(row)
    for name, value in fields.items():
        setattr(row, name, value)
    row.changed_by = viewer.name[:150]
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        if not Rule.objects.filter(deleted_at=None, name=row.name).exclude(pk=row.pk).exists():
            raise
        raise Refused("taken", f"A rule named “{row.name}” already exists. Nothing was changed.", "name") from error
    row.channels.set(values["channels"])
    row.escalate_to.set(values["escalate_to"])
    if before is not None:
        closing.close_uncovered(row, before, viewer.name, now)
    _record(viewer, "rule.create" if read is None else "rule.change", row.pk, before, document(row))
    return row


def _content(document: object) -> tuple[object, datetime | None]:
    """Return the content of the rule, and the `changed_at` on which the edit is based."""
    if not isinstance(document, Mapping) or "changed_at" not in document:
        return document, None
    given = document["changed_at"]
    try:
        expected = parse_datetime(given) if isinstance(given, str) else given
    except ValueError:
        expected = False
    if expected is not None and not isinstance(expected, datetime):
        raise Refused("invalid", "changed_at must be the time returned with the rule. Nothing was changed.")
    if expected is not None and expected.tzinfo is None:
        raise Refused("invalid", "changed_at must include a time zone, as returned. Nothing was changed.")
    return {name: value for name, value in document.items() if name != "changed_at"}, expected


def _record(viewer: Viewer, act: str, pk: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
    """Audit the differing fields, and always the name, so that the row identifies its rule.

    If its source changed, each source has a row of its own.
    """
    differing = [n for n in checking.FIELDS if n == "name" or (before or {}).get(n) != (after or {}).get(n)]
    sides = {"before": before, "after": after}
    for source in audited(side["source"] for side in sides.values() if side):
        changes = {
            name: {field: side[field] for field in differing}
            for name, side in sides.items()
            if side and source in audited([side["source"]])
        }
        audit.record(viewer, act, f"alert-rule:{pk}", source=source, **changes)


@dataclass(frozen=True, slots=True)
class RuleStatus:
    firing: int  # including acknowledged ones
    open: int  # including pending and silenced ones
    last_fired_at: datetime | None


def read_rule_status(viewer: Viewer, rules: Iterable[Rule]) -> dict[int, RuleStatus]:
    """Return the status by rule number, from the alerts that the viewer sees; rules without an alert may be omitted.

    Reads the open alerts, and for each rule the last alert that fired, however many it had.
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
    """Return channel number -> names of the visible rules that notify it, immediately or on escalation."""
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
