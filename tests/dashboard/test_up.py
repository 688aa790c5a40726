"""`up`: one command to a running desk, and nothing left when it ends."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import sqlite3
import stat
import urllib.request

import pytest
from django.utils import timezone

from dashboard.management.commands import up as up_command
from dashboard.setup import environment
from dashboard.setup.engine import Engine, free_port
from dashboard.setup.supervisor import StartFailed
from jobs_admin.db import audit
from jobs_admin.models import ApiToken, AuditEvent, Failure
from tests.kit import migrated
from tests.kit.stock import StockWorker
from tests.kit.up import Desk

pytestmark = [pytest.mark.server, pytest.mark.long("Each starts desks: `up` takes some five seconds of a processor.")]


@pytest.fixture
def up(tmp_path):
    """Starts desks, and ends what a failing test left of them."""
    started: list[Desk] = []

    def start(*arguments: str, data: str = "data", has_tables: bool = False, **environment: str) -> Desk:
        """`has_tables`: where the migrations are not the point."""
        if has_tables:
            migrated.into(tmp_path / data)
        started.append(Desk(tmp_path / data, *arguments, **environment))
        return started[-1]

    yield start
    for desk in started:
        if desk.process.poll() is None:
            desk.send(signal.SIGTERM)
            desk.ends()
    assert all(desk.is_gone() for desk in started)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A desk for the tests that leave one behind: on a port that was busy, with a password and a token that were given."""
    folder = tmp_path_factory.mktemp("running") / "data"
    migrated.into(folder)
    given = {"REDRIVE_ADMIN_PASSWORD": "chosen-by-hand", "REDRIVE_API_TOKEN": "token-by-hand"}
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        desk = Desk(folder, "--no-demo", "--port", str(port), **given)
        desk.busy_port = port
        desk.is_ready()
    yield desk
    desk.send(signal.SIGTERM).ends()
    assert desk.is_gone()


@pytest.fixture(scope="module")
def configured(tmp_path_factory, engine):
    """A desk below a prefix, on a store that was given, with a source that cannot be reached."""
    folder = tmp_path_factory.mktemp("configured")
    (folder / "sources.toml").write_text(
        '[sources.billing]\nbackend = "celery"\nurl = "redis://:hidden@127.0.0.1:1/0"\n'
    )
    migrated.into(folder / "data")
    environment = {"REDRIVE_URL_PREFIX": "ops/jobs", "REDRIVE_REDIS_URL": engine.url, "REDRIVE_KEPP": "30d"}
    desk = Desk(folder / "data", "--no-demo", **environment, REDRIVE_SOURCES=str(folder / "sources.toml"))
    yield desk.is_ready()
    desk.send(signal.SIGTERM).ends()
    assert desk.is_gone()


def test_the_ready_line_is_true_and_ctrl_c_leaves_no_process(up):
    desk = up("--no-demo").is_ready()
    made = [desk.data, *(desk.data / name for name in ("up.json", "redrive.sqlite3", "log/web.log"))]
    assert [path for path in made if stat.S_IMODE(path.stat().st_mode) & 0o077] == [], "they are their owner's alone"
    assert desk.status() == 200
    steps = [
        "Starting the store …",
        "Creating the database …",
        "Collecting styles and scripts …",
        "Starting the web pages …",
    ]
    assert [line for line in desk.text.splitlines() if line in steps] == steps, "a first start takes half a minute"
    assert len(desk.processes()) >= 5  # up, reaper, engine, watch, web and its worker
    assert desk.send(signal.SIGINT).ends() == 0
    assert desk.is_gone(within_s=0)


def test_a_signal_during_the_start_leaves_no_process(up):
    desk = up("--no-demo")
    desk.wait_until(lambda: (desk.data / "log" / "watch.log").exists() or len(desk.processes()) >= 3, 90)
    desk.send(signal.SIGTERM).ends()
    assert desk.is_gone()


def test_the_demo_shows_failures_and_its_pool_ends_with_a_killed_parent(up):
    desk = up(has_tables=True).is_ready()
    assert failures(desk) > 0
    desk.send(signal.SIGKILL).ends()
    assert desk.is_gone()


def test_a_second_run_reuses_secrets_and_shows_where_the_password_was_shown(up):
    first = up("--no-demo", has_tables=True).is_ready()
    made = secrets_of(first)
    assert first.text.count("password") == 1
    first.send(signal.SIGKILL).ends()
    # At once: what the killed one left is just being ended, and the engine's port may still be taken.
    second = up("--no-demo").is_ready()
    assert secrets_of(second) == made
    assert "the password was shown at the first run" in second.text
    assert "changepassword admin" in second.text and "Creating the database" not in second.text


def test_a_given_password_and_token_are_used_and_not_shown(running):
    assert "by-hand" not in running.text
    assert rows(running, "select name, role from jobs_admin_apitoken") == [("up", "admin")]


def test_the_cookies_of_a_desk_of_up_have_its_own_name_and_those_of_a_deployment_keep_theirs(running, monkeypatch):
    with urllib.request.urlopen(f"{running.url.rstrip('/')}/login/") as answer:
        assert re.search("csrftoken-[0-9a-f]{8}=", " ".join(answer.headers.get_all("Set-Cookie")))
    assert environment.cookie_suffix("key") == ""
    monkeypatch.setenv(environment.IN_RUN, "1")
    assert len({environment.cookie_suffix(key) for key in ("", "key", "key", "other")}) == 3


@pytest.mark.django_db
def test_the_keys_that_it_makes_and_changes_are_written_down_once_each(monkeypatch):
    def start(password: str, token: str) -> None:
        monkeypatch.setenv("REDRIVE_ADMIN_PASSWORD", password)
        monkeypatch.setenv("REDRIVE_API_TOKEN", token)
        up_command._set_token(), up_command._make_admin()

    start("first-password", "first"), start("first-password", "first"), start("second-password", "second")
    reported = list(AuditEvent.objects.order_by("id").values_list("actor", "act", "object"))
    assert reported == [
        ("up", "token.create", "token:up"),
        ("up", "user.create", "user:admin"),
        ("up", "token.change", "token:up"),
        ("up", "user.password", "user:admin"),
    ]
    assert audit.verify() is None


@pytest.mark.django_db
def test_a_key_that_is_another_tokens_is_refused(monkeypatch):
    ApiToken.objects.create(name="other", sha256=hashlib.sha256(b"taken").hexdigest(), role="viewer")
    monkeypatch.setenv("REDRIVE_API_TOKEN", "taken")
    with pytest.raises(StartFailed, match="another token"):
        up_command._set_token()


@pytest.mark.django_db
def test_a_failure_that_the_list_does_not_show_is_not_visible_yet():
    now = timezone.now()
    row = {"source": "shop", "queue": "q", "task": "t", "kind": "exception", "first_job_id": "a", "job_id": "a"}
    row |= {"first_failed_at": now, "failed_at": now, "received_at": now}
    failure = Failure.objects.create(**row, state="recovered")
    assert not up_command._a_failure_is_visible()
    Failure.objects.filter(pk=failure.pk).update(state="dead")
    assert up_command._a_failure_is_visible()


def test_a_second_desk_on_the_folder_shows_where_the_first_runs(running):
    second = Desk(running.data, "--no-demo")
    assert second.ends() == 1
    assert f"already runs on {running.data}: {running.url}" in second.text


def test_the_pages_stand_below_a_prefix_whether_or_not_a_proxy_takes_it_off(configured):
    assert configured.url.endswith("/ops/jobs")
    bare = configured.url.removesuffix("/ops/jobs")
    for address in (f"{configured.url}/login/", f"{bare}/login/"):
        with urllib.request.urlopen(address, timeout=60) as answer:
            page = answer.read().decode()
        sheet = re.search(r'href="(/ops/jobs/static/[^"]+\.css)"', page)[1]
        with urllib.request.urlopen(bare + sheet, timeout=60) as answer:
            assert answer.status == 200


def test_a_busy_port_gives_the_next_free_one(running):
    assert f"Port {running.busy_port} is busy" in running.text
    assert running.url != f"http://127.0.0.1:{running.busy_port}"


def test_two_desks_that_start_at_once_get_a_port_each_and_leave_no_process(up):
    """Neither after a hangup nor where the reaper is killed with its supervisor; every other desk here is ended by SIGTERM or SIGKILL."""
    port = free_port()
    desks = [up("--no-demo", "--port", str(port), data=name, has_tables=True) for name in ("one", "other")]
    urls = {desk.is_ready(within_s=300).url for desk in desks}
    assert len(urls) == 2 and f"http://127.0.0.1:{port}" in urls
    assert [f"Port {port} is busy" in desk.text for desk in desks].count(True) == 1
    assert [desk.status() for desk in desks] == [200, 200]
    hung_up, unguarded = desks
    hung_up.send(signal.SIGHUP).ends()
    assert hung_up.is_gone()
    reapers = children_named(unguarded, "reaper.py")
    assert reapers
    for pid in reapers:
        os.kill(pid, signal.SIGKILL)
    unguarded.send(signal.SIGKILL).ends()
    assert unguarded.is_gone()


def test_no_other_server_of_the_same_user_can_share_its_port(running):
    port = int(running.url.rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        other.listen()


def test_a_request_waits_while_the_web_process_is_started_again(running):
    (web,) = children_named(running, "web", parent=running.process.pid)
    os.killpg(web, signal.SIGKILL)
    running.wait_until(lambda: "web ended" in running.text, 60)
    assert running.status() == 200


def test_a_process_that_dies_is_started_again(running):
    (watch,) = children_named(running, "watch", parent=running.process.pid)
    os.kill(watch, signal.SIGKILL)
    running.wait_until(lambda: children_named(running, "watch", parent=running.process.pid) not in ([], [watch]), 90)
    assert "watch ended (exit -9); starting it again in 1 s" in running.text


def test_the_engine_that_dies_is_started_again_with_what_it_held(running):
    client = store_of(running)
    client.set("kept", "1")
    # A disk that is slow has it wait for the append-only file.
    running.wait_until(lambda: client.info("persistence")["aof_buffer_length"] == 0, 60)
    os.kill(client.info()["process_id"], signal.SIGKILL)
    running.wait_until(lambda: answers(client), 90)
    assert client.get("kept") == b"1"


@pytest.mark.parametrize(
    ("name", "url", "text"),
    [
        ("REDRIVE_REDIS_URL", "redis://127.0.0.1:1/0", "cannot be used"),
        ("REDRIVE_REDIS_URL", "http://127.0.0.1/", "cannot be used"),
        ("REDIS_URL", "redis://127.0.0.1:1/0", "cannot be used"),
        ("CELERY_BROKER_URL", "redis://:hidden@127.0.0.1:1/0", "cannot be used"),
        ("CELERY_BROKER_URL", "amqp://guest:hidden@127.0.0.1:1//", "RabbitMQ at 127.0.0.1:1 cannot be reached"),
        ("DATABASE_URL", "postgresql://redrive:hidden@127.0.0.1:1/redrive", "cannot be used"),
        ("DATABASE_URL", "postgresql://redrive:hidden@127.0.0.1:port/redrive", "is not a URL"),
        ("DATABASE_URL", "mysql://127.0.0.1/redrive", "must begin with"),
        ("DATABASE_URL", "sqlite:////nowhere/at/all.sqlite3", "cannot be used"),
        ("REDRIVE_SOURCES", "/nowhere/sources.toml", "cannot be read"),
        ("REDRIVE_READ_ONLY", "perhaps", "must be 1 or 0"),
        ("REDRIVE_KEEP", "banana", "is not a duration"),
        ("REDRIVE_PAYLOAD_KEYS", "short", "is not a Fernet key"),
        ("SECRET_KEY_FILE", "/nowhere/key", "cannot be read"),
    ],
)
def test_a_setting_that_cannot_be_used_ends_the_start_in_one_sentence(up, name, url, text):
    desk = up("--no-demo", **{name: url})
    assert desk.ends() == 1
    assert len(desk.lines) == 1, desk.text
    assert name in desk.text
    assert text in desk.text
    assert "hidden" not in desk.text


def test_a_source_that_cannot_be_reached_is_named_and_keeps_no_desk_from_starting(configured):
    environment_text = configured.text
    assert (
        "Source billing cannot be reached (redis://127.0.0.1:1: " in environment_text
        and "hidden" not in environment_text
    )
    unknown = "REDRIVE_KEPP is set and not known to this version; it has no effect. Did you mean REDRIVE_KEEP?"
    assert unknown in environment_text
    query = "select is_reachable from jobs_admin_source where name = 'billing'"
    configured.wait_until(lambda: rows(configured, query) == [(0,)], 60)


def test_a_broker_is_watched_whose_workers_have_no_guard(up, engine, tmp_path):
    broker = engine.url.removesuffix("/0") + "/5"
    worker = StockWorker(broker, tmp_path).start()
    try:
        desk = up("--watch", broker, has_tables=True).is_ready()
        # An event that was sent before the desk subscribed is not seen.
        desk.wait_until(lambda: worker.send("pay", 1) and failures(desk) > 0, 120)
        assert rows(desk, "select distinct source, task, state from jobs_admin_failure") == [
            ("celery", "shop.pay", "dead")
        ]
        assert stat.S_IMODE((desk.data / "watch.toml").stat().st_mode) == 0o600
    finally:
        worker.stop()


@pytest.mark.parametrize(
    ("url", "sources", "why"),
    [
        ("http://127.0.0.1/", "", "--watch needs a broker's URL"),
        ("redis://127.0.0.1:1/0", "sources.toml", "--watch and REDRIVE_SOURCES exclude each other"),
    ],
)
def test_a_broker_that_cannot_be_watched_is_refused(up, url, sources, why):
    desk = up("--watch", url, **({"REDRIVE_SOURCES": sources} if sources else {}))
    assert desk.ends() == 1 and why in desk.text and "Nothing was started." in desk.text


def test_a_redis_cluster_is_refused(up, tmp_path):
    # A cluster's server also listens 10,000 ports higher, which must be a port still.
    port = free_port()
    cluster = ClusterEngine(tmp_path / "cluster", port).start()
    try:
        desk = up("--no-demo", REDRIVE_REDIS_URL=cluster.url)
        assert desk.ends() == 1
        assert "REDRIVE_REDIS_URL is a Redis Cluster" in desk.text
    finally:
        cluster.stop()


class ClusterEngine(Engine):
    settings = "cluster-enabled yes\n"


def test_a_given_store_is_used_and_no_engine_started(configured):
    assert not (configured.data / "engine").exists()


def secrets_of(desk: Desk) -> dict:
    made = json.loads((desk.data / "up.json").read_text())
    return {name: made[name] for name in ("SECRET_KEY", "REDRIVE_PAYLOAD_KEYS")} | {
        "engine": made["engine"]["password"]
    }


def store_of(desk: Desk):
    import redis

    return redis.Redis.from_url(json.loads((desk.data / "up.json").read_text())["REDRIVE_REDIS_URL"])


def answers(client) -> bool:
    import redis

    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def rows(desk: Desk, statement: str) -> list[tuple]:
    with sqlite3.connect(f"file:{desk.data}/redrive.sqlite3?mode=ro", uri=True, timeout=60) as database:
        return database.execute(statement).fetchall()


def failures(desk: Desk) -> int:
    return rows(desk, "select count(*) from jobs_admin_failure")[0][0]


def children_named(desk: Desk, part: str, parent: int | None = None) -> list[int]:
    """Return the processes of this name, or with this word in their command line."""
    found = []
    for pid in desk.processes():
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                words = [word.rpartition("/")[2] for word in file.read().split("\0")]
            with open(f"/proc/{pid}/comm") as file:
                name = file.read().strip()
            with open(f"/proc/{pid}/stat") as file:
                its_parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if part in (name, *words) and parent in (None, its_parent):
            found.append(pid)
    return found
