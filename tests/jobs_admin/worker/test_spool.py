"""Entries of the spool are there after a crash, in order, once; what it cannot take it refuses."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from jobs_admin.worker.records import MAGIC, pack
from jobs_admin.worker.spool import MOST_COUNTED, MOST_GONE, Spool, SpoolFull, directory_for


def entries(*names: str) -> list[dict[bytes, bytes]]:
    return [{b"v": b"1", b"raw": name.encode(), b"nul": b"\x00\xff" * 3} for name in names]


def drained(spool: Spool) -> list[str]:
    seen: list[str] = []
    spool.drain(lambda batch: seen.extend(e[b"raw"].decode() for e in batch))
    return seen


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "spool"


def opened(folder: Path) -> int:
    """Files that are open below it; threads of other tests may open and close others meanwhile."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))
    return found


def test_what_was_stored_comes_back_in_order_and_complete(folder):
    spool = Spool(folder)
    stored = entries(*map(str, range(250)))
    for entry in stored:
        spool.append(entry)
    assert spool.waiting == 250
    seen = []
    assert spool.drain(seen.extend) == 250
    assert seen == stored
    assert spool.waiting == 0
    assert list(folder.iterdir()) == []


def test_what_was_stored_is_on_the_disk_before_the_job_goes_on(folder, monkeypatch):
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


def test_what_several_dead_workers_left_goes_in_the_order_in_which_it_was_captured(folder):
    for name in ("first", "second", "third"):
        dead = Spool(folder)
        dead.append(entries(name)[0])
        dead.close()
    assert len(list(folder.iterdir())) == 3
    assert drained(Spool(folder)) == ["first", "second", "third"]


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


def test_the_oldest_is_stored_when_it_is_full(folder):
    spool = Spool(folder, max_bytes=400)
    with pytest.raises(SpoolFull):
        for entry in entries(*map(str, range(100))):
            spool.append(entry)
    stored = drained(spool)
    assert stored == [str(n) for n in range(len(stored))]
    assert 0 < len(stored) < 100
    spool.append(entries("room again")[0])


def test_workers_of_one_host_fill_their_directory_together_no_further_than_one_would(folder):
    spools = [Spool(folder, max_bytes=60_000) for _ in range(10)]
    count = 0
    for name in range(200):
        for spool in spools:
            with contextlib.suppress(SpoolFull):
                spool.append(entries(f"{name:05}")[0])
                count += 1
    on_disk = sum(file.stat().st_size for file in folder.iterdir())
    assert 58_000 < on_disk < 62_000
    assert count == sum(spool.waiting for spool in spools)


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
    (folder / "1.spool").write_bytes(b"something else" * 20)
    (folder / "2.spool").write_bytes(b"")
    spool = Spool(folder)
    assert drained(spool) == []
    assert (spool.unread, sorted(path.name for path in folder.iterdir())) == (2, ["0.bad", "1.bad"])


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


DRAINER = """
import sys
from pathlib import Path
from jobs_admin.worker.spool import Spool
print(Spool(Path(sys.argv[1])).drain(lambda batch: None))
"""


@pytest.mark.parametrize("who", ["this process", "another worker"])
@pytest.mark.parametrize("call", ["lockf", "fsync"])
def test_a_file_that_is_just_being_made_is_no_one_elses_to_take(folder, monkeypatch, who, call):
    """Whoever ships the spools of the dead comes by before the file is locked, or before it is known to be ours."""
    module = fcntl if call == "lockf" else os
    really, calls = getattr(module, call), []

    def drain_first(*args):
        if not calls:
            calls.append(True)
            if who == "this process":
                Spool(folder).drain(lambda batch: None)
            else:
                subprocess.run([sys.executable, "-c", DRAINER, str(folder)], check=True, capture_output=True)
        return really(*args)

    monkeypatch.setattr(module, call, drain_first)
    mine = Spool(folder)
    mine.append(entries("mine")[0])
    mine.close()
    assert drained(Spool(folder)) == ["mine"] and calls


def test_the_directory_is_the_users_own_unless_configured(tmp_path):
    assert directory_for("shop").parent.name == f"redrive-spool-{os.getuid()}"
    assert directory_for("shop", str(tmp_path)) == tmp_path / "shop"


def test_the_directory_is_of_one_store_whatever_its_password():
    one = directory_for("shop", "", "redis://:secret@127.0.0.1:6379/0")
    assert one.name.startswith("shop@") and "secret" not in str(one)
    same = ("redis://127.0.0.1", "redis://ann:other@localhost:6379/0", "rediss://127.0.0.1:6379")
    assert {directory_for("shop", "", url) for url in same} == {one}
    others = ("redis://127.0.0.1:6380/0", "redis://127.0.0.1/1", "redis://10.0.0.5", "unix:///run/redis.sock", "")
    assert len({one, *(directory_for("shop", "", url) for url in others)}) == 6


def test_what_the_former_shared_folder_holds_is_taken_over_but_not_from_a_live_worker(unconfigured):
    former, mine = unconfigured / "shop", directory_for("shop", "", "redis://127.0.0.1:1/0")
    dead = Spool(former)
    dead.append(entries("dead")[0])
    dead.close()
    (former / "policies.json").write_text("{}")
    alive = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", LIVE_WORKER, str(former)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    try:
        assert alive.stdout.readline() == "held\n"
        spool = Spool(mine, former=former)
        spool.take_over_former()
        assert (mine / "policies.json").read_text() == "{}"
        assert drained(spool) == ["dead"] and len(list(former.glob("*.spool"))) == 1
    finally:
        alive.communicate("end")
    assert drained(spool) == ["alive"] and not list(former.glob("*.spool"))


LIVE_WORKER = """
import sys
from pathlib import Path
from jobs_admin.worker.spool import Spool
spool = Spool(Path(sys.argv[1]))
spool.append({b"v": b"1", b"raw": b"alive"})
print("held", flush=True)
sys.stdin.read()
"""


def test_a_store_that_takes_none_costs_no_open_file_each_time_it_is_queried(folder):
    def refuse(_):
        raise ConnectionError

    spool = Spool(folder)
    before = opened(folder)
    for entry in entries(*map(str, range(20))):
        spool.append(entry)
        with pytest.raises(ConnectionError):
            spool.drain(refuse)
    assert opened(folder) == before + 1
    assert drained(spool) == [*map(str, range(20))]
    assert opened(folder) == before


def test_a_store_that_takes_one_batch_at_a_time_costs_two_open_files(folder):
    spool = Spool(folder)
    before, taken = opened(folder), []
    for name in range(300):
        spool.append(entries(str(name))[0])
        went = []

        def one_batch(batch, went=went):
            if went:
                raise ConnectionError
            went.extend(batch)
            taken.extend(e[b"raw"].decode() for e in batch)

        if name % 3 == 2:
            with contextlib.suppress(ConnectionError):
                spool.drain(one_batch, batch_bytes=1)
        assert opened(folder) <= before + 2
    assert spool.waiting == 200
    assert taken + drained(spool) == [*map(str, range(300))]


def test_what_comes_while_the_spool_is_shipped_is_neither_lost_nor_shipped_twice(folder):
    spool, seen = Spool(folder), []
    spool.append(entries("0")[0])

    def ship(batch):
        seen.extend(e[b"raw"].decode() for e in batch)
        if len(seen) < 5:
            spool.append(entries(str(len(seen)))[0])

    spool.drain(ship)
    spool.drain(ship)
    spool.drain(ship)
    assert seen == ["0", "1", "2", "3", "4"]
    assert (spool.waiting, list(folder.iterdir())) == (0, [])


@pytest.mark.parametrize("how", ["deleted", "moved away"])
def test_a_directory_that_goes_is_made_again_for_what_comes(folder, how):
    spool = Spool(folder)
    spool.append(entries("before")[0])
    if how == "deleted":
        shutil.rmtree(folder)
    else:
        folder.rename(folder.with_name("elsewhere"))
    spool.append(entries("after")[0])
    assert drained_by_another_worker_than(spool, folder) == ["after"]
    spool.tend()
    assert sorted(drained_by_another_worker_than(spool, folder)) == ["after", "before"]
    assert drained(spool) == ["before", "after"]
    assert (spool.waiting, list(folder.iterdir())) == (0, [])


def drained_by_another_worker_than(spool: Spool, folder: Path) -> list[str]:
    """The entries that would be found if the spool's worker were killed now: read from a copy of its directory."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    copy.chmod(0o700)
    for number, file in enumerate(copy.iterdir()):
        file.rename(copy / f"{number}.spool")
    try:
        return drained(Spool(copy))
    finally:
        shutil.rmtree(copy)


def test_what_is_only_in_a_file_without_a_name_is_shipped(folder):
    spool = Spool(folder)
    spool.append(entries("before")[0])
    shutil.rmtree(folder)
    assert drained(spool) == ["before"]
    spool.append(entries("after")[0])
    assert drained(spool) == ["after"]


def test_what_is_only_in_a_file_without_a_name_is_there_for_the_next_worker(folder):
    spool = Spool(folder)
    spool.append(entries("before")[0])
    shutil.rmtree(folder)
    spool.close()
    assert drained(Spool(folder)) == ["before"]


def test_a_directory_that_goes_again_and_again_costs_no_open_file_each_time(folder):
    spool = Spool(folder)
    before = opened(folder)
    for name in range(30):
        spool.append(entries(str(name))[0])
        shutil.rmtree(folder, ignore_errors=True)
        if name % 10 == 9:
            spool.tend()
        assert opened(folder) <= before + MOST_GONE + 1
    assert sorted(drained(spool), key=int) == [*map(str, range(30))]


def test_no_job_waits_until_very_many_files_are_counted(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    calls = []
    for name in range(MOST_COUNTED + 10):
        (folder / f"{name}.spool").write_bytes(b"x" * 10)
    spool = Spool(folder, max_bytes=5_000)
    really = os.scandir

    @contextlib.contextmanager
    def noting(path):
        with really(path) as there:
            yield (calls.append(one.name) or one for one in there)

    monkeypatch.setattr(os, "scandir", noting)
    spool.append(entries("a")[0])
    assert 0 < len(calls) <= MOST_COUNTED + 1
    spool.tend()
    with pytest.raises(SpoolFull):
        for name in range(60):
            spool.append(entries(str(name))[0])
    assert 4_900 < sum(file.stat().st_size for file in folder.iterdir()) < 5_100


def left_by_a_dead_worker(folder: Path, *names: str) -> Path:
    spool = Spool(folder)
    for entry in entries(*names):
        spool.append(entry)
    spool.close()
    (file,) = folder.glob("*.spool")
    return file


ALL = [f"{number:04}" for number in range(60)]
EACH = len(pack(entries(ALL[0])[0]))


@pytest.mark.parametrize("bit", range(32))
def test_a_wrong_bit_in_a_length_hides_nothing(folder, bit):
    file = left_by_a_dead_worker(folder, *ALL)
    raw = bytearray(file.read_bytes())
    raw[len(MAGIC) + 30 * EACH + bit // 8] ^= 1 << bit % 8
    file.write_bytes(raw)
    assert drained(Spool(folder)) == ALL
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("offset", "length"), [(EACH * 30 + 20, 3), (EACH * 30, 8), (EACH * 30 - 50, 200)])
def test_a_damaged_file_is_set_aside_and_counted(folder, caplog, offset, length):
    file = left_by_a_dead_worker(folder, *ALL)
    raw = bytearray(file.read_bytes())
    raw[len(MAGIC) + offset : len(MAGIC) + offset + length] = b"\xa5" * length
    file.write_bytes(raw)
    spool = Spool(folder)
    assert drained(spool)[:28] == ALL[:28]
    assert spool.unread >= 1
    (bad_file,) = folder.iterdir()
    assert (bad_file.name, bad_file.read_bytes()) == (file.with_suffix(".bad").name, raw)
    assert "is damaged" in caplog.text and bad_file.name in caplog.text
    assert drained(Spool(folder)) == []


def test_what_damaged_files_take_is_bounded_and_within_the_bound_of_all(folder):
    for number in range(10):
        file = left_by_a_dead_worker(folder, "a" * 300, str(number))
        file.write_bytes(file.read_bytes().replace(b"aaa", b"bbb", 1))
        assert drained(Spool(folder, max_bytes=10_000)) == [str(number)]
    files = sorted(folder.glob("*.bad"))
    assert 1 <= len(files) < 4 and sum(path.stat().st_size for path in files) <= 1_000
    with pytest.raises(SpoolFull):
        Spool(folder, max_bytes=sum(path.stat().st_size for path in files)).append(entries("x")[0])


def test_what_a_disk_that_lost_its_power_leaves_behind_is_no_report(folder):
    file = left_by_a_dead_worker(folder, *ALL)
    with file.open("ab") as more:
        more.write(bytes(5_000))
    spool = Spool(folder)
    assert drained(spool) == ALL
    assert (spool.unread, list(folder.iterdir())) == (0, [])


@pytest.mark.parametrize("cut", range(1, EACH))
def test_a_record_that_was_cut_off_anywhere_is_no_damage(folder, cut):
    file = left_by_a_dead_worker(folder, "a", ALL[0])
    os.truncate(file, file.stat().st_size - cut)
    spool = Spool(folder)
    assert drained(spool) == ["a"]
    assert (spool.unread, list(folder.iterdir())) == (0, [])


def test_a_file_of_another_version_waits_for_its_guard(folder):
    file = left_by_a_dead_worker(folder, *ALL)
    content = file.read_bytes()
    file.write_bytes(content.replace(MAGIC, b"redrive-spool-2\n"))
    spool = Spool(folder)
    assert (drained(spool), drained(spool), spool.unread) == ([], [], 0)
    file.write_bytes(file.read_bytes().replace(b"redrive-spool-2\n", MAGIC))
    assert drained(spool) == ALL


def test_own_reports_that_the_disk_damaged_are_counted_and_do_not_wait_for_ever(folder):
    spool = Spool(folder)
    for entry in entries(*ALL):
        spool.append(entry)
    (file,) = folder.iterdir()
    os.truncate(file, len(MAGIC) + 10 * EACH)
    assert drained(spool) == ALL[:10]
    assert (spool.waiting, spool.unread) == (0, 50)


@pytest.mark.parametrize("what", ["pipe", "folder", "link", "dead link"])
def test_what_is_no_file_of_this_user_stops_no_other(folder, tmp_path, what):
    left_by_a_dead_worker(folder, "a")
    stranger, elsewhere = folder / "0.spool", tmp_path / "elsewhere"
    elsewhere.write_bytes(MAGIC)
    if what == "pipe":
        os.mkfifo(stranger)
    elif what == "folder":
        stranger.mkdir()
    else:
        stranger.symlink_to(elsewhere if what == "link" else tmp_path / "nowhere")
    assert drained(Spool(folder)) == ["a"]
    assert list(folder.iterdir()) == [stranger] and elsewhere.exists()


@pytest.fixture
def unconfigured(tmp_path, monkeypatch):
    """The folder above this user's spools, as it is where none is configured; not made yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return directory_for("shop").parent


def test_the_folder_of_this_user_is_closed_to_others(unconfigured):
    unconfigured.mkdir(mode=0o755)
    Spool(directory_for("shop")).append(entries("a")[0])
    assert unconfigured.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(unconfigured)
    Spool(directory_for("shop")).append(entries("a")[0])
    assert unconfigured.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["a link", pytest.param("a folder of another user", marks=pytest.mark.extras)])
def test_a_folder_that_another_user_made_first_is_refused(unconfigured, tmp_path, what):
    if what == "a link":
        (tmp_path / "theirs").mkdir()
        unconfigured.symlink_to(tmp_path / "theirs")
    elif os.getuid():
        pytest.skip("only root can give a folder away")
    else:
        unconfigured.mkdir(mode=0o755)
        os.chown(unconfigured, 65534, 65534)
    with pytest.raises(PermissionError, match="own"):
        Spool(directory_for("shop")).append(entries("a")[0])


@pytest.mark.parametrize(("mode", "is_taken"), [(0o777, False), (0o1777, True), (0o755, True), (0o775, True)])
def test_a_configured_folder_is_taken_unless_all_may_take_things_out_of_it(tmp_path, mode, is_taken):
    above = tmp_path / "configured"
    above.mkdir()
    above.chmod(mode)
    with contextlib.nullcontext() if is_taken else pytest.raises(PermissionError, match="writable by all"):
        Spool(directory_for("shop", str(above))).append(entries("a")[0])
    assert above.stat().st_mode & 0o7777 == mode
