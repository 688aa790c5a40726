"""Effect of a policy in observe mode, by the workers' notes at each failed attempt that it matched."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobs_admin.models import Attempt, PolicyVersion
from jobs_admin.models.access import VIEWER, Viewer

MOST = 5_000  # attempts that are looked at, those of the newest failures
# A wait that differs by less is the same: jitter, and the time that it took to decide.
_SAME_SHARE, _SAME_S = 0.1, 1.0

_AGAIN = re.compile(r"would retry in ([\d,.e+-]+) s")  # as `worker/report.py` words it
_DEAD = "would be dead"


@dataclass(frozen=True, slots=True)
class Observed:
    """Failed attempts that one version judged without deciding."""

    attempts: int
    tried_again: int  # were dead, and would have been retried
    given_up: int  # were retried, and would have been dead
    waited_otherwise: int  # were retried, and would have been at another time
    is_capped: bool  # there are more attempts than MOST

    @property
    def changed(self) -> int:
        return self.tried_again + self.given_up + self.waited_otherwise


def observed(viewer: Viewer, version: PolicyVersion, most: int = MOST) -> Observed:
    """Return how many of the latest `most` failed attempts that this version only observed would have ended otherwise."""
    label = f"{version.name}@{version.version}"
    seen = Attempt.objects.filter(policy=label, reason__startswith="would ")
    sources = viewer.sources(VIEWER)
    if sources is not None:
        seen = seen.filter(failure__source__in=sources)
    rows = list(seen.order_by("-failure").values_list("kind", "reason", "delay_s")[: most + 1])
    again = dead = otherwise = 0
    for kind, reason, waited_s in rows[:most]:
        is_retried = kind == "retry"
        if reason.startswith(_DEAD):
            dead += is_retried
        elif found := _AGAIN.match(reason):
            again += not is_retried
            otherwise += is_retried and not _is_same(_seconds(found[1]), waited_s)
    return Observed(min(len(rows), most), again, dead, otherwise, len(rows) > most)


def _is_same(would_s: float | None, waited_s: float | None) -> bool:
    if would_s is None or waited_s is None:
        return False
    return abs(would_s - waited_s) <= max(_SAME_S, _SAME_SHARE * waited_s)


def _seconds(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
