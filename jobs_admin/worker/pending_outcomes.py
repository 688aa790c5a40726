"""Outcomes of a worker's jobs that are not yet written to the store."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobs_admin.core.breaker import Outcome

MOST_OUTCOMES = 500  # per breaker and round
MOST_PLACES = 500
Place = tuple[str, str]  # tenant and task


@dataclass(slots=True)
class PendingOutcomes:
    """Outcomes of one breaker that are not in the store yet."""

    succeeded: dict[Place, list[float]] = field(default_factory=dict)  # count, total runtime in seconds
    outcomes: list[Outcome] = field(default_factory=list)
    at_bound: bool = False

    def count(self, tenant: str, task: str, runtime_s: float) -> None:
        self._add_successes((tenant, task), 1, runtime_s)

    def _add_successes(self, place: Place, n: float, seconds: float) -> None:
        is_known = place in self.succeeded or len(self.succeeded) < MOST_PLACES
        counted = self.succeeded.setdefault(place if is_known else ("", ""), [0, 0.0])
        counted[0] += n
        counted[1] += seconds

    def add(self, outcome: Outcome) -> None:
        if len(self.outcomes) < MOST_OUTCOMES:
            self.outcomes.append(outcome)

    def merge(self, other: PendingOutcomes) -> None:
        for place, (count, seconds) in other.succeeded.items():
            self._add_successes(place, count, seconds)
        self.outcomes = [*other.outcomes, *self.outcomes][:MOST_OUTCOMES]
        self.at_bound |= other.at_bound

    def as_list(self, host: str) -> list[Outcome]:
        """Return the outcomes, with the host of this worker."""
        counted = [
            Outcome(True, int(count), tenant, task, host, runtime_s=seconds / count)
            for (tenant, task), (count, seconds) in self.succeeded.items()
        ]
        return [*counted, *self.outcomes]
