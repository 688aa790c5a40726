"""For how long alerts have called for somebody: neither a silence nor a hold counts, and a silence begins it anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs_admin.models import Alert, AlertEvent
from jobs_admin.models.alert import AlertState

_MOST_EVENTS = 5_000  # the newest, that are looked at
_BEGAN = 1  # transitions of what fired at once, and has gone on so


@dataclass(frozen=True, slots=True)
class Called:
    since: datetime
    seconds: float  # without those in which it was held


def called(alerts: Sequence[Alert], now: datetime) -> dict[int, Called]:
    """By number, of alerts that fire and are not held."""
    found = {
        one.pk: Called(one.fired_at, (now - one.fired_at).total_seconds()) for one in alerts if one.fired_at is not None
    }
    winding = [one.pk for one in alerts if one.transitions > _BEGAN]
    if winding:
        told: dict[int, list[tuple[datetime, str, bool]]] = {}
        events = AlertEvent.objects.filter(alert__in=winding).order_by("-at", "-n")
        for pk, *event in events.values_list("alert", "at", "to", "is_held")[:_MOST_EVENTS]:
            told.setdefault(pk, []).append(tuple(event))
        found |= {pk: _of(said[::-1], found[pk], now) for pk, said in told.items() if pk in found}
    return found


def _of(events: Sequence[tuple[datetime, str, bool]], otherwise: Called, now: datetime) -> Called:
    since: datetime | None = None
    runs: datetime | None = None  # since when nothing holds it
    counted = timedelta()
    for at, to, is_held in events:
        if to != AlertState.FIRING:
            since, runs, counted = None, None, timedelta()
            continue
        since = since or at
        if is_held and runs is not None:
            counted, runs = counted + (at - runs), None
        elif not is_held:
            runs = runs or at
    if since is None or since > now:  # it is not known, or a clock was set back, and `fired_at` with it
        return otherwise
    return Called(since, (counted + (now - runs if runs is not None else timedelta())).total_seconds())
