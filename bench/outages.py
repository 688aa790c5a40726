"""Costs of an outage of Redrive's store for the workers, and what is lost.

    python -m bench.outages [--seconds 8] [--rounds 2] [--minutes 10] [--only hung,…]

A guarded worker under a constant stream of jobs, a stock one beside it; prefork, four children each. Jobs take 5 ms; a fifth
of them fails, one in eight of these under a policy that tries it twice. Stock and guarded take turns, each fed without a
pause for `--seconds` while the store has the fault; then the store is repaired, and every failing attempt, which wrote a
line before it raised, is looked for in the stream. Then the same with one Redis for broker and store. The proxy of `slow`
and `never_answers` holds each answer back, or takes connections and says nothing. Prints JSON.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis

from bench.machine import machine, versions
from bench.outages_app import make_app
from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.core.child_process import die_with_parent
from jobs_admin.core.envelope import Envelope, decode
from tests.kit.network import SlowRoad
from tests.kit.policies import policy, published

ROOT = Path(__file__).resolve().parent.parent
WAITING = 200  # jobs kept on the queue
CHILDREN = 4


class Worker:
    """A real worker in a process group of its own, fed by hand."""

    def __init__(self, folder: Path, broker: str, store: str, *, is_stock: bool) -> None:
        folder.mkdir(parents=True)
        self.folder, self.broker, self.store, self.is_stock = folder, broker, store, is_stock
        self.client = redis.Redis.from_url(broker, socket_timeout=5)
        self.spool = folder / "spool" / "shop"
        self.sent = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.templates = {name: self._template(name) for name in ("work", "retried")}

    def _template(self, task: str) -> dict[str, Any]:
        make_app(self.broker, is_stock=True).send_task(task, args=[0, False], queue="template")
        message: dict[str, Any] = json.loads(self.client.lpop("template"))
        return message

    def start(self) -> Worker:
        environment = {
            **os.environ, "OUTAGES_BROKER": self.broker, "OUTAGES_MARKS": str(self.folder), "REDRIVE_REDIS_URL": self.store,
            "OUTAGES_STOCK": "1" if self.is_stock else "", "REDRIVE_SPOOL": str(self.folder / "spool"),
        }  # fmt: skip
        command = [sys.executable, "-m", "celery", "-A", "bench.outages_app:app", "worker", "-c", str(CHILDREN), "-l", "INFO",
                   "--without-gossip", "--without-mingle", "-n", f"{'stock' if self.is_stock else 'guarded'}@%h"]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, process_group=0, preexec_fn=die_with_parent
            )
        until(lambda: b" ready." in (self.folder / "log").read_bytes(), 60, "a worker that is ready")
        return self

    def feed(self, seconds: float) -> None:
        """Keep the queue filled. Who publishes while the broker is away tries again."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            try:
                missing = WAITING - self.client.llen("celery")
                if missing > 0:
                    self.client.lpush("celery", *(self._message() for _ in range(missing)))
            except redis.RedisError:
                pass
            time.sleep(0.02)

    def _message(self) -> bytes:
        self.sent += 1
        n = self.sent
        fails, task = n % 5 == 0, "retried" if n % 40 == 0 else "work"
        message = self.templates[task]
        message["headers"]["id"] = message["properties"]["correlation_id"] = str(uuid4())
        message["properties"]["delivery_tag"] = str(uuid4())
        message["body"] = base64.b64encode(json.dumps([[n, fails], {}, {}]).encode()).decode()
        return json.dumps(message).encode()

    def finish(self) -> None:
        def is_idle() -> bool:
            try:
                left = self.client.llen("celery") + self.client.hlen("unacked")
                left += self.client.zcard(keys.due("shop"))
            except redis.RedisError:
                return False
            return not left

        until(is_idle, 120, "an empty queue")

    def rest(self) -> None:
        """As `finish`, where a broker that was killed keeps jobs for its visibility timeout that were given to a worker."""
        ran, since = self.ran(), time.monotonic()
        ends = since + 120
        while time.monotonic() - since < 5 and time.monotonic() < ends:
            time.sleep(0.1)
            if self.ran() != ran:
                ran, since = self.ran(), time.monotonic()

    def rate(self, seconds: float) -> float:
        """Jobs a second while it is fed."""
        self.feed(1)
        before, began = self.ran(), time.monotonic()
        self.feed(seconds)
        found = (self.ran() - before) / (time.monotonic() - began)
        self.finish()
        return found

    def ran(self) -> int:
        file = self.folder / "ran"
        return file.stat().st_size if file.exists() else 0

    def failed(self) -> set[str]:
        file = self.folder / "failed"
        return set(file.read_text().split()) if file.exists() else set()

    def longest_stall_ms(self, since: float, until_: float) -> float:
        """The longest stall of its loop that ended in that time (monotonic seconds); 0 where none was over 30 ms."""
        file = self.folder / "stalls"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return max((round(float(gap) * 1000, 1) for at, gap in lines if since <= float(at) <= until_), default=0.0)

    def spooled(self) -> int:
        return sum(file.stat().st_size for file in self.spool.glob("*.spool")) if self.spool.exists() else 0

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self) -> None:
        self.client.close()
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def until(reached: Callable[[], Any], seconds: float, what: str) -> None:
    ends = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > ends:
            raise SystemExit(f"Waited {seconds:.0f} s for {what}.")
        time.sleep(0.05)


# -- faults: each begins when it is entered, and is mended when it is left -----------------------------------------


@contextlib.contextmanager
def sound(store: Engine, road: SlowRoad) -> Iterator[None]:
    yield


@contextlib.contextmanager
def refused(store: Engine, road: SlowRoad) -> Iterator[None]:
    store.stop()
    try:
        yield
    finally:
        store.start()


@contextlib.contextmanager
def hung(store: Engine, road: SlowRoad) -> Iterator[None]:
    os.kill(store.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(store.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def full(store: Engine, road: SlowRoad) -> Iterator[None]:
    with redis.Redis.from_url(store.url) as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@contextlib.contextmanager
def killed(store: Engine, road: SlowRoad) -> Iterator[None]:
    """SIGKILL and a start from the append-only file, every three seconds."""
    ended = threading.Event()

    def kill() -> None:
        while not ended.wait(3):
            store.kill()
            store.start()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        store.kill()
        store.start()  # by this thread: a server ends with the one that started it


@contextlib.contextmanager
def never_answers(store: Engine, road: SlowRoad) -> Iterator[None]:
    """By way of the proxy: it takes connections and bytes."""
    road.delay = 3600.0
    road.break_all()
    try:
        yield
    finally:
        road.delay = 0.0
        road.break_all()


def slow(seconds: float) -> Callable[[Engine, SlowRoad], Any]:
    @contextlib.contextmanager
    def slowly(store: Engine, road: SlowRoad) -> Iterator[None]:
        road.delay = seconds
        try:
            yield
        finally:
            road.delay = 0.0

    return slowly


APART = {
    "none": sound, "refused": refused, "hung": hung, "full": full, "killed_and_restarted": killed,
    "never_answers": never_answers, "slow_50_ms": slow(0.05), "slow_90_ms": slow(0.09), "slow_150_ms": slow(0.15),
}  # fmt: skip
BY_THE_ROAD = ("never_answers", "slow_50_ms", "slow_90_ms", "slow_150_ms")
SHARED = {"none": sound, "hung": hung, "killed_and_restarted": killed, "full": full}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", default="")
    wanted = parser.parse_args()
    only = set(filter(None, wanted.only.split(",")))
    figures: dict[str, Any] = {"machine": machine(), "versions": versions(), "children": CHILDREN}
    for name, fault in APART.items():
        if not only or name in only:
            print_row(figures, name, apart(fault, name in BY_THE_ROAD, wanted.seconds, wanted.rounds))
    if (not only or "gone" in only) and wanted.minutes:
        print_row(
            figures, f"gone_for_{wanted.minutes:g}_min", apart(refused, False, wanted.minutes * 60, 1, stock_s=30)
        )
    if not only or "refused_at_start" in only:
        print_row(figures, "refused_at_start", apart(refused, False, wanted.seconds, 1, at_start=True))
    for name, fault in SHARED.items():
        if not only or f"shared_{name}" in only:
            print_row(figures, f"shared_{name}", shared(fault, wanted.seconds))
    figures["load_at_the_end"] = round(os.getloadavg()[0], 1)
    json.dump(figures, sys.stdout, indent=2)
    print()


def print_row(figures: dict[str, Any], name: str, found: dict[str, Any]) -> None:
    figures[name] = found
    print(name, json.dumps(found), file=sys.stderr, flush=True)


def apart(
    fault: Callable[[Engine, SlowRoad], Any],
    by_the_road: bool,
    seconds: float,
    rounds: int,
    *,
    stock_s: float = 0.0,
    at_start: bool = False,
) -> dict[str, Any]:
    """A broker of their own, which is always well; the store has the fault."""
    with tempfile.TemporaryDirectory(prefix="outages-") as name:
        folder = Path(name)
        broker, store = Engine(folder / "broker").start(), Engine(folder / "store").start()
        road = SlowRoad(store.url)
        published(
            store.url, policy("twice", "retried", max_attempts=2, backoff={"kind": "fixed", "first_delay_s": 0.2})
        )
        stock = Worker(folder / "stock", broker.url.removesuffix("0") + "1", store.url, is_stock=True)
        guarded = Worker(folder / "guarded", broker.url, road.url if by_the_road else store.url, is_stock=False)
        try:
            stock.start()
            if at_start:
                store.stop()
            guarded.start()
            rates: dict[str, list[float]] = {"stock": [], "guarded": []}
            stalls: dict[str, list[float]] = {"stock": [], "guarded": []}
            most_spooled, began_at = 0, time.time()
            if not at_start:
                guarded.rate(1)  # both have begun
                stock.rate(1)
            for _ in range(rounds):
                for one, kind in ((stock, "stock"), (guarded, "guarded")):
                    with contextlib.nullcontext() if one is stock else fault(store, road):
                        began = time.monotonic()
                        rates[kind].append(one.rate(stock_s or seconds if one is stock else seconds))
                        most_spooled = max(most_spooled, guarded.spooled())
                        stalls[kind].append(one.longest_stall_ms(began, time.monotonic()))
                repaired = time.monotonic()
                until(lambda: not guarded.spooled(), 300, "the spool to be shipped")
            found = _summarise(rates, stalls)
            return found | {
                "most_spooled_bytes": most_spooled,
                "shipped_after_s": round(time.monotonic() - repaired, 1),
                **_lost(guarded, store, began_at),
            }
        finally:
            for worker in (stock, guarded):
                worker.end()
            road.close()
            store.stop()
            broker.stop()


def shared(fault: Callable[[Engine, SlowRoad], Any], seconds: float) -> dict[str, Any]:
    """One Redis for broker and store; the stock worker has one of its own, with the same fault at the same time."""
    with tempfile.TemporaryDirectory(prefix="outages-") as name:
        folder = Path(name)
        theirs, ours = Engine(folder / "stock-redis").start(), Engine(folder / "our-redis").start()
        published(ours.url, policy("twice", "retried", max_attempts=2, backoff={"kind": "fixed", "first_delay_s": 0.2}))
        stock = Worker(folder / "stock", theirs.url, "", is_stock=True)
        guarded = Worker(folder / "guarded", ours.url, ours.url, is_stock=False)
        road = SlowRoad(ours.url)
        try:
            both = [stock.start(), guarded.start()]
            for one in both:
                one.rate(1)
            before = [one.ran() for one in both]
            with fault(theirs, road), fault(ours, road):
                threads = [threading.Thread(target=one.feed, args=(seconds,)) for one in both]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            repaired, rates = time.monotonic(), {}
            for one, ran, kind in zip(both, before, ("stock", "guarded"), strict=True):
                one.feed(3)
                rates[kind] = [(one.ran() - ran) / (seconds + 3)]
            for one in both:
                one.rest()
            until(lambda: not guarded.spooled(), 300, "the spool to be shipped")
            found = _summarise(rates, {})
            return found | {"well_again_after_s": round(time.monotonic() - repaired, 1), **_lost(guarded, ours, 0)}
        finally:
            for worker in (stock, guarded):
                worker.end()
            road.close()
            ours.stop()
            theirs.stop()


def _summarise(rates: dict[str, list[float]], stalls: dict[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        kind: {"jobs_per_second": round(statistics.median(per_second), 1)} for kind, per_second in rates.items()
    }
    pairs = zip(rates["guarded"], rates["stock"], strict=True)
    found["rate_to_stock"] = round(statistics.median(ours / theirs for ours, theirs in pairs if theirs), 3)
    for kind, longest in stalls.items():
        found[kind]["longest_stall_ms"] = max(longest)
    return found


def _lost(guarded: Worker, store: Engine, began_at: float) -> dict[str, Any]:
    """Failing attempts without a report; and whether what came by the spool came in the order of its capture."""
    time.sleep(2)  # a report may still be on its way
    with redis.Redis.from_url(store.url) as client:
        entries = client.xrange(keys.failures("shop"))
    reports: list[Envelope] = [decode(fields) for _, fields in entries]
    reported = {one.message for one in reports}
    failed = guarded.failed()
    return {
        "failing_attempts": len(failed),
        "lost": len(failed - reported),
        "told_twice": sum(one.kind != "success" for one in reports) - len(failed & reported),
        "out_of_order": _out_of_order([one.at for one in reports]),
        "worker_lives": guarded.is_alive,
    }


def _out_of_order(captured: list[float]) -> int:
    """Return how many reports that came by the spool came before one that was captured earlier.

    The stream is what was appended directly and, in between, what was shipped: two rows, each in order. So the least
    number of rows that it can be split into decides: with one worker, two. Counted is what fits into neither.
    """
    first = second = 0.0
    wrong = 0
    for at in captured:
        if at >= max(first, second):
            first, second = at, min(first, second)
        elif at >= min(first, second):
            first, second = max(first, second), at
        else:
            wrong += 1
    return wrong


if __name__ == "__main__":
    main()
