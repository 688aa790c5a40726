"""Careful against drawn partners with real workers: `python -m bench.partners --real [--jobs 1500]`.

Six of the kinds of `bench.partners`, on the rig of `bench.recovery_real`: the whole `watch`, a guarded Celery worker of
four processes, jobs that really died, native retries (six attempts), a fresh desk for each partner. The partner is a
process (of several tenants: one each) that answers by its drawn curve, brought down to what the machine can send.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from bench.recovery_real import Replayed, Story
from demo.partner import Partner
from demo.temper import Answer, Temper
from tests.rigs.partners import Drawn, Service, oracle_s, partners
from tests.rigs.recovery import in_turn

JOBS = 1_500
MOST = 40.0  # requests/s that a partner carries here
WORKERS, RUNTIME_S = 4, 0.02  # of the machine: for the oracle
KINDS = ("no sign", "step", "warm-up", "periodic", "per tenant", "below the start")
WITHIN_S = 900.0
SLOW_JOBS = 300  # of a partner below the start


def fitted(drawn: Drawn) -> Drawn:
    """The same partner, carrying no more than the machine can send."""
    scale = min(1.0, MOST / max(drawn.curve(float(at)) for at in range(600)))
    curve = drawn.curve
    return replace(drawn, curve=lambda now: scale * curve(now), workers=WORKERS, runtime_s=RUNTIME_S)


class DrawnTemper(Temper):
    """A drawn partner's service behind HTTP. Writes down each request: when, its answer, its mode, which service."""

    def __init__(self, drawn: Drawn, n: int, lines: IO[str]) -> None:
        super().__init__(time.monotonic())
        self._drawn, self._n, self._lines = drawn, n, lines
        self._service = Service(drawn, drawn.parts[n])

    def change(self, name: str, now: float, **numbers: Any) -> None:
        super().change(name, now, **numbers)
        self._service = Service(self._drawn, self._drawn.parts[self._n])

    def answer(self, now: float) -> Answer:
        if self.mode.name != "warming":
            return super().answer(now)
        since_s = now - self.mode.since
        ok, wait_s = self._service.answer(since_s)
        mode = "outage" if since_s < self._service.down_until else "warming"
        status = 200 if ok else 503
        self._lines.write(f"{now:.4f} {status} {mode} {self._n}\n")
        return Answer(status, wait_s)


def serve(port: int, diary: Path, seed: int, name: str, n: int) -> None:
    drawn = fitted(_draw_all(seed)[name])
    with diary.open("a", buffering=1) as lines:
        partner = Partner(port)
        partner.temper = DrawnTemper(drawn, n, lines)
        partner.serve_forever()


def _draw_all(seed: int) -> dict[str, Drawn]:
    return {drawn.name: drawn for drawn in partners(seed)}


@dataclass
class Meeting(Story):
    """A fresh desk and one drawn partner."""

    seed: int = 1
    name: str = ""

    @property
    def partner(self) -> Drawn:
        return fitted(_draw_all(self.seed)[self.name])

    @property
    def services(self) -> int:
        return len(self.partner.parts)

    def serves(self, n: int) -> Callable[[int, Path], None]:
        return partial(serve, seed=self.seed, name=self.name, n=n)

    def places_of_jobs(self) -> list[str]:
        return [self.places[tenant] for tenant in in_turn(self.partner.shares, self.jobs)]

    def requests(self, began: float) -> list[tuple[float, str, str]]:
        """The requests since that moment, in order of time: when, mode, which service."""
        lines = [line.split() for line in self.diary.read_text().splitlines()]
        return sorted((float(at), mode, which) for at, _, mode, which in lines if float(at) >= began)

    def _seen_by_the_service(self, began: float) -> dict[str, Any]:
        requests = self.requests(began)
        by_service = [[mode for _, mode, which in requests if which == str(n)] for n in range(self.services)]
        return {
            "collapses": sum(
                then == "outage" != before for modes in by_service for before, then in pairwise(["warming", *modes])
            ),
            "requests": len(requests),
            "requests_during_collapse": sum(mode == "outage" for _, mode, _ in requests),
        }


def real(seed: int, jobs: int, kinds: Sequence[str], of_each: int = 1) -> list[dict[str, Any]]:
    """One row for each partner met."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)
    rows = []
    for kind in kinds:
        for name in [name for name, drawn in _draw_all(seed).items() if drawn.kind == kind][:of_each]:
            rows.append(_meet(seed, name, min(jobs, SLOW_JOBS) if kind == "below the start" else jobs))
            print(rows[-1], flush=True)
    return rows


def _meet(seed: int, name: str, jobs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="redrive-partner-") as folder:
        tempfile.tempdir = folder  # the worker's own folder too
        os.environ["REDRIVE_DATA"] = folder
        import django

        django.setup()
        with Meeting(Path(folder), jobs, before=None, within_s=WITHIN_S, seed=seed, name=name) as meeting:
            figures = meeting.measure(name, Replayed({"style": "careful"}))
            known_s = oracle_s(meeting.partner, jobs)
        tempfile.tempdir = None
    through_s = figures["through_after_s"] - figures["held_s"]
    return {
        "partner": name,
        "jobs": jobs,
        "collapses": figures["collapses"],
        "held": len(figures["held_because"]),
        "dead": figures["failed_again"],
        "dead_percent": figures["failed_again_percent"],
        "through_s": round(through_s, 1),
        "times_the_oracle": round(through_s / known_s, 2),
        "requests": figures["requests"],
        "requests_during_collapse": figures["requests_during_collapse"],
        "news_after_s": figures["news_after_s"],
        "load": figures["load"],
        "held_because": figures["held_because"],
        "course": figures["course"],
    }
