from __future__ import annotations

import time
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.fingerprint import fingerprint, frames, normalise, stack

TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/celery/app/trace.py", line 451, in trace_task
    R = retval = fun(*args, **kwargs)
                 ^^^^^^^^^^^^^^^^^^^^
  File "/srv/releases/20261101/shop/tasks.py", line 88, in charge
    partner.post(order)
  File "/srv/releases/20261101/shop/partner.py", line 17, in post
    raise Refused(order)
shop.partner.Refused: order 4711 refused
"""


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("order 17 took 3.5 s", "order <number> took <number> s"),
        ("order-17 of customer_99", "order-<number> of customer_<number>"),
        ("job 3f2504e0-4f89-11d3-9a0c-0305e82c3301 gone", "job <uuid> gone"),
        ("commit deadbeef1 at 0x7f3a2c", "commit <hex> at <hex>"),
        ("10.0.0.12:6379 refused", "<ip> refused"),
        ("connecting to 10.0.0.12:6379. Refused.", "connecting to <ip>. Refused."),
        ("https://hooks.tenant-3.example/a timed out", "https://hooks.tenant-<number>.example/a timed out"),
        ("fe80:0:0:1::2 and 2001:db8::1 refused", "<ip> and <ip> refused"),
        ("no such file: /var/data/17/a.csv", "no such file: <path>"),
        (r"no such file: C:\data\a.csv", "no such file: <path>"),
        ("ann@example.com bounced", "<email> bounced"),
        ("at 2026-11-21T03:28:30.123Z", "at <time>"),
        ("until Sat, 21 Nov 2026 03:28:30 GMT", "until <time>"),
        ("unknown customer 'Ann Lee'", "unknown customer <quoted>"),
        ('unknown tenant "acme"', "unknown tenant <quoted>"),
        ("no customer cus_9s6XKzkNRiz8i3", "no customer <id>"),
        ("missing ids [1, 2, 3]", "missing ids [<number>]"),
        (
            "GET https://u:p@api.example.com:8443/v1/orders/17?key=1 failed",
            "GET https://api.example.com:<number>/v1/orders/<id> failed",
        ),
        ("[Errno 111] Connection refused", "[Errno 111] Connection refused"),
        ("status 503 after 12 s", "status 503 after <number> s"),
        ("don't stop, it's fine", "don't stop, it's fine"),
        ("two\n  lines", "two lines"),
    ],
)
def test_the_variable_parts_of_a_message_become_their_names(message, plain):
    assert normalise(message) == plain


def test_the_same_break_with_other_ids_lines_and_folders_is_one_group():
    other = TRACE.replace("4711", "12").replace("line 88", "line 93").replace("20261101", "20261108")
    one = fingerprint("shop.partner.Refused", "order 4711 refused", TRACE)
    assert one == fingerprint("shop.partner.Refused", "order 12 refused", other.replace("/srv/", "/home/ann/"))
    assert one.value.startswith("v1-") and len(one.value) <= 40
    assert one.culprit == "shop/partner.py in post"


def test_another_type_place_message_or_cause_is_another_group():
    said = "order 4711 refused"
    chained = 'Traceback (most recent call last):\n  File "/a/b.py", line 1, in f\n    x\nKeyError: 1\n\n'
    chained += "During handling of the above exception, another exception occurred:\n\n" + TRACE
    values = {
        fingerprint("shop.partner.Refused", said, TRACE).value,
        fingerprint("shop.partner.Broken", said, TRACE).value,
        fingerprint("shop.partner.Refused", "no such order", TRACE).value,
        fingerprint("shop.partner.Refused", said, TRACE.replace("in post", "in put")).value,
        fingerprint("shop.partner.Refused", said, chained).value,
    }
    assert len(values) == 5


def test_frames_of_libraries_do_not_count():
    other = TRACE.replace("trace.py", "elsewhere.py").replace("trace_task", "renamed")
    assert fingerprint("E", "m", TRACE).value == fingerprint("E", "m", other).value


def test_only_the_last_exceptions_own_frames_count():
    cause = 'Traceback (most recent call last):\n  File "/a/shop/{}.py", line 1, in f\n    x\nKeyError: 1\n\n'
    between = "The above exception was the direct cause of the following exception:\n\n"
    one, other = (cause.format(n) + between + TRACE for n in ("one", "other"))
    assert fingerprint("E", "m", one).value == fingerprint("E", "m", other).value


def test_how_deep_a_recursion_went_does_not_count():
    frame = '  File "/srv/shop/tree.py", line 3, in walk\n    walk(node)\n'
    head = "Traceback (most recent call last):\n"
    deep, deeper = (head + frame * n + "RecursionError: too deep\n" for n in (5, 50))
    assert (
        fingerprint("RecursionError", "too deep", deep).value == fingerprint("RecursionError", "too deep", deeper).value
    )


def test_names_in_code_tell_attribute_errors_apart_but_values_do_not():
    total, tax = (
        fingerprint("AttributeError", f"'NoneType' object has no attribute '{a}'", "") for a in ("total", "tax")
    )
    assert total.value != tax.value
    one, other = (fingerprint("ValueError", f"invalid literal: '{a}'", "") for a in ("abc", "xyz"))
    assert one.value == other.value


def test_frames_are_read_with_their_code_and_origin():
    library, charge, post = frames(TRACE)
    assert not library.is_application and library.code == "R = retval = fun(*args, **kwargs)"
    assert (charge.line, charge.function, charge.code, charge.is_application) == (
        88,
        "charge",
        "partner.post(order)",
        True,
    )
    assert post.file == "/srv/releases/20261101/shop/partner.py"


def test_the_traceback_of_this_python_is_understood():
    try:
        try:
            {}["x"]
        except KeyError as error:
            raise ValueError("order 17") from error
    except ValueError:
        text = traceback.format_exc()
    assert [f.function for f in frames(text)] == ["test_the_traceback_of_this_python_is_understood"] * 2
    assert stack(text, "order 17").endswith("\nValueError\n")


def test_stacks_that_differ_only_in_the_repeated_message_are_one():
    assert stack(TRACE, "order 4711 refused") == stack(TRACE.replace("4711", "12"), "order 12 refused")


def test_last_words_that_say_more_than_the_message_stay():
    assert stack(TRACE + "and a note\n", "order 4711 refused").endswith("and a note\n")


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=2000))
def test_no_text_breaks_it(error_type, message, trace):
    assert fingerprint(error_type, message, trace) == fingerprint(error_type, message, trace)
    frames(trace)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.uuids(), st.uuids())
def test_ids_never_split_a_group(number, other, key, other_key):
    def said(n, k):
        return f"order {n} of tenant-{n} ({k}) at /srv/x/{n}: 'it {n}' is gone from https://x.example/{k}/{n}?a={n}"

    assert normalise(said(number, key)) == normalise(said(other, other_key))


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "1",
        "/",
        "/a",
        "'",
        '"',
        "<",
        "a@",
        "a.",
        "1.",
        "::",
        "a:",
        "0x",
        "-",
        " ",
        "http://",
        "\\",
        "F\n",
        "1a",
        "%",
        "\ud800",
        '  File "',
        '  File "a", line 1, in f\n',
        "During handling of the above exception, another exception occurred:\n",
    ],
)
def test_a_megabyte_of_anything_takes_bounded_time(piece):
    text = piece * (1_000_000 // len(piece))
    began = time.process_time()
    fingerprint("E", text, text)
    assert time.process_time() - began < 0.5
