"""The engine's tests once more, on a PostgreSQL of our own: started on a free loopback port, removed afterwards."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dashboard.engine import die_with_parent, free_port

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)


@pytest.mark.server
@pytest.mark.timeout(900)
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
    binaries = server_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server on this machine: install one (Debian and Ubuntu: apt install postgresql)")
    # Not below pytest's folder, which other users (the server's) may not enter.
    folder = Path(tempfile.mkdtemp(prefix="redrive-postgresql-"))
    try:
        yield from run_server(binaries, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def server_binaries() -> Path | None:
    """The newest installed server's folder of programs."""
    found = [Path(path).parent for path in [shutil.which("initdb")] if path]
    for place in PLACES:
        found += sorted(Path("/").glob(place.lstrip("/")), reverse=True)
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


def run_server(binaries: Path, folder: Path):
    # PostgreSQL refuses to run as root; its package makes a user for it.
    as_user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    password, port = secrets.token_urlsafe(16), free_port()
    (folder / "password").write_text(password)
    if as_user:
        for path in (folder, folder / "password"):
            shutil.chown(path, "postgres", "postgres")
    data = folder / "cluster"
    initdb = [binaries / "initdb", "-D", data, "-U", "redrive", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"]
    subprocess.run(
        [*initdb, "--no-sync", f"--pwfile={folder / 'password'}"], check=True, capture_output=True, cwd="/", **as_user
    )
    server = subprocess.Popen(
        [binaries / "postgres", "-D", data, "-p", str(port), "-k", "", "-c", "fsync=off", "-h", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("w"),
        cwd="/",
        preexec_fn=die_with_parent,
        **as_user,
    )
    try:
        url = f"postgresql://redrive:{password}@127.0.0.1:{port}/postgres"
        wait_for(url, server, folder / "log")
        yield url
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    ends = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.05)
