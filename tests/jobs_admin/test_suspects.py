"""An entry that ends its reader costs a few processes, never the entries beside it."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest

from jobs_admin.core import keys
from jobs_admin.ingest import Entry, suspects

pytestmark = pytest.mark.server

ENTRIES = [Entry(f"{n}-0".encode(), {b"n": b"%d" % n}, "shop") for n in range(1, 8)]


def in_a_process(store, entries, fatal):
    """Return whether a process of its own came through; what it left out is returned beside."""
    heard, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        store.connection_pool.reset()

        def read(some):
            if any(entry.entry_id in fatal for entry in some):
                os._exit(9)
            return None

        made = suspects.read_entries(store, "place", entries, read, lambda entry, why: entry[0])
        os.write(writing, b" ".join(one for one in made if one))
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(heard, "rb") as answer:
        return status == 0, answer.read().split()


@pytest.mark.parametrize("fatal", [{b"4-0"}, {b"1-0", b"7-0"}])
def test_after_three_deaths_entries_are_read_alone_and_the_culprits_left_out(store, fatal):
    for _ in range(suspects.DEATHS_TOGETHER + len(fatal)):
        assert in_a_process(store, ENTRIES, fatal) == (False, [])
    came_through, left_out = in_a_process(store, ENTRIES, fatal)
    assert came_through and set(left_out) == fatal


def test_a_next_process_that_takes_fewer_forgets_nothing_of_the_rest(store):
    in_a_process(store, ENTRIES, {b"7-0"})
    assert in_a_process(store, ENTRIES[:1], {b"7-0"}) == (True, [])
    for _ in range(2):
        in_a_process(store, ENTRIES[1:], {b"7-0"})
    in_a_process(store, ENTRIES[1:], {b"7-0"})
    assert in_a_process(store, ENTRIES[1:], {b"7-0"}) == (True, [b"7-0"])


def test_a_culprit_that_stays_in_its_stream_is_known_for_as_long_as_it_is_left_out(store, monkeypatch):
    for _ in range(suspects.DEATHS_TOGETHER + 1):
        in_a_process(store, ENTRIES, {b"4-0"})
    began = time.time()
    for days in (0.9, 1.8, 2.7):
        monkeypatch.setattr(suspects.time, "time", partial(float, began + days * 86_400))
        assert in_a_process(store, ENTRIES, {b"4-0"}) == (True, [b"4-0"])


def test_what_is_read_leaves_nothing_behind(store):
    assert suspects.read_entries(store, "place", ENTRIES, len, lambda *_: 0) == [7]
    assert not store.exists(keys.reading())


def test_a_reader_that_raised_lives_and_is_no_death(store):
    for _ in range(9):
        with pytest.raises(ZeroDivisionError):
            suspects.read_entries(store, "place", ENTRIES, lambda _: 1 // 0, lambda *_: 0)
    assert suspects.read_entries(store, "place", ENTRIES, len, lambda *_: 0) == [7]
