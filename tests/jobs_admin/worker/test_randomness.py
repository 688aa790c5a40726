"""Workers are forked from one process: each must draw its own numbers."""

from __future__ import annotations

import os
import random
import struct

from jobs_admin.worker.deciding import uniform

CHILDREN, DRAWS = 8, 64


def drawn_by_a_child() -> tuple[float, ...]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, struct.pack(f"{DRAWS}d", *(uniform() for _ in range(DRAWS))))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return struct.unpack(f"{DRAWS}d", found)


def test_forked_workers_draw_different_numbers():
    uniform()  # whatever state there may be was made before the fork
    streams = [drawn_by_a_child() for _ in range(CHILDREN)]
    assert len({number for stream in streams for number in stream}) == CHILDREN * DRAWS


def test_a_task_that_seeds_its_own_randomness_does_not_seed_ours():
    found = []
    for _ in range(2):
        random.seed(1)
        found.append([uniform() for _ in range(8)])
    assert found[0] != found[1]


def test_numbers_are_from_0_up_to_1():
    found = [uniform() for _ in range(10_000)]
    assert 0 <= min(found) < 0.01 and 0.99 < max(found) < 1
