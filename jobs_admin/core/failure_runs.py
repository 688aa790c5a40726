"""Runs of failures: attempts since a score was last zero, for a dependency and for each of its hosts or tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from jobs_admin.core.outcomes import check_values

MOMENT_S, MOMENTS = (
    0.05,
    3,
)  # simultaneous failures, such as stale connections after a deploy, add at most a third of an alarm's score
FEWEST_SUBJECTS = 5
MOST_PARTS = 16  # tracked parts with recent failures
MOST_SUCCEEDED = 8  # tracked parts with the latest successes


@dataclass(slots=True)
class Run:
    """The attempts since the score was last zero."""

    score: float = 0.0
    failed: int = 0
    succeeded: int = 0
    since: float = 0.0
    moment: float = 0.0  # start of the latest moment
    base: float = 0.0  # score at that start
    more: float = 0.0  # sum of the moment's outcomes, which counts up to a limit
    subjects: list[str] = field(default_factory=list)  # distinct failed subjects, up to the number that an alarm needs

    def fail(self, up: float, alarm_at: float, now: float, subject: str) -> None:
        if not self.failed:
            self.since = now
        self.failed += 1
        if len(self.subjects) < FEWEST_SUBJECTS and (not subject or subject not in self.subjects):
            self.subjects.append(subject)
        self._add(up, alarm_at, now)

    def succeed(self, n: int, down: float, alarm_at: float, now: float) -> int:
        """Count `n` successes. Return the number that came after the end of the run."""
        if self.score <= 0:
            return n
        self._add(0.0, alarm_at, now)
        needed = min(n, max(1, math.ceil((self.base + self.more) / down)))
        self.succeeded += needed
        self._add(-needed * down, alarm_at, now)
        return n - needed

    def _add(self, more: float, alarm_at: float, now: float) -> None:
        if abs(now - self.moment) >= MOMENT_S:
            self.moment, self.base, self.more = now, self.score, 0.0
        self.more += more
        self.score = max(0.0, min(alarm_at + 1, self.base + min(self.more, alarm_at / MOMENTS + 1)))

    def is_alarm(self, score: float) -> bool:
        return self.score >= score and len(self.subjects) >= FEWEST_SUBJECTS

    def as_list(self) -> list[Any]:
        numbers = [round(self.score, 4), self.failed, self.succeeded, round(self.since, 3), round(self.moment, 3)]
        return [*numbers, round(self.base, 4), round(self.more, 4), list(self.subjects)]

    def check(self) -> Run:
        """Return the run. Raises TypeError for invalid stored values."""
        check_values((self.score, self.since, self.moment, self.base, abs(self.more)), float)
        check_values((self.failed, self.succeeded), int)
        check_values(self.subjects, str)
        return self

    def set_back(self, now: float) -> None:
        """Adjust times after a clock was set back."""
        self.since, self.moment = min(self.since, now), min(self.moment, now)


@dataclass(frozen=True, slots=True)
class Step:
    """Change of a score by one outcome: `up` for a failure, `down` for a success; `most`: maximum of a score.

    `own_up` and `own_down`: the same for the own score of a part, which assumes that half of its attempts usually fail.
    """

    up: float
    down: float
    own_up: float
    own_down: float
    most: float


@dataclass(slots=True)
class Part:
    own: Run = field(default_factory=Run)
    rest: float = 0.0  # score of all parts without this one
    elsewhere: int = 0  # successes of other parts since the start of `own`


@dataclass(slots=True)
class Parts:
    """Attempts of a dependency by host or by task.

    A part with failures has two scores: its own, and that of all other parts.
    """

    failing: dict[str, Part] = field(default_factory=dict)
    succeeded_at: dict[str, float] = field(default_factory=dict)  # part -> time of its latest success, in that order

    def succeed(self, name: str, n: int, step: Step, now: float) -> None:
        for key, part in list(self.failing.items()):
            if key != name:
                part.rest = max(0.0, part.rest - n * step.down)
                part.elsewhere = min(1_000_000, part.elsewhere + n * bool(name))
                continue
            part.own.succeed(n, step.own_down, step.most, now)
            if part.own.score <= 0:
                del self.failing[key]
        if name:
            self.succeeded_at.pop(name, None)
            self.succeeded_at[name] = now
            if len(self.succeeded_at) > MOST_SUCCEEDED:
                del self.succeeded_at[next(iter(self.succeeded_at))]

    def fail(self, name: str, step: Step, score: float, now: float, subject: str) -> None:
        """Count a failure. `score`: the dependency's, before it."""
        for key, part in self.failing.items():
            if key != name:
                part.rest = min(step.most + 1, part.rest + step.up)
        if not name:
            return
        if name not in self.failing:
            if len(self.failing) >= MOST_PARTS:
                del self.failing[min(self.failing, key=lambda key: self.failing[key].own.score)]
            self.failing[name] = Part(rest=score)
        self.failing[name].own.fail(step.own_up, step.most, now, subject)

    def find_worst(self) -> tuple[str, Part | None]:
        """Return the part with the most failures in its run; ("", None) if there is none."""
        name = max(self.failing, key=lambda key: self.failing[key].own.failed, default="")
        return name, self.failing.get(name)

    def succeeds_elsewhere(self, name: str, since: float) -> bool:
        return any(at >= since for key, at in self.succeeded_at.items() if key != name)

    def set_back(self, now: float) -> None:
        self.succeeded_at = {key: min(at, now) for key, at in self.succeeded_at.items()}
        for part in self.failing.values():
            part.own.set_back(now)

    def as_dict(self) -> dict[str, Any]:
        return {
            "failing": {
                key: [part.own.as_list(), round(part.rest, 4), part.elsewhere] for key, part in self.failing.items()
            },
            "well": {key: round(at, 3) for key, at in self.succeeded_at.items()},
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Parts:
        """Parse stored parts. Raises TypeError, ValueError, KeyError or AttributeError for any other value."""
        made = Parts(succeeded_at=dict(values.get("well", {})))
        for key, (own, rest, elsewhere) in values.get("failing", {}).items():
            made.failing[key] = Part(Run(*own).check(), rest, elsewhere)
        check_values((*made.succeeded_at.values(), *(part.rest for part in made.failing.values())), float)
        check_values((part.elsewhere for part in made.failing.values()), int)
        check_values((*made.failing, *made.succeeded_at), str)
        if len(made.failing) > MOST_PARTS or len(made.succeeded_at) > MOST_SUCCEEDED:
            raise ValueError(len(made.failing))
        return made
