"""Over the fourth set of pairs (tests/fingerprints/unseen3.jsonl), committed before the rules of version 3 were made.

When first measured with them, before any of its misses was looked at: precision 1.0, recall 0.914. One pair was fixed since (`negative`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs_admin.core.fingerprint import fingerprint

FILE = Path(__file__).parents[2] / "fingerprints" / "unseen3.jsonl"
PAIRS = {pair["name"]: pair for pair in map(json.loads, FILE.read_text().splitlines())}

# One cause, and yet two groups.
MISSED = {
    "object-gone",  # Google words it `bucket/object` without quotes: a path that begins with no slash
    "join-types",  # pandas: `object` columns are `str` columns since its version 3
}


def is_one_group(pair):
    left, right = (fingerprint(**pair[side]).value for side in ("left", "right"))
    return left == right


@pytest.mark.parametrize("name", [n for n, p in PAIRS.items() if p["same"]])
def test_one_cause_is_one_group(name):
    assert is_one_group(PAIRS[name]) != (name in MISSED)


@pytest.mark.parametrize("name", [n for n, p in PAIRS.items() if not p["same"]])
def test_two_causes_are_two_groups(name):
    assert not is_one_group(PAIRS[name])
