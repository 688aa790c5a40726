"""A PostgreSQL of our own: started on a free loopback port, in a folder that is removed afterwards."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboard.setup.engine import die_with_parent, free_port

PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)


@contextmanager
def running():
    """The URL; skips by name where this machine has no PostgreSQL."""
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
    """The latest installed server's folder of programs."""
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
    # What the machine forgets when it stops, the tests need no more.
    quick = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off"]
    server = subprocess.Popen(
        [binaries / "postgres", "-D", data, "-p", str(port), "-k", "", *quick, "-h", "127.0.0.1"],
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

    ends = time.monotonic() + 90
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.05)
