"""An outage of a partner with real workers, three ways: `python -m bench.outage [--jobs 300] [--rounds 1] [--way held]`.

On the rig of `bench.recovery_real`: a desk of its own, a guarded Celery worker of four processes, the partner as a process. Sixty jobs
succeed; then the partner is out for 60 s while the jobs are sent, ten a second; then it is back: it
carries 8 requests/s, a minute later 50, and falls over for 20 s where more than 1.3 times as much comes within 2 s, without a sign before
that. The task is tried four times within some seconds. `at once` and `careful`: what died is replayed as soon as the partner is back.
`held`: a policy with a breaker, and no act of anyone. The ways take turns. Every figure comes from lines of the partner and of the
tasks, and the dead from the desk. Prints JSON.

With `--cost`: what a closed breaker costs jobs that succeed: pairs of runs of 3,000 jobs without and with it, by the clock and by processor
time of all processes of the worker.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import IO, Any

from bench.recovery_real import ROOT, Story
from demo import control
from demo.partner import Partner
from demo.temper import COLD_RATE, WARM_RATE, WARMING_S, Answer, Temper, warm_up
from tests.rigs.recovery_real import known_s

OUT_S, USUAL_JOBS = 60.0, 60
PACES: dict[str, dict[str, Any] | None] = {
    "at once": {"style": "at_once"},
    "careful": {"style": "careful", "ramp": {"to": WARM_RATE}},
    "held": None,
}
_POLICY = """
from jobs_admin.policies import publish
from jobs_admin.models.access import ADMIN
before = PolicyVersion.objects.filter(name="orders", is_published=True).first()
publish(Viewer("ann", {"*": ADMIN}), "orders", {"name": "orders", "match": {"task": "order"}, "mode": MODE, "retries": False,
        "breaker": {"dependency": "partner"}}, expected_version=before and before.version)
say(1)
"""
_DEAD = """
say(Failure.objects.filter(tenant="{name}", state="dead").count())
"""
_WHY = """
found = Failure.objects.filter(tenant="{name}", state="dead")[:5]
say([f"{{one.kind}} at attempt {{one.attempts}}: {{one.error_type}} {{one.reason}}" for one in found])
"""
_REPLAY = """
from demo import control
while Failure.objects.filter(tenant="{name}", state="dead").count() < {dead}: time.sleep(0.2)
draft = replays.draft(ANN, query="tenant:{name}", pace={pace!r}, reason="the partner is back",
                      options=replays.Options(without_groups=()))
control.set_mode("{url}", "warming")
say(time.monotonic())
replay = replays.start(ANN, draft)
ends = time.monotonic() + {within_s}
while replay.state != "done" and time.monotonic() < ends:
    time.sleep(0.25)
    replay.refresh_from_db()
    if replay.state == "held":
        replay = replays.resume(ANN, replay, reason="bench")
say(1)
"""


class Diary(Temper):
    """Writes down each request: when, what it was answered, and in which mode the partner was then."""

    def __init__(self, lines: IO[str]) -> None:
        super().__init__(time.monotonic(), warm_up)
        self._lines = lines

    def answer(self, now: float) -> Answer:
        answer = super().answer(now)
        self._lines.write(f"{now:.4f} {answer.status} {self.mode.name}\n")
        return answer


def serve(port: int, diary: Path) -> None:
    with diary.open("w", buffering=1) as lines:
        partner = Partner(port)
        partner.temper = Diary(lines)
        partner.serve_forever()


class Outage(Story):
    def serves(self, n: int) -> Any:
        return serve

    @property
    def url(self) -> str:
        return self.urls[0]

    def play(self, way: str, round_: int, sent_per_s: float, within_s: float) -> dict[str, Any]:
        pace, name = PACES[way], f"{way.replace(' ', '-')}-{round_}"
        self._publish("enforce" if pace is None else "observe")
        control.set_mode(self.url, "well")
        self._send(f"{name}-before", USUAL_JOBS, 10.0)
        self.worker.wait(lambda: len(self._ordered(f"{name}-before")) == USUAL_JOBS, 60, "what is usual")
        control.set_mode(self.url, "outage")
        began = time.monotonic()
        self._send(name, self.jobs, sent_per_s)
        time.sleep(max(0.0, began + OUT_S - time.monotonic()))
        if pace is None:
            dead = self._dead(name)
            control.set_mode(self.url, "warming")
            back = time.monotonic()
            ends = back + within_s
            while len(self._ordered(name)) + self._dead(name) < self.jobs and time.monotonic() < ends:
                time.sleep(1)
        else:
            self.worker.wait(lambda: self._dead(name) + len(self._ordered(name)) >= self.jobs, 120, "all to be dead")
            dead = self._dead(name)
            back = self._replay(name, dead, pace, within_s)
        dead_at_last = self._dead(name)
        ordered = self._ordered(name)
        requests = [line.split() for line in self.diary.read_text().splitlines()]
        seen = [(float(at), mode) for at, _, mode in requests if float(at) >= began]
        # A controller that knows the capacity at every moment, and that begins when the partner is back.
        known = known_s(self.jobs, COLD_RATE, WARM_RATE)
        all_s = max(ordered.values(), default=back) - back
        return {
            "way": way,
            "jobs": self.jobs,
            "requests_while_down": sum(mode == "outage" for _, mode in seen),
            "of_these_after_it_was_back": sum(mode == "outage" and at >= back for at, mode in seen),
            "collapses": sum(
                then == "outage" != now for now, then in pairwise(mode for at, mode in seen if at >= back)
            ),
            "dead_of_the_outage": dead,
            "dead_at_the_end": dead_at_last,
            "why": self.desk.run(_WHY.format(name=name)),
            "succeeded": len(ordered),
            "recovered_s": round(all_s, 1) if len(ordered) == self.jobs else None,
            "times_the_one_that_knows": round(all_s / known, 2) if len(ordered) == self.jobs else None,
            "load": round(os.getloadavg()[0], 1),
        }

    def _publish(self, mode: str) -> None:
        self.desk.run(_POLICY.replace("MODE", repr(mode)))
        time.sleep(3)

    def _send(self, name: str, count: int, per_s: float) -> None:
        began = time.monotonic()
        for n in range(count):
            self.worker.send("order", self.places[0], n, kwargs={"tenant": name}, queue="emails")
            time.sleep(max(0.0, began + n / per_s - time.monotonic()))

    def _ordered(self, name: str) -> dict[int, float]:
        lines = [line.split() for line in self.worker.marks("ordered")]
        return {int(n): float(at) for tenant, n, at in lines if tenant == name}

    def _dead(self, name: str) -> int:
        found = self.desk.run(_DEAD.format(name=name))
        return int(found[-1] if isinstance(found, list) else found)

    def _replay(self, name: str, dead: int, pace: dict[str, Any], within_s: float) -> float:
        code = _REPLAY.format(name=name, dead=dead, pace=pace, url=self.url, within_s=within_s)
        operator = self.desk.start(code)
        try:
            assert operator.stdout is not None
            back = float(json.loads(operator.stdout.readline()))
            operator.stdout.readline()
            return back
        finally:
            operator.kill()
            operator.wait()


COST_JOBS = 3_000


def cost(folder: Path, rounds: int) -> dict[str, Any]:
    from dashboard.setup.engine import Engine
    from tests.kit.celery import RealWorker
    from tests.kit.policies import obeyed

    policy = {
        "name": "ok",
        "match": {"task": "ok"},
        "mode": "enforce",
        "retries": False,
        "breaker": {"dependency": "partner"},
    }
    engine = Engine(folder / "engine").start()
    worker = RealWorker(engine.url, engine.url, concurrency=2, queues="emails")
    pairs = []
    try:
        worker.start()
        for round_ in range(rounds + 1):
            pair = {}
            for name in ("without", "with") if round_ % 2 else ("with", "without"):
                obeyed(worker, engine.url, *([policy] if name == "with" else []))
                before, used, began = len(worker.marks("ok")), _processor_s(worker), time.monotonic()
                for n in range(COST_JOBS):
                    worker.send("ok", f"{name} {n}", queue="emails")
                worker.wait(lambda before=before: len(worker.marks("ok")) >= before + COST_JOBS, 300, "all jobs")
                pair[name] = (time.monotonic() - began, _processor_s(worker) - used)
            if round_:  # the first warms up
                pairs.append(pair)
    finally:
        worker.stop()
        engine.stop()
    rates, processor = ([pair["with"][which] / pair["without"][which] - 1 for pair in pairs] for which in (0, 1))
    return {
        "jobs": COST_JOBS,
        "pairs": len(pairs),
        "longer_percent_median": round(100 * median(rates), 2),
        "processor_percent_median": round(100 * median(processor), 2),
        "processor_percent": [round(100 * one, 1) for one in processor],
        "processor_us_a_job": [round(1e6 * pair["with"][1] / COST_JOBS) for pair in pairs],
    }


def _processor_s(worker: Any) -> float:
    """Return the processor time of the main process and the pool."""
    pids = [str(worker.process.pid)]
    pids += [pid for task in Path(f"/proc/{pids[0]}/task").glob("*/children") for pid in task.read_text().split()]
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--jobs", type=int, default=300)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--sent-per-s", type=float, default=10.0)
    options.add_argument("--within", type=float, default=240.0, help="seconds that a recovery may take")
    options.add_argument("--way", action="append", choices=list(PACES), help="Only this one; may be repeated.")
    options.add_argument("--cost", action="store_true", help="What a closed breaker costs.")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="redrive-outage-") as folder:
        tempfile.tempdir = folder  # the worker's own folder too
        os.environ["REDRIVE_DATA"] = folder
        import django

        django.setup()
        from bench.machine import machine

        if chosen.cost:
            print(json.dumps({"machine": machine(), **cost(Path(folder), max(5, chosen.rounds))}, indent=1))
            return
        with Outage(Path(folder), chosen.jobs, sheds=False, before=None) as outage:
            rows = []
            for round_ in range(chosen.rounds):
                for way in chosen.way or PACES:
                    rows.append(outage.play(way, round_, chosen.sent_per_s, chosen.within))
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        known = known_s(chosen.jobs, COLD_RATE, WARM_RATE)
    print(
        json.dumps(
            {"machine": machine(), "one_that_knows_s": round(known, 1), "warming_s": WARMING_S, "rows": rows}, indent=1
        )
    )


if __name__ == "__main__":
    main()
