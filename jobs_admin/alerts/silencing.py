"""Silences of alerts, and the alerts that one covers.

An alert that fires during a silence is shown, without a notice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Least
from django.utils import timezone

from jobs_admin.alerts import checking
from jobs_admin.alerts.reading import get
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.db.authorizing import audited, authorize, owner
from jobs_admin.models import Alert, Silence
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer
from jobs_admin.models.alert import AlertState, Severity
from jobs_admin.rights import alert_sight

MATCHERS = ("source", "queue", "rule", "severity", "alert", "exact")
GLOBS = ("source", "queue", "rule")  # `exact` lists those that are literal: a queue may be named *
LONGEST = timedelta(days=30)
LONGEST_COMMENT = 500
MOST = 100  # per source, in force or scheduled; as many for several sources together
MOST_OF_DESK = 2_000
MOST_OVER = 200  # latest ended ones that are listed
_LONGEST_GLOB = 200

MOST_COVERED = 2_000  # alerts checked against a silence


def silences(viewer: Viewer, now: datetime, *, over: bool = False) -> list[Silence]:
    """Return silences in force and scheduled, the next to end first; with `over`, those that ended, latest first."""
    if over:
        found = Silence.objects.filter(ends_at__lte=now).order_by("-ends_at", "-pk")[:MOST_OVER]
    else:
        found = Silence.objects.filter(ends_at__gt=now).order_by("ends_at", "pk")[:MOST_OF_DESK]
    return [one for one in found if may_see(viewer, one)]


class InForce(list[Silence]):
    """Silences in force at one time, indexed so that checking many alerts skips those of other sources."""

    def __init__(self, found: Iterable[Silence]) -> None:
        super().__init__(found)
        self._named: dict[str, list[Silence]] = defaultdict(list)
        self._fitting: dict[tuple[str, str, str], list[Silence]] = {}
        for one in self:
            source = _source(one.matchers)
            self._named["*" if "*" in source else source].append(one)

    def matching(self, source: str, rule_name: str, severity: str) -> list[Silence]:
        """Return the silences that may cover an alert of this source, rule and severity, by their number."""
        key = source, rule_name, severity
        if key not in self._fitting:
            near = [*self._named.get(source, ()), *self._named.get("*", ())]
            known = {"source": source, "rule": rule_name}
            fitting = [
                one for one in near if one.matchers.get("severity", severity) == severity and one.matches_names(known)
            ]
            self._fitting[key] = sorted(fitting, key=lambda one: one.pk)
        return self._fitting[key]


def in_force(now: datetime) -> InForce:
    return InForce(Silence.objects.filter(starts_at__lte=now, ends_at__gt=now).order_by("pk"))


def may_see(viewer: Viewer, silence: Silence) -> bool:
    return viewer.sees_any_of(_source(silence.matchers))


def may_end(viewer: Viewer, silence: Silence) -> bool:
    return may_see(viewer, silence) and viewer.may(OPERATOR, owner(_source(silence.matchers)))


def silenced_by(found: Iterable[Silence], alert: Alert, rule_name: str) -> Silence | None:
    """Return the first that covers an alert."""
    return next(_find_covering(found, alert, rule_name), None)


def _find_covering(found: Iterable[Silence], alert: Alert, rule_name: str) -> Iterator[Silence]:
    if isinstance(found, InForce):
        found = found.matching(alert.source, rule_name, alert.severity)
    return (one for one in found if one.covers(alert, rule_name))


def silence(
    viewer: Viewer,
    matchers: Mapping[str, Any],
    *,
    ends_at: datetime,
    comment: str,
    starts_at: datetime | None = None,
    now: datetime | None = None,
) -> Silence:
    """Silence alerts that match all of `source`, `queue` and `rule`; these are globs, except those that `exact` lists.

    Raises Refused, and NotFound.
    """
    now = now or timezone.now()
    parsed = _matchers(viewer, matchers)
    source = _source(parsed)
    message = "This silence needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source, "silence.create", "silence", message=message, field="source")
    starts = _parse_start(starts_at, now)
    _check_end(ends_at, starts)
    why = " ".join(representable(comment).split()) if isinstance(comment, str) else ""
    if not 1 <= len(why) <= LONGEST_COMMENT:
        raise _invalid("comment", f"Enter a reason of 1 to {LONGEST_COMMENT} characters.")
    with transaction.atomic():
        _must_have_room(source, now)
        made = Silence.objects.create(
            matchers=parsed, author=viewer.name[:150], comment=why, starts_at=starts, ends_at=ends_at
        )
        after = {"matchers": parsed, "starts_at": starts, "ends_at": ends_at}
        for one in audited([source]):
            audit.record(viewer, "silence.create", f"silence:{made.pk}", source=one, reason=why, after=after)
    return made


def _must_have_room(source: str, now: datetime) -> None:
    """Raise Refused at the limit. Each source has its own, so that other sources' operators cannot use it up."""
    mine = owner(source)
    open_ = Silence.objects.filter(ends_at__gt=now).values_list("matchers", flat=True)[:MOST_OF_DESK]
    owners = [owner(_source(matchers)) for matchers in open_]
    if owners.count(mine) >= MOST:
        matching = "several sources" if mine == EVERY_SOURCE else mine
        raise Refused(
            "too_many", f"The limit of {MOST} silences of {matching} is reached. End one first. Nothing was changed."
        )
    if len(owners) >= MOST_OF_DESK:
        raise Refused(
            "too_many", f"The limit of {MOST_OF_DESK:,} silences is reached. End one first. Nothing was changed."
        )


def end_silence(viewer: Viewer, pk: int, *, now: datetime | None = None) -> Silence:
    """End a silence early: alerts that still fire get a notice. Raises Refused, and NotFound."""
    now = now or timezone.now()
    found = Silence.objects.filter(pk=pk).first()
    if found is None or not may_see(viewer, found):
        raise NotFound("No such silence, or you cannot view its sources.")
    source = _source(found.matchers)
    message = "Ending this silence needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source, "silence.end", f"silence:{pk}", message=message, field="source")
    with transaction.atomic():
        running = Silence.objects.filter(pk=pk, ends_at__gt=now)
        # A scheduled silence ends at its start, which is moved to now.
        if not running.update(ends_at=now, starts_at=Least(F("starts_at"), now), ended_by=viewer.name[:150]):
            raise Refused("wrong_state", "This silence has already ended. Nothing was changed.")
        for one in audited([source]):
            audit.record(viewer, "silence.end", f"silence:{pk}", source=one, before={"ends_at": found.ends_at})
    found.refresh_from_db()
    return found


def _source(matchers: Mapping[str, Any]) -> str:
    return str(matchers.get("source") or EVERY_SOURCE)


def _matchers(viewer: Viewer, given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _invalid("matchers", f"matchers must be an object with some of {', '.join(MATCHERS)}.")
    if unknown := [str(name)[:60] for name in given if name not in MATCHERS]:
        raise _invalid("matchers", f"Unknown matcher {unknown[0]!r}. Known: {', '.join(MATCHERS)}.")
    parsed = {name: value for name, value in given.items() if value not in (None, "", [])}
    if not parsed.keys() - {"exact"}:
        raise _invalid("matchers", "Give at least one matcher. A silence that matches everything is refused.")
    exact = parsed.get("exact", [])
    if not isinstance(exact, list) or not all(name in GLOBS and name in parsed for name in exact):
        raise _invalid("matchers", f"exact must be a list of given matchers ({', '.join(GLOBS)}) that are not globs.")
    for name in GLOBS:
        if name in parsed:
            try:
                parsed[name] = checking.parse_line(parsed[name], _LONGEST_GLOB, name)
            except ValueError as error:
                raise _invalid("matchers", str(error)) from error
    if "severity" in parsed and parsed["severity"] not in Severity.values:
        raise _invalid("matchers", f"severity must be one of {', '.join(Severity.values)}.")
    if "alert" in parsed:
        parsed |= _parse_alert_matcher(viewer, parsed["alert"])
    return parsed


def _parse_alert_matcher(viewer: Viewer, given: object) -> dict[str, Any]:
    """Return the matcher of an alert's bundle, with its source."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise _invalid("matchers", "alert must be the number of an alert.")
    try:
        found = get(viewer, given)
    except NotFound:
        raise _invalid("matchers", "No such alert, or you cannot view it.") from None
    leader = found.told_with_id or found.pk
    return {"alert": leader, "source": found.source} if found.source else {"alert": leader}


def _parse_start(given: datetime | None, now: datetime) -> datetime:
    starts = given or now
    if starts.tzinfo is None:
        raise _invalid("starts_at", "starts_at must include a time zone.")
    if starts > now + LONGEST:
        raise _invalid("starts_at", f"The start must be within {LONGEST.days} days.")
    return max(starts, now)


def check_times(starts_at: datetime | None, ends_at: datetime, now: datetime) -> datetime:
    """Return the start of a silence: now at the earliest. Raises Refused for invalid times."""
    starts = _parse_start(starts_at, now)
    _check_end(ends_at, starts)
    return starts


def _check_end(ends_at: datetime, starts: datetime) -> None:
    if not isinstance(ends_at, datetime) or ends_at.tzinfo is None:
        raise _invalid("ends_at", "ends_at must be a time with a time zone.")
    if not starts < ends_at <= starts + LONGEST:
        raise _invalid("ends_at", f"The end must be after the start, within {LONGEST.days} days.")


def _invalid(field: str, message: str) -> Refused:
    return Refused("invalid", f"{message} Nothing was changed.", field)


def find_silences_of(viewer: Viewer, alert: Alert, now: datetime) -> list[Silence]:
    """Return the silences in force that cover it, if the viewer may see them."""
    return [one for one in _find_covering(in_force(now), alert, alert.rule.name) if may_see(viewer, one)]


def find_ends(viewer: Viewer, alerts: Iterable[Alert], now: datetime) -> dict[int, datetime]:
    """Return alert -> the end of its silence in force that ends last, of those that the viewer may see."""
    alerts = list(alerts)
    seen = InForce(one for one in in_force(now) if may_see(viewer, one)) if alerts else InForce([])
    ends = {one.pk: [each.ends_at for each in _find_covering(seen, one, one.rule.name)] for one in alerts}
    return {pk: max(found) for pk, found in ends.items() if found}


def find_named_alerts(viewer: Viewer, silences: Iterable[Silence]) -> dict[int, list[Alert]]:
    """Return silence -> its alerts, for silences of one notification; without those resolved before it began."""
    named = {one.pk: one for one in silences if "alert" in one.matchers}
    if not named:
        return {}
    leaders = {one.matchers["alert"] for one in named.values()}
    first = min(one.starts_at for one in named.values())
    rows = (
        Alert.objects.filter(alert_sight.visible(viewer), Q(pk__in=leaders) | Q(told_with__in=leaders))
        .filter(Q(resolved_at=None) | Q(resolved_at__gte=first))
        .select_related("rule")
        .order_by("pk")
    )
    members = defaultdict(list)
    for alert in rows[:MOST_COVERED]:
        members[alert.told_with_id or alert.pk].append(alert)
    return {
        pk: [
            alert
            for alert in members[one.matchers["alert"]]
            if one.covers(alert, alert.rule.name) and (alert.resolved_at is None or alert.resolved_at >= one.starts_at)
        ]
        for pk, one in named.items()
    }


def find_covered(viewer: Viewer, matchers: Mapping[str, Any], limit: int = 20) -> tuple[list[Alert], int]:
    """Return the first open alerts that a silence with these matchers would cover, and their number.

    Changes nothing.
    """
    would = Silence(matchers=dict(matchers))
    opened = Alert.objects.filter(alert_sight.visible(viewer)).exclude(state=AlertState.RESOLVED)
    rows = opened.select_related("rule").order_by("-pk")[:MOST_COVERED]
    found = [one for one in rows if silenced_by([would], one, one.rule.name)]
    return found[:limit], len(found)
