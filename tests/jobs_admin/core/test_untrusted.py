"""Values in JSON that others write."""

from __future__ import annotations

import pytest

from jobs_admin.core import untrusted


@pytest.mark.parametrize(
    "text", ["2027-01-15T08:00:00+00:00", "2027-01-15T08:00:00", "2027-01-15T08:00:00Z", "2027-01-15T10:00:00+02:00"]
)
def test_an_iso_time_is_in_utc_unless_it_names_a_zone(text):
    assert untrusted.iso_seconds(text) == 1_800_000_000.0


@pytest.mark.parametrize(
    "value",
    ["", "soon", "1969-12-31T23:59:59", "3000-01-01T00:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
     "2027-01-15T08:00:00" + "0" * 60, None, 5, 1.8e9, True, ["2027-01-15"]],
)  # fmt: skip
def test_no_other_value_is_a_time(value):
    assert untrusted.iso_seconds(value) is None
