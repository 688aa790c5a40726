"""What the spool took is there after a crash, in order, once; what it cannot take it refuses."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap

import pytest

from jobs_admin.worker.spool import Spool, SpoolFull, directory_for


def entries(*names: str) -> list[dict[bytes, bytes]]:
    return [{b"v": b"1", b"raw": name.encode(), b"nul": b"\x00\xff" * 3} for name in names]


def drained(spool: Spool) -> list[str]:
    seen: list[str] = []
    spool.drain(lambda batch: seen.extend(e[b"raw"].decode() for e in batch))
    return seen


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "spool"


def test_what_was_kept_comes_back_in_order_and_whole(folder):
    spool = Spool(folder)
    kept = entries(*map(str, range(250)))
    for entry in kept:
        spool.append(entry)
    assert spool.waiting == 250
    seen = []
    assert spool.drain(seen.extend) == 250
    assert seen == kept
    assert spool.waiting == 0
    assert list(folder.iterdir()) == []


def test_what_was_kept_is_on_the_disk_before_the_job_goes_on(folder, monkeypatch):
    """Bytes that only the system's cache holds are lost with the machine: each record is in what was synced last."""
    synced: dict[int, bytes] = {}  # inode -> what the file held when it was last synced
    really = os.fsync

    def noting(descriptor: int) -> None:
        really(descriptor)
        status = os.fstat(descriptor)
        synced[status.st_ino] = os.pread(descriptor, status.st_size, 0) if stat.S_ISREG(status.st_mode) else b""

    monkeypatch.setattr(os, "fsync", noting)
    spool = Spool(folder)
    for name in ("first", "second"):
        spool.append(entries(name)[0])
        (file,) = folder.iterdir()
        assert name.encode() in synced[file.stat().st_ino]
        assert synced[file.stat().st_ino] == file.read_bytes()
    assert folder.stat().st_ino in synced  # else the file's name could be lost


def test_only_this_user_can_read_it(folder):
    Spool(folder).append(entries("a")[0])
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_directory_that_others_may_read_is_refused(folder):
    folder.mkdir(mode=0o755)
    with pytest.raises(OSError, match="0700"):
        Spool(folder).append(entries("a")[0])


def test_what_does_not_go_stays_for_the_next_time(folder):
    spool = Spool(folder)
    for entry in entries(*map(str, range(150))):
        spool.append(entry)
    shipped = []

    def once(batch):
        if shipped:
            raise ConnectionError
        shipped.extend(e[b"raw"].decode() for e in batch)

    with pytest.raises(ConnectionError):
        spool.drain(once)
    assert spool.waiting == 50
    spool.append(entries("later")[0])
    assert shipped + drained(spool) == [*map(str, range(150)), "later"]


def test_the_oldest_is_kept_when_it_is_full(folder):
    spool = Spool(folder, max_bytes=400)
    with pytest.raises(SpoolFull):
        for entry in entries(*map(str, range(100))):
            spool.append(entry)
    kept = drained(spool)
    assert kept == [str(n) for n in range(len(kept))]
    assert 0 < len(kept) < 100
    spool.append(entries("room again")[0])


def test_a_directory_full_of_others_is_full_for_all(folder):
    one, other = Spool(folder, max_bytes=300), Spool(folder, max_bytes=300)
    with pytest.raises(SpoolFull):
        for entry in entries(*"abcdefgh"):
            one.append(entry)
    with pytest.raises(SpoolFull):
        other.append(entries("x" * 100)[0])


def test_a_record_that_was_cut_off_hides_no_other(folder):
    spool = Spool(folder)
    for entry in entries("a", "b", "c"):
        spool.append(entry)
    spool.close()
    (file,) = folder.iterdir()
    os.truncate(file, file.stat().st_size - 5)
    assert drained(Spool(folder)) == ["a", "b"]
    assert list(folder.iterdir()) == []


def test_a_record_that_was_damaged_is_left_out(folder):
    spool = Spool(folder)
    for entry in entries("first", "second", "third"):
        spool.append(entry)
    spool.close()
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes().replace(b"second", b"sec0nd"))
    assert drained(Spool(folder)) == ["first", "third"]


def test_a_file_that_is_no_spool_is_passed_over(folder):
    folder.mkdir(mode=0o700)
    (folder / "0.spool").write_bytes(b"something else")
    assert drained(Spool(folder)) == []


HOLDER = """
import sys, time
from pathlib import Path
from jobs_admin.worker.spool import Spool
spool = Spool(Path(sys.argv[1]))
spool.append({b"raw": b"theirs"})
print("kept", flush=True)
time.sleep(60)
"""


def test_the_spool_of_a_living_worker_is_left_alone_and_that_of_a_dead_one_is_shipped(folder):
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HOLDER), str(folder)], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"kept\n"
        assert drained(Spool(folder)) == []
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    assert drained(Spool(folder)) == ["theirs"]


def test_draining_does_not_give_up_the_lock_on_the_own_file(folder):
    mine = Spool(folder)
    mine.append(entries("mine")[0])
    Spool(folder).drain(lambda batch: None)  # in this process: must neither ship nor unlock it
    assert drained(mine) == ["mine"]


def test_the_directory_is_the_users_own_unless_configured(tmp_path):
    assert directory_for("shop").name == "shop"
    assert str(os.getuid()) in str(directory_for("shop"))
    assert directory_for("shop", str(tmp_path)) == tmp_path / "shop"
