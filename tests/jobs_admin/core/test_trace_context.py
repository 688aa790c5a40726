"""The trace of a job by its message's headers; what is malformed is ignored."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.trace_context import SENTRY_TRACE, TRACEPARENT, TraceContext, event_id, find_trace, find_traces

TRACE, SPAN, OTHER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "771a43a4192642f0b136d5159a501700"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": PARENT},
        {"traceparent": f"cc-{TRACE}-{SPAN}-01-what-comes-later"},
        {"headers": {"traceparent": PARENT}},
        {"sentry-trace": f"{TRACE}-{SPAN}-1"},
        {"sentry-trace": f"{TRACE}-{SPAN}"},
        {"headers": {"sentry-trace": f"{TRACE}-{SPAN}-0"}},
        {"sentry-trace": f"{OTHER}-{SPAN}-1", "traceparent": PARENT},
        {"sentry-trace": f"{TRACE}-{SPAN}-1", "traceparent": "broken"},
        {"origin": "mail", "meta": {"try": 1, "_sentry_trace_headers": {"sentry-trace": f"{TRACE}-{SPAN}-1"}}},
        {"max_retries": 3, "_sentry_headers": {"sentry-trace": f"{TRACE}-{SPAN}-1", "baggage": "a=b"}},
        {"opts": {"attempts": 3, "tm": json.dumps({"traceparent": PARENT})}},
    ],
)
def test_a_trace_is_found_where_opentelemetry_and_sentry_write_it(headers):
    assert find_trace(json.dumps(headers)) == TraceContext(TRACE, SPAN)


def test_sentrys_own_trace_is_found_beside_opentelemetrys():
    headers = json.dumps({"traceparent": PARENT, "sentry-trace": f"{OTHER}-{SPAN}-1"})
    assert find_traces(headers) == {TRACEPARENT: TraceContext(TRACE, SPAN), SENTRY_TRACE: TraceContext(OTHER, SPAN)}
    assert find_traces(json.dumps({"traceparent": PARENT})) == {TRACEPARENT: TraceContext(TRACE, SPAN)}


@pytest.mark.parametrize(
    "value",
    [
        "", None, 7, [], {}, [PARENT], f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-01-more", f" {PARENT}",
        f"{PARENT}\n", f"{PARENT}\r\nX-Injected: 1", "0" * 1_000_000, f"00-{TRACE[:-1]}\u0665-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'a' * 10_000}", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_malformed_header_is_no_trace(value):
    assert find_trace(json.dumps({"traceparent": value, "sentry-trace": value})) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", '"traceparent"', "traceparent", '{"traceparent": "', "[" * 100_000 + "traceparent", "{}",
     '{"headers": ["traceparent"], "opts": {"tm": "{traceparent"}}', '{"opts": {"tm": 1, "traceparent": 2}}'],
)  # fmt: skip
def test_headers_in_any_shape_are_read_without_an_error(text):
    assert find_trace(text) is None


@given(
    st.text(),
    st.recursive(st.none() | st.text() | st.integers(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)),
)
def test_no_text_is_an_error(text, value):
    find_trace(text + "traceparent")
    find_trace(json.dumps({"traceparent": value, "headers": value, "opts": {"tm": text}}))
    find_trace(json.dumps({"traceparent": "", "meta": value, "_sentry_headers": value}))


def test_headers_of_a_megabyte_are_read():
    text = json.dumps({"x": "a" * 1_000_000, "traceparent": PARENT})
    assert find_trace(text) == TraceContext(TRACE, SPAN)
    assert find_trace(json.dumps({"traceparent": "00-" + "a" * 1_000_000})) is None


@pytest.mark.parametrize(
    "value", [None, 7, b"a" * 32, "a" * 31, "a" * 33, "A" * 32, "a" * 32 + "\n", "\u0665" * 32, [], TRACE + " "]
)
def test_only_32_hex_digits_are_the_id_of_an_event(value):
    assert event_id(value) == "" and event_id(TRACE) == TRACE
