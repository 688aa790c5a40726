"""Remaining retry budget of a policy, at each of its sources: they count separately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import redis

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.matching import matches
from jobs_admin.fleet import worker_store
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
        """The least remaining budget; None if unknown, or without a known source."""
        return min(self.left.values(), default=None)


def budget(viewer: Viewer, current: PolicyVersion) -> BudgetLeft | None:
    """Return the budget of a policy in force, for the sources that the viewer may see; None without one. Spends
    nothing.
    """
    return budgets(viewer, [current]).get(current.name)


def budgets(viewer: Viewer, found: Sequence[PolicyVersion]) -> dict[str, BudgetLeft]:
    """Name -> what is left, of those that have a budget; all of them in one round trip."""
    made = {
        one.name: BudgetLeft(one.budget.group or one.name, one.budget.per_minute, one.budget.burst)
        for one in readable(found)
        if one.budget is not None
    }
    if not made:
        return {}
    sources = [one for one in Source.objects.order_by("name").values_list("name", flat=True) if viewer.may(VIEWER, one)]
    queries = [
        (one.name, source)
        for one in found
        if one.name in made
        for source in sources
        if matches(one.match_source, source)
    ]
    try:
        for (name, source), left in zip(
            queries, _read_left([(made[name], source) for name, source in queries]), strict=True
        ):
            if left is not None:
                made[name].left[source] = left
    except (redis.RedisError, config.BadConfiguration):
        return {name: replace(one, left={}, is_known=False) for name, one in made.items()}
    return made


def _read_left(queries: Sequence[tuple[BudgetLeft, str]]) -> list[int | None]:
    """None where the source wrote something else under the key of its budgets."""
    if not queries:
        return []
    store = config.store()
    script = store.register_script(counted.SCRIPT.text)
    with store.pipeline(transaction=False) as pipe:
        for rule, source in queries:
            how = counted.arguments(rule.name, rule.per_minute, rule.burst)
            script(keys=[keys.budget(source)], args=how, client=pipe)
        answers = pipe.execute(raise_on_error=False)
    return [
        None if left is None else int(left)
        for _, left in (worker_store.empty_if_wrong_type((0, None), it) for it in answers)
    ]
