"""Arguments of a task, over the wire and back: a call is refused where Python refuses it, and nowhere else."""

from __future__ import annotations

import inspect
import itertools

import pytest

from jobs_admin.core.refused import Refused
from jobs_admin.core.signature import LONGEST, format_signature, read


def nothing(): ...
def plain(order_id, currency="EUR"): ...
def only_by_position(order_id, kind=1, /, currency="EUR"): ...
def only_by_name(order_id, *, currency, note=""): ...
def more_of_both(order_id, *rest, currency, **more): ...
def anything(*args, **kwargs): ...


FUNCTIONS = [nothing, plain, only_by_position, only_by_name, more_of_both, anything]
NAMES = ("order_id", "kind", "currency", "note", "other")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_call_is_refused_where_python_refuses_it_and_nowhere_else(function):
    takes = read(format_signature(inspect.signature(function)))
    for count in range(5):
        for size in range(len(NAMES)):
            for names in itertools.combinations(NAMES, size):
                args, kwargs = [1] * count, dict.fromkeys(names, 1)
                try:
                    inspect.signature(function).bind(*args, **kwargs)
                except TypeError:
                    with pytest.raises(Refused):
                        takes.check("shop.deliver", args, kwargs)
                else:
                    takes.check("shop.deliver", args, kwargs)


def test_the_signature_is_written_as_python_writes_it_and_without_its_default_values():
    signatures = {function.__name__: format_signature(inspect.signature(function)) for function in FUNCTIONS}
    assert signatures == {
        "nothing": "",
        "plain": "order_id, currency=",
        "only_by_position": "order_id, kind=, /, currency=",
        "only_by_name": "order_id, *, currency, note=",
        "more_of_both": "order_id, *rest, currency, **more",
        "anything": "*args, **kwargs",
    }
    assert "EUR" not in str(signatures)


@pytest.mark.parametrize(
    ("args", "kwargs", "message", "path"),
    [
        ([1], {"colour": 2}, "shop.deliver takes no argument 'colour'. Arguments: (order_id, currency=…).", "kwargs.colour"),
        ([], {}, "shop.deliver needs the argument 'order_id'. Arguments: (order_id, currency=…).", "kwargs"),
        ([1, 2, 3], {}, "shop.deliver takes 2 arguments by position, not 3. Arguments: (order_id, currency=…).", "args"),
        ([1], {"order_id": 2}, "shop.deliver gets 'order_id' twice: by position and by name. Arguments: (order_id, currency=…).",
         "kwargs.order_id"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_argument_and_what_the_task_takes(args, kwargs, message, path):
    with pytest.raises(Refused) as refused:
        read("order_id, currency=").check("shop.deliver", args, kwargs)
    assert (str(refused.value), refused.value.field) == (message, path)


def test_what_is_no_signature_or_too_long_is_none():
    assert read("a b") is None and read("1=") is None and read("x, ") is None
    long = inspect.Signature(
        [inspect.Parameter(f"argument_{n}", inspect.Parameter.KEYWORD_ONLY) for n in range(LONGEST)]
    )
    assert format_signature(long) is None
