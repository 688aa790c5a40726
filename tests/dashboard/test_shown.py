from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dashboard.web.figures import ago, clock, duration, number, percent
from dashboard.web.pictures import sparkline, state
from dashboard.web.text import dotted, visible, with_code

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "words"), [(12304, "12,304"), (0, "0"), (None, "–"), (2.25, "2.2"), (312.4, "312"), ("x", "x")]
)
def test_numbers_have_thousands_separators_and_the_unknown_is_a_dash(value, words):
    assert number(value) == words


@pytest.mark.parametrize(("value", "words"), [(0.001, "<1 %"), (0, "0 %"), (0.996, ">99 %"), (1, "100 %"), (None, "–")])
def test_a_little_is_never_nothing_and_nearly_all_never_all(value, words):
    assert percent(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.042, "42 ms"), (2.5, "2.5 s"), (75, "1 min 15 s"), (90000, "1 d 1 h"), (0, "0 s")]
)
def test_durations_are_in_their_usual_unit(value, words):
    assert duration(value) == words


def test_a_time_is_relative_with_the_exact_one_on_hover_and_for_machines():
    message = ago(NOW - timedelta(minutes=7), NOW)
    assert (
        ">7 min ago<" in message
        and 'datetime="2026-11-21T02:07:00Z"' in message
        and "2026-11-21 02:07:00 UTC" in message
    )


@pytest.mark.parametrize(
    ("ago_by", "to", "words"),
    [
        ({"minutes": 7}, "minutes", "02:07"),
        ({"minutes": 7}, "seconds", "02:07:00"),
        ({"hours": 2, "minutes": 15}, "minutes", "20 Nov 23:59"),
        ({"hours": 2, "minutes": 15}, "seconds", "20 Nov 23:59:00"),
        ({"hours": -22}, "minutes", "22 Nov 00:14"),
        ({"days": 329}, "year", "27 Dec 02:14"),
        ({"days": 330}, "year", "26 Dec 2025"),
    ],
)
def test_a_clock_names_the_day_if_it_is_not_this_one_and_the_year_where_it_may_be_another(ago_by, to, words):
    assert f">{words}</time>" in clock(NOW - timedelta(**ago_by), to, NOW)


def test_what_is_due_is_in_the_future():
    assert ">in 2 h<" in ago(NOW + timedelta(hours=2, minutes=5), NOW)


def test_pages_write_no_time_in_a_form_of_their_own():
    """Times are `ago`, `clock` or `dated`; only marks of a picture's axis are plain hours."""
    own = re.compile(r"""\|date:"(?!H:i")|:%[-Ya]|:%d %b""")
    axes = {"alerts/strip.py", "web/charts.py", "groups/page.py", "alerts/rules/picture.py"}
    axes |= {"incidents/document.py"}  # a file to keep
    axes |= {"alerts/silences/views.py"}  # the day of the week before `dated`
    written = [
        f"{path.name}: {line.strip()}"
        for folder, kind in (("templates", "*.html"), ("dashboard", "*.py"))
        for path in sorted((ROOT / folder).rglob(kind))
        if path.relative_to(ROOT / folder).as_posix() not in axes
        if "management" not in path.parts  # a terminal shows whole times
        for line in path.read_text().splitlines()
        # The name of a file, the value of a field, and a comment in code that is copied.
        if own.search(line) and not re.search(r"attachment|before-upgrade-|T%H:%M|run \{failure.run\}", line)
    ]
    assert written == []


def test_a_state_has_colour_shape_and_word():
    message = state("failed_again")
    assert 'class="state is-dead"' in message and "#state-dead" in message and "failed again" in message


def test_text_that_would_reorder_or_hide_is_shown_by_its_number():
    message = visible("pay\u202egnp.exe\x00<b>")
    assert "U+202E" in message and "U+0000" in message and "\u202e" not in message and "&lt;b&gt;" in message


def test_lines_and_tabs_of_ordinary_text_stay():
    assert visible("a\tb\nc") == "a\tb\nc"


def test_a_dotted_name_may_break_after_its_dots_and_loses_nothing():
    assert dotted("a..b<") == "a.<wbr>.<wbr>b&lt;<wbr>"


def test_code_in_our_sentences_is_marked_and_the_rest_escaped():
    assert with_code("run `a<b` <now>") == "run <code>a&lt;b</code> &lt;now&gt;"
    assert "U+202E" in with_code("`a\u202e`") and "U+202E" in with_code("a\u202e")


def test_one_failure_beside_a_thousand_is_a_visible_bar():
    assert 'd="M0 22V0h1V22h1V21h1V22"' in sparkline([1000, 0, 1])
