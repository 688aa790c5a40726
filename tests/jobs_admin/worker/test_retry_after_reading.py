"""An error's own code may take any time: it is read in one thread, and a job that fails meanwhile reads nothing."""

from __future__ import annotations

import threading

import pytest

from jobs_admin.worker import retrying
from jobs_admin.worker.retrying import WishReader
from tests.kit.waiting import wait_until


class Hangs(Exception):
    reads = 0
    goes_on = threading.Event()

    @property
    def retry_after(self):
        type(self).reads += 1
        self.goes_on.wait(60)
        return 9


class HasRetryAfter(Exception):
    @property
    def retry_after(self):
        return 7


class Here(Exception):
    """An error whose time to wait is a plain attribute, read in the thread that needs it."""

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
    wait_until(lambda: hangs.reads)
    assert hangs.reads == 1
    assert len(set(threading.enumerate()) - before) == 1
    assert caplog.text.count("takes longer than 20 ms") == 1


def test_while_one_hangs_no_others_code_is_queried_and_then_it_is_again(hangs):
    others = WishReader()
    assert others.find_wish_of(hangs()) is None
    assert others.find_wish_of(HasRetryAfter()) is None
    hangs.goes_on.set()
    wait_until(lambda: others.find_wish_of(HasRetryAfter()) == 7)


def test_what_is_there_is_read_whatever_hangs(hangs):
    assert retrying.retry_after_s(hangs()) is None
    assert retrying.retry_after_s(Here()) == 5
