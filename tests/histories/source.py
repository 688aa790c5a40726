"""Acts of the desk on the jobs of a source, the same for each: read, replay, discard, restore, begin again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import redis

from dashboard.setup.engine import Engine
from tests.histories import desk
from tests.histories.desk import Expected
from tests.histories.kit import Clock, Divergence, World, act, run_in_child, sizes_around
from tests.kit.shops import Shop

_MOST_ROUNDS = 400
_LEASES_S = 60.0
OUTCOMES = ("ok", "ok", "last")
QUEUES = [f"q{n}" for n in range(20)]


class SourceWorld(World):
    """A subclass has the model in `self.jobs`, each with `queue`, `id`, `key`, `lies`, `states`, `run`, `attempts`,
    `is_known`."""

    source = "shop"
    most_acts = 6
    real_size_in = 200  # one history in so many has the bounds of the code
    kills_senders = True  # False where a killed sender leaves jobs of which nobody knows whether they went

    def __init__(self, folder: Path, sources: str, store_url: str) -> None:
        desk.open_desk(folder, sources, store_url)
        self.store = redis.Redis.from_url(store_url)
        self.clock = Clock().install()
        self.killed = 0
        self._real: dict[tuple[ModuleType, str], Any] = {}

    # What a subclass supplies

    def empty_system(self, rng: random.Random) -> None:
        raise NotImplementedError

    def wait_for_workers(self) -> None:
        """Until the workers have done all that the model knows of."""

    def before_replay(self, jobs: list[Any], outcomes: list[str]) -> None:
        """Let the next executions of these jobs end so."""

    def note_sent(self, jobs: list[Any], outcomes: list[str]) -> None:
        """Note in the model that a replay sent them."""
        raise NotImplementedError

    def choose_outcome(self, rng: random.Random) -> Any:
        """Ends of replayed jobs."""
        return rng.choice(OUTCOMES)

    def is_replayable(self, job: Any) -> bool:
        return job.states == ("dead",)

    def removed_by_us(self, job: Any) -> None:
        """The desk has taken it out because it was discarded."""

    # Beginning

    def begin(self, rng: random.Random) -> None:
        self.jobs: list[Any] = []
        self.made = 0
        self.clock.reset()
        self.havoc = random.Random(rng.getrandbits(32))
        desk.empty_desk()
        self.choose_bounds(rng)
        self.empty_system(rng)

    def choose_bounds(self, rng: random.Random) -> int:
        """Small bounds, so that crossing them is cheap; the code's own in some histories. Returns the one that sizes are around."""
        for (module, name), value in self._real.items():
            setattr(module, name, value)
        self.is_real_size = rng.randrange(self.real_size_in) == 0
        self.bound = rng.choice([1, 2, 3, 5])
        return self.bound

    def set_bound(self, module: ModuleType, name: str, value: Any) -> None:
        self._real.setdefault((module, name), getattr(module, name))
        is_copied = self.is_real_size and not name.endswith(("_S", "_MS"))
        setattr(module, name, self._real[module, name] if is_copied else value)
        if is_copied and name == "_PAGE":
            self.bound = self._real[module, name]

    def size(self, rng: random.Random) -> int:
        return rng.choice(sizes_around(self.bound))

    def some(self, rng: random.Random, which: Callable[[Any], Any], most: int = 3) -> list[Any]:
        fitting = [job for job in self.jobs if which(job)]
        return rng.sample(fitting, min(len(fitting), rng.randint(1, most)))

    # The desk

    def run_desk(self, work: Callable[[], Any]) -> None:
        """Let the desk do `work`, which may be begun again at any point: under `kills` by processes that end in the middle of it."""
        if not self.kills:
            work()
            return
        for _ in range(self.havoc.choice((0, 1, 1, 2))):
            desk.before_fork()
            if self.havoc.random() < 0.3:
                self.killed += run_in_child(work, kill_after_s=10 ** self.havoc.uniform(-2.5, -0.3))
            else:
                self.killed += run_in_child(work, kill_after_calls=self.havoc.randrange(60))
            self.clock.step(_LEASES_S)  # nobody waits for what the dead one had leased
        desk.before_fork()
        run_in_child(work)

    def restart_workers(self) -> None:
        """SIGKILL to who works, and start it again."""

    def restart_server(self) -> None:
        """SIGKILL to the server that holds the store, and start it again.

        Its file is written before: where a flush of the disk takes long, a server killed loses up to two seconds of what it
        had answered (appendfsync everysec), and the model knows no such loss.
        """
        with redis.Redis.from_url(self.engine.url) as client:
            while client.info("persistence")["aof_buffer_length"]:
                time.sleep(0.01)
        self.engine.process.kill()
        self.engine.process.wait()
        desk.before_fork()
        self.engine.start()

    @act()
    def restart_something(self, rng: random.Random) -> None:
        if not self.kills:
            return
        self.wait_for_workers()
        rng.choice((self.restart_workers, self.restart_server))()
        self.killed += 1

    def read(self) -> None:
        """The desk reads all that there is."""
        self.wait_for_workers()
        self.run_desk(self.read_reports)
        for job in self.jobs:
            job.is_known = bool(job.states)
            if job.states == ("discarded",):
                self.removed_by_us(job)

    def read_reports(self) -> None:
        raise NotImplementedError

    def read_first(self, rng: random.Random) -> None:
        if rng.random() < 0.7:
            self.read()

    def catch_up(self) -> None:
        self.read()

    def check(self) -> None:
        desk.compare(
            {
                job.key: Expected.in_states(*job.states, run=job.run, attempts=job.attempts)
                for job in self.jobs
                if job.states
            }
        )

    def described(self) -> str:
        return "\n".join(map(str, self.jobs[:30]))

    def ids(self, jobs: list[Any]) -> list[int]:
        from jobs_admin.models import Failure

        known = {(q, j): pk for pk, q, j in Failure.objects.values_list("pk", "queue", "first_job_id")}
        return [known[job.key.queue, job.key.job_id] for job in jobs]

    # Acts of the desk

    @act()
    def check_desk(self, rng: random.Random) -> None:
        self.catch_up()
        self.check()

    @act(weight=4)
    def replay(self, rng: random.Random) -> None:
        self.read()
        jobs = self.some(rng, self.is_replayable, most=self.bound + 1)
        if jobs:
            self.replay_these(rng, jobs)

    def replay_these(self, rng: random.Random, jobs: list[Any]) -> None:
        from jobs_admin import replays
        from jobs_admin.models import ReplayItem

        outcomes = [self.choose_outcome(rng) for _ in jobs]
        self.before_replay(jobs, outcomes)
        person = desk.operator()
        replay = replays.draft(
            person, selection=self.ids(jobs), pace={"style": "at_once"}, reason="the partner is back"
        )
        replays.start(person, replay)

        def send() -> None:
            for _ in range(_MOST_ROUNDS):
                replays.create_items()
                replays.send("histories")
                replay.refresh_from_db()
                if not replay.planned and not ReplayItem.objects.filter(replay=replay, state="planned").exists():
                    return
            raise Divergence(f"Replay {replay.pk} of {len(jobs)} jobs is never sent.")

        self.run_desk(send) if self.kills_senders else send()
        unsent = ReplayItem.objects.filter(replay=replay).exclude(
            state__in=("sent", "running", "succeeded", "failed_again")
        )
        if left := list(unsent.values_list("failure__queue", "failure__first_job_id", "state", "outcome")):
            raise Divergence(f"Replay {replay.pk} did not send {left}")
        self.note_sent(jobs, outcomes)
        self.settle(replay)

    def settle(self, replay: Any) -> None:
        from jobs_admin import replays

        for _ in range(20):
            self.read()
            self.run_desk(replays.settle)
            replay.refresh_from_db()
            if replay.state == "done":
                return
        raise Divergence(
            f"Replay {replay.pk} does not end: {replay.state}, {replay.sent} sent, {replay.running} running."
        )

    @act(weight=2)
    def discard(self, rng: random.Random) -> None:
        from jobs_admin.failures import triage

        self.read()
        jobs = self.some(rng, lambda job: job.states == ("dead",))
        if jobs:
            triage.discard(desk.operator(), selection=self.ids(jobs), reason="not wanted")
            for job in jobs:
                job.states = ("discarded",)
            if rng.random() < 0.7:
                self.read()  # it is taken out there

    @act(weight=2)
    def restore(self, rng: random.Random) -> None:
        from jobs_admin.failures import triage

        jobs = self.some(rng, lambda job: job.states == ("discarded",))
        if jobs:
            triage.restore(desk.operator(), selection=self.ids(jobs))
            for job in jobs:
                job.states = ("dead",)
            jobs = [job for job in jobs if self.is_replayable(job)]
            if jobs and rng.random() < 0.5:
                self.replay_these(rng, jobs)

    @act()
    def restart_watch(self, rng: random.Random) -> None:
        """Nothing is remembered, as in a new process."""
        desk.forget_all()

    @act()
    def step_clock(self, rng: random.Random) -> None:
        self.clock.step(rng.choice([-3600, -5, 5, 600]))


class PulledWorld(SourceWorld):
    """A system that keeps its dead letters itself."""

    def choose_bounds(self, rng: random.Random) -> int:
        from jobs_admin.retries import pulling, rechecking

        bound = super().choose_bounds(rng)
        self.set_bound(rechecking, "_BETWEEN_S", 0.0)
        self.set_bound(rechecking, "_AT_ONCE", rng.choice([self.bound, 500, 500, 500]))
        self.set_bound(rechecking, "_WRITTEN_AT_ONCE", rng.choice([1, self.bound, 100]))
        self.set_bound(pulling, "_FILED_AT_ONCE", rng.choice([1, self.bound, 100]))
        return bound

    def read_reports(self) -> None:
        from jobs_admin.retries import pulling, rechecking

        for _ in range(_MOST_ROUNDS):
            if not pulling.pull(self.source, "histories:1"):
                break
        else:
            raise Divergence("Reading this source never comes to an end.")
        # Some of what is known is asked for at each round: as many rounds as it takes for all, and one for what began in between.
        for _ in range(len(self.jobs) // rechecking._AT_ONCE + 1):
            pulling.pull(self.source, "histories:1")


class ShopWorld(PulledWorld):
    """A system of Python, with its own producer and worker."""

    library: str

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(folder / "engine").start()
        self.url = self.engine.url.removesuffix("/0") + "/1"
        self.shop = Shop(self.library, self.url)
        super().__init__(folder, f'[sources.shop]\nbackend = "{self.library}"\nurl = "{self.url}"\n', self.engine.url)

    def close(self) -> None:
        self.shop.stop()
        self.engine.stop()

    def restart_workers(self) -> None:
        self.shop.stop()
        self.shop = Shop(self.library, self.url)

    def empty_system(self, rng: random.Random) -> None:
        self.store.flushall()
        self.queues = rng.sample(QUEUES, rng.choice([1, 1, 2, 3, 5, 20]))

    def add(self, rng: random.Random, queue: str, count: int, outcome: str) -> None:
        """Add jobs, which run."""
        raise NotImplementedError

    @act(weight=4)
    def die(self, rng: random.Random) -> None:
        for queue in rng.sample(self.queues, rng.randint(1, min(3, len(self.queues)))):
            self.add(rng, queue, self.size(rng), "fail")

    @act()
    def succeed(self, rng: random.Random) -> None:
        self.add(rng, rng.choice(self.queues), rng.randint(1, 3), "ok")
