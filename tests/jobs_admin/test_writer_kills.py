"""Short runs of tests/rigs/writer_kills.py: reports are filed, failures pruned and filters filled by processes that are killed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.kit.desks import ROOT, Desk
from tests.kit.endurance import times

LONG = pytest.mark.long("Files, prunes and fills in four processes at once, kills them, and compares every row.")


def run_rig(folder, seed):
    desk = Desk(folder, "redis://127.0.0.1:1/0")  # no step here needs a store
    done = subprocess.run(
        [sys.executable, "-m", "tests.rigs.writer_kills", str(folder), "--seed", str(seed)],
        cwd=ROOT, env=desk.environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    assert sum(found["kills"].values()) >= 30 and found["pruned"] > 50 and found["raced"] > 5, found


@LONG
@pytest.mark.server
@pytest.mark.sqlite
@pytest.mark.parametrize("seed", range(1, 1 + times(1, 60)))
def test_what_killed_processes_filed_pruned_and_filled_equals_the_model(tmp_path, seed):
    run_rig(tmp_path, seed)


@LONG
@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seed", range(1, 1 + times(1, 60)))
def test_the_same_on_postgresql(tmp_path, seed):
    run_rig(tmp_path, seed)
