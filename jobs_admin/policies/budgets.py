"""What is left of a policy's retry budget, at each of its sources: they count apart."""

from __future__ import annotations

from dataclasses import dataclass, field

import redis

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.matching import matches
from jobs_admin.core.policy import Budget
from jobs_admin.models import PolicyVersion, Source
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.policies.reading import readable
from jobs_admin.worker import budget as counted


@dataclass(frozen=True, slots=True)
class BudgetLeft:
    name: str  # under which it is counted: the policy's own, or that of the group which shares it
    per_minute: float
    burst: int
    left: dict[str, int] = field(default_factory=dict)  # source -> retries that could be made at once, now
    is_known: bool = True  # False: the store does not answer

    @property
    def least(self) -> int | None:
        """Where least is left; None where nobody knows, or no source is known yet."""
        return min(self.left.values(), default=None)


def budget(viewer: Viewer, current: PolicyVersion) -> BudgetLeft | None:
    """Of a policy in force, for the sources that the viewer may see; None without a budget. Spends nothing."""
    rule = next((one.budget for one in readable([current])), None)
    if rule is None:
        return None
    name = rule.group or current.name
    sources = [
        source
        for source in Source.objects.order_by("name").values_list("name", flat=True)
        if matches(current.match_source, source) and viewer.may(VIEWER, source)
    ]
    try:
        left = {source: _left(source, name, rule) for source in sources}
    except (redis.RedisError, config.BadConfiguration):
        return BudgetLeft(name, rule.per_minute, rule.burst, is_known=False)
    return BudgetLeft(name, rule.per_minute, rule.burst, left)


def _left(source: str, name: str, rule: Budget) -> int:
    how = counted.arguments(name, rule.per_minute, rule.burst)
    _, left = config.store().eval(counted.SCRIPT.text, 1, keys.budget(source), *how)
    return int(left)
