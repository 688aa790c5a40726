from __future__ import annotations

import pytest

from jobs_admin.core.arguments import value_at


@pytest.mark.parametrize(
    "path, value",
    [
        ("kwargs.customer", "acme"), ("kwargs.order.lines.1.sku", "b"), ("args.0.tenant", 7), ("args.1", None),
        ("args.x", None), ("kwargs.order.none", None), ("kwargs.customer.more", None), ("args.²", None),
    ],
)  # fmt: skip
def test_a_path_names_one_value_or_nothing(path, value):
    kwargs = {"customer": "acme", "order": {"lines": [{"sku": "a"}, {"sku": "b"}]}}
    assert value_at(path, [{"tenant": 7}], kwargs) == value
