"""A short round of `bench/upgrade.py`: from an earlier commit to this one and back, while pages are requested and reports arrive."""

from __future__ import annotations

import subprocess

import pytest

from tests.kit.installations import ROOT
from tests.rigs import upgrade_drill

pytestmark = [pytest.mark.server, pytest.mark.sqlite]


@pytest.fixture(autouse=True)
def history():
    found = subprocess.run(["git", "cat-file", "-e", f"{upgrade_drill.PIN}^{{commit}}"], cwd=ROOT, capture_output=True)
    if found.returncode:
        pytest.skip(f"needs the history of this repository: git fetch --unshallow (commit {upgrade_drill.PIN})")


@pytest.mark.long("Fills a desk of an earlier commit, and runs both versions on it one after the other.")
def test_an_upgrade_and_the_way_back_lose_no_report_and_fail_no_request(tmp_path):
    found = upgrade_drill.run(tmp_path, failures=5_000)
    upgrade, backup = found["upgrade"], found["backup"]
    assert upgrade["requests"] > 60 and upgrade["reports"] > 60, found
    lost = {
        name: upgrade[name] for name in ("requests_failed", "failures_lost", "reports_lost", "unfiled", "miscounted")
    }
    assert not any(lost.values()), found
    assert backup["tables_that_differ"] == ["jobs_admin_auditevent"] and backup["rows"] > 5_000, found
    assert {"scan", "index", "update", "rebuild"} < set(found["rates"]), found
