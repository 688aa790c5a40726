"""Figures in words."""

from __future__ import annotations

import pytest

from jobs_admin.core import figures


@pytest.mark.parametrize(
    ("words", "value", "expected"),
    [
        (figures.count, 12304, "12,304"),
        (figures.count, 3.14159, "3.1"),
        (figures.count, 99.97, "100"),
        (figures.small, 0.226667, "0.23"),
        (figures.small, 9.96, "10"),
        (figures.small, 1e-9, "<0.0001"),
        (figures.small, 0, "0"),
        (figures.percent, 0.226667, "23 %"),
        (figures.percent, 0.001, "<1 %"),
        (figures.percent, 0.999, ">99 %"),
        (figures.exact_percent, 0.226667, "22.7 %"),
        (figures.exact_percent, 12.5, "1,250 %"),
        (figures.duration, 116, "1 min 56 s"),
        (figures.duration, 675, "11 min"),
        (figures.duration, 0.042, "42 ms"),
        (figures.duration, -75, "−1 min 15 s"),
        (figures.exact_duration, 675, "11 min 15 s"),
        (figures.exact_duration, 12.5, "12.5 s"),
        (figures.rate, 12.3, "12/s"),
        (figures.rate, 0.2, "12/min"),
        (figures.per_minute, 0.05, "under 0.1/min"),
        (figures.per_minute, 3.14, "3.1/min"),
    ],
)
def test_a_figure_reads_the_same_everywhere(words, value, expected):
    assert words(value) == expected
