"""What was seen on the desk that a rule may hold a configuration against. Nothing here is supposed: what was not seen is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

# How long a service may be away, where no outage was seen yet: five minutes.
OUTAGE_S = 300.0


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which many attempts of a queue failed, and no more are known to have run well."""

    source: str
    queue: str
    began: datetime
    seconds: float
    failed: int = 0
    succeeded: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Keyed by (source, queue) or (source, task). What is missing was not seen."""

    per_minute: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # jobs started in the busiest minute of a day
    failed_per_minute: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # attempts, in the worst minute of a day
    outages: tuple[Outage, ...] = ()  # of the last week
    # Failures that are kept: (source, task) -> class of the error, without its module -> how many.
    errors: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    # Of those, the ones in which a server said that it was asked too often (429).
    rate_limited: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # And the ones whose message says that they are permanent, and which ran more than once all the same; of a sample.
    permanent_retried: Mapping[tuple[str, str], int] = field(default_factory=dict)
    told_by_all: frozenset[str] = frozenset()  # sources of which every live worker told what it has
    outage_s: float = OUTAGE_S  # to be survived where none was seen

    def longest_outage(self, source: str, queue: str) -> Outage | None:
        seen = [one for one in self.outages if (one.source, one.queue) == (source, queue)]
        return max(seen, key=lambda one: one.seconds, default=None)
