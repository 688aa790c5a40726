"""Random histories of failures: the dry run of each is what the live run then does, and no act is beyond the cap."""

from __future__ import annotations

import pytest

from tests.histories.automations import play_both

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("store", "shop")]


def test_a_live_run_does_what_its_dry_run_showed():
    acts = 0
    for seed in range(2):
        would, did = play_both(seed, rounds=90)
        assert would == did, seed
        acts += len(did)
    assert acts >= 2  # there was something to compare
