"""The curve by which a jobs table waits, from the rows that wait."""

from __future__ import annotations

import pytest

from jobs_admin.core import lint
from jobs_admin.core.lint.options import FoundOptions, SampledQueue
from jobs_admin.sources.jobs_table.source import UNKNOWN, find_options, recognise_curve


@pytest.mark.parametrize(
    ("seen", "curve"),
    [
        ({1: 30, 2: 60, 3: 91}, ("linear", 30)),  # `failJob` of tests/kit/jobs_tables.py
        ({2: 60, 3: 90}, ("linear", 30)),
        ({1: 10, 2: 20, 3: 40, 5: 161}, ("exponential", 10)),
        ({1: 60, 2: 60, 4: 61}, ("fixed", 60)),
        ({1: 0, 2: 0}, ("fixed", 0)),
        ({1: 30}, (UNKNOWN, 0)),
        ({1: 30, 2: 7, 3: 400}, (UNKNOWN, 0)),
        ({}, (UNKNOWN, 0)),
        ({0: 5, 1: 5}, (UNKNOWN, 0)),
    ],
)
def test_a_curve_is_reported_by_two_attempts(seen, curve):
    kind, first = recognise_curve(seen)
    assert kind == curve[0] and first == pytest.approx(curve[1], abs=1)


def test_rows_of_one_kind_are_quoted_together_and_a_linear_wait_fails_the_check():
    rows = [
        ("jobs", "send_email", str(n), n % 3 + 1, 4, 1000.0 + n, 1000.0 + n + 30 * (n % 3 + 1), True) for n in range(9)
    ]
    rows += [("jobs", "send_email", "99", 4, 4, 2000.0, 1000.0, False), ("jobs", "once", "7", 1, 1, 5.0, 5.0, False)]
    options = find_options(rows, {"jobs": 11})
    check = lint.check(
        lint.case([], [], lint.Facts(), [FoundOptions("db", 0, tuple(options), (SampledQueue("jobs", 11, 11),))])
    )
    assert [(one.where.task, one.verdict, one.quoted, one.why) for one in check.verdicts] == [
        ("send_email", "fail", "max_attempts = 4; waits seen: 30 s after attempt 1, 60 s after attempt 2, 90 s after attempt 3",
         "Waits grow by the same step: 30 s, 1 min, 1 min 30 s. 10 of 11 jobs checked in jobs, latest 99."),
        ("once", "not applicable", "max_attempts = 1", "One attempt, no retries. 1 of 11 jobs checked in jobs, "
            "latest 7."),
    ]  # fmt: skip
