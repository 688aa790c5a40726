"""Over the third set of pairs (tests/fingerprints/unseen2.jsonl): what usually fails, by someone who had not seen the algorithm.

Measured once, after the rules were done: precision 0.90, recall 0.72, the honest figures. One pair was mended since
(`null-email-amount`, which the round before had broken); every other miss is named and was left.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs_admin.core.fingerprint import fingerprint

FILE = Path(__file__).parents[2] / "fingerprints" / "unseen2.jsonl"
PAIRS = {pair["name"]: pair for pair in map(json.loads, FILE.read_text().splitlines())}

LEAST_PRECISION = 0.94
LEAST_RECALL = 0.72

# One cause, and yet two groups.
MISSED = {
    "booking-house-number",  # our own sentence: a name of two words stands bare in it, and a number of another form
    "object-gone",  # boto3 grew "(reached max retries: 0)"; Celery also told the older one as a bare Exception
    "contact-email",  # one bad row or two: how often a part of the message repeats counts
    "rank-too-long",  # the clock caught another step of the same job
    "category-loop",  # how deep the recursion was when it broke decides which of its two frames counts
    "distances-memory",  # TiB or PiB: the unit counts
    "refresh-502",  # a group of one error or of three: how often one repeats counts
}
# Two causes, and yet one group.
TOGETHER = {
    "amount-weight",  # two lines of a function, one message; lines do not count
}


def is_one_group(pair):
    left, right = (fingerprint(**pair[side]).value for side in ("left", "right"))
    return left == right


@pytest.mark.parametrize("name", [n for n, p in PAIRS.items() if p["same"]])
def test_one_cause_is_one_group(name):
    assert is_one_group(PAIRS[name]) != (name in MISSED)


@pytest.mark.parametrize("name", [n for n, p in PAIRS.items() if not p["same"]])
def test_two_causes_are_two_groups(name):
    assert is_one_group(PAIRS[name]) == (name in TOGETHER)


def test_precision_and_recall_do_not_fall():
    together = [pair["same"] for pair in PAIRS.values() if is_one_group(pair)]
    one_cause = sum(pair["same"] for pair in PAIRS.values())
    assert (len(PAIRS), one_cause) == (50, 25)
    assert sum(together) / len(together) >= LEAST_PRECISION
    assert sum(together) / one_cause >= LEAST_RECALL
