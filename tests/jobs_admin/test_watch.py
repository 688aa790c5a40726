"""The real command in real processes, on a database file and a Valkey of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from cryptography.fernet import Fernet

from jobs_admin.core import keys
from jobs_admin.core.envelope import encode
from tests.kit import migrated
from tests.kit.reports import report
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def environment(engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch")
    values = {
        **os.environ,
        "SECRET_KEY": "x" * 50,
        "REDRIVE_DATA": str(folder),
        "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
        "REDRIVE_REDIS_URL": engine.url.removesuffix("0") + "5",
        "DATABASE_URL": f"sqlite:///{folder}/watch.sqlite3",
    }
    migrated.into(folder, "watch.sqlite3")
    return values


@pytest.fixture
def desk(environment):
    """The store that the command uses, empty."""
    with redis.Redis.from_url(environment["REDRIVE_REDIS_URL"]) as client:
        client.flushdb()
        yield client


def manage(environment, *arguments, **options):
    return subprocess.Popen([sys.executable, "manage.py", *arguments], cwd=ROOT, env=environment, **options)


@contextlib.contextmanager
def watching(environment, *arguments):
    process = manage(environment, "watch", *arguments)
    try:
        yield process
    finally:
        steps = steps_of(process)
        process.kill()
        process.wait()
        wait_until(lambda: not [pid for pid in steps if is_alive(pid)])


def steps_of(watch):
    """The processes of its steps, also those that have not said yet that they live; none where it has ended."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{watch.pid}/task/{watch.pid}/children").read_text().split()
    return []


def read_steps(desk):
    return {step.decode(): json.loads(word) for step, word in desk.hgetall(keys.steps()).items()}


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def failures(environment):
    import sqlite3

    with contextlib.closing(sqlite3.connect(environment["DATABASE_URL"].removeprefix("sqlite:///"))) as database:
        return database.execute("SELECT count(*) FROM jobs_admin_failure").fetchone()[0]


def test_reports_become_failures_and_each_step_reports_that_it_lives(environment, desk):
    desk.xadd(keys.failures("shop"), encode(report("watched")))
    with watching(environment) as watch:
        wait_until(lambda: failures(environment) == 1 and not desk.xlen(keys.failures("shop")), process=watch)
        wait_until(lambda: read_steps(desk).keys() >= {"ingest", "send", "settle"}, process=watch)
        words = read_steps(desk)  # once: more steps are noted from moment to moment
        assert words["ingest"]["error"] == ""
        assert {str(word["pid"]) for word in words.values()} <= set(steps_of(watch))
        assert words["ingest"]["pid"] != words["send"]["pid"]  # what a report does to its reader stops no other step


def test_a_step_that_dies_is_started_again(environment, desk):
    with watching(environment, "--only", "ingest") as watch:
        first = wait_until(lambda: read_steps(desk).get("ingest"), process=watch)["pid"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: read_steps(desk)["ingest"]["pid"] != first, process=watch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_of_it_in_seconds(environment, desk, number):
    with watching(environment) as watch:
        wait_until(lambda: len(read_steps(desk)) >= 3, process=watch)
        pids = [word["pid"] for word in read_steps(desk).values()]
        watch.send_signal(number)
        assert watch.wait(60) == 0
        assert not [pid for pid in pids if is_alive(pid)]


def test_the_steps_die_with_a_killed_parent(environment, desk):
    with watching(environment) as watch:
        wait_until(lambda: len(read_steps(desk)) >= 3, process=watch)
        steps = steps_of(watch)
        watch.kill()
        wait_until(lambda: not [pid for pid in steps if is_alive(pid)])


def test_a_database_that_is_away_is_waited_for_and_nothing_is_lost(environment, desk):
    file = Path(environment["DATABASE_URL"].removeprefix("sqlite:///"))
    before = failures(environment)
    away = file.with_name("away")
    for part in file.parent.glob(f"{file.name}*"):
        part.rename(away.with_name(part.name.replace(file.name, "away")))
    file.mkdir()  # where a database should be
    try:
        desk.xadd(keys.failures("shop"), encode(report("later")))
        with watching(environment, "--only", "ingest") as watch:
            wait_until(lambda: read_steps(desk).get("ingest", {}).get("error"), process=watch)
            assert desk.xlen(keys.failures("shop")) == 1
            at = read_steps(desk)["ingest"]["at"]
            wait_until(lambda: read_steps(desk)["ingest"]["failed_rounds"] > 2, process=watch)
            assert read_steps(desk)["ingest"]["at"] == at  # so that it is shown as late
            file.rmdir()
            for part in away.parent.glob("away*"):
                part.rename(file.with_name(part.name.replace("away", file.name)))
            wait_until(lambda: failures(environment) == before + 1, process=watch)
            wait_until(lambda: not desk.xlen(keys.failures("shop")), process=watch)
    finally:
        if file.is_dir():
            file.rmdir()


def test_an_unknown_step_is_refused_with_the_known_ones(environment):
    process = manage(environment, "watch", "--only", "ingest,nonsense", stderr=subprocess.PIPE)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 1 and b"nonsense" in output and b"reconcile" in output


HANGS = """
import os, sys, time
sys.path.insert(0, {root!r})
os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
import django; django.setup()
from jobs_admin.watch import Step, Watch
def tell(name):
    with open({file!r}, "a") as out: out.write(name.split(":")[1] + " " + str(time.monotonic()) + "\\n")
def hang(name):
    tell(name); time.sleep(600)
def go_on(name):
    time.sleep(0.05); return False
Watch([Step("hang", hang, deadline_s=0.5), Step("go on", go_on, idle_s=0.1)]).run()
"""


def test_a_step_that_hangs_is_killed_and_started_again_and_delays_no_other(environment, desk, tmp_path):
    file = tmp_path / "told"
    file.touch()
    program = HANGS.format(root=str(ROOT), file=str(file))
    watch = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment)
    try:
        lines = wait_until(
            lambda: len(file.read_text().splitlines()) >= 2 and file.read_text().splitlines(), process=watch
        )
        first, second = (line.split() for line in lines[:2])
        assert first[0] != second[0] and not is_alive(int(first[0]))
        at = wait_until(lambda: read_steps(desk).get("go on"), process=watch)["at"]
        assert time.time() - at < 30  # behind what hangs it would not have come to its turn at all
    finally:
        watch.kill()
        watch.wait()
    # Nobody is left to kill what hangs, and yet it ends.
    hanging = {int(line.split()[0]) for line in file.read_text().splitlines()}
    wait_until(lambda: not any(map(is_alive, hanging)))


LONG = """
import os, sys, time
sys.path.insert(0, {root!r})
os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
import django; django.setup()
from jobs_admin.db import step_progress
from jobs_admin.watch import Step, Watch
def work(name):
    with open({file!r}, "a") as out: out.write("begun\\n")
    while True:
        time.sleep(0.05); step_progress.report()
def fail(name):
    for _ in range(50):
        time.sleep(0.05); step_progress.report()
    raise ValueError("at the same place")
Watch([Step("long", work, deadline_s=30), Step("failing", fail)]).run()
"""


def test_progress_within_a_round_is_noted_unless_the_rounds_fail(environment, desk, tmp_path):
    file = tmp_path / "told"
    file.touch()
    program = LONG.format(root=str(ROOT), file=str(file))
    watch = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment)
    try:
        at = wait_until(lambda: read_steps(desk).get("long"), process=watch)["at"]
        wait_until(lambda: read_steps(desk)["long"]["at"] > at + 2, process=watch)
        failed_at = wait_until(
            lambda: read_steps(desk)["failing"].get("error") and read_steps(desk)["failing"], process=watch
        )["at"]
        wait_until(lambda: read_steps(desk)["failing"]["failed_rounds"] > 1, process=watch)
        assert read_steps(desk)["failing"]["at"] == failed_at  # so that it is shown as late
        assert file.read_text() == "begun\n"
    finally:
        watch.kill()
        watch.wait()


TOGETHER = """
import os, sys, time
sys.path.insert(0, {root!r})
os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
import django; django.setup()
from jobs_admin import watch
from jobs_admin.watch import Step, Watch
watch._LINGER_S = 0.5
def tell(name):
    with open({file!r}, "a") as out: out.write(name + " " + str(os.getpid()) + "\\n")
def hang(name):
    tell("hang"); time.sleep(600)
def alone(name):
    tell("alone"); return False
def due(name):
    if not os.path.exists({wish!r}): return False
    tell("due"); os.unlink({wish!r}); return True
def more(name):
    tell("more"); time.sleep(0.01); return not os.path.exists({wish!r} + "-enough")
Watch([
    Step("hang", hang, deadline_s=3, shares=lambda: True),
    Step("beside", lambda name: False, idle_s=0.1, shares=lambda: True),
    Step("alone", alone, idle_s=0.1),
    Step("due", due, idle_s=0.1, is_due=lambda: os.path.exists({wish!r})),
    Step("more", more, idle_s=0.1, processes=2),
]).run()
"""


@pytest.fixture
def together(environment, desk, tmp_path):
    file, wish = tmp_path / "told", tmp_path / "wish"
    file.touch()
    program = TOGETHER.format(root=str(ROOT), file=str(file), wish=str(wish))
    watch = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment)

    def pids(step):
        return list(dict.fromkeys(line.split()[1] for line in file.read_text().splitlines() if line.startswith(step)))

    try:
        yield watch, pids, wish
    finally:
        watch.kill()
        watch.wait()


def test_of_steps_that_share_a_process_one_that_hangs_starts_all_of_them_again_and_no_other(together, desk):
    watch, pids, _ = together
    first = wait_until(lambda: read_steps(desk).get("beside"), process=watch)["pid"]
    wait_until(lambda: len(pids("hang")) > 1, process=watch)
    wait_until(lambda: read_steps(desk)["beside"]["pid"] != first, process=watch)
    assert not is_alive(first)
    assert len(pids("alone")) == 1


def test_a_step_on_demand_has_a_process_while_it_is_due_and_is_noted_all_the_time(together, desk):
    watch, pids, wish = together
    before = wait_until(lambda: read_steps(desk).get("due"), process=watch)["at"]
    assert not pids("due")
    wish.touch()
    first = wait_until(lambda: pids("due"), process=watch)[0]
    wait_until(lambda: not is_alive(first), process=watch)
    wait_until(lambda: read_steps(desk)["due"]["at"] > before + 1, process=watch)
    wish.touch()
    wait_until(lambda: len(pids("due")) == 2, process=watch)


def test_a_second_process_of_a_step_runs_while_the_first_has_more_to_do(together):
    watch, pids, wish = together
    first, second = wait_until(lambda: len(pids("more")) == 2 and pids("more"), process=watch)
    wish.with_name("wish-enough").touch()
    wait_until(lambda: is_alive(first) + is_alive(second) == 1, process=watch)
