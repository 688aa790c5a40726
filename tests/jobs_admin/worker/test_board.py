"""Texts of the main process are read complete by its children: also while it is written, and after they are forked."""

from __future__ import annotations

import os
import threading

import pytest

from jobs_admin.worker.decision import AGAIN, DEAD, Decision, Notes
from jobs_admin.worker.policies import Board, TooLong


def test_a_reader_meets_complete_texts_only():
    board = Board(room=4096)
    is_over = threading.Event()
    torn = []

    def read():
        while not is_over.is_set():
            _, text = board.read()
            if len(set(text)) > 1:
                torn.append(text)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(3000):
        board.write(bytes([n % 251]) * (1 + n % 4096))
    is_over.set()
    reader.join()
    assert torn == [] and board.number == 3000


def test_a_text_that_does_not_fit_leaves_the_one_before():
    board = Board(room=10)
    assert board.read() == (0, b"")
    board.write(b"good")
    with pytest.raises(TooLong):
        board.write(b"x" * 11)
    assert board.read() == (1, b"good")


def in_a_child(act) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_children_read_what_is_written_after_they_were_forked():
    board = Board(room=100)
    request, answered = os.pipe()

    def read():
        os.read(request, 1)
        assert board.read() == (1, b"new")

    pid = os.fork()
    if pid == 0:
        try:
            read()
            os._exit(0)
        finally:
            os._exit(1)
    board.write(b"new")
    os.write(answered, b"!")
    assert os.waitpid(pid, 0)[1] == 0


def test_notes_of_children_arrive_in_full_and_once():
    notes = Notes()
    for n in range(5):
        in_a_child(
            lambda n=n: [notes.leave(f"job-{n}-{m}", m, Decision(DEAD, f"p@{n}", "exhausted")) for m in range(50)]
        )
    for n in range(5):
        for m in range(50):
            assert notes.take(f"job-{n}-{m}", m) == Decision(DEAD, f"p@{n}", "exhausted")
    assert notes.take("job-0-0", 0) is None


def test_notes_that_no_one_takes_hold_up_no_one_and_stay_bounded():
    notes = Notes()
    for n in range(30_000):  # more than the pipe holds
        notes.leave(f"job-{n}", 1, Decision(AGAIN, "p@1", delay_s=1.5))
    assert notes.take("job-0", 1) == Decision(AGAIN, "p@1", delay_s=1.5)
    assert len(notes._read) <= 10_000
    notes.leave("x" * 5000, 1, Decision(DEAD, "p@1"))
    assert notes.take("x" * 5000, 1) is None
