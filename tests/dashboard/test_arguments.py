from __future__ import annotations

import json

import pytest

from dashboard import arguments


def test_a_tree_shows_every_value_in_its_place():
    lines = arguments.tree({"a": 1, "b": {"c": [True]}}, "/kwargs")
    assert [(line.what, line.key) for line in lines] == [
        ("leaf", "a"), ("open", "b"), ("open", "c"), ("leaf", "0"), ("close", ""), ("close", ""),
    ]  # fmt: skip


def test_a_branch_too_large_for_a_page_stays_shut_and_says_where_it_opens():
    (line,) = arguments.tree({"a/b": list(range(10_000))}, "/kwargs")
    assert (line.what, line.text, line.at) == ("folded", "10,000 entries", "/kwargs/a~1b")


def test_no_answer_holds_more_lines_than_its_bound_and_the_rest_follows_from_an_entry_on():
    lines = arguments.tree(list(range(1_000)), "/args")
    assert len(lines) == arguments.MOST_LINES + 1
    assert (lines[-1].what, lines[-1].start) == ("more", arguments.MOST_LINES)
    assert arguments.tree(list(range(1_000)), "/args", 999)[0].text == "999"


def test_a_pointer_finds_what_the_tree_pointed_at():
    document = {"kwargs": {"a/b": [1, {"~": "here"}]}}
    assert arguments.find(document, "/kwargs/a~1b/1/~0") == "here"


@pytest.mark.parametrize("pointer", ["/nothing", "/kwargs/9", "/kwargs/x/y/z"])
def test_a_pointer_to_nothing_is_a_key_error(pointer):
    with pytest.raises(KeyError):
        arguments.find({"kwargs": [1]}, pointer)


def test_what_the_worker_hid_is_marked_also_inside_a_text():
    lines = arguments.tree({"token": "[redacted]", "url": "https://ann:[redacted]@x"}, "")
    assert [line.kind for line in lines] == ["hidden", "hidden"]


def test_text_nested_too_deep_to_read_is_no_json_rather_than_an_error():
    with pytest.raises(arguments.NotJson):
        arguments.read("[" * 20_000 + "]" * 20_000)


def test_a_python_call_can_be_run_and_hides_no_direction_mark():
    call = arguments.python_call("shop.charge", "[1]", json.dumps({"to": "a\u202eb", "n": None}))
    assert "current_app.tasks['shop.charge'](1, to='a\\u202eb', n=None)" in call
    compile(call, "call", "exec")


def test_names_that_are_no_identifiers_are_passed_by_a_mapping():
    assert "(**{'x-y': 1})" in arguments.python_call("t", "[]", '{"x-y": 1}')


def test_a_difference_names_only_the_lines_that_change():
    lines = arguments.difference({"a": 1, "b": 2}, {"a": 1, "b": 3})
    assert [(line.what, line.text) for line in lines if line.what != "same"] == [
        ("removed", '  "b": 2'), ("added", '  "b": 3'),
    ]  # fmt: skip
    assert arguments.difference([1], [1]) == []
