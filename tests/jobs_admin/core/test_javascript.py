"""Stacks as Node 20 wrote them (BullMQ 4 to 6), read and grouped as Python's are."""

from __future__ import annotations

import time

import pytest

from jobs_admin.core.fingerprint import fingerprint
from jobs_admin.core.traces import apart, error_of, frames, stack, stack_of

STACK = """TypeError: Cannot read properties of undefined (reading 'url')
    at sendWebhook (/srv/releases/20261101/src/hooks/send.ts:41:23)
    at new Delivery (file:///srv/releases/20261101/src/hooks/delivery.mjs?v=3:9:5)
    at Worker.processFn (/srv/releases/20261101/src/worker.ts:12:11)
    at Worker.callProcessJob (/srv/releases/20261101/node_modules/bullmq/dist/cjs/classes/worker.js:123:4)
    at process.processTicksAndRejections (node:internal/process/task_queues:95:5)
    at async Promise.all (index 0)
    at async Worker.retryIfFailed (/srv/releases/20261101/node_modules/bullmq/dist/cjs/classes/worker.js:765:24)"""
MESSAGE = "Cannot read properties of undefined (reading 'url')"


def test_frames_stand_outermost_first_and_only_our_own_are_of_the_application():
    own = [(f.file.rpartition("/")[2], f.line, f.function) for f in frames(STACK) if f.is_application]
    assert own == [("worker.ts", 12, "processFn"), ("delivery.mjs", 9, "Delivery"), ("send.ts", 41, "sendWebhook")]
    assert len(frames(STACK)) == 7


def test_packages_and_node_itself_are_libraries():
    files = [f.file for f in frames(STACK) if not f.is_application]
    assert [file.rpartition("/")[2] for file in files] == ["worker.js", "index 0", "task_queues", "worker.js"]


def test_another_release_line_or_library_is_the_same_group():
    later = STACK.replace("20261101", "20261122").replace(":41:23", ":44:9").replace("worker.js:123:4", "worker.js:9:1")
    assert fingerprint("TypeError", MESSAGE, STACK).value == fingerprint("TypeError", MESSAGE, later).value


def test_another_place_of_the_application_is_another_group():
    elsewhere = STACK.replace("sendWebhook", "signWebhook")
    assert fingerprint("TypeError", MESSAGE, STACK).value != fingerprint("TypeError", MESSAGE, elsewhere).value


def test_the_innermost_place_of_the_application_is_the_culprit():
    assert fingerprint("TypeError", MESSAGE, STACK).culprit == "hooks/send.ts in sendWebhook"


def test_by_what_object_a_function_was_called_does_not_count():
    other = STACK.replace("Worker.processFn", "Object.processFn [as run]")
    assert fingerprint("TypeError", MESSAGE, STACK).value == fingerprint("TypeError", MESSAGE, other).value


def test_jobs_with_their_own_ids_share_one_stack():
    one, other = (f"Error: order {n} refused\nby the bank\n    at pay (/srv/pay.js:1:2)" for n in (1, 2))
    assert stack(one, "order 1 refused\nby the bank") == stack(other, "order 2 refused\nby the bank")
    assert stack(one, "order 1 refused\nby the bank") == "Error\n    at pay (/srv/pay.js:1:2)"


def test_a_stack_whose_message_is_not_the_reported_one_keeps_it():
    assert stack(STACK, "something else") == STACK


@pytest.mark.parametrize(
    ("head", "error", "expected"),
    [
        ("TypeError: x", "TypeError", "x"),
        ("AxiosError: Request failed: 503", "AxiosError", "Request failed: 503"),
        ("TypeError [ERR_INVALID_ARG_TYPE]: The path", "TypeError", "The path"),
        ("Error", "Error", ""),
        ("Error\nover lines", "Error", "over lines"),
        ("shop.payment.Refused: no", "", "shop.payment.Refused: no"),
        ("timeout: 5 s", "", "timeout: 5 s"),
        ("", "", ""),
    ],
)
def test_an_error_begins_with_its_type(head, error, expected):
    assert error_of(head) == (error, expected)


def test_joined_stacks_come_apart():
    one = "Error: one\n    at a (/s/a.js:1:1)\n    at b (/s/b.js:1:1)"
    last = "RangeError: two\nlines\n    at c (/s/c.js:1:1)"
    assert apart(f"{one}\n{one}\n{last}") == [one, one, last]
    assert apart(last) == [last] and apart("no stack") == ["no stack"] and apart("") == []
    assert apart(f"{one}\n{one}\n{last}", most=2) == [f"{one}\n{one}", last]


@pytest.mark.parametrize("text", ["", "no stack", "    at x (/a.js:1:1)", "at x", "\n    at ", 'Error: "x"\n   at y'])
def test_other_text_is_no_stack_or_reports_nothing(text):
    found = stack_of(text)
    assert found is None or not [call for call in found.calls if call.is_application]


@pytest.mark.parametrize(
    "hostile",
    [
        "\n    at " * 100_000,
        "Error: " + "a(" * 300_000 + "\n    at x",
        "\n    at " + "(" * 500_000,
        "E" * 900_000 + "\n    at a",
    ],
)
def test_any_text_is_read_at_once(hostile):
    begun = time.process_time()
    stack_of(hostile), apart(hostile), fingerprint("Error", "m", hostile), stack(hostile, "m")
    assert time.process_time() - begun < 2
