"""A retry budget under many processes, and how much any window of time was granted."""

from __future__ import annotations

import math
import multiprocessing
import random
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs_admin.core import keys
from jobs_admin.worker.budget import SCRIPT, arguments
from jobs_admin.worker.calls import Calls, Script
from tests.rigs.figures import spread

# per minute, burst: 100 a minute, one that fills ten times a second, one that is never empty for long
RULES = {"narrow": (100.0, 10), "middle": (600.0, 100), "wide": (60_000.0, 500)}
WINDOWS_S = (1, 10, 60)
# The decision as it is, and the time by which it was made: inside of a script Redis' clock stands still.
TIMED = Script(
    f"local function decided() {SCRIPT.text} end\n"
    "local answer, now = decided(), redis.call('TIME')\n"
    "return {answer[1], now[1] * 1000000 + now[2]}"
)


class Decided:
    """Notes of the processes: of each rule, when it granted and how often it was asked; and what did not answer."""

    def __init__(self) -> None:
        self.granted: dict[str, list[int]] = {name: [] for name in RULES}  # µs by the server's clock, in order
        self.asked = dict.fromkeys(RULES, 0)
        self.first_us, self.last_us = math.inf, 0.0
        self.waits_us: list[float] = []
        self.unanswered = 0


def all_decided(url: str, folder: Path, processes: int, decisions: int, seconds: float) -> Decided:
    spawn = multiprocessing.get_context("spawn")
    each = math.ceil(decisions / processes)
    running = [
        spawn.Process(target=decide, args=(url, folder / f"notes-{n}", each, seconds, n)) for n in range(processes)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join()
    if any(process.exitcode for process in running):
        raise SystemExit("a process ended with an error")
    return read([folder / f"notes-{n}" for n in range(processes)])


def decide(url: str, notes: Path, count: int, seconds: float, seed: int) -> None:
    """In one process. Surges begin together in all of them, at times that their shared seed gives."""
    calls = Calls(url, "the bench", timeout_s=10)
    while calls.run(SCRIPT, [keys.budget("shop")], arguments("none", 1, 1)) is None:
        calls.connect()
    surges = _surges(count, seconds)
    names, draw, began = list(RULES), random.Random(seed), time.monotonic()
    # One number a decision: server's µs · 8 + rule · 2 + granted. Waits beside it, in µs; -1: no answer.
    found, waits = array("q"), array("f")
    for at, size, lasts in surges:
        for n in range(size):
            # One half at once, the other evenly until the next surge: buckets stay as empty as they can be.
            share = max(0, n - size // 2) / size * 2
            time.sleep(max(0.0, began + at + share * lasts - time.monotonic()))
            which = draw.randrange(len(names))
            start = time.perf_counter()
            answer = calls.run(TIMED, [keys.budget("shop")], arguments(names[which], *RULES[names[which]], spent=1))
            waits.append((time.perf_counter() - start) * 1e6 if answer else -1)
            if answer:
                found.append(int(answer[1]) * 8 + which * 2 + int(answer[0]))
    with notes.open("wb") as file:
        array("q", [len(found), len(waits)]).tofile(file)
        found.tofile(file)
        waits.tofile(file)


def _surges(count: int, seconds: float) -> list[tuple[float, int, float]]:
    """The start of each, how many decisions of a process it has, and how long it lasts; the same in every process."""
    draw = random.Random("surges")
    lengths: list[float] = []
    while sum(lengths) < seconds:
        lengths.append(draw.choice((0.5, 2, 7, 20)))
    begins = [sum(lengths[:n]) for n in range(len(lengths))]
    size = count // len(lengths)
    sizes = [count - size * (len(lengths) - 1), *[size] * (len(lengths) - 1)]
    return list(zip(begins, sizes, lengths, strict=True))


def read(notes: Sequence[Path]) -> Decided:
    decided = Decided()
    names = list(RULES)
    for place in notes:
        sizes, found, waits = array("q"), array("q"), array("f")
        with place.open("rb") as file:
            sizes.fromfile(file, 2)
            found.fromfile(file, sizes[0])
            waits.fromfile(file, sizes[1])
        for one in found:
            at, name = one >> 3, names[(one >> 1) & 3]
            decided.first_us, decided.last_us = min(decided.first_us, at), max(decided.last_us, at)
            decided.asked[name] += 1
            if one & 1:
                decided.granted[name].append(at)
        decided.waits_us.extend(wait for wait in waits if wait >= 0)
        decided.unanswered += sum(wait < 0 for wait in waits)
    for times in decided.granted.values():
        times.sort()
    return decided


def figures(decided: Decided) -> dict[str, Any]:
    seconds = (decided.last_us - decided.first_us) / 1e6
    rules = {}
    for name, (per_minute, burst) in RULES.items():
        granted = decided.granted[name]
        rules[name] = {
            "per_minute": per_minute,
            "burst": burst,
            "asked": decided.asked[name],
            "granted": len(granted),
            "could": math.floor(burst + per_minute * seconds / 60),
            "windows": {
                f"{window} s": {
                    "most": most_within(granted, window),
                    "bound": math.floor(burst + per_minute * window / 60),
                }
                for window in WINDOWS_S
            },
            "over_in_any_window": over(granted, per_minute, burst),
        }
    return {
        "decisions": sum(decided.asked.values()),
        "not_answered": decided.unanswered,
        "seconds": round(seconds, 1),
        "decisions_per_second": round(sum(decided.asked.values()) / seconds),
        "microseconds_a_decision": spread(decided.waits_us, 1),
        "rules": rules,
    }


def most_within(times_us: Sequence[int], window_s: float) -> int:
    """The most that lie in any window [t, t + window), which may begin at each of them."""
    most = last = 0
    for first, at in enumerate(times_us):
        while last < len(times_us) and times_us[last] < at + window_s * 1e6:
            last += 1
        most = max(most, last - first)
    return most


def over(times_us: Sequence[int], per_minute: float, burst: int) -> int:
    """By how many some window of any length, both ends included, holds more than burst + rate × its length; 0: none does."""
    interval = 60_000_000 / per_minute
    # Of grants first … n: n − first + 1 > burst + (times[n] − times[first]) / interval.
    least, worst = math.inf, -math.inf
    for n, at in enumerate(times_us):
        least = min(least, n - at / interval)
        worst = max(worst, n - at / interval - least + 1 - burst)
    return max(0, math.ceil(worst - 1e-3)) if times_us else 0
