"""Watches that judge while they are killed, frozen and thawed, and depths that cross a threshold up and down meanwhile.

What is true is known to who moves the jobs; what was reported is read from the tables afterwards.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rigs.empty_desk import desk

ROOT = Path(__file__).resolve().parents[2]
DEEP = 10  # jobs of a queue that is over the threshold
THRESHOLD = 5
SLACK_S = 12.0  # from a look until what it shows may be written


@dataclass
class Havoc:
    """`judging`: what one watch is, instead of `manage.py watch --only sample,judge`; it makes `judges-PID` in REDRIVE_DATA
    when it has judged once.
    """

    folder: Path
    watches: int
    seed: int
    for_s: int = 5
    keep_firing_s: int = 5
    queues: int = 6
    judging: list[str] | None = None
    long_s: float = 35.0  # how long a queue stays as it is, at most; at least a third of it
    must_s: float = 0.0  # so long over the threshold it must fire, whatever is done to the watches; 0: `for_s` and 24 s
    least_s: float = 0.0  # that it goes on
    killed: Counter[str] = field(default_factory=Counter)
    # queue -> [(time, whether it is over the threshold)]
    truth: dict[str, list[tuple[float, bool]]] = field(default_factory=dict)

    def __enter__(self) -> Havoc:
        from dashboard.setup.engine import Engine

        self.random = random.Random(self.seed)
        self.stack = contextlib.ExitStack()
        engine = Engine(self.folder / "engine").start()
        self.stack.callback(engine.stop)
        desk(self.folder, REDRIVE_REDIS_URL=engine.url, CELERY_BROKER_URL=engine.url.removesuffix("0") + "1")
        self._create_rows()
        self.running = [self._start() for _ in range(self.watches)]
        self.stack.callback(self._end_all)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    # -- the parts ------------------------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        command = self.judging or [sys.executable, "manage.py", "watch", "--only", "sample,judge"]
        with (self.folder / "watches.log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=log, stderr=log, process_group=0)

    def _end_all(self) -> None:
        for one in self.running:
            _signal(one, signal.SIGCONT)
            _signal(one, signal.SIGKILL)
            one.wait()

    def _kill(self, n: int) -> None:
        _signal(self.running[n], signal.SIGKILL)
        self.running[n].wait()
        self.running[n] = self._start()

    def _kill_judge(self, n: int) -> None:
        """The process of the step alone: its watch starts another."""
        for pid in _children(self.running[n].pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_up(self, n: int) -> bool:
        """Return whether it has begun to judge: to kill one that still starts shows nothing."""
        pid = self.running[n].pid
        if self.judging is not None:
            return (self.folder / f"judges-{pid}").exists()
        return len(_children(pid)) > 1

    def _create_rows(self) -> None:
        from django.utils import timezone

        from jobs_admin.models import Failure, Rule

        Rule.objects.all().delete()
        Rule.objects.create(
            name="Deep", metric="dead", source="shop", threshold=THRESHOLD, for_s=self.for_s,
            keep_firing_s=self.keep_firing_s,
        )  # fmt: skip
        now = timezone.now()
        values = {"kind": "exception", "first_failed_at": now, "failed_at": now, "received_at": now, "task": "t"}
        Failure.objects.bulk_create(
            Failure(
                source="shop", queue=name, state="recovered", first_job_id=f"{name}-{i}", job_id=f"{name}-{i}", **values
            )
            for name in self._names()
            for i in range(DEEP)
        )
        self.truth = {name: [(time.time(), False)] for name in self._names()}

    def _names(self) -> list[str]:
        return [f"q{n}" for n in range(self.queues)]

    def _set(self, queue: str, is_deep: bool) -> None:
        from jobs_admin.models import Failure

        Failure.objects.filter(queue=queue).update(state="dead" if is_deep else "recovered")
        self.truth[queue].append((time.time(), is_deep))

    # -- kills ----------------------------------------------------------------------------------------------------

    def run(self, kills: int, *, calm_s: float = 25.0) -> dict[str, Any]:
        """One thing after the other, at random: a kill, aimed at the moment of a round or not, a freeze, a thaw, a depth."""
        turns = {name: time.time() + self.random.uniform(0, self.long_s / 3) for name in self._names()}
        frozen: tuple[int, float] | None = None
        done, ends = 0, time.time() + self.least_s
        while done < kills or time.time() < ends:
            now = time.time()
            for name, at in turns.items():
                if now >= at:
                    self._set(name, not self.truth[name][-1][1])
                    turns[name] = now + self.random.uniform(self.long_s / 3, self.long_s)
            if frozen is not None and now >= frozen[1]:
                _signal(self.running[frozen[0]], signal.SIGCONT)
                frozen = None
            elif frozen is None and self.watches > 1 and self.random.random() < 0.05:
                n = self.random.randrange(self.watches)
                _signal(self.running[n], signal.SIGSTOP)
                frozen = n, now + self.random.uniform(self.long_s / 7, self.long_s / 2)
                self.killed["frozen"] += 1
            self._aim()
            n = self.random.randrange(self.watches)
            if (frozen is not None and n == frozen[0]) or not self._is_up(n):
                continue
            if self.judging is None and self.random.random() < 0.7:
                self._kill_judge(n)
                self.killed["judge"] += 1
            else:
                self._kill(n)
                self.killed["watch"] += 1
            done += 1
        if frozen is not None:
            _signal(self.running[frozen[0]], signal.SIGCONT)
        for name in self._names():
            self._set(name, False)
        time.sleep(calm_s + self.keep_firing_s)
        return self._account()

    def _aim(self) -> None:
        """Two of three times at what a round does: within a tenth of a second after it begins."""
        if self.judging is not None:
            time.sleep(self.random.uniform(0.05, 0.5))
        elif self.random.random() < 0.67:
            left = 5 - time.time() % 5
            time.sleep((left if left > 0.2 else 0) + self.random.uniform(0.0, 0.12))
        else:
            time.sleep(self.random.uniform(0.1, 1.5))

    # -- flapping -------------------------------------------------------------------------------------------------

    def flap(self, seconds: int) -> dict[str, Any]:
        from jobs_admin.models import Failure, Notice

        name = self._names()[0]
        jobs = list(Failure.objects.filter(queue=name).order_by("pk").values_list("pk", flat=True))
        Failure.objects.filter(pk__in=jobs[:THRESHOLD]).update(state="dead")
        began = time.time()
        for second in range(seconds):
            time.sleep(max(0.0, began + second - time.time()))
            Failure.objects.filter(pk=jobs[THRESHOLD]).update(state="dead" if second % 2 else "recovered")
        during = Notice.objects.count()
        breach = time.time()
        Failure.objects.filter(queue=name).update(state="dead")
        notice = None
        while notice is None and time.time() < breach + self.for_s + 60:
            time.sleep(0.2)
            latest = Notice.objects.filter(type="alert.firing").order_by("-pk").first()
            notice = latest.created_at.timestamp() if latest else None
        return {
            "seconds": seconds,
            "watches": self.watches,
            "notices_while_it_flapped": during,
            "seconds_from_the_breach_and_for_until_the_notice": None
            if notice is None
            else round(notice - breach - self.for_s, 2),
        }

    # -- what came of it ------------------------------------------------------------------------------------------

    def _account(self) -> dict[str, Any]:
        from jobs_admin.models import Alert, AlertEvent, Notice

        fired = list(AlertEvent.objects.filter(to="firing").select_related("alert", "notice"))
        notices = list(Notice.objects.order_by("pk"))
        episodes = self._episodes()
        by_leader: dict[int, list[Notice]] = {}
        for one in notices:
            by_leader.setdefault(one.alert_id, []).append(one)
        alerts = list(Alert.objects.all())
        must_s = self.must_s or self.for_s + 2 * SLACK_S
        long_enough = [one for one in episodes if one[2] - one[1] >= must_s]
        return {
            "watches": self.watches,
            "killed": dict(self.killed),
            "times_over_the_threshold": len(episodes),
            "long_enough_that_they_must_fire": len(long_enough),
            "episodes": len(alerts),
            "notices": len(notices),
            # All of these must be nought.
            "missed": sum(not any(_meets(alert, one) for alert in alerts) for one in long_enough),
            "fired_and_not_told": sum(event.notice_id is None for event in fired),
            "fired_twice": sum(n > 1 for n in Counter(event.alert_id for event in fired).values()),
            "open_at_the_end": sum(one.state != "resolved" for one in alerts),
            "stories_told_to_begin_twice": sum(_count(some, "fired") > 1 for some in by_leader.values()),
            "stories_not_told_to_end_once": sum(_count(some, "resolved") != 1 for some in by_leader.values()),
            "numbers_left_out_or_used_twice": sum(
                [int(one.key.rpartition("-")[2]) for one in some] != list(range(1, len(some) + 1))
                for some in by_leader.values()
            ),
            "told_what_was_not_so": sum(not self._was_so(event.alert.subject, event) for event in fired),
        }

    def _episodes(self) -> list[tuple[str, float, float]]:
        """Queue, begin and end of every time above the threshold."""
        found = []
        for name, turns in self.truth.items():
            for (at, is_deep), (until, _) in itertools.pairwise(turns):
                if is_deep:
                    found.append((name, at, until))
        return found

    def _was_so(self, queue: str, event: Any) -> bool:
        at = event.at.timestamp()
        return any(name == queue and begin - SLACK_S <= at <= end + SLACK_S for name, begin, end in self._episodes())


def _meets(alert: Any, episode: tuple[str, float, float]) -> bool:
    queue, begin, end = episode
    if alert.subject != queue or alert.fired_at is None:
        return False
    over = alert.resolved_at.timestamp() if alert.resolved_at is not None else float("inf")
    return alert.fired_at.timestamp() <= end + SLACK_S and over >= begin


def _count(some: list[Any], reason: str) -> int:
    return sum(one.body["reason"] == reason for one in some)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(one) for one in text.split()]
