"""The guard is taken out while retries wait, and no one drained: what `bench/leaving.py` runs at length, short."""

from __future__ import annotations

import tempfile

import pytest

from tests.rigs.leaving import measure

pytestmark = [pytest.mark.server, pytest.mark.sqlite, pytest.mark.django_db]


@pytest.mark.endurance
def test_retries_that_wait_run_once_in_workers_without_a_guard_though_watch_is_stopped_and_killed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the workers' own folders
    found = measure(tmp_path, "undrained", 60, 10, workers=1, away_s=1)
    assert (found["ran"], found["ran_twice"], found["lost"], found["strangers"]) == (60, 0, 0, 0), found
    assert (found["wrong_attempt"], found["early"], found["still_waiting"]) == (0, 0, 0), found
    assert found["displaced"]["most"] <= 20, found
