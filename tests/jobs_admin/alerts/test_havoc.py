"""Several watches at once, killed, frozen and thawed: a short form of `python -m bench.alerts kills`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_RUN = """
import json, sys
from pathlib import Path
from tests.rigs.alert_havoc import Havoc
judging = [sys.executable, "-m", "tests.jobs_admin.alerts.judging_forever"]
how = {"for_s": 1, "keep_firing_s": 1, "queues": 4, "long_s": 16.0, "must_s": 14.0, "least_s": 40.0}
with Havoc(Path(sys.argv[1]), watches=2, seed=7, judging=judging, **how) as havoc:
    print(json.dumps(havoc.run(8, calm_s=12.0)))
"""
ALWAYS_ZERO = (
    "missed", "fired_and_not_told", "fired_twice", "open_at_the_end", "stories_told_to_begin_twice",
    "stories_not_told_to_end_once", "numbers_left_out_or_used_twice", "told_what_was_not_so",
)  # fmt: skip


@pytest.mark.server
@pytest.mark.endurance
def test_every_episode_is_reported_once_whatever_happens_to_the_watches(tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("REDRIVE_", "CELERY_", "DATABASE_"))}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path)], cwd=ROOT, env=clean, capture_output=True, text=True,
        timeout=220, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: found[name] for name in ALWAYS_ZERO} == dict.fromkeys(ALWAYS_ZERO, 0), found
    assert found["episodes"] >= 2 and found["notices"] >= 2 and found["killed"]["watch"] >= 8
