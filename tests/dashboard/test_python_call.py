from __future__ import annotations

import ast
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard.failures.python_call import comment, send_task
from jobs_admin.core.redacted_view import Plain, Veiled

ANY_TEXT = st.text(st.characters(codec=None), max_size=30)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT.filter(lambda t: "…" not in t),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT.filter(lambda t: t != "…"), inner, max_size=4),
)


def call(args, kwargs, *, task="shop.charge", queue="webhooks", signatures=()) -> str:
    return send_task(task, queue, Plain(args), Plain(kwargs), list(signatures))


def run_call(text: str):
    """Return the arguments of the call, as Python reads them."""
    requested = []

    class App:
        def send_task(self, *args, **kwargs):
            requested.append((args, kwargs))

    tree = ast.parse(text)
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    exec(compile(tree, "call", "exec"), {"app": App()})
    return requested[0]


def is_same(one, other) -> bool:
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[k], other[k]) for k in one)
    return type(one) is type(other) and one == other


@given(
    st.lists(ANY_JSON, max_size=3),
    st.dictionaries(ANY_TEXT.filter(lambda t: t != "…"), ANY_JSON, max_size=3),
    ANY_TEXT,
    ANY_TEXT,
)
def test_python_reads_back_every_json(args, kwargs, task, queue):
    (name,), requested = run_call(call(args, kwargs, task=task, queue=queue, signatures=[task]))
    assert (name, requested["queue"]) == (task, queue)
    assert is_same(requested["args"], args) and is_same(requested["kwargs"], kwargs)


@pytest.mark.parametrize(
    "value", ["[redacted]", "https://ann:[redacted]@x", "aaa… (cut)", "… 12 more …", {"…": "3 more"}, {"[redacted]": 1}]
)
def test_what_is_hidden_or_cut_stops_python_before_anything_is_sent(value):
    text = call([value], {})
    compile(text, "call", "exec")
    with pytest.raises(NameError, match=r"REDACTED|CUT"):
        run_call(text)
    assert "Python raises an error until then" in text


def test_a_raw_secret_is_never_written():
    text = send_task("t", "q", Veiled([{"password": "hunter2"}]), Veiled({"log": "password=hunter2"}), [])
    assert "hunter2" not in text and '"password": REDACTED' in text


def test_arguments_nested_deeper_than_python_reads_are_cut_and_show_it():
    value = []
    for _ in range(200):
        value = [value]
    assert "CUT" in call([value], {}) and compile(call([value], {}), "call", "exec")


def test_a_long_list_far_down_is_not_written_as_megabytes_of_indentation():
    value = [0] * 20_000
    for _ in range(50):
        value = [value]
    assert len(call([value], {})) < 1_000_000


@given(ANY_TEXT)
@example("\ud800")
def test_a_comment_is_one_line_whatever_a_job_shown(text):
    tree = ast.parse(comment(text + "\rimport os\nimport os\x0cimport os\u2028import os") + "\n")
    assert tree.body == []


def test_no_direction_mark_turns_the_text_around():
    assert "\u202e" not in call(["a\u202eb"], {"\u202e": 1}, task="x\u202e", signatures=["\u202e"])


def test_long_arguments_stand_one_entry_a_line():
    text = call([], {f"field_{n}": "x" * 20 for n in range(10)})
    assert '\n        "field_3": "xxxxxxxxxxxxxxxxxxxx",\n' in text
