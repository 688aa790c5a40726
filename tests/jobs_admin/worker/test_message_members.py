"""Members of JSON text are changed, and nothing else: whatever language wrote it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.worker.next_message import changed

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
STYLES = [{}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}]


def test_only_what_is_named_changes():
    text = '{ "body":"x\\u00e9" ,"headers":{"retries":0,"cost":1.50e3, "redelivered" : true},\n"n":1e0}'
    assert changed(text, {("headers", "retries"): "7", ("headers", "redelivered"): None}) == (
        '{ "body":"x\\u00e9" ,"headers":{"retries":7,"cost":1.50e3},\n"n":1e0}'
    )


def test_what_is_not_there_is_added_and_no_object_is_made_for_it():
    assert changed('{"a": {}}', {("a", "b"): "1", ("c", "d"): "2"}) == '{"a": {"b": 1}}'
    assert (
        changed('{"a": {"x": 1}, "c": 5}', {("a", "b"): '"y"', ("c", "d"): "2"}) == '{"a": {"x": 1, "b": "y"}, "c": 5}'
    )


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1} 2', '{"a" 1}', '{"a": 1 "b": 2}', "{a: 1}", '{"a": }', '{"a": 1'])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValueError):
        changed(text, {("a",): "2"})


@given(
    st.dictionaries(st.text(max_size=3), VALUES, max_size=5),
    st.sets(st.text(max_size=3), max_size=3),
    st.sampled_from(STYLES),
)
def test_it_means_what_a_change_of_the_parsed_object_means(document, names, style):
    text = json.dumps(document, **style)
    changes = {(name,): None if len(name) % 2 else json.dumps([name]) for name in names}
    expected = {name: value for name, value in document.items() if (name,) not in changes}
    expected |= {name: [name] for (name,), value in changes.items() if value is not None}
    assert json.loads(changed(text, changes)) == expected


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=5), st.sampled_from(STYLES))
def test_nothing_to_change_changes_no_byte(document, style):
    text = json.dumps(document, **style)
    assert changed(text, {}) == text
    assert changed(text, {("not there",): None}) == text
