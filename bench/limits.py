"""Five at once for each customer, while those who hold the places are killed.

    python -m bench.limits [--seconds 200] [--workers 3] [--children 6] [--job-s 1.0]

Real prefork workers (Redis broker, late ack, started again when they die) under a policy with `concurrency {key: args.1, limit: 5}`. One
customer has a backlog that would take all the time; of eleven others a job comes every quarter of a second. All the while a child that
runs a job of the large customer is killed (SIGKILL) every few seconds, and every 45 s a whole worker. Every job writes a line as it begins
and as it ends, each in one write; how many of a customer ran at once is counted from these lines alone. Who was killed ran until
the moment after the kill.

A place is *lost* from the kill of a job of the large customer until five of its jobs run again. `others_wait_s` is from sending a
small customer's job to its start: if jobs that wait held places in the pool, it would be as long as the large one's backlog.
Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import redis

from bench import pills
from bench.machine import machine, versions
from bench.poison import Fleet, wait
from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from tests.kit.policies import policy, published, running
from tests.rigs.figures import spread
from tests.rigs.limits import most_at_once

LIMIT = 5
LARGE, OTHERS = "large", [f"small-{n}" for n in range(11)]
BETWEEN_DEATHS_S = 45.0  # of whole workers: a lease of 30 s runs out in between

Run = tuple[str, int, float, float]  # customer, pid, from, until


class Crew(Fleet):
    """Notes who was killed, and when."""

    def __init__(self, *args: Any, workers: int, children: int) -> None:
        super().__init__(*args)
        self.workers, self.children = workers, children
        self.killed: dict[int, float] = {}  # pid -> the moment after its kill
        self.kills: list[tuple[str, float]] = []  # child or worker, when

    def kill_child(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self._note("child", [pid])

    def kill_worker(self, draw: random.Random) -> None:
        one = draw.choice(self._workers)
        pids = _group(one.pid)
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()
        self._note("worker", pids)

    def _note(self, what: str, pids: Iterable[int]) -> None:
        now = time.time()
        self.killed |= dict.fromkeys(pids, now)
        self.kills.append((what, now))

    def runs(self) -> list[Run]:
        """Each start of a job; one that has not ended runs until its process was killed, or still."""
        open_runs: dict[int, tuple[str, float]] = {}
        found: list[Run] = []
        for what, customer, _, pid, at in self.lines():
            if what == "begin":
                open_runs[int(pid)] = (customer, float(at))
            elif int(pid) in open_runs:
                found.append((customer, int(pid), open_runs.pop(int(pid))[1], float(at)))
        now = time.time()
        return found + [(customer, pid, at, self.killed.get(pid, now)) for pid, (customer, at) in open_runs.items()]

    def children_at_work(self, customer: str) -> list[int]:
        now = time.time() - 0.2
        return [pid for of, pid, _, until in self.runs() if of == customer and until > now and pid not in self.killed]


def _group(leader: int) -> list[int]:
    """The processes of a worker."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(file.read_text().rpartition(")")[2].split()[2]) == leader:
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--children", type=int, default=6)
    parser.add_argument("--job-s", type=float, default=1.0)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        engines = [Engine(Path(folder, name)).start() for name in ("broker", "store")]
        try:
            found = measure(*engines, Path(folder), wanted)
        finally:
            for engine in engines:
                engine.stop()
    json.dump({"machine": machine(), "versions": versions(), "asked": vars(wanted), **found}, sys.stdout, indent=2)
    print()


def measure(broker: Engine, store: Engine, folder: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    with Crew(broker.url, store.url, folder, workers=wanted.workers, children=wanted.children) as crew:
        rule = policy(
            "limited", "turn", max_attempts=50, concurrency={"key": "args.1", "limit": LIMIT},
            backoff={"kind": "fixed", "first_delay_s": 0.2},
        )  # fmt: skip
        version = published(store.url, rule)
        in_force = [{"limited": version}] * wanted.workers
        assert wait(crew, lambda: [one["policies"] for one in running(store.url)] == in_force, 90), "no policy in force"
        app = pills.make_app(broker.url)
        backlog = round(wanted.seconds * LIMIT / wanted.job_s)
        for n in range(backlog):
            app.send_task("turn", args=[n, LARGE, wanted.job_s], queue="jobs")
        sent = havoc(crew, app, wanted.seconds, backlog)
        with redis.Redis.from_url(broker.url) as client:
            is_over = wait(crew, lambda: _count_done(crew) >= backlog + len(sent) or not _has_jobs(client, crew), 400)
        return summarise(crew, sent, backlog) | {"over": is_over}


def havoc(crew: Crew, app: Any, seconds: float, first: int) -> dict[int, float]:
    """Jobs of the small customers, and kills. Answers when each of the jobs was sent."""
    draw, sent = random.Random(5), {}
    began = time.time()
    kill_child_at, kill_worker_at = began + 5, began + 15
    while time.time() < began + seconds:
        crew.restart_dead()
        n = first + len(sent)
        sent[n] = time.time()
        app.send_task("turn", args=[n, draw.choice(OTHERS), 0.2], queue="jobs")
        time.sleep(0.25)
        if time.time() > kill_worker_at:
            crew.kill_worker(draw)
            kill_worker_at += BETWEEN_DEATHS_S
            kill_child_at = time.time() + 35  # so that what one kill costs is not taken for another's
        elif kill_child_at < time.time() < kill_worker_at - 6 and (at_work := crew.children_at_work(LARGE)):
            crew.kill_child(draw.choice(at_work))
            kill_child_at = time.time() + draw.uniform(1.5, 3)
    return sent


def _count_done(crew: Crew) -> int:
    return len({line[2] for line in crew.lines() if line[0] == "end"})


def _has_jobs(client: redis.Redis, crew: Crew) -> bool:
    """Return whether a job is anywhere: in the broker, waiting, or running."""
    there = client.llen("jobs") or client.hlen("unacked") or client.zcard(keys.due("shop"))
    return bool(there) or any(until > time.time() - 5 for *_, until in crew.runs())


def summarise(crew: Crew, sent: dict[int, float], backlog: int) -> dict[str, Any]:
    runs = crew.runs()
    lines = crew.lines()
    first = {}
    for what, _, n, _, at in lines:
        if what == "begin":
            first.setdefault(int(n), float(at))
    of = defaultdict(list)
    for customer, _, since, until in runs:
        of[customer].append((since, until))
    lost = {what: [one for kind, at in crew.kills if kind == what and (one := lost_for(of[LARGE], at)) is not None]
            for what in ("child", "worker")}  # fmt: skip
    return {
        "jobs": backlog + len(sent),
        "lost_by_the_broker": backlog
        + len(sent)
        - _count_done(crew),  # with a whole worker, between BRPOP and kombu's note of it
        "starts": len(runs),
        "kills": {what: sum(kind == what for kind, _ in crew.kills) for what in ("child", "worker")},
        # A job whose start the store does not answer within 100 ms runs uncounted: that is the one way past the limit.
        "times_that_a_process_had_no_answer": (crew.folder / "log").read_text().count("does not answer"),
        "killed_at_work": sum(pid in crew.killed and until == crew.killed[pid] for _, pid, _, until in runs),
        "most_at_once": {"large": most_at_once(of[LARGE]), "others": max(most_at_once(of[one]) for one in OTHERS)},
        "most_at_once_of_all": most_at_once([(since, until) for *_, since, until in runs]),
        "places_of_the_pools": crew.workers * crew.children,
        "place_lost_s": {what: spread(values) for what, values in lost.items() if values},
        "others_wait_s": spread(first[n] - at for n, at in sent.items() if n in first),
    }


def lost_for(spans: list[tuple[float, float]], killed_at: float) -> float | None:
    """Seconds from a kill until the limit is used up again; None where it hit no job of these, or that never came."""
    if all(until != killed_at for _, until in spans):
        return None
    after = [(since, until) for since, until in spans if until > killed_at]
    for at in sorted(since for since, _ in after if since > killed_at):
        if sum(since <= at < until for since, until in after) >= LIMIT:
            return at - killed_at
    return None


if __name__ == "__main__":
    main()
