"""A worker whose store user is bound to its source: it does all that it does otherwise, and the store refuses it nothing."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import redis
from django.core.management import CommandError, call_command

from jobs_admin import config
from jobs_admin.core import keys, worker_acl
from jobs_admin.models import AuditEvent
from jobs_admin.worker.delays import Delays
from tests.kit.ledger import list_stored, of_store, reap
from tests.kit.policies import obeyed, policy
from tests.kit.sources import forget_configuration
from tests.kit.streams import of_job, reports

ROOT = Path(__file__).resolve().parents[3]
PASSWORD = "of the workers of shop"  # noqa: S105
USER = worker_acl.user_of("shop")


def test_every_command_of_the_scripts_is_allowed_and_none_beyond_those_of_the_guard():
    texts = [
        *(ROOT / "jobs_admin/worker").glob("*.lua"),
        ROOT / "jobs_admin/core/stream.py",
        ROOT / "jobs_admin/worker/once.py",
    ]
    called = {name.lower() for text in texts for name in re.findall(r"redis\.p?call\(\s*'([A-Z]+)'", text.read_text())}
    allowed = {command.partition("|")[0] for command in worker_acl.COMMANDS}
    assert called <= allowed
    direct = {
        "acl",
        "client",
        "discard",
        "eval",
        "evalsha",
        "exec",
        "expire",
        "hmget",
        "mget",
        "multi",
        "ping",
        "script",
        "select",
    }
    assert allowed - called <= direct
    assert not allowed & {
        "keys",
        "scan",
        "flushall",
        "flushdb",
        "config",
        "publish",
        "subscribe",
        "shutdown",
        "debug",
        "migrate",
    }


def test_no_pattern_reaches_another_source():
    patterns = worker_acl.written_keys("shop")
    assert all(one.startswith("redrive:{shop}:") for one in patterns)
    assert not {keys.options("shop"), keys.ledger("shop", "r"), "redrive:{shop}:*"} & set(patterns)


@pytest.fixture
def bound_user(own_store, settings, tmp_path, db):
    """The user of source shop on a store of its own: (the URL of its workers, the store)."""
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": own_store.url}
    forget_configuration(config)
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    call_command("worker_acl", "shop", "--apply", "--password-file", str(file))
    yield f"redis://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{own_store.port}/0", own_store
    forget_configuration(config)


def refused(store) -> list[dict]:
    """Commands that the store refused to anyone."""
    with of_store(store) as client:
        return client.acl_log()


@pytest.mark.server
def test_the_command_makes_a_user_that_reaches_its_own_source_alone(bound_user):
    url, store = bound_user
    with redis.Redis.from_url(url) as worker, of_store(store) as desk:
        assert worker.acl_whoami() == USER
        worker.xadd(keys.failures("shop"), {"v": "1"})
        assert worker.mget(keys.switch(), keys.policies_version()) == [None, None]
        desk.set(keys.options("shop"), "{}")
        for act in (
            lambda: worker.xadd(keys.failures("evil"), {"v": "1"}),
            lambda: worker.hset(keys.workers("evil"), "w", "{}"),
            lambda: worker.xadd(keys.shared("failures"), {"v": "1"}),
            lambda: worker.hset(keys.shared("workers"), "shop/w", "{}"),
            lambda: worker.sadd(keys.shared("kept"), "evil/b"),
            lambda: worker.set(keys.switch(), "off"),
            lambda: worker.hset(keys.policies(), "p", "{}"),
            lambda: worker.hset(keys.steps(), "ingest", "{}"),
            lambda: worker.set(keys.options("shop"), "{}"),
            lambda: worker.get(keys.options("shop")),
            lambda: worker.eval("return redis.call('DEL', KEYS[1])", 1, keys.policies()),
            lambda: worker.eval("return redis.call('XLEN', 'redrive:{evil}:failures')", 0),
            lambda: worker.keys("*"),
            lambda: worker.scan(),
            lambda: worker.flushall(),
            lambda: worker.config_get("*"),
            lambda: worker.publish("c", "m"),
            lambda: worker.acl_list(),
            lambda: worker.client_list(),
            lambda: worker.client_kill_filter(_type="normal"),
        ):
            with pytest.raises(redis.ResponseError, match="permission"):
                act()
    event = AuditEvent.objects.get()
    assert (event.act, event.source) == ("worker_acl.apply", "shop") and PASSWORD not in str(event.after)


@pytest.mark.server
def test_a_user_that_is_renewed_keeps_its_password_and_loses_what_it_had_beyond(bound_user, capsys):
    url, store = bound_user
    with of_store(store) as desk:
        desk.execute_command("ACL SETUSER", USER, "allkeys", "allcommands", "allchannels")
    capsys.readouterr()
    call_command("worker_acl", "shop", "--apply")
    output = capsys.readouterr()
    assert output.out == "" and "is updated" in output.err
    with redis.Redis.from_url(url) as worker, pytest.raises(redis.ResponseError):
        worker.set(keys.switch(), "off")
    with redis.Redis.from_url(url, single_connection_client=True) as stolen:
        stolen.ping()
        call_command("worker_acl", "shop", "--apply", "--new-password")
        printed = capsys.readouterr()
        (line,) = printed.out.splitlines()
        assert "1 open connection of redrive-shop was closed" in printed.err
        with of_store(store) as desk:
            assert USER not in {one["user"] for one in desk.client_list()}
    renewed, changed = AuditEvent.objects.order_by("id")[1:]
    assert changed.after == {"user": USER, "password": "changed"} and "password" not in renewed.after
    with redis.Redis.from_url(line.removeprefix("REDRIVE_REDIS_URL=")) as worker:
        assert worker.acl_whoami() == USER
    with redis.Redis.from_url(url) as worker, pytest.raises(redis.AuthenticationError):
        worker.ping()


@pytest.mark.server
def test_a_new_user_gets_a_password_that_is_printed_once_as_the_address_of_the_workers(bound_user, capsys):
    capsys.readouterr()
    call_command("worker_acl", "crm", "--apply")
    output = capsys.readouterr()
    (line,) = output.out.splitlines()
    with redis.Redis.from_url(line.removeprefix("REDRIVE_REDIS_URL=")) as worker:
        assert worker.acl_whoami() == "redrive-crm"
        worker.xadd(keys.failures("crm"), {"v": "1"})
    assert "aclfile" in output.err and "user redrive-crm on #" in output.err


@pytest.mark.server
def test_the_printed_line_makes_the_same_user_in_a_file_of_the_store(bound_user, tmp_path, capsys):
    """The line that an operator who gives the desk no right over users writes down."""
    _, store = bound_user
    capsys.readouterr()
    file = tmp_path / "password"
    call_command("worker_acl", "shop", "--password-file", str(file))
    line = capsys.readouterr().out.strip()
    with of_store(store) as desk:
        (theirs,) = [one for one in desk.acl_list() if one.split()[1] == USER]
        desk.acl_deluser(USER)
        _, name, *rules = line.split(" ")
        desk.execute_command("ACL SETUSER", name, *rules)
        (ours,) = [one for one in desk.acl_list() if one.split()[1] == USER]
    assert sorted(ours.split()) == sorted(theirs.split())


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["Shop", "a*b", "{x}", ""])
def test_a_name_that_is_no_source_makes_nothing(name):
    with pytest.raises(CommandError, match="cannot name a source"):
        call_command("worker_acl", name, "--apply")
    assert not AuditEvent.objects.exists()


EVERYTHING = {
    "max_attempts": 3, "budget": {"per_minute": 600, "burst": 50}, "concurrency": {"key": "task", "limit": 2},
    "rate_limit": {"max": 100, "per_s": 1}, "poison": {"crashes": 2, "window_s": 300}, "file_lost": True,
}  # fmt: skip


@pytest.fixture(params=["redis", "rabbitmq"])
def place_of_jobs(request):
    """The broker of the jobs: in the store's own server, or RabbitMQ."""
    return {} if request.param == "redis" else {"broker_url": request.getfixturevalue("node").url}


@pytest.mark.server
@pytest.mark.long("Starts a worker and its next life, and holds the store until calls time out.")
def test_a_worker_lives_its_complete_life_under_it_and_is_refused_nothing(bound_user, place_of_jobs, start):
    url, store = bound_user
    # Three calls wait out their time before the spool: ten seconds each, as elsewhere, would be half a minute.
    worker = start(url, environment={"REAL_PATIENCE": "3"}, **place_of_jobs)
    slow = {"kind": "fixed", "first_delay_s": 0.3}
    obeyed(
        worker,
        store.url,
        policy("all", "try", backoff=slow, **EVERYTHING),
        policy("pills", "dies", **{**EVERYTHING, "max_attempts": 20}),
        policy("kept", "until", **EVERYTHING),
    )
    failed, retried, pill = worker.send("fail", "it failed"), worker.send("try", "down", 3), worker.send("dies")
    worker.wait(lambda: len(of_job(store, failed)) == 1, what="a failure")
    worker.wait(lambda: [one.kind for one in of_job(store, retried)] == ["retry", "retry", "success"], what="retries")
    worker.wait(lambda: any(one.crashes for one in of_job(store, pill)), what="a pill in quarantine")
    with of_store(store) as desk:
        (beat,) = map(json.loads, desk.hvals(keys.workers("shop")))
        assert beat["store_user"] == USER
        assert (beat["uncounted"], beat["shared_out"], beat["unkept"], beat["broken"]) == (0, 0, 0, 0)
        worker.wait(lambda: desk.keys("redrive:{shop}:configuration:*"), what="its configuration")
        assert desk.keys("redrive:{shop}:tasks:*") and Delays(desk, "shop").count() == 0

        store.process.send_signal(signal.SIGSTOP)
        try:
            spooled = worker.send("fail", "while the store hangs")
            worker.wait(lambda: "they go to" in worker.text(), what="the spool")
        finally:
            store.process.send_signal(signal.SIGCONT)
        worker.wait(lambda: of_job(store, spooled), what="the spool to be shipped")

        lost = worker.send("until", "j")
        worker.wait(lambda: list_stored(desk), what="one that is kept")
        worker.wait(lambda: desk.hvals(keys.in_hand("shop")), what="what it has in hand")
        worker.kill()
        reap(desk)
        assert [one.kind for one in of_job(store, lost)] == ["lost"]
        worker.start()
        last = worker.send("fail", "in its second life")
        worker.wait(lambda: of_job(store, last), what="its report")
        worker.stop()
        assert {one.source for one in reports(store)} == {"shop"}
        assert {key.decode().split(":")[1] for key in desk.keys("redrive:*")} - {"policies"} == {"{shop}"}
    assert refused(store) == []
