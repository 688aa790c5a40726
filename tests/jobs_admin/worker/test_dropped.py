"""Reports that neither the store nor the spool took: each is counted to the last one, whatever becomes of the worker that counted."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.worker.dropped import QUIET_S, Dropped
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import Store
from tests.kit.spool import spooled_records

pytestmark = pytest.mark.server


@pytest.fixture
def client(own_store):
    with redis.Redis.from_url(own_store.url) as found:
        yield found


def reported_counts(client) -> list[int]:
    return sorted(json.loads(text)["count"] for text in client.hvals(keys.dropped("shop")))


def test_threads_that_drop_together_are_all_counted(tmp_path, client):
    dropped = Dropped(tmp_path / "spool")
    dropped.keep()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: [dropped.add() for _ in range(2_000)], range(8)))
    dropped.report(client, "shop")
    assert reported_counts(client) == [16_000]
    assert dropped.total == 16_000


def test_reporting_it_again_adds_nothing(tmp_path, client):
    dropped = Dropped(tmp_path)
    for _ in range(3):
        dropped.add()
        dropped.report(client, "shop")
        dropped.report(client, "shop")
    assert reported_counts(client) == [3]


def test_the_count_of_a_killed_worker_is_reported_by_the_next(tmp_path, client):
    """Killed while it counts, before it reported anything: its own line says how far it was."""
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from jobs_admin.worker.dropped import Dropped
        dropped = Dropped(Path(sys.argv[1]))
        dropped.keep()
        while True:
            print(dropped.add(), flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(500)]
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.read().splitlines(keepends=True)
    if not lines[-1].endswith(b"\n"):  # cut off
        lines.pop()
    process.wait()
    dropped = Dropped(tmp_path)
    dropped.add()
    dropped.report(client, "shop")
    one, theirs = reported_counts(client)
    assert one == 1
    assert theirs - int(lines[-1]) in (0, 1)  # it may have counted one that it did not live to say
    assert list(tmp_path.iterdir()) == []


def test_while_its_worker_lives_a_count_is_its_own(tmp_path, client):
    first, second = Dropped(tmp_path), Dropped(tmp_path)
    first.keep()
    first.add()
    second.report(client, "shop")
    assert reported_counts(client) == []
    first.report(client, "shop")
    assert reported_counts(client) == [1]


def test_a_worker_that_ends_leaves_what_it_could_not_report(tmp_path, client):
    reported, unreported = Dropped(tmp_path), Dropped(tmp_path)
    for one in (reported, unreported):
        one.keep()
        one.add()
    reported.report(client, "shop")
    for one in (reported, unreported):
        one.close()
    assert len(list(tmp_path.iterdir())) == 1
    Dropped(tmp_path).report(client, "shop")
    assert reported_counts(client) == [1, 1]


def test_what_comes_long_afterwards_is_an_episode_of_its_own(tmp_path, client):
    dropped = Dropped(tmp_path)
    dropped.keep()
    dropped.add(lambda: 1_000.0)
    dropped.report(client, "shop", lambda: 1_000.0 + QUIET_S / 2)
    dropped.add(lambda: 2_000.0)
    dropped.report(client, "shop", lambda: 2_000.0 + QUIET_S + 1)
    dropped.keep()
    dropped.add(lambda: 9_000.0)
    dropped.report(client, "shop", lambda: 9_000.0)
    assert reported_counts(client) == [1, 2]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_disk_without_a_place_for_the_count_leaves_it_in_memory(tmp_path, client):
    (tmp_path / "spool").write_text("a file where the directory should be")
    dropped = Dropped(tmp_path / "spool")
    with pytest.raises(OSError):  # noqa: PT011  (of whichever kind)
        dropped.keep()
    dropped.add()
    dropped.report(client, "shop")
    assert reported_counts(client) == [1]


def test_a_count_whose_file_a_person_cut_short_goes_on(tmp_path, client):
    dropped = Dropped(tmp_path)
    dropped.keep()
    dropped.add()
    (file,) = tmp_path.iterdir()
    os.truncate(file, 0)
    assert dropped.add() == 2
    dropped.close()
    Dropped(tmp_path).report(client, "shop")
    assert reported_counts(client) == [2]


def test_a_disk_that_takes_no_more_leaves_the_count_in_memory_and_takes_it_later(tmp_path, client):
    dropped = Dropped(tmp_path)
    dropped.keep()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        assert dropped.add() == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (file,) = tmp_path.iterdir()
    assert not any(file.read_bytes())
    dropped.add()
    dropped.close()
    Dropped(tmp_path).report(client, "shop")
    assert reported_counts(client) == [2]


def test_captured_spooled_and_dropped_are_all_there_were(own_store, tmp_path, client, patience):
    store = Store(own_store.url, "shop", Spool(tmp_path / "spool", 40_000), stream_bytes=50_000)
    store.dial()
    for _ in range(200):
        store.write({b"v": b"1", b"raw": b"x" * 1_000})
    store.report_dropped()
    captured, (lost,) = client.xlen(keys.failures("shop")), reported_counts(client)
    assert min(captured, store.spool.waiting, lost) > 10
    assert captured + store.spool.waiting + lost == 200
    store.close()


def count_in_files(folder) -> int:
    return sum(int.from_bytes(path.read_bytes()[:8], sys.byteorder) for path in folder.glob("*.dropped"))


@pytest.mark.long("Starts two workers, one after the other.")
def test_a_worker_reports_what_it_dropped_and_so_does_the_one_after_it(start, own_store, client):
    """No store, and a spool that is no directory, then one of a megabyte that is full."""
    own_store.stop()
    worker = start(own_store.url, environment={"REDRIVE_SPOOL_MB": "1"})
    for _ in range(60):
        worker.send("fail", "big", kwargs={"blob": "y" * 50_000})
    worker.wait(lambda: worker.text().count("raised unexpected") == 60, what="60 failures")
    # Told by the children; the main process is later, and what it has not seen is lost with it.
    worker.wait(lambda: spooled_records(worker.spool) + count_in_files(worker.spool) == 60, what="60 reports")
    spool = Spool(worker.spool)
    worker.kill()  # before anybody could be told
    own_store.start()
    worker.start()
    worker.wait(lambda: reported_counts(client), what="the count of the dead worker")
    worker.wait(lambda: client.xlen(keys.failures("shop")) + sum(reported_counts(client)) == 60, what="all to be told")
    assert min(client.xlen(keys.failures("shop")), *reported_counts(client)) > 5
    spool.close()
