from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.web import charts
from dashboard.web.charts import Heights, Times

DAY = 86_400
MONDAY = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())


@given(st.integers(0, 2**31), st.integers(1, 500 * DAY), st.floats(-1, 2))
def test_a_moment_is_within_the_picture_and_in_order(since, span, part):
    times = Times(since, since + span)
    at = since + span * part
    assert 0 <= times.x(at) <= charts.SIZE and times.x(at) <= times.x(at + 1)
    assert times.per_cent(at) == pytest.approx(times.x(at) / 10, abs=0.06)


@given(st.integers(0, 2**31), st.integers(60, 500 * DAY))
def test_ticks_are_few_round_and_within(since, span):
    ticks = Times(since, since + span).ticks()
    assert len(ticks) <= 9 and all(2 < tick.x < 98 for tick in ticks)
    assert [tick.x for tick in ticks] == sorted({tick.x for tick in ticks})


def test_ticks_name_midnight_by_its_day():
    words = [tick.words for tick in Times(MONDAY - 10 * 3600, MONDAY + 14 * 3600).ticks()]
    assert words == ["16:00", "20:00", "2 Mar", "04:00", "08:00", "12:00"]


@given(st.floats(0.01, 1e9), st.booleans(), st.floats(0, 1))
def test_a_height_is_between_the_ground_and_the_top(top, is_steep, part):
    heights = Heights(top, is_steep)
    assert heights.y(0) == charts.SIZE and 0 < heights.y(top) <= 41
    assert 0 <= heights.y(top * part) <= charts.SIZE and heights.y(top * 2) == heights.y(top)


def test_on_a_steep_scale_ten_times_as_much_is_one_step_up():
    heights = Heights(10_000, is_steep=True)
    steps = [heights.part(10 ** (n + 1)) - heights.part(10**n) for n in (1, 2, 3)]
    assert max(steps) - min(steps) < 0.01


def test_a_line_is_broken_where_nothing_is_known_and_a_single_point_is_drawn():
    points = [(0, 5), (1, 6), (2, None), (3, 7)]
    assert charts.line(points) == "M0 5L1 6M3 7L3 7"
    assert charts.area(points) == "M0 1000L0 5L1 6L1 1000zM3 1000L3 7L3 7L3 1000z"
    assert charts.steps([(0, 1, 5), (1, 2, 6), (2, 3, None), (3, 4, 7)]) == "M0 5H1V6H2M3 7H4"


def test_an_outline_is_on_the_ground_where_a_step_is_left_out():
    assert charts.outline([(0, 10, 500), (20, 30, 250)]) == "M0 1000V500H10V1000H20V250H30V1000z"


def test_one_is_visible_beside_a_million_and_bars_stand_on_each_other():
    assert (
        charts.bars([1, 0, 1_000_000], Heights(1_000_000, filled=1), wide=1)
        == "M0 1000v-8h333.3v8zM666.7 1000v-1000h333.3v1000z"
    )
    stacked = charts.bars([500], Heights(1000, filled=1), below=[500])
    assert re.fullmatch(r"M0 500v-500h860v500z", stacked)


def test_what_is_read_out_names_its_steps_by_time_or_by_words():
    answer = json.loads(
        charts.reading({"dead": [1, None]}, times=Times(100, 200), at=[100, 150], gaps=[(150, 200, "away")])
    )
    assert answer == {
        "series": {"dead": [1, None]},
        "since": 100,
        "until": 200,
        "at": [0, 50],
        "gaps": [[150, 200, "away"]],
    }
    answer = json.loads(charts.reading({"wait": ["5 s"]}, labels=["after attempt 1"], lefts=[0.25]))
    assert answer == {"series": {"wait": ["5 s"]}, "labels": ["after attempt 1"], "at": [0.25]}


@given(st.integers(1, 10**9))
def test_an_axis_has_its_top_its_half_and_the_ground(most):
    top = charts.round_up(most)
    words = charts.levels(top)
    assert [float(word.replace(",", "")) for word in words] == [top, top / 2, 0] and most <= top <= 2 * max(most, 1)


# --- colours of series -------------------------------------------------------------------------------------------

# Linear RGB as seen without one kind of cone (Machado, Oliveira and Fernandes 2009, full severity).
SEEN_BY = {
    "everyone": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopes": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopes": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritanopes": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


def linear(colour: str) -> list[float]:
    values = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]


def luminance(rgb: list[float]) -> float:
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    red, green, blue = rgb
    xyz = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505, luminance(rgb), (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089  # fmt: skip
    x, y, z = (max(value, 0) ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def series_of(theme: str) -> list[str]:
    text = (Path(__file__).parents[2] / "static/redrive/css/tokens.css").read_text()
    pairs = re.findall(r"--series-\d: light-dark\((#\w+), (#\w+)\);", text)
    return [pair[theme == "dark"] for pair in pairs]


@pytest.mark.parametrize("theme, ground", [("light", "#ffffff"), ("dark", "#16191d")])
@pytest.mark.parametrize("eyes", SEEN_BY)
def test_the_colours_of_series_are_distinct_with_any_colour_vision(theme, ground, eyes):
    colours = series_of(theme)
    seen = [
        lab([sum(a * b for a, b in zip(row, linear(one), strict=True)) for row in SEEN_BY[eyes]]) for one in colours
    ]
    assert len(colours) == 6
    assert min(math.dist(one, other) for one, other in combinations(seen, 2)) >= 19  # a just noticeable one is 2.3
    for one in colours:
        low, high = sorted((luminance(linear(one)), luminance(linear(ground))))
        assert (high + 0.05) / (low + 0.05) >= 3
