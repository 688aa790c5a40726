"""A desk whose disk is full: reports wait in the store, and are filed when there is room again."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import redis

from dashboard.setup.engine import die_with_parent
from jobs_admin.core import keys
from jobs_admin.core.envelope import encode
from tests.kit import migrated
from tests.kit.reports import report
from tests.kit.up import ROOT
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.extras, pytest.mark.server]

REPORTS = 200


@pytest.fixture
def small_disk(tmp_path):
    """A folder with room for a desk and little more."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = migrated.database().stat().st_size + 6_000_000
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs the right to mount one (root)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.long("Starts `watch` on a disk of its own.")
def test_what_a_full_disk_refuses_is_filed_when_there_is_room(small_disk, engine):
    migrated.into(small_disk)
    store_url = engine.url.removesuffix("0") + "6"
    environment = {
        **os.environ, "SECRET_KEY": "x" * 50, "REDRIVE_DATA": str(small_disk), "REDRIVE_REDIS_URL": store_url,
        "REDRIVE_PAYLOAD_KEYS": "A" * 43 + "=", "DATABASE_URL": f"sqlite:///{small_disk}/redrive.sqlite3",
    }  # fmt: skip
    log = small_disk.with_suffix(".log")
    filler = small_disk / "filler"
    with redis.Redis.from_url(store_url) as store, log.open("w") as output:
        store.flushdb()
        fill(filler)
        for n in range(REPORTS):
            store.xadd(keys.failures("shop"), encode(report(f"j{n}", message=f"{n} " + "x" * 2000)))
        watch = subprocess.Popen(
            [sys.executable, "manage.py", "watch", "--only", "ingest"],
            cwd=ROOT, env=environment, stdout=output, stderr=output, preexec_fn=die_with_parent,
        )  # fmt: skip
        try:
            wait_until(lambda: "full" in log.read_text(), process=watch, text=log.read_text)
            assert store.xlen(keys.failures("shop")) == REPORTS
            filler.unlink()
            wait_until(lambda: not store.xlen(keys.failures("shop")), process=watch, text=log.read_text)
        finally:
            watch.terminate()
            watch.wait(20)
    assert "Traceback" not in log.read_text(), log.read_text()
    with closing(sqlite3.connect(small_disk / "redrive.sqlite3")) as database:
        [(count,)] = database.execute("SELECT count(*) FROM jobs_admin_failure")
    assert count == REPORTS


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as output:
        try:
            while output.write(b"\0" * 4096):
                pass
        except OSError:
            return
