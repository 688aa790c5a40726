"""Pickles are read without running them, and the jobs that hold them."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import pickle
import zlib

import pytest

from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.rq import call, options, pickled, reports
from jobs_admin.sources.rq.job_hash import Job


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_read_in_every_protocol_and_code_in_none(protocol, tmp_path):
    job = ("shop.send", None, ({"n": 1, "to": ["ann", None, True, 2.5, "ü", -3, 2**40]},), {"a": {"b": []}})
    value, is_plain = pickled.read(pickle.dumps(job, protocol))
    assert value == [job[0], None, list(job[2]), job[3]] and is_plain
    strange = (Evil(str(tmp_path / "made")), decimal.Decimal("1.5"), {1}, datetime.date(2026, 1, 1), (1,), b"x")
    for one in strange:
        value, is_plain = pickled.read(pickle.dumps(("shop.send", None, (one,), {}), protocol))
        assert value[0] == "shop.send" and not is_plain
    assert not (tmp_path / "made").exists()
    assert "1.5" in str(pickled.read(pickle.dumps(decimal.Decimal("1.5"), protocol))[0])


def test_small_pickles_of_endless_values_are_cut():
    shared, endless = ["x"], []
    for _ in range(60):
        shared = [shared, shared]
    endless.append(endless)
    for one in (shared, endless, {"a": endless}):
        value, is_plain = pickled.read(pickle.dumps(one))
        assert len(str(value)) < 1_000_000 and not is_plain


@pytest.mark.parametrize("junk", [b"", b"\x80", b"{}", b".", b"0.", b"e.", b"\x80\x05\x93.", b"(", b"h\xff.", b"x" * 9])
def test_what_is_no_pickle_is_refused(junk):
    with pytest.raises(pickled.NotPickled):
        pickled.read(junk)


def test_edited_arguments_are_pickled_as_the_job_was_and_others_are_refused():
    data = pickle.dumps(("shop.send", None, ({"n": 1},), {"to": "ann"}), 3)
    assert call.arguments(data) == ([{"n": 1}], {"to": "ann"})
    edited = call.decompressed(call.encode_edited(data, [{"n": 2}], None))
    assert edited[:2] == b"\x80\x03"
    assert pickle.loads(edited) == ("shop.send", None, ({"n": 2},), {"to": "ann"})  # noqa: S301 - pickled above
    for one in (pickle.dumps(("f", None, ({1},), {})), pickle.dumps(("f", decimal.Decimal(1), (), {})), b"?"):
        with pytest.raises(SourceRefused):
            call.encode_edited(one, [], None)


def test_a_job_whose_call_is_missing_or_unreadable_is_reported_without_arguments():
    failed = {b"status": b"failed", b"created_at": b"2026-11-21T03:00:00.0Z"}
    for job in (Job("mail", "j", "none", failed_score=9e9), Job("mail", "j", "hash", failed_score=9e9, fields=failed)):
        report = reports.build_report("shop", job, "exception")
        assert (report.task, report.args, report.kwargs) == ("", "", "")
    report = reports.build_report("shop", Job("mail", "j", "hash", fields={**failed, b"data": b"?" * 30}), "exception")
    assert json.loads(report.args) == ["… 30 bytes, neither JSON nor a pickle that can be shown …"]
    assert report.kwargs == "{}"


@pytest.mark.parametrize(
    ("fields", "quoted", "keeps_s"),
    [
        ({}, "no Retry", 31_536_000),
        ({b"retries_left": b"2", b"retry_intervals": b"[5]"}, "Retry(max=2, interval=5)", 31_536_000),
        ({b"failure_ttl": b"60"}, "no Retry, failure_ttl=60", 60),
        ({b"failure_ttl": b"-1"}, "no Retry, failure_ttl=-1", None),
    ],
)
def test_the_options_of_a_job_are_quoted_with_the_time_for_which_its_failure_is_stored(fields, quoted, keeps_s):
    found = options.read_job(Job("mail", "j", "hash", fields=fields))
    assert (found.quoted, found.keeps_s) == (quoted, keeps_s)


def test_a_secret_of_the_arguments_is_hidden_where_the_error_repeats_it():
    trace = 'Traceback (most recent call last):\n  File "/app/t.py", line 3, in login\n    ask("hunter2")\nE: hunter2 failed\n'
    data = pickle.dumps(("shop.login", None, (), {"user": "ann", "password": "hunter2"}))
    fields = {b"status": b"failed", b"data": data, b"exc_info": zlib.compress(trace.encode())}
    report = reports.build_report("shop", Job("mail", "j", "hash", failed_score=9e9, fields=fields), "exception")
    assert report.message == "[redacted] failed" and "hunter2" not in report.trace + report.kwargs
    assert report.redacted == 4
