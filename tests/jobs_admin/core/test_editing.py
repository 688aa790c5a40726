from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.arguments import merge
from jobs_admin.core.redaction import PLACEHOLDER, redact
from jobs_admin.core.refused import Refused

REAL = {"to": "ann", "token": "s3cret-value", "cards": [{"pin": 1234, "name": "a"}, {"pin": 5678, "name": "b"}]}
SHOWN = redact(REAL)[0]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "token", "pin", "to"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def edited(change):
    copied = copy.deepcopy(SHOWN)
    change(copied)
    return merge(REAL, SHOWN, copied, "kwargs")


def refused(change):
    with pytest.raises(Refused) as error:
        edited(change)
    return error.value.field


@given(json_values)
def test_what_is_not_touched_is_sent_as_it_was(real):
    assert merge(real, redact(real)[0], redact(real)[0], "args") == real


@given(json_values, json_values)
def test_what_represents_something_hidden_is_never_sent(real, wanted):
    shown = redact(real)[0]
    mixed = {"old": shown, "new": wanted}
    try:
        sent = merge({"old": real}, {"old": shown}, mixed, "kwargs")
    except Refused:
        return
    assert PLACEHOLDER not in str(sent)


def test_one_value_is_changed_and_the_hidden_ones_stay():
    sent = edited(lambda d: d.update(to="bob"))
    assert sent == REAL | {"to": "bob"}


def test_a_hidden_value_can_be_replaced():
    assert edited(lambda d: d.update(token="new"))["token"] == "new"


def test_hidden_values_inside_lists_keep_their_place():
    sent = edited(lambda d: d["cards"][1].update(name="c"))
    assert sent["cards"] == [{"pin": 1234, "name": "a"}, {"pin": 5678, "name": "c"}]


def test_a_list_may_grow_at_its_end_only():
    grown = edited(lambda d: d["cards"].append({"name": "c"}))
    assert grown["cards"] == [*REAL["cards"], {"name": "c"}]
    assert refused(lambda d: d["cards"].insert(0, {"name": "c"})).startswith("kwargs.cards")
    assert refused(lambda d: d["cards"].pop(0)).startswith("kwargs.cards")


def test_a_moved_placeholder_is_refused_and_named():
    assert refused(lambda d: d.update(other=d.pop("token"))) == "kwargs.other"
    assert refused(lambda d: d.update(to=PLACEHOLDER)) == "kwargs.to"


def test_a_text_hidden_in_part_is_complete_again_only_when_untouched():
    real = {"url": "redis://u:pw123456@h/0", "to": "ann"}
    shown = redact(real)[0]
    assert merge(real, shown, shown | {"to": "bob"}, "kwargs")["url"] == real["url"]
    with pytest.raises(Refused):
        merge(real, shown, {"url": shown["url"].replace("/0", "/1")}, "kwargs")


def test_a_cut_text_cannot_be_sent_cut():
    real, shown = ["x" * 9_000, 1], ["x" * 8_000 + "… (cut)", 1]
    assert merge(real, shown, [shown[0], 2], "args") == [real[0], 2]
    with pytest.raises(Refused):
        merge(real, shown, ["y" + shown[0], 1], "args")


@pytest.mark.parametrize(
    "real, shown",
    [([1, 2, 3], [1, "… 2 more …"]), ({"a": 1, "b": 2}, {"a": 1, "…": "1 more"})],
)
def test_what_was_shown_in_part_cannot_be_edited(real, shown):
    changed = ["new", *shown[1:]] if isinstance(shown, list) else shown | {"a": "new"}
    with pytest.raises(Refused, match="too long to be shown completely"):
        merge(real, shown, changed, "args")


def test_one_and_true_are_not_the_same():
    assert merge({"n": 1}, {"n": 1}, {"n": True}, "kwargs")["n"] is True


def test_what_is_nested_without_end_is_refused():
    deep = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(Refused, match="deeper than 100"):
        merge([1], [1], deep, "args")
