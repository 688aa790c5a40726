from __future__ import annotations

import threading
import time

import pytest

from jobs_admin.db.turns import turn_at

pytestmark = pytest.mark.databases


def test_one_has_its_turn_at_a_time_and_each_gets_one(tmp_path):
    inside, most, turns = [], [], []

    def take(name):
        for _ in range(5):
            with turn_at(str(tmp_path / "turn")):
                inside.append(name)
                time.sleep(0.005)
                most.append(len(inside))
                inside.remove(name)
                turns.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in "abc"]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert set(most) == {1} and sorted(turns) == sorted("abc" * 5)


def test_a_part_of_the_time_is_no_one_s(tmp_path):
    place = str(tmp_path / "turn")
    with turn_at(place):
        time.sleep(0.2)
        ends = time.monotonic()  # before it does: what passes until the next asks is no less a rest
    with turn_at(place):
        assert 0.04 < time.monotonic() - ends < 60


def test_what_is_in_the_file_keeps_no_one_for_long(tmp_path):
    (tmp_path / "turn").write_bytes(b"\xff\x7f" * 4)
    (tmp_path / "late").write_bytes(b"\x00\x00\x00\x00\x00\x00\xf0\x7f")  # infinity
    began = time.monotonic()
    for name in ("turn", "late"):
        with turn_at(str(tmp_path / name)):
            pass
    assert time.monotonic() - began < 60
