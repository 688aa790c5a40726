"""Some histories of the desk itself with a fixed seed; `python -m bench.histories` runs many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.server
@pytest.mark.sqlite
@pytest.mark.timeout(180)
@pytest.mark.parametrize("world", ["alerts", "replays", "undo"])
def test_no_history_diverges_from_the_model(world):
    command = [sys.executable, "-m", "bench.histories", world, "--seed", "1", "--histories", "60", "--within", "12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert " 0 diverged" in done.stderr
