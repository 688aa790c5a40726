"""Limit of open alerts per rule, and their choice. Messages contain the names, so thousands of subjects can be created.

Each source has its own limit, so that another source cannot prevent its alerts. If it is reached, a far worse subject
replaces the least severe alert; subjects beyond the limit are counted and reported.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jobs_admin.alerts import silencing
from jobs_admin.models import Alert, Rule, Silence
from jobs_admin.models.alert import AlertState

MOST_OPEN = 100  # per rule and source
MOST_OF_RULE = 1_000  # per rule, with at least one for each source
MOST_GIVE_WAY = 10  # per rule and source in one round
# Far worse: exceeds the threshold by this factor more, and by this share of the threshold. With less, alerts would be
# replaced back and forth.
_FAR, _FAR_SHARE = 2.0, 0.1


def room(sources: Collection[str]) -> int:
    """Return how many open alerts of a rule each of the sources with an alert, present or new, may have."""
    return max(1, min(MOST_OPEN, MOST_OF_RULE // max(1, len(sources))))


def give_way(
    rule: Rule,
    source: str,
    waiting: Sequence[tuple[str, float | None]],
    alerts: Sequence[Alert],
    silences: Sequence[Silence],
) -> dict[str, str]:
    """Return which open alert of a source at its limit is replaced by which waiting subject.

    A silenced alert is replaced by any unsilenced subject.
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
