from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from jobs_admin.core.figures import clock, dated

NOW = datetime(2026, 11, 21, 0, 5, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "with_seconds", "expected"),
    [
        (timedelta(minutes=5), False, "00:00"),
        (timedelta(minutes=5), True, "00:00:07"),
        (timedelta(minutes=6), False, "20 Nov 23:59"),
        (timedelta(minutes=6), True, "20 Nov 23:59:07"),
        (-timedelta(hours=23), False, "23:05"),
        (-timedelta(days=1), False, "22 Nov 00:05"),
        (timedelta(days=365), False, "21 Nov 00:05"),
    ],
)
def test_another_day_is_named_and_this_one_is_not(before, with_seconds, expected):
    assert clock(NOW - before, NOW, with_seconds) == expected


def test_a_day_is_one_of_utc_wherever_the_time_was_written():
    kolkata = timezone(timedelta(hours=5, minutes=30))
    assert clock(datetime(2026, 11, 21, 5, 20, tzinfo=kolkata), NOW) == "20 Nov 23:50"
    assert clock(NOW, datetime(2026, 11, 20, 23, 0, tzinfo=timezone(timedelta(hours=-5)))) == "00:05"


def test_a_dated_time_has_its_day_always_and_its_year_where_that_is_another():
    assert dated(NOW, NOW) == "21 Nov 00:05" and dated(NOW, NOW, with_seconds=True) == "21 Nov 00:05:07"
    assert dated(NOW - timedelta(days=365), NOW) == "21 Nov 2025 00:05"
    assert dated(datetime(2026, 1, 1, 1, 0, tzinfo=timezone(timedelta(hours=2))), NOW) == "31 Dec 2025 23:00"
