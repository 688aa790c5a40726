"""A fleet is upgraded in any order: guards a version older and newer than the desk, what neither can read, and what happens later."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import redis

from jobs_admin import ingest
from jobs_admin.core import envelope, keys
from jobs_admin.core.envelope import KINDS, VERSION, encode
from jobs_admin.fleet import heartbeats
from jobs_admin.ingest import refiling
from jobs_admin.ingest.report import NotOurs
from jobs_admin.management import wheel
from jobs_admin.models import Failure, Unfiled, Worker
from tests.kit.celery import ROOT, Home, RealWorker
from tests.kit.people import log_in
from tests.kit.policies import attempts, policy, published, running
from tests.kit.reports import NOW, report

_ids = itertools.count(1)


def as_version(
    number: int, job: str, without: tuple[str, ...] = (), **more: object
) -> tuple[bytes, dict[bytes, bytes]]:
    """An entry as another version writes it: with fields that we do not know, or without some that we do."""
    fields = encode(report(job))
    meta = {name: value for name, value in json.loads(fields[b"meta"]).items() if name not in without} | more
    return b"%d-0" % next(_ids), {**fields, b"v": b"%d" % number, b"meta": json.dumps(meta).encode()}


@pytest.mark.django_db
def test_the_version_after_ours_is_read_without_what_we_do_not_know():
    entry_id, fields = as_version(VERSION + 1, "j1", heat=7, shape={"deep": [1]})
    assert ingest.file([(entry_id, {**fields, b"picture": b"\x00\xff"})], NOW) == ingest.Filed(1, 1)
    assert (Failure.objects.get().job_id, Unfiled.objects.count()) == ("j1", 0)


@pytest.mark.django_db
def test_the_version_before_ours_is_read_with_what_it_lacks_at_its_default():
    least = ("source", "queue", "task", "job_id", "kind", "attempt", "at")
    newer = tuple(name for name in json.loads(encode(report())[b"meta"]) if name not in least)
    assert ingest.file([as_version(VERSION - 1, "j1", newer)], NOW) == ingest.Filed(1, 1)
    assert Failure.objects.get().state == "dead"


@pytest.mark.django_db
def test_what_is_too_new_is_stored_in_full_and_filed_by_the_version_that_knows_it(monkeypatch):
    """The upgrade is what is played here: the constants of the format as the next version has them."""
    too_new = as_version(VERSION + 2, "j1")
    unheard_of = as_version(VERSION + 1, "j2", kind="vanished")
    broken = (b"9-9", {b"v": b"1", b"meta": b"["})
    assert ingest.file([too_new, unheard_of, broken], NOW) == ingest.Filed(unfiled=3)

    refiling.restart()
    assert refiling.step() and not refiling.step()  # today's version looks, and leaves them
    assert Unfiled.objects.count() == 3

    with monkeypatch.context() as upgrade:
        upgrade.setattr(envelope, "VERSION", VERSION + 1)
        refiling.restart()
        assert refiling.step() and not refiling.step()
        assert list(Failure.objects.values_list("job_id", flat=True)) == ["j1"]
        assert {row.entry_id for row in Unfiled.objects.all()} == {unheard_of[0].decode(), "9-9"}
        upgrade.setattr(envelope, "KINDS", (*KINDS, "vanished"))
        refiling.restart()
        assert refiling.step()
    assert sorted(Failure.objects.values_list("job_id", flat=True)) == ["j1", "j2"]
    assert Unfiled.objects.get().entry_id == "9-9"


@pytest.mark.django_db
def test_a_report_that_is_refused_again_keeps_its_row_with_the_new_reason(monkeypatch):
    def refuse(*_):
        raise NotOurs("no source of that name")

    entry_id, fields = as_version(VERSION + 2, "j1")
    ingest.file([(entry_id, fields)], NOW)
    with monkeypatch.context() as upgrade:
        upgrade.setattr(envelope, "VERSION", VERSION + 1)
        upgrade.setattr(ingest, "parse_report", refuse)
        refiling.restart()
        assert refiling.step()
    unfiled = Unfiled.objects.get()
    assert unfiled.why == "no source of that name" and Failure.objects.count() == 0


@pytest.mark.django_db
def test_a_heartbeat_of_an_older_guard_is_a_worker_all_the_same(store, django_user_model):
    now = datetime.now(UTC)
    fields = {"v": 1, "source": "shop", "name": "w1@old", "boot": "b", "at": now.timestamp(), "queues": ["emails"]}
    store.hset(keys.workers("shop"), "w1@old", json.dumps(fields))
    (beat,) = heartbeats.count_heartbeats(now)
    assert (beat.name, beat.queues, beat.tasks, beat.late_ack) == ("w1@old", ["emails"], None, {})
    assert Worker.objects.get().name == "w1@old"
    ann = log_in(django_user_model, "ann", every="admin")
    for page in ("/queues/", "/policies/", "/"):
        assert ann.get(page).status_code == 200


# -- real workers with other guards -----------------------------------------------------------------------------------

NEWER = {  # of a file of the guard: what it says -> what it says in the next version
    "jobs_admin/core/envelope.py": {
        f"VERSION = {VERSION}\n": f"VERSION = {VERSION + 1}\n",
        '    trace: str = ""\n\n    @property': '    trace: str = ""\n    heat: int = 7\n\n    @property',
    },
    "jobs_admin/worker/heartbeat.py": {'"v": 1,': '"v": 2, "heat": {"deep": [7]},'},
    "jobs_admin/worker/versions.py": {"VERSION = ": 'VERSION = "9.0.0"  # '},
}
OLDER = {
    "jobs_admin/core/envelope.py": {f"VERSION = {VERSION}\n": f"VERSION = {VERSION - 1}\n"},
    "jobs_admin/worker/heartbeat.py": {
        '            "configuration": has.digest,\n': "",
        '            "tasks": identity.tasks.digest,\n': "",
        '            "uncounted": self.at_start.uncounted,\n': "",
        "pipeline.hset(keys.workers(source), identity.name,": 'pipeline.hset(keys.workers(source), f"{source}/{identity.name}",',
    },
    "jobs_admin/core/keys.py": {  # which all sources shared
        f'f"{{prefix}}:{{{{{{source}}}}}}:{name}{rest}"': f'f"{{prefix}}:{name}{rest}"'
        for name, rest in [
            ("failures", ""),
            ("failures:bytes", ""),
            ("workers", ""),
            ("tasks", ":{digest}"),
            ("configuration", ":{digest}"),
        ]
    },
    "jobs_admin/core/policy/parsing.py": {
        "    reading.note_unknown(_FIELDS)": '    reading.note_unknown([name for name in _FIELDS if name != "rate_limit"])'
    },
    "jobs_admin/worker/versions.py": {"VERSION = ": 'VERSION = "0.0.9"  # '},
}


# The release before this one. Until there is one, a commit: its guard is as old as any that is in use.
PREVIOUS = "f008d96369b90593fb85b23efff301f702620c40"


def build_changed(changes: dict[str, dict[str, str]], folder: Path) -> Path:
    """Return the wheel of a copy of the guard that was changed so."""
    copy = folder / "other"
    for part in (*wheel.PACKAGES, "LICENSE", "jobs_admin/__init__.py"):
        there = copy / part
        there.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile)(ROOT / part, there)
    for name, texts in changes.items():
        code = (copy / name).read_text()
        for before, after in texts.items():
            assert before in code, f"{name} does not say {before!r} any more"
            code = code.replace(before, after)
        (copy / name).write_text(code)
    return wheel.build(folder, copy).path


def build_previous(folder: Path) -> Path:
    """Return the wheel that the source of PREVIOUS builds."""
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "cat-file", "-e", f"{PREVIOUS}^{{commit}}"], capture_output=True, check=False).returncode:
        pytest.skip(f"This clone has no commit {PREVIOUS[:12]}: `git fetch --unshallow` gets it")
    export = subprocess.run([*git, "archive", PREVIOUS], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(export)) as archive:
        archive.extractall(folder / "previous", filter="data")
    command = [sys.executable, "-E", "-S", str(folder / "previous/manage.py"), "worker-wheel", str(folder / "dist")]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture
def start(tmp_path):
    """A worker with the guard that `build` packs into a folder."""
    started = []

    def start_one(build, broker_url, store_url) -> RealWorker:
        home = tmp_path / "home"
        with zipfile.ZipFile(build(tmp_path)) as archive:
            archive.extractall(home)
        (home / "tests/kit").mkdir(parents=True)
        shutil.copyfile(ROOT / "tests/kit/celery.py", home / "tests/kit/celery.py")
        made = RealWorker(broker_url, store_url, home=Home(Path(sys.executable), home))
        made.environment["DJANGO_SETTINGS_MODULE"] = ""  # the app of a user, who has none
        started.append(made)
        return made.start()

    yield start_one
    for one in started:
        one.kill()


@pytest.mark.server
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("build", "version"),
    [
        (partial(build_changed, NEWER), "9.0.0"),
        (partial(build_changed, OLDER), "0.0.9"),
        (build_previous, "0.1.0"),
    ],
    ids=["newer", "older", "previous"],
)
def test_jobs_of_another_guard_are_filed_and_its_worker_is_shown(start, store, engine, build, version):
    worker = start(build, engine.url.removesuffix("/0") + "/1", engine.url)
    job = worker.send("fail", "it failed", queue="emails")

    def is_filed() -> bool:
        ingest.step("here", wait_s=0.2)
        return Failure.objects.filter(job_id=job).exists()

    worker.wait(is_filed, what="the failure")
    (heartbeat,) = worker.wait(lambda: running(engine.url), what="a heartbeat")
    assert heartbeat["guard"] == version
    heartbeats.count_heartbeats(NOW)
    assert (Worker.objects.get().name, Unfiled.objects.count()) == (heartbeat["name"], 0)
    assert Failure.objects.get().message == "it failed"


@pytest.mark.server
def test_a_policy_an_older_guard_only_partly_knows_only_observes_there(start, store, engine):
    limited = policy("limited", "try", rate_limit={"max": 100, "per_s": 1})
    published(engine.url, limited)
    worker = start(partial(build_changed, OLDER), engine.url.removesuffix("/0") + "/1", engine.url)
    heartbeat = worker.wait(
        lambda: (beats := running(engine.url)) and beats[0]["refused"] and beats[0], what="its word"
    )
    assert heartbeat["refused"]["limited"] == (
        "This version of the guard does not know rate_limit: the policy only observes here."
    )
    job = worker.send("try")
    worker.wait(lambda: f"{job}] raised" in worker.text())  # natively: at once, and once
    assert len(attempts(worker, job)) == 1
    with redis.Redis.from_url(engine.url) as client:
        (entry,) = worker.wait(lambda: client.xrange(keys.shared("failures")))
    assert json.loads(entry[1][b"meta"])["observed"].startswith("would retry in")
