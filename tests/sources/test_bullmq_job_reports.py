"""Jobs of BullMQ as reports: what their hashes say, reported from bytes."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as any_

from jobs_admin.core.envelope import decode, encode
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.bullmq import job_hash as bullmq_job_hash
from tests.kit.cases import with_cases

FAILED = {
    b"name": b"welcome",
    b"data": '{"customer": {"id": 42}, "café": "ü", "password": "hunter2"}'.encode(),
    b"opts": b'{"attempts":3,"backoff":{"type":"fixed","delay":100}}',
    b"timestamp": b"1795358234351",
    b"priority": b"3",
    b"failedReason": b"the partner is down",
    b"stacktrace": json.dumps(
        ["PartnerDown: it was\n    at a", "PartnerDown: the partner is down\n    at run (/app/w.js:1:2)"]
    ).encode(),
    b"atm": b"2",
    b"finishedOn": b"1795358234558",
}


def test_a_failed_job_reports_why_when_and_at_which_attempt():
    report = bullmq_job_hash.build_report("shop", "emails", "7", FAILED, 6)
    assert (report.kind, report.attempt, report.max_attempts, report.at) == ("exception", 2, 3, 1795358234.558)
    assert (report.error_type, report.message, report.task, report.priority) == (
        "PartnerDown",
        "the partner is down",
        "welcome",
        3,
    )
    assert report.trace.endswith("at run (/app/w.js:1:2)") and '"id": 42' in report.kwargs
    assert "hunter2" not in report.kwargs and report.is_raw_complete


def test_a_secret_of_the_data_is_hidden_where_the_error_repeats_it():
    stack = json.dumps(["LoginError: ann/hunter2 was refused\n    at login (/app/w.js:1:2)"]).encode()
    report = bullmq_job_hash.build_report(
        "shop", "emails", "7", FAILED | {b"failedReason": b"ann/hunter2 was refused", b"stacktrace": stack}, 6
    )
    assert report.message == "ann/[redacted] was refused" and report.trace.startswith(
        "LoginError: ann/[redacted] was refused"
    )
    assert report.redacted == 3


def test_who_resets_the_attempts_and_fails_again_has_made_one_more():
    again = FAILED | {b"atm": b"1", b"stacktrace": json.dumps(["a: b"] * 3).encode()}
    assert bullmq_job_hash.build_report("shop", "emails", "7", again, 6).attempt == 3


def test_a_job_that_stalled_too_often_was_lost_with_its_worker():
    report = bullmq_job_hash.build_report(
        "shop", "emails", "7", FAILED | {b"failedReason": bullmq_job_hash.STALLED.encode()}, 5
    )
    assert report.kind == "worker_lost"


@given(any_.dictionaries(any_.binary(max_size=20), any_.binary(max_size=50), max_size=5), any_.text(max_size=9))
def test_what_is_stored_of_a_job_comes_back_byte_for_byte(fields, job_id):
    message = bullmq_job_hash.Message(
        5, "emails", job_id.encode("utf-8", "replace").decode(), fields, ("dead", "1", "1795358234351")
    )
    assert bullmq_job_hash.unpack(bullmq_job_hash.pack(message)) == message


HOSTILE = {
    "no UTF-8": b'{"a": "\x80\xff"}',
    "broken": b"{",
    "nested": b"[" * 100_000,
    "empty": b"",
    "NUL": b'"\x00"',
    "a number that is too long": b"9" * 5_000,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_data_that_is_no_json_is_shown_as_text_and_stored_byte_for_byte(data):
    report = bullmq_job_hash.build_report("shop", "emails", "7", FAILED | {b"data": data}, 6)
    assert (
        "data that is no JSON" in json.loads(report.args)[-1]
        and bullmq_job_hash.unpack(report.raw).fields[b"data"] == data
    )
    with pytest.raises(SourceRefused):
        bullmq_job_hash.arguments(report.raw)


@pytest.mark.parametrize("value", [1e300, 10**4_000, {"__proto__": {"a": 1}}, "\ud83d", [[[[[]]]]], None, True, 1.5])
def test_any_value_is_shown_and_stored(value):
    data = json.dumps(value).encode()
    report = bullmq_job_hash.build_report("shop", "emails", "7", FAILED | {b"data": data}, 6)
    json.loads(report.args), json.loads(report.kwargs)
    assert bullmq_job_hash.unpack(report.raw).fields[b"data"] == data and decode(encode(report)).job_id == "7"


def test_data_over_the_limit_is_reported_by_its_size_and_stored_in_part():
    report = bullmq_job_hash.build_report("shop", "emails", "7", FAILED | {b"data": b'"' + b"x" * 2**24 + b'"'}, 6)
    assert (
        not report.is_raw_complete
        and report.raw_size > 2**24
        and len(report.raw) <= 2**16
        and len(report.args) < 20_000
    )
    with pytest.raises(SourceRefused):
        bullmq_job_hash.unpack(report.raw)


def test_data_that_was_not_read_is_reported_by_its_size():
    report = bullmq_job_hash.build_report("shop", "emails", "7", {b"name": b"a"}, 6, size=10**9)
    assert not report.is_raw_complete and report.raw_size > 10**9 and "1000000000 bytes" in report.args


def test_data_of_16_megabytes_of_quotes_does_not_grow():
    data = b'"' + b'\\"' * (2**22) + b'"'
    assert len(bullmq_job_hash.build_report("shop", "emails", "7", {b"data": data}, 6).raw) < len(data) + 500


NAMES = [n.decode() for n in bullmq_job_hash.REPORTED_FIELDS + bullmq_job_hash.STORED_FIELDS]


@with_cases(
    "name, hostile",
    product(
        NAMES, [b"", b"\xff", b"[", b"null", b"9" * 50, b"1e999", b"-5", b"NaN", b'{"a":1}', b"[[[]]]", b'["\\ud800"]']
    ),
)
def test_any_field_may_hold_anything(name, hostile):
    report = bullmq_job_hash.build_report(
        "shop", "emails", "7", FAILED | {name.encode(): hostile}, 6, tenant_paths=["kwargs.customer.id"]
    )
    assert decode(encode(report)).attempt >= 1 and 0 < report.max_attempts < 2**31


def test_options_and_parent_are_reported_in_words():
    parent = {b"opts": b'{"attempts":3,"fpof":true,"kl":5}', b"parentKey": b"bull:checkout:12", b"stc": b"2"}
    headers = json.loads(bullmq_job_hash.build_report("shop", "emails", "7", FAILED | parent, 5).headers)
    assert headers["opts"] == {"attempts": 3, "failParentOnFailure": True, "keepLogs": 5}
    assert headers["parent"] == {"queue": "checkout", "id": "12"} and headers["stalledCounter"] == 2
    assert bullmq_job_hash.in_short(headers["opts"]) == {"attempts": 3, "fpof": True, "kl": 5}


def test_whose_job_it_is_is_in_its_data():
    report = bullmq_job_hash.build_report(
        "shop", "emails", "7", FAILED, 6, tenant_paths=["kwargs.none", "kwargs.customer.id"]
    )
    assert report.tenant == "42"


def test_an_error_that_no_attempt_helps_is_permanent():
    never = {
        b"stacktrace": json.dumps(["UnrecoverableError: no such order\n    at x (/a.js:1:1)"]).encode(),
        b"atm": b"1",
    }
    report = bullmq_job_hash.build_report(
        "shop", "emails", "7", FAILED | never | {b"failedReason": b"no such order"}, 6
    )
    assert (report.error_type, report.reason, report.attempt) == ("UnrecoverableError", "permanent", 1)


def test_what_was_dropped_at_once_reports_what_to_set():
    report = bullmq_job_hash.build_dropped_report("shop", "emails", "7", "Error: no", 5.0)
    assert report.raw is None and "removeOnFail: {count" in report.reason and len(report.reason) <= 200


def test_a_job_has_one_value_shown_by_its_names_or_as_its_argument():
    def read(data):
        return bullmq_job_hash.arguments(
            bullmq_job_hash.build_report("shop", "q", "7", FAILED | {b"data": data}, 6).raw
        )

    assert read(b'{"a":1}') == ([], {"a": 1}) and read(b"[1,2]") == ([[1, 2]], {})
    assert (
        bullmq_job_hash.encode_edited([[1, 2]], None) == b"[1,2]"
        and bullmq_job_hash.encode_edited([], {"a": "ü"}) == '{"a":"ü"}'.encode()
    )
    with pytest.raises(SourceRefused):
        bullmq_job_hash.encode_edited([1, 2], None)
