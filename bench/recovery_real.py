"""A recovery with real workers: `python -m bench.recovery_real [--jobs 1500] [--way careful]`.

The measure of bench/recovery.py, which has a simulated clock, smaller and for real. A desk of its own (Valkey, SQLite, the whole
`watch`), a guarded Celery worker of four processes, and the customer's service, which is a process too. The jobs really
die of its outage. Then it is back: it carries 10 requests/s, a minute later 60, refuses what is more, and falls over for
20 s where more than 1.3 times as much comes within 2 s. Native retries stay on, six attempts. Each way of bringing the
jobs back begins at that moment. Every figure comes from lines of the service and of the tasks. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)

from demo import control  # noqa: E402
from demo.partner import Partner  # noqa: E402
from demo.temper import Answer, Temper  # noqa: E402
from tests.rigs.recovery_real import COLD, WARM, WARMING_S, end, known_s  # noqa: E402

RESUMED_S = 20.0  # a held replay waits so long for its operator
WITHIN_S = 400.0  # one way

# As many as are wanted die (each at its last attempt, so that a death takes one request), and go back when the service does.
_REPLAYED = """
from demo import control
while Failure.objects.filter(tenant="{name}", state="dead").count() < {jobs}: time.sleep(0.2)
draft = replays.draft(ANN, query="tenant:{name}", pace={pace!r}, reason="the customer is back",
                      options=replays.Options(without_groups=()))
for url in {urls!r}: control.set_mode(url, "warming")
began, held_at = time.monotonic(), None
say(began)
replay = replays.start(ANN, draft)
while replay.state != "done":
    time.sleep(0.25)
    replay.refresh_from_db()
    now = time.monotonic() - began
    say([round(now, 2), replay.state, replay.rate, replay.sent + replay.running + replay.succeeded + replay.failed_again,
         replay.held_because])
    held_at = (held_at or now) if replay.state == "held" else None
    if held_at is not None and now - held_at > {resumed_s}:
        replay = replays.resume(ANN, replay, reason="bench")
waited = sorted((at - sent).total_seconds() for sent, at in replay.items.filter(first_at__isnull=False).values_list("sent_at", "first_at"))
say({{"pace": replay.pace, "succeeded": replay.succeeded, "failed_again": replay.failed_again, "uncertain": replay.uncertain,
      "first_attempts_failed": replay.items.filter(first_ok=False).count(),
      "news_after_s": [round(waited[int(len(waited) * share)], 2) for share in (0.5, 0.95)]}})
"""

# What the queue managed in the hour before the outage.
_BEFORE = """
from datetime import timedelta
last = timezone.now().replace(second=0, microsecond=0)
QueueCounter.objects.bulk_create(QueueCounter(source="shop", queue="emails", step=60, at=last - timedelta(minutes=n),
    started={per_minute}, succeeded={per_minute}) for n in range(2, 60))
say(1)
"""


def capacity(since_s: float) -> float:
    return COLD + (WARM - COLD) * min(1.0, since_s / WARMING_S)


# The customer's service


class Diary(Temper):
    """Writes down each request: when, what it was answered, and in which mode the service was then."""

    def __init__(self, lines: IO[str], *, sheds: bool) -> None:
        super().__init__(time.monotonic(), capacity, sheds=sheds)
        self._lines = lines

    def answer(self, now: float) -> Answer:
        answer = super().answer(now)
        self._lines.write(f"{now:.4f} {answer.status} {self.mode.name}\n")
        return answer


def serve(port: int, diary: Path, sheds: bool) -> None:
    with diary.open("w", buffering=1) as lines:
        partner = Partner(port)
        partner.temper = Diary(lines, sheds=sheds)
        partner.serve_forever()


# How the jobs come back


@dataclass(frozen=True, slots=True)
class Replayed:
    """By Redrive, at a pace."""

    pace: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scripted:
    """By a loop over the dead jobs that publishes each with a countdown: what people write themselves."""

    countdown: Callable[[Random], float]


WAYS: dict[str, Replayed | Scripted] = {
    "everything at once": Replayed({"style": "at_once"}),
    "fixed delay of 60 s": Scripted(lambda random: 60),
    "full jitter over 60 s": Scripted(lambda random: random.uniform(0, 60)),
    "steady, one every 0.08 s": Replayed({"style": "steady", "every": 0.08}),
    "careful": Replayed({"style": "careful"}),
}


@dataclass
class Story:
    """The desk, its worker and the service, for one way after the other."""

    folder: Path
    jobs: int
    sheds: bool = True
    before: float | None = WARM  # jobs/s that the queue managed in the hour before; None: it had nothing to do
    within_s: float = WITHIN_S
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Story:
        with ExitStack() as stack:
            self._bring_up(stack)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _bring_up(self, stack: ExitStack) -> None:
        from dashboard.setup.engine import Engine, free_port
        from tests.kit.celery import RealWorker
        from tests.kit.desks import Desk

        engine = Engine(self.folder / "engine").start()
        stack.callback(engine.stop)
        self.diary = self.folder / "diary"
        self.places = [f"127.0.0.1:{free_port()}" for _ in range(self.services)]
        self.urls = [f"http://{place}" for place in self.places]
        for n, place in enumerate(self.places):
            service = multiprocessing.get_context("spawn").Process(
                target=self.serves(n), args=(int(place.rpartition(":")[2]), self.diary), daemon=True
            )
            service.start()
            stack.callback(service.kill)
        for url in self.urls:
            _until_it_answers(url)
        self.desk = Desk(self.folder, engine.url)
        self.desk.environment["REDRIVE_DATA"] = str(self.folder)
        if self.before is not None:
            self.desk.run(_BEFORE.format(per_minute=round(60 * self.before)))
        with (self.folder / "watch.log").open("ab") as log:
            watch = subprocess.Popen(
                [sys.executable, "manage.py", "watch"], cwd=ROOT, env=self.desk.environment, stdout=log, stderr=log,
                process_group=0,
            )  # fmt: skip
        stack.callback(end, watch)
        self.worker = RealWorker(engine.url, engine.url, concurrency=4, queues="emails").start()
        stack.callback(self.worker.stop)

    @property
    def services(self) -> int:
        """The number of services that the jobs call."""
        return 1

    def serves(self, n: int) -> Callable[[int, Path], None]:
        """Return the function that runs service `n` in a process of its own, by its port and the diary."""
        return partial(serve, sheds=self.sheds)

    def places_of_jobs(self) -> list[str]:
        """The host and port that each job calls."""
        return self.places * self.jobs

    def measure(self, name: str, way: Replayed | Scripted) -> dict[str, Any]:
        began, figures = self._replayed(name, way.pace) if isinstance(way, Replayed) else self._scripted(name, way)
        lines = [line.split() for line in self.worker.marks("posted")]
        ends = [(float(at), how) for whose, _, how, at in lines if whose == _word(name) and float(at) >= began]
        failed, through_s = sum(how != "ok" for _, how in ends), max(at for at, _ in ends) - began
        return {
            **self._seen_by_the_service(began),
            "failed_again": failed,
            "failed_again_percent": round(100 * failed / self.jobs, 2),
            "through_after_s": round(through_s, 1),
            "times_the_one_that_knows": round(through_s / known_s(self.jobs), 2),
            "ended": len(ends),
            "load": round(os.getloadavg()[0], 1),
            **figures,
        }

    def _replayed(self, name: str, pace: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        for url in self.urls:
            control.set_mode(url, "outage")
        for n, place in enumerate(self.places_of_jobs()):
            self.worker.send("post", place, n, kwargs={"tenant": _word(name)}, queue="emails", retries=5)
        code = _REPLAYED.format(name=_word(name), jobs=self.jobs, pace=pace, urls=self.urls, resumed_s=RESUMED_S)
        operator = self.desk.start(code)
        try:
            lines = list(self._read_lines(operator))
        finally:
            operator.kill()
            operator.wait()
        began, course, end = lines[0], lines[1:-1], lines[-1]
        sentences = [why for (*_, before), (_, state, *_, why) in pairwise(course) if why != before and state == "held"]
        steps = [
            f"{at:.0f} s: {state}, {rate:.1f}/s, {sent:,} sent" for at, state, rate, sent, _ in course[::20] if rate
        ]
        paused_s = sum(later[0] - at for (at, state, *_), later in pairwise(course) if state == "held")
        return began, {**end, "held_because": sentences, "held_s": round(paused_s, 1), "course": steps}

    def _read_lines(self, operator: subprocess.Popen[str]) -> Iterator[Any]:
        assert operator.stdout is not None
        ends = time.monotonic() + self.within_s
        for line in operator.stdout:
            assert time.monotonic() < ends, f"not through after {self.within_s} s: {line}"
            yield json.loads(line)
        assert operator.wait() == 0, "the operator's process failed"

    def _scripted(self, name: str, way: Scripted) -> tuple[float, dict[str, Any]]:
        random = Random(1)
        control.set_mode(self.urls[0], "warming")
        began = time.monotonic()
        for n in range(self.jobs):
            self.worker.send(
                "post",
                self.places[0],
                n,
                kwargs={"tenant": _word(name)},
                queue="emails",
                countdown=way.countdown(random),
            )
        self.worker.wait(
            lambda: sum(line.startswith(_word(name) + " ") for line in self.worker.marks("posted")) == self.jobs,
            WITHIN_S,
            f"{name} to end",
        )
        return began, {}

    def _seen_by_the_service(self, began: float) -> dict[str, Any]:
        """Since that moment."""
        requests = [line.split() for line in self.diary.read_text().splitlines()]
        times, modes = [], ["warming"]
        for at, _, mode in requests:
            if float(at) >= began:
                times.append(float(at))
                modes.append(mode)
        return {
            "collapses": sum(then == "outage" != before for before, then in pairwise(modes)),
            "requests": len(times),
            "requests_during_collapse": modes.count("outage"),
            "peak_requests_per_s": max(bisect_left(times, at + 1) - n for n, at in enumerate(times)),
        }


def _word(name: str) -> str:
    return name.partition(",")[0].replace(" ", "-")


def _until_it_answers(url: str) -> None:
    ends = time.monotonic() + 20
    while True:
        try:
            control.set_mode(url, "outage")
            return
        except control.DemoUnreachable:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--jobs", type=int, default=1_500)
    options.add_argument("--way", action="append", choices=list(WAYS), help="Only this one; may be repeated.")
    options.add_argument(
        "--no-sign",
        action="store_true",
        help="The service refuses nothing before it falls over: nobody feels that it is too much.",
    )
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="redrive-recovery-") as folder:
        tempfile.tempdir = folder  # the worker's own folder too
        os.environ["REDRIVE_DATA"] = folder
        import django

        django.setup()
        from bench.machine import machine

        with Story(Path(folder), chosen.jobs, not chosen.no_sign) as story:
            figures = {name: story.measure(name, WAYS[name]) for name in chosen.way or WAYS}
    found = {
        "machine": machine(),
        "jobs": chosen.jobs,
        "one_that_knows_the_capacity_s": round(known_s(chosen.jobs), 1),
        "story": figures,
        "took_s": round(time.monotonic() - began),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
