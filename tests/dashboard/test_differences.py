from __future__ import annotations

import json
import time

from hypothesis import given
from hypothesis import strategies as st

from dashboard.web.differences import MOST_ROWS, of_texts, of_values
from jobs_admin.core.redacted_view import Plain, Veiled
from tests.kit.values import VALUES


def values(left, right, piece=Plain):
    return of_values(piece(left), piece(right))


def row_texts(difference):
    """(what, left, right) of each row, in plain text."""

    def plain(words):
        return None if words is None else "".join(text for text, _ in words)

    return [(row.what, plain(row.left), plain(row.right)) for row in difference.rows]


@given(VALUES, VALUES)
def test_values_differ_exactly_where_their_json_does(left, right):
    is_same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert values(left, right).is_same == is_same
    assert is_same or any(row.what in {"changed", "added", "removed"} for row in values(left, right).rows)


@given(st.text(max_size=200), st.text(max_size=200))
def test_both_texts_can_be_read_back_from_their_sides(left, right):
    rows = of_texts(left, right).rows
    if not rows or any(row.what == "gap" for row in rows):
        return
    for side, text in (("left", left), ("right", right)):
        lines = ["".join(t for t, _ in getattr(r, side)) for r in rows if getattr(r, side) is not None]
        assert lines == text.rstrip("\n").split("\n")


def test_a_changed_field_is_beside_what_it_was_with_its_words_marked():
    (row,) = values({"note": "send to Ann today"}, {"note": "send to Bob today"}).rows
    assert row.what == "changed"
    assert [t for t, marked in row.left if marked] == ["Ann"] and [t for t, marked in row.right if marked] == ["Bob"]


def test_texts_with_little_in_common_are_not_marked_word_by_word():
    (row,) = values({"a": "one two three"}, {"a": "9/8:7;6"}).rows
    assert not any(marked for _, marked in row.left)


def test_only_the_lines_around_a_change_stay_and_the_rest_shows_how_many_it_was():
    left = {f"f{n:02}": n for n in range(30)}
    rows = row_texts(values(left, left | {"f15": "x"}))
    assert [what for what, *_ in rows] == ["gap", *["same"] * 3, "changed", *["same"] * 3, "gap"]
    gaps = [row.count for row in values(left, left | {"f15": "x"}).rows if row.what == "gap"]
    assert gaps == [12, 11]


def test_where_a_change_is_is_never_left_out():
    left = {"order": {"customer": {"id": 1, **{f"f{n}": n for n in range(20)}, "z": 1}}}
    right = json.loads(json.dumps(left))
    right["order"]["customer"]["z"] = 2
    rows = row_texts(values(left, right))
    assert rows[:2] == [("open", "order:", "order:"), ("open", "customer:", "customer:")]
    assert rows[-1] == ("changed", "z: 1", "z: 2")


def test_a_field_that_moved_has_not_changed():
    assert values({"a": 1, "b": 2}, {"b": 2, "a": 1}).is_same


def test_an_entry_put_into_a_list_is_the_only_one_that_is_new():
    left = [{"sku": n} for n in range(100)]
    rows = row_texts(values(left, [{"sku": "new"}, *left]))
    assert [row for row in rows if row[0] not in {"gap", "same"}] == [
        ("added", None, "0:"),
        ("added", None, 'sku: "new"'),
    ]


def test_a_complete_new_field_shows_what_is_in_it():
    assert row_texts(values({}, {"to": {"city": "Oslo"}})) == [("added", None, "to:"), ("added", None, 'city: "Oslo"')]


def test_one_true_and_one_point_zero_are_three_values():
    assert not values([1], [True]).is_same and not values([1], [1.0]).is_same


def test_of_two_hidden_values_is_shown_only_whether_they_differ():
    rows = row_texts(values({"password": "hunter2"}, {"password": "hunter3"}, Veiled))
    assert rows == [("changed", "password: [redacted]", "password: [redacted] (another value)")]
    assert values({"password": "hunter2"}, {"password": "hunter2"}, Veiled).is_same


def test_five_megabytes_are_compared_in_time_and_the_answer_has_a_bound():
    left = {"lines": [{"sku": f"{n:08x}", "note": "gift wrap " * 5, "n": n} for n in range(50_000)]}
    right = json.loads(json.dumps(left))
    right["lines"][40_000]["n"] = "x"
    began = time.process_time()
    rows = [row for row in row_texts(values(left, right, Veiled)) if row[0] == "changed"]
    assert rows == [("changed", "n: 40000", 'n: "x"')] and time.process_time() - began < 5
    assert len(values([[n] for n in range(9_000)], [[-n - 1] for n in range(9_000)]).rows) <= MOST_ROWS


def test_a_recursion_of_a_thousand_frames_is_compared_in_time():
    frame = '  File "/app/a.py", line 1, in f\n    f()\n'
    began = time.process_time()
    assert not of_texts(frame * 2_000 + "E: 1", frame * 1_900 + "  other\n" + frame * 80 + "E: 2").is_same
    assert time.process_time() - began < 5
