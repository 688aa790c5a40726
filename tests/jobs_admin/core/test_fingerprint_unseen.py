"""Over pairs that came from someone who had not seen the algorithm (tests/fingerprints/unseen.jsonl).

Before anybody looked at them, precision was 0.72 and recall 0.52; what they showed was then fixed, so they are no measure of
what fingerprints are worth elsewhere any more. What still goes wrong is named here; a pair that is fixed leaves its list, none may join.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs_admin.core.fingerprint import fingerprint

FILE = Path(__file__).parents[2] / "fingerprints" / "unseen.jsonl"
PAIRS = {pair["name"]: pair for pair in map(json.loads, FILE.read_text().splitlines())}

LEAST_PRECISION = 1.0
LEAST_RECALL = 0.84

# One cause, and yet two groups.
MISSED = {
    "ws-lost o a | ws-lost n b",  # websockets: 1011 is `unexpected error`, later `internal error`
    "grpc-down o a | grpc-down n b",  # only the later gRPC says that the connection was refused
    "tls-name o a | tls-name n b",  # urllib3 compared the names itself, today OpenSSL does
    "reading-big o a | reading-big n b",  # Python 3.13 says it in other words
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


def test_precision_and_recall_do_not_fall():
    together = [pair["same"] for pair in PAIRS.values() if is_one_group(pair)]
    one_cause = sum(pair["same"] for pair in PAIRS.values())
    assert (len(PAIRS), one_cause) == (50, 25)
    assert sum(together) / len(together) >= LEAST_PRECISION
    assert sum(together) / one_cause >= LEAST_RECALL
