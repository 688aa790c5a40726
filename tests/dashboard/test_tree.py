from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from dashboard.failures import tree
from jobs_admin.core.redacted_view import Plain, Veiled
from jobs_admin.core.search_terms import indexed_paths
from tests.kit.values import VALUES

TO = tree.Addresses("/failures/1/opened/", "/failures/")


def test_a_tree_shows_every_value_in_its_place():
    lines = tree.lines(Plain({"a": 1, "b": {"c": [True]}}), "kwargs")
    assert [(line.what, line.key) for line in lines] == [
        ("leaf", "a"), ("open", "b"), ("open", "c"), ("leaf", "0"), ("close", ""), ("close", ""),
    ]  # fmt: skip
    assert [line.path for line in lines if line.what == "leaf"] == ["kwargs.a", "kwargs.b.c.0"]


def test_a_branch_too_large_for_a_page_stays_shut_and_shows_where_it_opens():
    (line,) = tree.lines(Plain({"a/b": list(range(10_000))}), "kwargs")
    assert (line.what, line.text, line.at, line.path) == ("folded", "10,000 entries", "kwargs.0", 'kwargs."a/b"')


def test_the_first_levels_of_large_arguments_stand_open():
    order = {"id": 7, "lines": [{"sku": n} for n in range(500)], "to": {"city": "Oslo"}}
    lines = tree.lines(Plain({"order": order}), "kwargs")
    assert [(line.what, line.key) for line in lines if line.what != "close"] == [
        ("open", "order"), ("leaf", "id"), ("folded", "lines"), ("open", "to"), ("leaf", "city"),
    ]  # fmt: skip


def test_no_answer_holds_more_lines_than_its_bound_and_the_rest_follows_from_an_entry_on():
    lines = tree.lines(Plain(list(range(1_000))), "args")
    assert len(lines) == tree.MOST_LINES + 1
    assert (lines[-1].what, lines[-1].start, lines[-1].text) == ("more", tree.MOST_LINES, "800 more")
    assert tree.lines(Plain(list(range(1_000))), "args", start=999)[0].text == "999"


@given(VALUES)
def test_every_value_is_reached_by_opening_what_is_shut(value):
    root = Plain({"x": value})

    def leaves(at: str) -> list[str]:
        piece, _ = tree.opened(root, at.partition(".")[2])
        found = []
        for line in tree.lines(piece, at):
            found += leaves(line.at) if line.what == "folded" else [line.text] if line.what == "leaf" else []
        return found

    def all_of(inner) -> int:
        entries = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else None
        return sum(map(all_of, entries)) if entries else 1

    assert len(leaves("kwargs")) == all_of(value)


def test_a_place_is_numbers_of_entries_and_leads_to_what_it_named():
    piece, names = tree.opened(Plain({"a/b": [1, {"~": "here"}]}), "0.1.0")
    assert (piece.text(), names) == ("here", ["a/b", "1", "~"])


@pytest.mark.parametrize("steps", ["9", "0.0.0.0", "a", "-1", "0..1", "99999999999"])
def test_a_place_that_is_not_there_is_a_key_error(steps):
    with pytest.raises(KeyError):
        tree.opened(Plain([[1]]), steps)


def test_what_the_worker_hid_is_marked_also_inside_a_text():
    lines = tree.lines(Plain({"token": "[redacted]", "url": "https://ann:[redacted]@x"}), "kwargs")
    assert [(line.kind, line.like) for line in lines] == [("hidden", ""), ("hidden", "")]


def test_a_short_value_offers_the_search_for_its_like():
    (line,) = tree.lines(Plain({"customer_id": 42}), "kwargs")
    assert line.like == "kwargs.customer_id:42"
    assert "/failures/?q=kwargs.customer_id%3A42" in tree.as_html([line], replace(TO, indexed=frozenset([line.path])))


def test_a_value_that_the_index_does_not_hold_offers_no_search():
    value = {"many": list(range(40)), "id": 7}
    to = replace(TO, indexed=indexed_paths("kwargs", json.dumps(value)))
    html = tree.as_html(tree.lines(Plain(value["many"]), "kwargs.0", "kwargs.many"), to)
    assert "kwargs.many.30%3A30" in html and "kwargs.many.31%3A31" not in html
    assert "kwargs.id%3A7" in tree.as_html(tree.lines(Plain(value), "kwargs"), to)


def test_what_a_job_shows_is_escaped_in_every_place_of_a_line():
    evil = '<img src=x onerror=alert(1)>"\u202e'
    value = {evil: evil, "x": {evil: [evil * 100]}, "y": {evil: list(range(300))}}
    html = tree.as_html(tree.lines(Plain(value), "kwargs"), TO)
    assert "<img" not in html and "\u202e" not in html and 'alert(1)>"' not in html


def test_a_value_is_found_by_its_path_or_its_text():
    value = {"order": {"lines": [{"sku": "ABC"}, {"sku": "abd"}]}, "abc_id": 3}
    lines, is_all = tree.find(Plain(value), "kwargs", "kwargs", "abc")
    assert ([line.path for line in lines], is_all) == (["kwargs.order.lines.0.sku", "kwargs.abc_id"], True)


def test_nothing_hidden_is_found_by_what_it_hides():
    value = {"password": "hunter2", "card": {"token": ["hunter2"]}, "log": "password=hunter2 refused"}
    assert tree.find(Veiled(value), "kwargs", "kwargs", "hunter2") == ([], True)
    assert [line.path for line in tree.find(Veiled(value), "kwargs", "kwargs", "refused")[0]] == ["kwargs.log"]


def test_a_check_for_what_is_everywhere_stops_and_shows_it():
    lines, is_all = tree.find(Plain(["x"] * 1_000), "args", "args", "x")
    assert (len(lines), is_all) == (tree.MOST_FOUND, False)


def test_a_long_text_opens_in_full():
    (line,) = tree.lines(Plain({"body": "y" * 5_000}), "kwargs")
    assert line.what == "long" and "5,000 characters" in line.text
    (complete,) = tree.lines(Plain("y" * 5_000), "kwargs.0")
    assert complete.text == "y" * 5_000
    assert json.dumps(line.text)


def test_a_name_of_megabytes_does_not_stand_in_full_in_every_line_under_it():
    value = {"k" * 2_000_000: [{"id": n} for n in range(3_000)]}
    piece, names = tree.opened(Veiled(value), "0")
    path = tree.joined("kwargs", *names)
    lines = tree.lines(piece, "kwargs.0", path)
    assert len(str(tree.as_html(lines, TO))) < 500_000 and path.endswith('k…"')
    assert len(str(tree.as_html(tree.lines(Veiled(value), "kwargs"), TO))) < 10_000
    assert {line.like for line in lines} == {""}  # such a path cannot be searched for


def test_a_word_is_searched_for_under_a_name_of_megabytes():
    value = {"k" * 2_000_000: {"many": list(range(20_000)), "last": "here"}}
    lines, is_all = tree.find(Veiled(value), "kwargs", "kwargs", "here")
    assert [line.at for line in lines] == ["kwargs.0.1"] and is_all


def test_a_path_through_many_long_names_has_an_end():
    value: object = 1
    for _ in range(90):
        value = {"n" * 150: value}
    ((line,), _) = tree.find(Veiled(value), "kwargs", "kwargs", "1")
    assert len(line.path) < 2_300 and line.path.endswith(".…") and line.at.count(".") == 90
