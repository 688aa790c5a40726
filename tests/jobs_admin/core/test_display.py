"""The display of a job is valid, redacted and of a bounded size, whatever the job says."""

from __future__ import annotations

import json
import time

import pytest

from jobs_admin.core.display import (
    JSON_SIZE,
    MESSAGE_SIZE,
    TRACE_HEAD,
    TRACE_TAIL,
    shown_json,
    shown_message,
    shown_trace,
)
from jobs_admin.core.redaction import PLACEHOLDER
from tests.kit import canaries
from tests.kit.cases import with_cases


def nested(depth: int) -> object:
    value: object = "end"
    for _ in range(depth):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize(
    "value",
    [
        ["x" * 10_000_000],
        list(range(1_000_000)),
        {str(n): "y" * 50 for n in range(100_000)},
        ["\x00\ud800\u202e" * 5_000] * 50,
        nested(400),
        [10**5000, float("nan"), float("inf"), -0.0, 2**53 + 1],
        ["z" * 4_000] * 100,
        [["w"] * 3] * 20_000,
        {"k" * 1_000_000: 1},
    ],
    ids=["long", "many", "wide", "odd", "deep", "numbers", "several", "small", "key"],
)
def test_arguments_of_any_size_are_shown_in_bounds(value):
    started = time.process_time()
    shown = shown_json(value)
    assert len(shown.text) <= JSON_SIZE
    json.loads(shown.text, parse_constant=pytest.fail)
    assert time.process_time() - started < 1


def test_ordinary_arguments_are_shown_in_full():
    value = [1, {"customer": {"id": 42, "tags": ["a", None, True, 1.5]}}]
    assert json.loads(shown_json(value).text) == value


@with_cases("kind", canaries.ARGUMENTS)
def test_no_known_kind_of_secret_leaves_the_worker_in_arguments(kind):
    shown = shown_json(canaries.ARGUMENTS[kind])
    assert [secret for secret in canaries.SECRETS if secret in shown.text] == [] and shown.redacted >= 1


@with_cases("kind", canaries.TEXT)
def test_no_known_kind_of_secret_leaves_the_worker_in_a_message_or_a_trace(kind):
    text = canaries.TEXT[kind]
    shown = shown_message(text).text + shown_trace(text).text
    assert [secret for secret in canaries.SECRETS if secret in shown] == []


def test_a_cut_is_visible():
    assert "cut" in shown_json(["x" * 100_000]).text
    assert "more" in shown_json(list(range(100_000))).text
    assert "cut, 100000 characters" in shown_message("x" * 100_000).text


def test_a_secret_that_straddles_the_cut_is_hidden():
    at_the_edge = "x" * (MESSAGE_SIZE - 30) + " password='" + "s3cr3t" * 20 + "'"
    assert "s3cr3t" not in shown_message(at_the_edge).text
    assert "s3cr3t" not in shown_json([at_the_edge]).text


def test_a_long_trace_keeps_its_beginning_and_its_error():
    trace = "Traceback\n" + "  frame\n" * 100_000 + "ValueError: password=hunter2 no"
    shown = shown_trace(trace)
    assert shown.text.startswith("Traceback")
    assert shown.text.endswith(f"password={PLACEHOLDER} no")
    assert len(shown.text) < TRACE_HEAD + TRACE_TAIL + 100
    assert "left out" in shown.text


HIDDEN = "password=" + "x" * 6_000 + " "
HALF = "hunter2-Very-Secret-0123456789"


def cut_within_a_secret(longest: int) -> str:
    """A text whose first secret is long, and whose last is cut where nothing more of the text is read."""
    read = longest + 4_096
    address = "https://user:" + HALF + "@db.example.com/x"
    before = HIDDEN + "a " * read
    return before[: read - len("https://user:") - 20] + address + " and more"


def test_a_secret_that_was_cut_is_not_shown_by_what_was_hidden_before_it():
    text = cut_within_a_secret(MESSAGE_SIZE)
    shown = shown_message(text).text
    assert HALF[:5] not in shown and f"(cut, {len(text)} characters)" in shown
    assert shown.startswith(f"password={PLACEHOLDER} a a a")
    shown = shown_json([cut_within_a_secret(JSON_SIZE // 2)]).text
    assert HALF[:5] not in shown and "(cut)" in shown and "a a a" in shown


def test_a_secret_that_reaches_over_the_cut_hides_nothing_before_it():
    shown = shown_message("cannot use token=" + "x" * 50_000).text
    assert shown == f"cannot use token={PLACEHOLDER}… (cut, 50017 characters)"


def test_a_name_is_cut_after_its_secrets_were_hidden():
    shown = shown_json({"https://" + "u" * 170 + ":" + HALF + "@host/ " + "n" * 5_000: 1}).text
    assert HALF[:5] not in shown and "uuu" in shown


def test_a_trace_begins_again_behind_what_was_cut():
    half = "correct-horse-battery-staple-" * 6
    above = "Traceback\n" + "z\n" * 40_000
    below = '"\npassword=' + "y" * 6_000 + "\n" + "line of text\n" * 20_000
    below = below[: TRACE_TAIL + 4_096 - 100]  # so that a hundred characters of the secret are read, and not its name
    shown = shown_trace(above + 'api_key="' + half + below)
    assert "staple" not in shown.text and "line of text" in shown.text and "left out" in shown.text
    shown = shown_trace("https" + cut_within_a_secret(TRACE_HEAD) + below * 2)
    assert HALF[:5] not in shown.text and "a a a" in shown.text


def test_of_a_trace_all_is_shown_but_what_is_left_out():
    trace = "".join(f"line {number}\n" for number in range(30_000))
    shown = shown_trace(trace).text
    assert shown.startswith(trace[:TRACE_HEAD] + "\n  … ") and shown.endswith(" left out …\n" + trace[-TRACE_TAIL:])
