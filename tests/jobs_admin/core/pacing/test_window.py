from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.pacing import parse


def window(**hours):
    return parse({"window": hours}).window


NIGHT = {"from": "22:00", "to": "06:00"}
moments = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))


def at(text):
    return datetime.fromisoformat(f"{text}+00:00")


@pytest.mark.parametrize(
    "hours, moment, is_open, opens",
    [
        (NIGHT, "2026-11-21T23:00", True, "2026-11-21T23:00"),
        (NIGHT, "2026-11-21T05:59", True, "2026-11-21T05:59"),
        (NIGHT, "2026-11-21T06:00", False, "2026-11-21T22:00"),
        ({"from": "9:00", "to": "17:00"}, "2026-11-21T18:00", False, "2026-11-22T09:00"),
        # 2026-11-21 is a Saturday: Friday's night ends in it, and Saturday has none.
        ({**NIGHT, "days": ["fri"]}, "2026-11-21T05:00", True, "2026-11-21T05:00"),
        ({**NIGHT, "days": ["fri"]}, "2026-11-21T23:00", False, "2026-11-27T22:00"),
        ({"from": "00:00", "to": "24:00", "days": ["sat"]}, "2026-11-21T23:59", True, "2026-11-21T23:59"),
        ({"from": "00:00", "to": "24:00", "days": ["sat"]}, "2026-11-22T00:00", False, "2026-11-28T00:00"),
    ],
)
def test_a_window_knows_when_it_is_open_and_when_it_opens_next(hours, moment, is_open, opens):
    assert window(**hours).is_open(at(moment)) is is_open
    assert window(**hours).opens_at(at(moment)) == at(opens)


@given(moments, st.integers(0, 23), st.integers(0, 23), st.sets(st.sampled_from(["mon", "wed", "sun"]), min_size=1))
def test_it_is_open_from_when_it_opens_until_it_closes(moment, opens, closes, days):
    found = window(**{"from": f"{opens:02}:00", "to": f"{closes:02}:00", "days": sorted(days)})
    opened = found.opens_at(moment)
    assert moment <= opened <= moment + timedelta(days=8) and found.is_open(opened)
    if opened > moment:  # else it may have been open for long
        closing = opened.replace(hour=closes)
        closing += timedelta(days=closing <= opened)
        assert found.is_open(closing - timedelta(seconds=1))
        assert opens == closes or not found.is_open(closing)


def test_a_time_zone_of_the_reader_changes_nothing():
    moment = at("2026-11-21T23:00")
    assert window(**NIGHT).is_open(moment.astimezone(tz=None))
