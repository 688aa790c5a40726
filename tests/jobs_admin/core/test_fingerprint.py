from __future__ import annotations

import time
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.fingerprint import (
    Fingerprint,
    Rules,
    Split,
    _value,
    differences,
    explain,
    fingerprint,
    parts_of,
)
from jobs_admin.core.normalising import normalise
from jobs_admin.core.trace_path import ignores
from jobs_admin.core.traces import frames, stack
from tests.kit.cases import with_cases

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


@with_cases(
    "message, plain",
    [
        ("order 17 took 3.5 s", "order <number> took <number> s"),
        ("order-17 of customer_99", "order-<number> of customer_<number>"),
        ("job 3f2504e0-4f89-11d3-9a0c-0305e82c3301 gone", "job <uuid> gone"),
        ("commit deadbeef1 at 0x7f3a2c", "commit <hex> at <hex>"),
        ("10.0.0.12:6379 refused", "<ip> refused"),
        ("connecting to 10.0.0.12:6379. Refused.", "connecting to <ip>. Refused."),
        ("https://hooks.tenant-3.example/a timed out", "<url> timed out"),
        ("connecting to cache-1.eu.example:6379 failed", "connecting to <host> failed"),
        ("503 Server Error: Busy for url: https://a.example/x", "503 Server Error: Busy for url: <url>"),
        ("article A-17 of INV-2026-0099 and 9f31c2", "article <id> of <id> and <id>"),
        ("at 10:00 and T03:04", "at <time> and <time>"),
        ('violates unique constraint "orders_key"', 'violates unique constraint "orders_key"'),
        ("DETAIL:  Key (name)=(Ann Lee) already exists.", "DETAIL: Key (name)=<values> already exists."),
        ("syntax error\nLINE 1: selct 17\n        ^", "syntax error"),
        (
            "Caused by ResponseError('too many 503 error responses')",
            "Caused by ResponseError('too many 503 error responses')",
        ),
        ("(104, 'Connection reset by peer')", "(104, 'Connection reset by peer')"),
        ("404, message='Not Found', url='https://a.example'", "404, message='Not Found', url=<quoted>"),
        ("{'email': ['Not a valid address.']}", "{'email': ['Not a valid address.']}"),
        ("{'ann@example.com': (550, b'no such user')}", "{<quoted>: (550, b'no such user')}"),
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
        ("GET https://u:p@api.example.com:8443/v1/orders/17?key=1 failed", "GET <url> failed"),
        ("[Errno 111] Connection refused", "[Errno 111] Connection refused"),
        ("status 503 after 12 s", "status 503 after <number> s"),
        ("don't stop, it's fine", "don't stop, it's fine"),
        ("two\n  lines", "two lines"),
        (
            "Duplicate entry 'a@b.example' for key 'orders.uq_email'",
            "Duplicate entry <quoted> for key 'orders.uq_email'",
        ),
        ('missing the "sub" claim', 'missing the "sub" claim'),
        ("'iban' is a required property", "'iban' is a required property"),
        ("lost data['email'] of 'Ann'", "lost data['email'] of <quoted>"),
        ("user 'maria' lacks permission 'orders.write'", "user <quoted> lacks permission 'orders.write'"),
        ("customer 'acme_corp' is closed", "customer <quoted> is closed"),
        ("[<class 'decimal.ConversionSyntax'>]", "[<class 'decimal.ConversionSyntax'>]"),
        ("{'error': 'invalid_grant', 'user': 'ann'}", "{'error': 'invalid_grant', 'user': <quoted>}"),
        ("['“abc” value must be a number.']", "['<quoted> value must be a number.']"),
        ("claims-2026-10-31.csv of nord", "<file> of nord"),
        ('no: {"id": 7, "error": {"code": "gone", "type": "late"}, "at": 17}', "no: {code: gone, type: late}"),
        ("no row\n\nIn schema['amount']:\n  {'type': 'number'}\n", "no row In schema['amount']:"),
        ("status = X\n debug_error_string = \"{'a': 1}\"", "status = X debug_error_string = <values>"),
    ],
)
def test_the_variable_parts_of_a_message_become_their_names(message, plain):
    assert normalise(message) == plain


def test_the_same_break_with_other_ids_lines_and_folders_is_one_group():
    other = TRACE.replace("4711", "12").replace("line 88", "line 93").replace("20261101", "20261108")
    one = fingerprint("shop.partner.Refused", "order 4711 refused", TRACE)
    assert one == fingerprint("shop.partner.Refused", "order 12 refused", other.replace("/srv/", "/home/ann/"))
    assert one.value.startswith("v3-") and len(one.value) <= 40
    assert one.culprit == "shop/partner.py in post"


def test_another_type_place_message_or_cause_is_another_group():
    message = "order 4711 refused"
    chained = 'Traceback (most recent call last):\n  File "/a/b.py", line 1, in f\n    x\nKeyError: 1\n\n'
    chained += "During handling of the above exception, another exception occurred:\n\n" + TRACE
    values = {
        fingerprint("shop.partner.Refused", message, TRACE).value,
        fingerprint("shop.partner.Broken", message, TRACE).value,
        fingerprint("shop.partner.Refused", "no such order", TRACE).value,
        fingerprint("shop.partner.Refused", message, TRACE.replace("in post", "in put")).value,
        fingerprint("shop.partner.Refused", message, chained).value,
    }
    assert len(values) == 5


POOL = """Traceback (most recent call last):
  File "/srv/venv/lib/python3.11/site-packages/billiard/pool.py", line 683, in on_hard_timeout
    raise TimeLimitExceeded(job._timeout)
billiard.exceptions.TimeLimitExceeded: TimeLimitExceeded(3,)
"""


@pytest.mark.parametrize("trace", ["", POOL])
def test_the_task_counts_where_no_frame_of_the_application_names_a_place(trace):
    error = ("billiard.exceptions.TimeLimitExceeded", "hard time limit of 3 s exceeded", trace)
    send, again, bill = (fingerprint(*error, facts={"task": t, "queue": t}).value for t in ("send", "send", "bill"))
    assert send == again != bill
    (difference,) = differences(*(explain(*error, facts={"task": task}) for task in ("send", "bill")))
    assert (difference.part, difference.left, difference.right) == ("task", "send", "bill")
    send, bill = (fingerprint("E", "m", TRACE, facts={"task": task}).value for task in ("send", "bill"))
    assert send == bill


CODED = """Traceback (most recent call last):
  File "/srv/shop/pay.py", line 3, in pay
    {}
shop.E: {}
"""
DECIDES = "self.refuse(text)"  # a line that tells nothing of the message


def grouped(code, one, other):
    return len({fingerprint("shop.E", message, CODED.format(code, message)).value for message in (one, other)}) == 1


@pytest.mark.parametrize(
    ("code", "one", "other"),
    [
        (DECIDES, "ORA-00942: table or view does not exist", "ORA-00001: table or view does not exist"),
        (DECIDES, "ORA-00942", "ORA-00001"),
        (DECIDES, "close_month: ORA-00942", "close_month: ORA-00001"),
        (DECIDES, "E1001: refused", "E2002: refused"),
        (DECIDES, "[E1001] refused", "[E2002] refused"),
        (DECIDES, "refused (E1001)", "refused (E2002)"),
        (DECIDES, "failed with E1001", "failed with E2002"),
        ('raise E("E1001 refused")', "E1001 refused", "E2002 refused"),
        (DECIDES, "partner returned 404", "partner returned 500"),
        ('raise E(f"gave {r.status_code} for {order}")', "gave 404 for 17", "gave 500 for 17"),
        ('raise E(f"bank said {code}")', "bank said 17", "bank said 51"),
        ('raise E("bank said %s" % reason_code)', "bank said 17", "bank said 51"),
        ('raise E(f"variable {name} is not set")', "variable FEATURE_X is not set", "variable STRIPE_KEY is not set"),
        (DECIDES, "variable FEATURE_X is not set", "variable STRIPE_KEY is not set"),
        ('raise E(f"declined: {answer}")', "declined: insufficient_funds", "declined: expired_card"),
        (DECIDES, "declined: insufficient_funds", "declined: expired_card"),
    ],
)
def test_the_code_of_an_error_separates_groups(code, one, other):
    assert not grouped(code, one, other)


@pytest.mark.parametrize(
    ("code", "one", "other"),
    [
        (DECIDES, "order INV-2026-17 failed", "order INV-2026-18 failed"),
        (DECIDES, "invoice (INV-17) not paid", "invoice (INV-18) not paid"),
        (DECIDES, "customer K7781 unknown", "customer K9917 unknown"),
        (DECIDES, "returned 404 rows", "returned 500 rows"),
        (DECIDES, "charged 404 for order 3", "charged 500 for order 9"),
        (DECIDES, "failed after 404 tries", "failed after 500 tries"),
        (DECIDES, "order 404 failed", "order 500 failed"),
        ('raise E(f"{sku}: out of stock")', "SKU1234: out of stock", "SKU99: out of stock"),
        ('raise E(f"zip {zip_code} unknown")', "zip 24103 unknown", "zip 24105 unknown"),
        (
            'raise E(f"tenant {t} has no gateway")',
            "tenant acme_corp has no gateway",
            "tenant globex_ltd has no gateway",
        ),
        ('raise E(f"{tenant} is closed")', "acme_corp is closed", "globex_ltd is closed"),
        (DECIDES, "no room: 116. TiB", "no room: 3.2 GiB"),
        (DECIDES, "{1: {'email': ['bad']}}", "{3: {'email': ['bad']}, 9: {'email': ['bad']}}"),
    ],
)
def test_ids_counts_and_amounts_in_the_form_of_codes_do_not(code, one, other):
    assert grouped(code, one, other)


def test_which_value_a_line_read_separates_two_errors_of_one_function():
    one, other = (
        fingerprint(
            "ValueError",
            "could not convert string to float: ''",
            CODED.format(f'float(row["{key}"])', "").replace(
                "shop.E: ", "ValueError: could not convert string to float: ''"
            ),
        ).value
        for key in ("amount", "weight")
    )
    assert one != other


def test_in_which_step_a_time_limit_strikes_and_where_a_recursion_breaks_do_not_count():
    frame = '  File "/srv/shop/tasks.py", line 3, in {}\n    x\n'
    for error in ("celery.exceptions.SoftTimeLimitExceeded", "RecursionError"):
        ends = [("rank", "load"), ("rank", "weigh")] if "Soft" in error else [("walk", "visit"), ("visit", "walk")]
        traces = [f"Traceback (most recent call last):\n{''.join(map(frame.format, end))}{error}: m\n" for end in ends]
        assert len({fingerprint(error, "m", trace).value for trace in traces}) == 1


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


def test_names_in_code_separate_attribute_errors_but_values_do_not():
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


def test_last_words_that_report_more_than_the_message_stay():
    assert stack(TRACE + "and a note\n", "order 4711 refused").endswith("and a note\n")


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=2000))
def test_no_text_breaks_it(error_type, message, trace):
    assert fingerprint(error_type, message, trace) == fingerprint(error_type, message, trace)
    frames(trace)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.uuids(), st.uuids())
def test_ids_never_split_a_group(number, other, key, other_key):
    def build_message(n, k):
        return f"order {n} of tenant-{n} ({k}) at /srv/x/{n}: 'it {n}' is gone from https://x.example/{k}/{n}?a={n}"

    assert normalise(build_message(number, key)) == normalise(build_message(other, other_key))


_PIECES = st.sampled_from(
    [
        "Traceback (most recent call last):\n",
        '  File "/srv/shop/tasks.py", line 7, in charge\n    raise Refused(f"order {order} refused")\n',
        '  File "/srv/shop/tasks.py", line 9, in post\n    float(row["amount"])\n',
        '  File "/venv/lib/python3.11/site-packages/requests/api.py", line 3, in get\n    send(payer.iban)\n',
        "KeyError: 'x'\n",
        "socket.timeout: timed out after 17 s\n",
        "shop.Refused: order 4711 refused\n",
        "\nThe above exception was the direct cause of the following exception:\n\n",
        "\nDuring handling of the above exception, another exception occurred:\n\n",
    ]
)
_MESSAGES = st.sampled_from(
    [
        "order 4711 refused", "order 12 refused", "timed out after 17 s", "'NoneType' object has no attribute 'iban'",
        "could not convert string to float: 'x'", "Request failed", "404 Client Error: Not Found for url: https://a/1", "",
    ]
)  # fmt: skip
_TYPES = st.sampled_from(
    ["shop.Refused", "KeyError", "ValueError", "AttributeError", "RecursionError", "socket.timeout"]
)


@given(
    st.lists(st.tuples(_TYPES, _MESSAGES, st.lists(_PIECES, max_size=9).map("".join), st.sampled_from(["", "a", "b"]))),
    st.sampled_from([(), ("*/tasks.py in post",)]),
)
def test_what_is_cached_of_errors_is_what_each_gives_alone(errors, ignored):
    for kind, message, trace, task in errors:
        alone = parts_of(kind, message, trace, ignored, task, [])
        expected = Fingerprint(_value.__wrapped__(*_value_parts(alone)), alone.title[:500], alone.culprit)
        assert fingerprint(kind, message, trace, Rules(ignored), {"task": task}) == expected
        assert parts_of(kind, message, trace, ignored, task) == alone


def _value_parts(parts):
    return parts.type, parts.causes, parts.frames, parts.plain, parts.task


@with_cases(
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
        "a\n ^\n",
        "[parameters: ",
        ")=(",
        "(Caused by X('",
        "table 'a' ",
        "A-1-",
        '{"a":"',
        "{'code': 'b', ",
        '\\"',
        "“",
        "a.csv",
        "a:\n\n b",
        "debug=",
        "available a [",
        "field 'a' ",
        "'a_b_",
        "aB",
        "a1a1",
        "    | ",
        "status=404 A(",
        '  File "',
        '  File "a", line 1, in f\n',
        "During handling of the above exception, another exception occurred:\n",
    ],
)
def test_a_megabyte_of_anything_takes_bounded_time(piece):
    text = piece * (1_000_000 // len(piece))

    def took_s() -> float:
        began = time.process_time()
        fingerprint("E", text, text)
        return time.process_time() - began

    # Some 10 ms. The better of three: a collection of garbage of the whole run may fall into one.
    assert min(took_s() for _ in range(3)) < 0.5


# -- what a library says in its own words ---------------------------------------------------------------------------

WRAPPED = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/urllib3/connection.py", line 174, in _new_conn
    sock.connect(sa)
{root}

{between}

Traceback (most recent call last):
  File "/srv/shop/partner.py", line 17, in post
    requests.post(order)
  File "/venv/lib/python3.11/site-packages/requests/adapters.py", line 519, in send
    raise ConnectionError(e)
{error}
"""
HANDLING = "During handling of the above exception, another exception occurred:"
FROM = "The above exception was the direct cause of the following exception:"
REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"


def wrapped(error_type, message, *, root=REFUSED, between=HANDLING):
    trace = WRAPPED.format(root=root, between=between, error=f"{error_type}: {message}")
    return fingerprint(error_type, message, trace).value


def test_the_words_and_the_class_in_which_a_library_wraps_a_cause_do_not_count():
    before = wrapped(
        "requests.exceptions.ConnectionError", "Failed: NewConnectionError('[Errno 111] Connection refused')"
    )
    after = wrapped("requests.errors.ConnectError", "Pool(host='a') says: Connection refused", between=FROM)
    late = wrapped("requests.exceptions.ConnectionError", "Failed: timed out", root="TimeoutError: timed out")
    assert before == after != late


def test_an_error_a_library_handles_before_it_fails_is_no_cause():
    noise = 'Traceback (most recent call last):\n  File "/venv/lib/python3.11/site-packages/kombu/x.py", line 1, in get\n    x\n'
    noise += f"AttributeError: '__value__'\n\n{HANDLING}\n\n"
    trace = WRAPPED.format(root=REFUSED, between=FROM, error="E: Connection refused")
    assert fingerprint("E", "Connection refused", trace) == fingerprint("E", "Connection refused", noise + trace)


def test_the_same_words_of_the_application_over_another_cause_are_another_group():
    own = WRAPPED.replace(
        '  File "/venv/lib/python3.11/site-packages/requests/adapters.py", line 519, in send\n    raise ConnectionError(e)\n',
        "",
    )
    roots = (REFUSED, "TimeoutError: timed out", "KeyError: 'card'", "KeyError: 'number'")
    assert len({fingerprint("E", "no", own.format(root=r, between=FROM, error="E: no")).value for r in roots}) == 4


def test_comprehensions_that_older_pythons_run_as_functions_do_not_count():
    old = TRACE.replace(
        "    raise Refused(order)",
        '    f()\n  File "/srv/releases/20261101/shop/partner.py", line 17, in <listcomp>\n    raise Refused(order)',
    )
    new = TRACE.replace("    raise Refused(order)", "    raise Refused(order)")
    assert fingerprint("E", "m", old).value == fingerprint("E", "m", new).value


@pytest.mark.parametrize(
    ("code", "one", "other", "is_same"),
    [
        ('raise E(f"tenant {tenant} is closed")', "tenant acme is closed", "tenant globex is closed", True),
        ('raise E("tenant %s is closed" % tenant)', "tenant acme is closed", "tenant globex is closed", True),
        ('raise E("tenant {} is closed".format(t))', "tenant acme is closed", "tenant globex is closed", True),
        ('raise E(f"order {order}: {reason}")', "order 1: stolen", "order 2: expired", False),
        ('raise E(f"order {order}: {what}")', "order 1: card stolen", "order 2: card expired", False),
        ("raise E(words)", "tenant acme is closed", "tenant globex is closed", False),
    ],
)
def test_a_bare_word_varies_where_the_code_reports_it_unless_its_name_reveals_which_error_it_is(
    code, one, other, is_same
):
    trace = f'Traceback (most recent call last):\n  File "/srv/shop/a.py", line 1, in f\n    {code}\nE\n'
    assert (fingerprint("E", one, trace).value == fingerprint("E", other, trace).value) == is_same


@pytest.mark.parametrize("one", ["acme", "17", "ann@acme.example", "claims_7.csv", "acme-17/x"])
def test_values_of_different_shape_are_one_group(one):
    code = 'raise E(f"nothing from {sender} today")'
    trace = f'Traceback (most recent call last):\n  File "/srv/shop/a.py", line 1, in f\n    {code}\nE\n'
    left, right = (explain("E", f"nothing from {who} today", trace) for who in (one, "globex"))
    assert (
        fingerprint("E", f"nothing from {one} today", trace).value
        == fingerprint("E", "nothing from globex today", trace).value
    )
    assert differences(left, right) == []


@pytest.mark.parametrize("words", ["Connection error", "", "Unknown error", "Request failed."])
def test_a_cause_replaces_words_of_a_library_that_report_nothing(words):
    refused, late = (
        wrapped("lib.ConnectError", words, root=root) for root in (REFUSED, "TimeoutError: read timed out")
    )
    assert refused == wrapped("lib.ConnectError", "Pool says: Connection refused") != late


PASSED = """Traceback (most recent call last):
  File "/srv/shop/a.py", line 1, in charge
    again(lambda: send(order))
  File "/srv/shop/a.py", line 2, in again
    return work()
  File "/srv/shop/a.py", line 1, in <lambda>
    again(lambda: send(order))
  File "/srv/shop/a.py", line 3, in wrapper
    result = self.measured(func, order)
  File "/srv/shop/a.py", line 4, in send
    {0}
E: m
"""


def test_functions_that_only_pass_on_do_not_count_and_are_reported_as_such():
    explanation = explain("E", "m", PASSED.format("x"))
    assert [f.place.split()[-1] for f in explanation.frames if f.counts] == ["charge", "send"]
    assert [f.why_not for f in explanation.frames] == ["", "passed", "passed", "passed", ""]


def test_a_function_that_calls_another_by_its_name_counts_and_so_does_a_wrapper_that_raises():
    direct = PASSED.replace("return work()", "return send()")
    raising = PASSED.replace("in send\n", "in wrapper\n")
    assert "shop/a.py in again" in [f.place for f in explain("E", "m", direct).frames if f.counts]
    assert fingerprint("E", "m", raising.format("x")).culprit == "shop/a.py in wrapper"


def test_which_name_was_none_separates_two_errors_of_one_function():
    message = "'NoneType' object has no attribute 'iban'"
    payer, payee = (
        fingerprint("AttributeError", message, PASSED.format(code)) for code in ("pay(payer.iban)", "pay(payee.iban)")
    )
    assert payer.value != payee.value


def test_the_errors_in_an_exception_group_count():
    group = """  + Exception Group Traceback (most recent call last):
  |   File "/srv/shop/a.py", line 1, in f
  |     raise ExceptionGroup("several", errors)
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | {0}: order 1
    +---------------- 2 ----------------
    | {0}: order 2
    +------------------------------------
"""
    one, other = (fingerprint("ExceptionGroup", "", group.format(kind)).value for kind in ("ValueError", "TypeError"))
    assert one != other


# -- rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "place", "fits"),
    [
        ("a.py in f", "a.py in f", True),
        ("a.py in f", "a.py in ff", False),
        ("*/a.py in *", "shop/a.py in f", True),
        ("*/a.py in *", "shop/b.py in f", False),
        ("a*a", "a", False),
        ("a*b*c", "a b c", True),
        ("a[b]*", "a[b]c", True),
        ("a.c*", "abc", False),
    ],
)
def test_a_star_is_anything_and_everything_else_is_itself(pattern, place, fits):
    assert ignores(pattern, place) == fits


def test_a_pattern_full_of_stars_takes_no_time():
    began = time.process_time()
    assert not ignores("a*" * 150 + "b", "a" * 1300)
    assert time.process_time() - began < 0.1


def test_an_ignored_frame_does_not_count_and_is_reported_as_such():
    rules = Rules(ignored=("*/partner.py in *",))
    other = TRACE.replace("in post", "in put")
    assert fingerprint("E", "m", TRACE, rules) == fingerprint("E", "m", other, rules)
    explanation = explain("E", "m", TRACE, rules)
    assert [f.counts for f in explanation.frames] == [False, True, False]
    assert explanation.acted == ("the frame */partner.py in * is ignored",)


def test_a_group_that_is_split_has_a_fingerprint_for_each_value_and_reports_it_in_its_title():
    value = fingerprint("E", "m", TRACE).value
    rules = Rules(splits={value: Split(value, "queue")})
    emails, other = (fingerprint("E", "m", TRACE, rules, {"queue": q}) for q in ("emails", "webhooks"))
    assert len({value, emails.value, other.value}) == 3 and emails.title_message == "m (queue: emails)"
    assert explain("E", "m", TRACE, rules, {"queue": "emails"}).acted == ("its group is split by queue: emails",)


# -- told to people -----------------------------------------------------------------------------------------------


def test_an_explanation_names_what_was_replaced_by_what():
    explanation = explain("shop.partner.Refused", "order 4711 of 'acme' refused", TRACE)
    assert (explanation.type, explanation.message) == ("Refused", "order <number> of <quoted> refused")
    assert explanation.replaced == (("number", "4711"), ("quoted", "'acme'"))
    assert [f.place for f in explanation.frames if f.counts] == ["shop/tasks.py in charge", "shop/partner.py in post"]


def test_a_wrapped_cause_shows_its_own_replaced_words():
    trace = WRAPPED.format(root="OSError: no such order 17", between=FROM, error="E: Pool 99: no such order 17")
    explanation = explain("E", "Pool 99: no such order 17", trace)
    assert (
        explanation.is_wrapped
        and explanation.replaced == (("number", "17"),)
        and explanation.message == "no such order <number>"
    )


@pytest.mark.parametrize(
    ("message", "trace", "part", "reason", "left", "right"),
    [
        ("order 9 was late", TRACE, "message", "message word 3 to 4", "refused", "was late"),
        ("order 9 lost", TRACE, "message", "message word 3", "refused", "lost"),
        (
            "order 9 refused",
            TRACE.replace("in post", "in put"),
            "frame",
            "application frame 2",
            "shop/partner.py in post",
            "shop/partner.py in put",
        ),
    ],
)
def test_two_errors_are_distinguished_in_words(message, trace, part, reason, left, right):
    (difference,) = differences(explain("E", "order 4711 refused", TRACE), explain("E", message, trace))
    assert (difference.part, difference.place, difference.left, difference.right) == (part, reason, left, right)


def test_errors_of_one_group_differ_in_nothing():
    assert differences(explain("E", "order 1 refused", TRACE), explain("E", "order 2 refused", TRACE)) == []
