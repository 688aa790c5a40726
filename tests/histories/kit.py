"""Random histories of a real system against a model.

A `World` is a real queue system with a desk beside it, and a model of what must be true of both. Each of its acts (`@act`) does
one thing to the system and notes it in the model. A history is a seed: it chooses how the world begins and which acts follow.
After the last act the desk catches up, and `check` compares the desk with the model.

    class Shop(World):
        def begin(self, rng): ...          # an empty system, an empty desk, an empty model
        @act(weight=3)
        def fail(self, rng): ...
        def catch_up(self): ...            # the desk reads and settles all that there is
        def check(self): ...               # raises Divergence

    run_histories(Shop(), first_seed=1, count=10_000)

An act takes its random choices from the `rng` that it is given and picks among what is there, so that a history without some of
its steps is a history as well: a failing one is shortened by leaving steps out. `tests/histories/desk.py` has the desk's half.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

_SHRINK_WITHIN_S = 30.0
_PROGRESS_EVERY_S = 30.0

F = TypeVar("F", bound=Callable[..., None])


class Divergence(AssertionError):
    """The desk is not what the model says."""


class Step(NamedTuple):
    act: str
    seed: int

    def __str__(self) -> str:
        return f"{self.act}({self.seed})"


def act(weight: int = 1) -> Callable[[F], F]:
    """Mark a method of a World as an act, chosen `weight` times as often as one of weight 1."""

    def marked(method: F) -> F:
        method._weight = weight  # type: ignore[attr-defined]
        return method

    return marked


class World:
    """A real system, a desk and the model of both. One object serves all histories of a run."""

    most_acts = 8
    kills = False  # whether processes are really ended
    killed = 0  # how many were

    def begin(self, rng: random.Random) -> None:
        """Empty the system, the desk and the model, and choose how this history begins."""
        raise NotImplementedError

    def catch_up(self) -> None:
        """Let the desk read and settle all that there is."""
        raise NotImplementedError

    def check(self) -> None:
        """Compare the desk with the model. Raises Divergence."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop what this world started."""

    def described(self) -> str:
        """The state of the model, for the message of a divergence."""
        return ""

    @classmethod
    def acts(cls) -> dict[str, int]:
        """Name of each act -> its weight."""
        found = {name: getattr(getattr(cls, name), "_weight", 0) for name in dir(cls)}
        return {name: weight for name, weight in sorted(found.items()) if weight}


@dataclass(frozen=True, slots=True)
class Failed:
    """A history that diverged, as it was shortened."""

    seed: int
    steps: tuple[Step, ...]
    error: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {' '.join(map(str, self.steps)) or 'no act'}\n{self.error}"


def steps_of(world: World, seed: int) -> list[Step]:
    """The acts of the history `seed`."""
    rng = random.Random(f"{seed} steps")
    acts = world.acts()
    count = rng.randint(0, world.most_acts)
    names = rng.choices(list(acts), list(acts.values()), k=count)
    return [Step(name, rng.getrandbits(32)) for name in names]


def run_history(world: World, seed: int, steps: Sequence[Step]) -> None:
    """Raises Divergence, or whatever broke."""
    world.begin(random.Random(f"{seed} begin"))
    for step in steps:
        getattr(world, step.act)(random.Random(step.seed))
    world.catch_up()
    world.check()


def shrink(world: World, seed: int, steps: Sequence[Step], error: str) -> Failed:
    """The shortest history found that still breaks: steps are left out by halves, quarters, … and one by one."""
    remaining = list(steps)
    size = max(1, len(remaining) // 2)
    ends = time.perf_counter() + _SHRINK_WITHIN_S
    while remaining and time.perf_counter() < ends:
        start, was_shortened = 0, False
        while start < len(remaining) and time.perf_counter() < ends:
            candidate = remaining[:start] + remaining[start + size :]
            if again := _error_of(world, seed, candidate):
                remaining, error, was_shortened = candidate, again, True
            else:
                start += size
        if size == 1 and not was_shortened:
            break
        size = max(1, size // 2)
    return Failed(seed, tuple(remaining), error)


def _error_of(world: World, seed: int, steps: Sequence[Step]) -> str:
    try:
        run_history(world, seed, steps)
    except Exception as error:
        frames = "" if isinstance(error, Divergence) else "".join(traceback.format_tb(error.__traceback__)[-4:])
        return f"{type(error).__name__}: {error}\n{frames}{world.described()}".rstrip()
    return ""


def run_histories(
    world: World,
    *,
    first_seed: int,
    count: int,
    command: str = "",
    most_failed: int = 5,
    within_s: float = float("inf"),
    at_least: int = 1,
) -> list[Failed]:
    """Run `count` histories, one a seed from `first_seed` on, and print each that fails with the command that repeats it.

    Ends early after `most_failed` failures, or after `within_s` seconds and `at_least` histories. Returns the failures.
    """
    failed: list[Failed] = []
    began = reported = time.perf_counter()
    done = 0
    for seed in range(first_seed, first_seed + count):
        now = time.perf_counter()
        if len(failed) >= most_failed or (now - began > within_s and done >= at_least):
            break
        if now - reported > _PROGRESS_EVERY_S:
            reported = now
            _print(f"{done} of {count} histories, {len(failed)} diverged, {1000 * (now - began) / done:.0f} ms each")
        steps = steps_of(world, seed)
        done += 1
        if error := _error_of(world, seed, steps):
            failed.append(shrink(world, seed, steps, error))
            _print(f"\n{failed[-1]}\nRepeat: {command} --seed {seed} --histories 1\n")
    took_s = time.perf_counter() - began
    _print(f"{done} histories from seed {first_seed} on in {took_s:.0f} s, {len(failed)} diverged")
    return failed


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def sizes_around(bound: int) -> list[int]:
    """Sizes at which a page or batch of `bound` may break: 0, 1, n−1, n, n+1."""
    return sorted({0, 1, bound - 1, bound, bound + 1} - {-1})


# --- processes that are killed ------------------------------------------------------------------------------------------


def run_in_child(
    work: Callable[[], Any], kill_after_s: float | None = None, kill_after_calls: int | None = None
) -> bool:
    """Run `work` in a forked process; end that by SIGKILL after that many seconds, or after that many SQL statements and calls to Redis.
    True if it was killed.

    Raises Divergence with the child's traceback where `work` raised. Connections of the caller must be closed before.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_and_exit(work, reading, writing, kill_after_calls)
    os.close(writing)
    try:
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            os.kill(pid, signal.SIGKILL)
        with os.fdopen(reading, "rb") as pipe:
            output = pipe.read().decode("utf-8", "replace")
    finally:
        _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.waitstatus_to_exitcode(status):
        raise Divergence(f"A process of the desk ended by an error:\n{output[-4000:]}")
    return False


def _run_and_exit(work: Callable[[], Any], reading: int, writing: int, calls: int | None) -> None:
    code = 1
    try:
        os.close(reading)
        if calls is not None:
            _die_after(calls)
        work()
        code = 0
    except BaseException:
        os.write(writing, traceback.format_exc().encode()[-60_000:])
    finally:
        os._exit(code)


def _die_after(calls: int) -> None:
    """SIGKILL to this process before the statement or Redis call that follows `calls` others."""
    import redis
    from django.db import connection

    left = calls

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def statement(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        count()
        return execute(sql, *rest)

    sent = redis.Connection.send_packed_command

    def send(self: redis.Connection, *args: Any, **options: Any) -> Any:
        count()
        return sent(self, *args, **options)

    connection.execute_wrappers.append(statement)
    redis.Connection.send_packed_command = send  # type: ignore[method-assign]


# --- clocks -----------------------------------------------------------------------------------------------------------


class Clock:
    """The wall clock of this process, which a history may step. Monotonic time goes on as it did."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._time = time.time

    def install(self) -> Clock:
        from datetime import timedelta

        from django.utils import timezone

        django_now = timezone.now
        time.time = lambda: self._time() + self.ahead_s
        timezone.now = lambda: django_now() + timedelta(seconds=self.ahead_s)
        return self

    def step(self, seconds: float) -> None:
        self.ahead_s += seconds

    def reset(self) -> None:
        self.ahead_s = 0.0
