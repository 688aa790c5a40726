"""The guard as a package: only what workers need, the same bytes each time, and no harm beside Redrive itself."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest

from jobs_admin.management import wheel
from jobs_admin.worker.versions import LATEST, OLDEST, VERSION

ROOT = wheel.ROOT
COMMAND = [sys.executable, "-E", "-S", str(ROOT / "manage.py"), "worker-wheel"]  # -S: without what is installed


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    with zipfile.ZipFile(wheel.build(tmp_path_factory.mktemp("wheel")).path) as archive:
        yield archive


def test_it_holds_core_worker_and_lua_and_nothing_else(packed):
    info = f"redrive_worker-{VERSION}.dist-info"
    names = set(packed.namelist())
    ours = {name for name in names if name.startswith("jobs_admin/")}
    assert {name.split("/")[1] for name in ours} == {"__init__.py", "core", "worker"}
    assert names - ours == {f"{info}/{name}" for name in ("METADATA", "WHEEL", "LICENSE", "RECORD")}
    assert packed.read("jobs_admin/__init__.py") == b""
    assert {path.name for path in ROOT.glob("jobs_admin/worker/*.lua")} == {
        name.rpartition("/")[2] for name in ours if name.endswith(".lua")
    }
    assert {name.rpartition(".")[2] for name in ours} == {"py", "lua"}


def test_it_requests_celery_and_redis_alone_and_for_cryptography_where_messages_are_encrypted(packed):
    text = Parser().parsestr(packed.read(f"redrive_worker-{VERSION}.dist-info/METADATA").decode())
    assert (text["Name"], text["Version"], text["Requires-Python"]) == ("redrive-worker", VERSION, ">=3.10")
    celery, client, library = text.get_all("Requires-Dist")
    assert text.get_all("Provides-Extra") == ["encrypt"] and library == 'cryptography>=42; extra == "encrypt"'
    assert celery == f"celery>={OLDEST[0]}.{OLDEST[1]},<{LATEST[0]}.{LATEST[1] + 1}"
    assert client.startswith("redis>=")
    assert 5 < len(text.get_payload().splitlines()) < 30


def test_its_record_is_true(packed):
    (name,) = [name for name in packed.namelist() if name.endswith("/RECORD")]
    recorded = dict(line.split(",", 1) for line in packed.read(name).decode().splitlines())
    assert recorded.pop(name) == ","
    for entry in set(packed.namelist()) - {name}:
        content = packed.read(entry)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert recorded.pop(entry) == f"sha256={digest},{len(content)}"
    assert recorded == {}


def test_the_same_files_give_the_same_bytes_wherever_and_whenever(tmp_path):
    copy = tmp_path / "elsewhere"
    for part in (*wheel.PACKAGES, "LICENSE", "jobs_admin/__init__.py"):
        there = copy / part
        there.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile)(ROOT / part, there)
    for path in copy.rglob("*"):
        os.utime(path, (10**9, 10**9))
        path.chmod(0o700)
    (copy / "jobs_admin/worker/left.py~").write_text("no part of it")
    here, there = wheel.build(tmp_path / "a"), wheel.build(tmp_path / "b", copy)
    assert here.sha256 == there.sha256 and here.path.read_bytes() == there.path.read_bytes()
    (copy / "jobs_admin/worker/versions.py").write_text("# another one\n")
    assert wheel.build(tmp_path / "b", copy).sha256 != here.sha256


def test_the_command_needs_nothing_installed_and_reports_how_to_use_it(tmp_path):
    done = subprocess.run([*COMMAND, str(tmp_path / "dist")], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path, figures, *_, pip, line, _, name, _ = done.stdout.splitlines()
    content = (tmp_path / "dist" / f"redrive_worker-{VERSION}-py3-none-any.whl").read_bytes()
    assert path.endswith("-py3-none-any.whl")
    assert figures == f"{len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}"
    assert pip.strip() == f"pip install {path}"
    assert line.strip() == 'from jobs_admin.worker.celery import install; install(app, source="celery")'
    assert "celery for that of CELERY_BROKER_URL" in name
    assert [file.name for file in (tmp_path / "dist").iterdir()] == [path.rpartition("/")[2]]


def test_where_it_cannot_be_written_a_sentence_reports_it(tmp_path):
    (tmp_path / "file").touch()
    done = subprocess.run([*COMMAND, str(tmp_path / "file")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The wheel was not written: ") and done.stderr.count("\n") == 1


def test_beside_redrive_itself_its_own_files_win(tmp_path):
    """Both are called `jobs_admin`. What is installed stands behind the folder that manage.py runs from."""
    with zipfile.ZipFile(wheel.build(tmp_path).path) as archive:
        archive.extractall(tmp_path / "site")
    program = (
        "import sys; sys.path.append(sys.argv[1]); import jobs_admin.models, jobs_admin.worker as w; print(w.__file__)"
    )
    program = program.replace("import jobs_admin.models", "import jobs_admin.config as c")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(ROOT / "jobs_admin/worker/__init__.py"), done.stderr
