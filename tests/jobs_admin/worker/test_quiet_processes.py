"""Processes that import a guarded app and run no jobs stay as they were; and several apps in one process are distinguished."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import redis

from tests.kit.celery import ROOT
from tests.kit.policies import running
from tests.kit.streams import reports
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.server


WEB = """
import threading, urllib.request
from wsgiref.simple_server import make_server, WSGIRequestHandler
from tests.workers.quiet_app import one

def page(environ, start_response):
    start_response("200 OK", [])
    return [one.delay().id.encode()]

WSGIRequestHandler.log_message = lambda *_: None
with make_server("127.0.0.1", 0, page) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/") as answer:
        print(answer.read().decode())
    server.shutdown()
"""
EAGER = """
from tests.workers.quiet_app import one
print(one.delay().get(), one.delay(fails=2).get(), one.delay(fails=9).state, one.apply((1,)).get(), one())
"""
CELERY = ["-m", "celery", "-A", "tests.workers.quiet_app:app"]
QUIET = {
    "producer": (["-c", "from tests.workers.quiet_app import one; print(one.delay().id)"], {}, r"[0-9a-f-]{36}"),
    "web": (["-c", WEB], {}, r"[0-9a-f-]{36}"),
    "eager": (["-c", EAGER], {"EAGER": "1"}, "0 2 FAILURE 1 0"),
    "shell": ([*CELERY, "call", "one"], {}, r"[0-9a-f-]{36}"),
    "control": ([*CELERY, "inspect", "registered", "-t", "0.2"], {}, ""),
}


def quiet(store_engine, folder, arguments, more, ended=None) -> tuple[dict[str, object], str]:
    """The report of a process at its end; and it made no connection to the store."""
    environment = {
        **os.environ, "QUIET": str(folder), "REDRIVE_REDIS_URL": store_engine.url, "DJANGO_SETTINGS_MODULE": "", **more,
    }  # fmt: skip
    (folder / "control").mkdir()
    with redis.Redis.from_url(store_engine.url) as client:
        before = client.info("stats")["total_connections_received"]
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            if ended is not None:
                ended(process)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        assert client.info("stats")["total_connections_received"] == before
    (seen,) = folder.glob("seen-*")
    return json.loads(seen.read_text()), output


OURS = ["jobs_admin", "jobs_admin.core", "jobs_admin.core.keys", "jobs_admin.worker", "jobs_admin.worker.celery",
        "jobs_admin.worker.versions"]  # fmt: skip


@pytest.mark.parametrize("name", QUIET)
def test_a_process_that_runs_no_jobs_loads_and_connects_nothing(own_store, tmp_path, name):
    arguments, more, answer = QUIET[name]
    seen, output = quiet(own_store, tmp_path, arguments, more)
    assert seen == {"modules": OURS, "threads": [], "sockets": 0}
    assert re.search(answer, output), output
    assert "Redrive" not in output


def test_beat_loads_and_connects_nothing(own_store, tmp_path):
    def until_it_has_sent(process) -> None:
        wait_until(lambda: len(list(tmp_path.glob("*.msg"))) >= 3, "beat to send", process=process)
        process.terminate()

    arguments = [*CELERY, "beat", "-s", str(tmp_path / "schedule"), "--pidfile="]
    seen, output = quiet(own_store, tmp_path, arguments, {}, until_it_has_sent)
    assert seen == {"modules": OURS, "threads": [], "sockets": 0}
    assert "Redrive" not in output


TWO_APPS = """
import time
from celery import Celery, shared_task
from celery.signals import task_failure
from celery.contrib.testing.worker import start_worker
from jobs_admin.worker.celery import install

@shared_task(name="shared")
def shared():
    raise ValueError("shared")

def made(name):
    app = Celery(name, broker="memory://", set_as_current=False)
    app.conf.update(task_default_queue=name, worker_hijack_root_logger=False)
    @app.task(name="own", shared=False)
    def own():
        raise ValueError(name)
    return app

one, two, plain = made("one"), made("two"), made("plain")
for source in ("one", "again"):  # as where a module is imported under two names
    install(one, source=source)
install(two, source="two")
failed = []
task_failure.connect(lambda **_: failed.append(True), weak=False)
def is_ours(request):
    return getattr(request, "redrive_base", None) is not None
for app in (one, two):  # after each other: two workers at once in one process Celery cannot do
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        theirs = [a.tasks["own"].Request for a in (one, two, plain)]
        assert [is_ours(request) for request in theirs] == [True, app is two, False]
        assert not is_ours(plain.tasks["shared"].Request)
        before = len(failed)
        for task in ("own", "shared"):
            app.send_task(task, task_id=task + "-" + app.main)
        while len(failed) < before + 2:
            time.sleep(0.02)
"""


def test_two_apps_of_one_process_are_distinguished_and_a_third_is_left_alone(own_store, tmp_path):
    environment = {
        **os.environ, "REDRIVE_REDIS_URL": own_store.url, "REDRIVE_SPOOL": str(tmp_path), "DJANGO_SETTINGS_MODULE": "",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", TWO_APPS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    fields = {
        report.job_id: (report.source, report.message)
        for source in ("one", "two")
        for report in reports(own_store, source)
    }
    assert fields == {
        "own-one": ("one", "one"), "shared-one": ("one", "shared"),
        "own-two": ("two", "two"), "shared-two": ("two", "shared"),
    }  # fmt: skip
    for source in ("one", "two"):
        assert [heartbeat["broken"] for heartbeat in running(own_store.url, source)] == [0]
