"""The engine's tests once more, on a PostgreSQL of our own: started on a free loopback port, removed afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import postgresql_server

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.server
@pytest.mark.timeout(3600)
def test_the_engines_tests_pass_on_postgresql(postgresql_url):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/jobs_admin",
        "tests/search",
        # They know no database.
        "--ignore=tests/jobs_admin/core",
        "--ignore=tests/jobs_admin/worker",
        "--ignore=tests/jobs_admin/management/test_node_package.py",
        "--ignore=tests/jobs_admin/notices/test_mail_line.py",
        "-m",
        "not browser and not server",
        "-x",
    ]
    environment = {**os.environ, "DATABASE_URL": postgresql_url}
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "DJANGO_SETTINGS_MODULE"):
        environment.pop(name, None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.fixture
def postgresql_url():
    with postgresql_server.running() as url:
        yield url
