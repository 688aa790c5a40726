"""Bound of the open alerts of a rule, and their choice. Names come with messages: they can be made by the thousand.

Each source has places of its own, so that none is without an alert because of another. When they are used up, a far
worse subject takes the place of the least; those left out are counted and reported.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jobs_admin.alerts import silencing
from jobs_admin.models import Alert, Rule, Silence
from jobs_admin.models.alert import AlertState

MOST_OPEN = 100  # of one rule and source
MOST_OF_RULE = 1_000  # of one rule, as long as each source has one
MOST_GIVE_WAY = 10  # of a rule and source in one round
# Far worse: so many times as far above the threshold, and by so much of the threshold more. Less would change places
# again and again.
_FAR, _FAR_SHARE = 2.0, 0.1


def room(sources: Collection[str]) -> int:
    """Return how many alerts of a rule may be open of each of the sources that have one, or will."""
    return max(1, min(MOST_OPEN, MOST_OF_RULE // max(1, len(sources))))


def give_way(
    rule: Rule,
    source: str,
    waiting: Sequence[tuple[str, float | None]],
    alerts: Sequence[Alert],
    silences: Sequence[Silence],
) -> dict[str, str]:
    """Return which open alert of a full source gives its place to which waiting subject.

    A silenced alert gives way to any that is not.
    """

    def above(value: float | None) -> float:
        return max(0.0, (value or 0.0) - rule.threshold)

    def is_silenced(subject: str) -> bool:
        one = Alert(rule=rule, source=source, subject=subject, severity=rule.severity)
        return bool(silences) and silencing.silenced_by(silences, one, rule.name) is not None

    worst = sorted((is_silenced(subject), -above(value), subject) for subject, value in waiting)[:MOST_GIVE_WAY]
    least = sorted(alerts, key=lambda one: (one.state != AlertState.SILENCED, above(one.value), -one.pk))
    found: dict[str, str] = {}
    for (is_quiet, below, subject), alert in zip(worst, least, strict=False):
        is_far = -below > _FAR * above(alert.value) + _FAR_SHARE * rule.threshold
        gives = is_far or not is_quiet if alert.state == AlertState.SILENCED else is_far and not is_quiet
        if not gives:
            break
        found[alert.subject] = subject
    return found
