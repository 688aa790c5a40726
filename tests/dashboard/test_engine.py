"""The embedded engine: private, durable, and gone with who started it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys

import pytest
import redis

from dashboard.setup.engine import Engine, EngineFailed, free_port, is_free
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def running(tmp_path):
    engine = Engine(tmp_path / "with a space").start()
    yield engine
    engine.stop()


def test_it_wants_its_password(running):
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=running.port).ping()


def test_it_listens_on_the_loopback_only(running):
    assert redis.Redis.from_url(running.url).config_get("bind")["bind"] == "127.0.0.1"


def test_it_throws_nothing_away_and_writes_everything_down(running):
    reported = redis.Redis.from_url(running.url).config_get("maxmemory-policy", "appendonly")
    assert reported == {"maxmemory-policy": "noeviction", "appendonly": "yes"}


def test_its_password_is_readable_by_its_owner_alone(running):
    assert stat.S_IMODE((running.folder / "valkey.conf").stat().st_mode) == 0o600


def test_what_it_held_is_there_after_a_restart(running):
    redis.Redis.from_url(running.url).set("kept", "1")
    running.stop()
    running.start()
    assert redis.Redis.from_url(running.url).get("kept") == b"1"


def test_a_port_in_use_ends_the_start_with_its_log(running, tmp_path):
    with pytest.raises(EngineFailed, match="ended at once"):
        Engine(tmp_path / "second", port=running.port).start()


def test_a_port_is_free_until_something_listens(running):
    assert not is_free(running.port)
    assert is_free(free_port())


def test_it_ends_when_its_starter_is_killed(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from dashboard.setup.engine import Engine\n"
        "e = Engine(Path(sys.argv[1])).start(); print(e.process.pid, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    pid = int(starter.stdout.readline())
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    wait_until(lambda: not is_alive(pid), "its end")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
