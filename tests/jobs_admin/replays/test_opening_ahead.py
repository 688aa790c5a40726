"""Messages that a process beside the line decrypts."""

from __future__ import annotations

import pytest

from jobs_admin import replays
from jobs_admin.failures.contents import opened
from jobs_admin.replays import claiming
from jobs_admin.replays.line import _DECRYPT_AHEAD_FROM, DecryptAhead
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db


@pytest.fixture
def claimed(shop, bury):
    """Three items, with the messages that they were buried with."""
    draft = replays.draft(ANN, selection=bury(3), pace={"style": "at_once"}, reason="fixed")
    items = claiming.find_planned(replays.start(ANN, draft), 0, 3)
    bodies = claiming._bodies([item.payload for item in items])
    for item in items:
        item.body = bodies[item.payload]
    return items, [opened(item) for item in items]


@pytest.fixture
def ahead():
    ahead = DecryptAhead()
    yield ahead
    ahead.close()


def open_until_requested(ahead, items):
    while not ahead._requested:
        ahead.open(items, _DECRYPT_AHEAD_FROM)


def test_what_was_coming_is_open_before_long(ahead, claimed):
    items, raw = claimed
    items[1].body = b"no key opens this"
    open_until_requested(ahead, items)
    while ahead._requested:
        ahead.open([], 0)
    assert [item.is_open for item in items] == [True, False, True]
    assert [items[0].body, items[2].body] == [raw[0], raw[2]]


def test_what_the_line_was_faster_with_stays_as_the_line_left_it(ahead, claimed):
    items, _ = claimed
    open_until_requested(ahead, items)
    items[0].body = b""
    while ahead._requested:
        ahead.open([], 0)
    assert [(item.is_open, bool(item.body)) for item in items] == [(False, False), (True, True), (True, True)]


def test_a_message_that_is_too_large_for_the_pipe_is_left_to_the_line(ahead, claimed):
    items, _ = claimed
    items[0].body *= 10_000
    open_until_requested(ahead, items)
    assert ahead._requested == items[1:]


def test_a_few_jobs_are_worth_no_process(ahead, claimed):
    ahead.open(claimed[0], _DECRYPT_AHEAD_FROM - 1)
    assert ahead._opener is None


def test_when_the_process_dies_messages_are_left_to_who_makes_messages(ahead, claimed):
    items, raw = claimed
    open_until_requested(ahead, items)
    ahead._opener._process.kill()
    ahead._opener._process.wait()
    while not ahead._is_ended:  # what it had answered before it died counts
        ahead.open([item for item in items if not item.is_open], _DECRYPT_AHEAD_FROM)
    assert [item.body if item.is_open else opened(item) for item in items] == raw
