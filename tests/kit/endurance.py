"""The part of a test that runs in an ordinary run, and the part that runs under `manage.py test --endurance` alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable

import pytest

IS_ON = bool(os.environ.get("REDRIVE_ENDURANCE"))


def times(few: int, many: int) -> int:
    """Return the rounds of a test that repeats itself."""
    return many if IS_ON else few


def crossed(*axes: Iterable[str], few: Collection[str]) -> list:
    """Return every combination of the values as parameters. Those whose id is not in `few` are of `--endurance` alone."""
    combinations = {"-".join(values): values for values in itertools.product(*axes)}
    assert combinations.keys() >= set(few)
    return [
        pytest.param(*values, id=name, marks=() if name in few else pytest.mark.endurance)
        for name, values in combinations.items()
    ]
