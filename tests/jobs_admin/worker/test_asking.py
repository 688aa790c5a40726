"""An error's own code may take any time: it is asked in one thread, and a job that fails meanwhile asks nothing."""

from __future__ import annotations

import threading

import pytest

from jobs_admin.worker import retrying
from jobs_admin.worker.retrying import WishReader
from tests.kit.waiting import wait_until


class Hangs(Exception):
    asked = 0
    goes_on = threading.Event()

    @property
    def retry_after(self):
        type(self).asked += 1
        self.goes_on.wait(60)
        return 9


class Says(Exception):
    @property
    def retry_after(self):
        return 7


class Here(Exception):
    """Lies there, in the thread that reads it."""

    retry_after = 5


@pytest.fixture
def hangs():
    class One(Hangs):
        goes_on = threading.Event()

    yield One
    One.goes_on.set()


def test_errors_that_hang_cost_one_thread_and_are_reported_once(hangs, caplog):
    others = WishReader()
    before = set(threading.enumerate())
    assert [others.find_wish_of(hangs()) for _ in range(30)] == [None] * 30
    wait_until(lambda: hangs.asked)
    assert hangs.asked == 1
    assert len(set(threading.enumerate()) - before) == 1
    assert caplog.text.count("takes longer than 20 ms") == 1


def test_while_one_hangs_no_others_code_is_queried_and_then_it_is_again(hangs):
    others = WishReader()
    assert others.find_wish_of(hangs()) is None
    assert others.find_wish_of(Says()) is None
    hangs.goes_on.set()
    wait_until(lambda: others.find_wish_of(Says()) == 7)


def test_what_is_there_is_read_whatever_hangs(hangs):
    assert retrying.retry_after_s(hangs()) is None
    assert retrying.retry_after_s(Here()) == 5
