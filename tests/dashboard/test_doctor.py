"""`doctor`: what is wrong is said with what to do, and ends with 1 when it is severe."""

from __future__ import annotations

import json
import re
import socket
from datetime import UTC, datetime, timedelta
from io import StringIO
from urllib.parse import urlsplit

import pytest
import redis
from cryptography.fernet import Fernet
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from dashboard.setup import checkup, environment
from dashboard.setup.connections import VALKEY, least_fixed_version
from jobs_admin import config
from jobs_admin.core import keys, worker_acl
from jobs_admin.desk import key_rotation
from jobs_admin.fleet import heartbeats, uncaptured, worker_store
from jobs_admin.models import AuditEvent, Channel, Payload, RefusedReports, Source, Unfiled, Worker
from jobs_admin.models.access import ENGINE
from jobs_admin.sources.celery import workers
from jobs_admin.trust import unsealing
from jobs_admin.worker.dropped import Dropped
from jobs_admin.worker.versions import VERSION
from tests.kit.failures import bury
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def patience(request, monkeypatch):
    """Time that doctor waits for workers: none where no worker runs."""
    if "unguarded_worker" not in request.fixturenames:
        monkeypatch.setattr(checkup, "PING_S", 0.05)
        monkeypatch.setattr(workers, "_ANSWER_S", 0.05)


@pytest.fixture
def shop(store, settings, engine):
    """A source whose broker is the engine's database 1, and a watch that is on time."""
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": engine.url.removesuffix("0") + "1"}
    forget_configuration(config)
    store.hset(keys.steps(), "ingest", datetime.now(UTC).timestamp())


def doctor() -> tuple[int, str]:
    output = StringIO()
    try:
        call_command("doctor", stdout=output)
    except SystemExit as end:
        return end.code, output.getvalue()
    return 0, output.getvalue()


def test_a_sound_desk_is_well(shop):
    Worker.objects.create(source="shop", name="w1@vm", boot="b", seen_at=timezone.now())
    code, output = doctor()
    assert code == 0, output
    assert output.endswith("No problems found.\n")


def test_what_a_worker_shows_is_printed_without_control_characters(shop, store):
    name = "\x1b[31mw\nNo problems found.\n"
    heartbeat = {
        "v": 1,
        "source": "shop",
        "name": name,
        "boot": "b",
        "at": timezone.now().timestamp(),
        "queues": [],
        "spooled": 3,
    }
    store.hset(keys.workers("shop"), name, json.dumps(heartbeat))
    heartbeats.count_heartbeats(timezone.now())
    printed = doctor()[1]
    assert "\\x1b[31mw No problems found.  has 3 reports" in printed and "\x1b" not in printed


def test_a_source_without_a_report_from_any_worker_is_not_well(shop):
    code, output = doctor()
    assert "No worker has reported yet" in output and "install(app, source='shop')" in output
    assert code == 0 and output.endswith("No severe problems.\n")


def test_a_store_that_evicts_is_severe(shop, store):
    store.config_set("maxmemory-policy", "allkeys-lru")
    try:
        code, output = doctor()
    finally:
        store.config_set("maxmemory-policy", "noeviction")
    assert code == 1
    assert "maxmemory-policy is allkeys-lru" in output
    assert "CONFIG SET maxmemory-policy noeviction" in output


def test_a_store_whose_scripts_have_known_faults_is_a_warning(shop, store):
    version = store.info("server")["valkey_version"]
    output = doctor()[1]
    assert f"store: Valkey {version}" in output and least_fixed_version(VALKEY, version) is None
    assert "known vulnerabilities" not in output, "the server of these tests has the fixes"
    [finding] = checkup.about_its_scripts(VALKEY, "8.1.3")
    assert finding.severity == "warning" and finding.text.startswith(
        "Valkey 8.1.3 has known vulnerabilities in Lua scripts"
    )
    assert finding.fix.startswith("Upgrade to Valkey 8.1.6 or later")


def test_workers_that_write_keys_which_all_sources_share_are_named_until_none_does(shop, store):
    assert "shared keys: not used by workers" in doctor()[1]
    at = datetime.now(UTC).timestamp()
    for name, seen in {
        "shop/w1@h": at,
        "shop/w2": at - 600,
        "bank/w\x1b3": at,
        "BAD/w4": at,
        "w5": at,
        "shop/": at,
    }.items():
        store.hset(keys.shared("workers"), name, json.dumps({"boot": "b", "at": seen}))
    store.hset(keys.shared("workers"), "shop/w6", "[")
    store.hset(keys.workers("shop"), "w7", json.dumps({"boot": "b", "at": at}))
    code, output = doctor()
    assert code == 0 and "shared keys: used by 2 workers" in output
    assert "write to keys that all sources share: bank/w\\x1b3, shop/w1@h." in output
    store.set(keys.shared("workers"), "no hash")
    assert "shared keys: not used by workers" in doctor()[1]


def test_a_store_without_persistence_is_shown(shop, store):
    store.config_set("appendonly", "no")
    try:
        assert checkup.check_store().severity != "ok"
    finally:
        store.config_set("appendonly", "yes")


def test_a_store_that_is_not_persistent_loses_reports_not_jobs(shop, store):
    store.config_set("appendonly", "no")
    try:
        (found,) = checkup.check_store().findings
    finally:
        store.config_set("appendonly", "yes")
    assert "a restart loses the reports that are not filed yet" in found.text and "job" not in found.text


def test_a_variable_that_redrive_does_not_know_is_named(shop, monkeypatch):
    assert "variables" not in doctor()[1]
    monkeypatch.setenv("REDRIVE_KEPP", "30d")
    assert "REDRIVE_KEPP is set and not known" in doctor()[1] and "Did you mean REDRIVE_KEEP?" in doctor()[1]


def test_a_guard_that_is_off_is_severe(shop, store):
    call_command("off")
    code, output = doctor()
    assert code == 1
    assert "The guard is off: no failures are recorded." in output and "No problems found" not in output


def test_a_database_that_goes_away_while_sources_are_checked_is_a_finding_of_each(shop):
    def lose(execute, sql, *rest):
        if Worker._meta.db_table in sql:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, *rest)

    with connection.execute_wrapper(lose):
        code, output = doctor()
    assert code == 1
    lines = [line for line in output.splitlines() if "Not checked: " in line]
    assert len(lines) == 2  # of the source, and of the payload keys, for which workers encrypt
    assert all("The database failed during the check" in line for line in lines)
    assert "audit" in output, "the later checks go on"


def make_store_safe(store):
    return ""


def switch_the_guard_off(store):
    call_command("off")
    return "The guard is off"


def let_the_store_evict(store):
    store.config_set("maxmemory-policy", "allkeys-lru")
    return "maxmemory-policy is allkeys-lru"


def keep_the_store_off_the_disk(store):
    store.config_set("appendonly", "no")
    return "writes nothing to disk"


def make_watch_current(store):
    return ""


def make_watch_late(store):
    store.hset(keys.steps(), "ingest", datetime.now(UTC).timestamp() - 300)
    return "Not watching since"


def forget_watch(store):
    store.delete(keys.steps())
    return "`watch` has not run yet"


@pytest.fixture
def changed_store(shop, store):
    yield store
    store.config_set("maxmemory-policy", "noeviction")
    store.config_set("appendonly", "yes")


@pytest.mark.parametrize("change_watch", [make_watch_current, make_watch_late, forget_watch])
@pytest.mark.parametrize(
    "change_store", [make_store_safe, switch_the_guard_off, let_the_store_evict, keep_the_store_off_the_disk]
)
def test_a_finding_about_the_store_hides_neither_watch_nor_reports(changed_store, change_store, change_watch):
    expected = {change_store(changed_store), change_watch(changed_store)} - {""}
    code, output = doctor()
    assert all(text in output for text in expected), output
    assert code == (1 if expected else 0), output
    assert "does not answer" not in output
    assert "reports: all filed" in output and re.search(r"^(ok|high) +watch", output, re.M)


def test_a_store_whose_settings_may_not_be_read_answers_all_the_same(shop, store, settings):
    store.execute_command("ACL", "SETUSER", "narrow", "on", ">narrow", "~*", "&*", "+@all", "-info", "-config")
    settings.REDRIVE = settings.REDRIVE | {
        "REDIS_URL": "redis://narrow:narrow@" + settings.REDRIVE["REDIS_URL"].rpartition("@")[2]
    }
    config.store.cache_clear()
    try:
        code, output = doctor()
    finally:
        config.store.cache_clear()
        store.execute_command("ACL", "DELUSER", "narrow")
    assert code == 0, output
    assert "The store answers, but its settings cannot be read" in output and "store does not answer" not in output


def test_tables_that_are_older_than_the_code_hide_neither_store_nor_watch(shop, store):
    MigrationRecorder.Migration.objects.filter(app="jobs_admin").order_by("-id").first().delete()
    store.delete(keys.steps())
    code, output = doctor()
    assert code == 1
    assert (
        "The database schema is older than the code." in output
        and "has not run yet" in output
        and "source shop" in output
    )


def test_a_guard_that_is_held_to_recording_is_shown(shop, store):
    store.set(keys.switch(), "drain")
    assert "retry policies are not applied" in doctor()[1]


def test_what_to_correct_is_named_by_its_variable(shop, settings):
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": ""}
    settings.REDRIVE = settings.REDRIVE | {"CELERY_BROKER_URL": "redis://127.0.0.1:1/0"}
    forget_configuration(config)
    assert "Check CELERY_BROKER_URL, and that the source is running." in doctor()[1]


def test_a_watch_that_never_ran_is_severe(shop, store):
    store.delete(keys.steps())
    code, output = doctor()
    assert code == 1
    assert "manage.py watch" in output


def test_a_source_that_cannot_be_reached_is_severe(shop, settings):
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": "redis://127.0.0.1:1/0"}
    forget_configuration(config)
    code, output = doctor()
    assert code == 1
    assert "source shop" in output
    assert "cannot be reached" in output


@pytest.mark.server
def test_a_broker_that_refuses_commands_is_severe(shop, engine):
    """As with a full disk: it answers INFO, and no PING."""
    broker = redis.Redis.from_url(engine.url)
    broker.execute_command("ACL", "SETUSER", "full", "on", ">secret", "~*", "&*", "+@all", "-ping")
    try:
        url = urlsplit(engine.url)
        _, found = checkup.check_workers("shop", f"redis://full:secret@127.0.0.1:{url.port}/1", timezone.now())
    finally:
        broker.execute_command("ACL", "DELUSER", "full")
    assert (found[0].id, found[0].severity) == ("broker-refuses", "high")
    assert "ping" in found[0].text and "secret" not in found[0].text


def test_a_broker_of_up_watch_is_named_by_that_option(shop, settings, monkeypatch, tmp_path):
    monkeypatch.setenv("REDRIVE_DATA", str(tmp_path))
    lines = '[sources.celery]\nbackend = "celery"\nurl = "redis://127.0.0.1:1/0"\nguard = false\n'
    environment.watch_file(tmp_path).write_text(lines)
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(environment.watch_file(tmp_path))}
    forget_configuration(config)
    assert "Check the URL of `up --watch`" in doctor()[1]


def test_a_store_that_does_not_answer_is_severe_and_the_rest_is_still_checked(shop, settings):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    code, output = doctor()
    assert code == 1
    assert "REDRIVE_REDIS_URL" in output
    assert "audit" in output
    assert "reports: unknown: the store does not answer" in output


def test_no_source_is_a_warning(store):
    store.hset(keys.steps(), "ingest", datetime.now(UTC).timestamp())
    code, output = doctor()
    assert code == 0
    assert "No source is configured" in output
    assert output.endswith("No severe problems.\n")


def test_a_broken_audit_chain_is_severe(shop):
    from jobs_admin.db import audit

    audit.record(ENGINE, "failure.discard", "failure:1")
    audit.record(ENGINE, "failure.discard", "failure:2")
    AuditEvent.objects.filter(object="failure:1").update(actor="somebody else")
    code, output = doctor()
    assert code == 1
    assert "chain breaks" in output


def test_reports_that_could_not_be_filed_are_counted(shop):
    Unfiled.objects.create(entry_id="1-0", received_at=timezone.now(), why="", body=b"", size=0)
    assert "1 report could not be filed and is stored unchanged" in doctor()[1]


def test_reports_that_could_not_be_captured_are_severe(shop, store, tmp_path):
    dropped = Dropped(tmp_path)
    for _ in range(3):
        dropped.add()
    dropped.report(store, "shop")
    uncaptured.record_counts(timezone.now())
    code, output = doctor()
    assert code == 1 and "neither Redrive's store nor the spool on disk accepted them" in output
    assert f"3 reports of host {socket.gethostname()} could not be captured since" in output


@pytest.mark.server
def test_a_worker_that_reports_nothing_here_is_named(shop, settings, unguarded_worker):
    # Workers are given a second to answer; on a busy machine it is not always enough.
    code, output = next((reported for reported in (doctor() for _ in range(10)) if "bare@" in reported[1]), doctor())
    assert code == 0, output  # no worker of this source was ever guarded: somebody is bringing the guard in
    assert "1 of the workers answer on the broker, but this store has never had a heartbeat of them: bare@" in output
    assert (
        "REDRIVE_MODE=off" in output and "REDRIVE_REDIS_URL" in output and "add install(app, source='shop')" in output
    )


def about_the_silent(*names):
    return checkup._about_the_silent("shop", [*names], timezone.now())


def test_where_a_guard_was_and_no_one_is_heard_it_is_severe(shop):
    now = timezone.now()
    assert [one.severity for one in about_the_silent("w1@vm")] == ["warning"]
    Worker.objects.create(source="shop", name="w1@vm", boot="b", seen_at=now - timedelta(hours=1))
    assert [one.severity for one in about_the_silent("w1@vm")] == ["high"]
    Worker.objects.create(source="shop", name="w2@vm", boot="b", seen_at=now)
    assert [one.severity for one in about_the_silent("w1@vm")] == ["warning"]


def test_workers_that_were_heard_before_are_distinguished_from_those_that_never_were(shop):
    Worker.objects.create(source="shop", name="w1@vm", boot="b", seen_at=datetime(2025, 11, 20, 10, 5, tzinfo=UTC))
    quiet, never = about_the_silent("w1@vm", "w2@vm")
    assert "their heartbeats have stopped: w1@vm. The latest arrived at 20 Nov 2025 10:05 UTC." in quiet.text
    assert (
        never.text == "1 of the workers answer on the broker, but this store has never had a heartbeat of them: w2@vm."
    )


def test_workers_that_report_under_another_name_are_shown_by_it(shop, store):
    Worker.objects.create(source="mini", name="w1@vm", boot="b", seen_at=timezone.now())
    Source.objects.create(name="mini")
    heartbeat = {"v": 1, "name": "w3@vm", "boot": "b", "at": timezone.now().timestamp(), "queues": []}
    store.hset(keys.workers("unheard"), "w3@vm", json.dumps(heartbeat))
    store.hset(keys.workers("unheard"), "w2@vm", json.dumps(heartbeat | {"at": timezone.now().timestamp() - 300}))
    worker_store.restart_search()
    known, unknown, never = about_the_silent("w1@vm", "w2@vm", "w3@vm")
    assert known.severity == "high" and known.text == "1 of the workers report as source mini: w1@vm."
    assert "source='shop'" in known.fix and "name the source mini here" in known.fix
    assert unknown.text == "1 of the workers report as source unheard, which is not accepted: w3@vm."
    assert never.text.endswith("of them: w2@vm.")


def test_a_source_of_which_reports_were_refused_is_not_shown_to_have_none(shop):
    now = timezone.now()
    RefusedReports.objects.create(
        source="shop", cause="unsigned", refused=1, first_at=now, last_at=now, why="not signed"
    )
    assert "No worker has reported yet" not in doctor()[1]


@pytest.mark.server
def test_while_no_one_watches_no_worker_is_blamed(shop, unguarded_worker, store):
    store.hset(keys.steps(), "ingest", datetime.now(UTC).timestamp() - 300)
    output = next((reported for reported in (doctor()[1] for _ in range(10)) if "of the workers" in reported), "")
    assert "of the workers report here: reports are not being filed" in output
    assert "install(app" not in output


def test_workers_with_a_guard_of_another_version_are_shown(shop, store):
    now = datetime.now(UTC)
    (source,) = config.sources()
    for number, more in enumerate(({"guard": "0.0.9"}, {}, {"guard": VERSION})):  # the second: an older guard still
        heartbeat = {
            "v": 1,
            "source": source,
            "name": f"w{number}@h",
            "boot": "b",
            "at": now.timestamp(),
            "queues": [],
            **more,
        }
        store.hset(keys.workers(source), f"w{number}@h", json.dumps(heartbeat))
    heartbeats.count_heartbeats(now)
    code, output = doctor()
    assert f"2 of the workers have a guard of another version (0.0.9, unknown) than Redrive ({VERSION})" in output
    assert code == 0


def test_workers_that_may_write_for_every_source_are_shown(shop, store, settings, tmp_path):
    now = datetime.now(UTC)
    ((source, before),) = config.sources().items()
    assert before.is_demo  # of which nothing is said: it is on this machine alone
    file = tmp_path / "sources.toml"
    file.write_text(f'[sources.{source}]\nbackend = "celery"\nurl = "{before.url}"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    call_command("worker_acl", source, "--apply")
    bound = worker_acl.user_of(source)

    def beat(name, **more):
        heartbeat = {
            "v": 1,
            "boot": "b",
            "at": datetime.now(UTC).timestamp(),
            "queues": [],
            "guard": VERSION,
            **more,
        }
        store.hset(keys.workers(source), name, json.dumps(heartbeat))

    try:
        beat("w1", store_user=bound)
        beat("w2")  # an older guard
        heartbeats.count_heartbeats(now)
        assert "connect to the store as" not in doctor()[1]
        beat("w3", store_user="default")
        store.execute_command("ACL SETUSER", bound, "~redrive:{other}:*")
        heartbeats.count_heartbeats(datetime.now(UTC))
        code, output = doctor()
        assert (
            f"2 of the workers connect to the store as default, {bound}, a user that may write for every source"
            in output
        )
        assert f"worker-acl {source} --apply" in output and code == 0
    finally:
        store.acl_deluser(bound)


@pytest.fixture
def unguarded_worker(shop, settings, tmp_path):
    """A Celery worker on the shop's broker that knows nothing of Redrive."""
    import os
    import subprocess
    import sys

    from jobs_admin.core.child_process import die_with_parent

    (tmp_path / "bare.py").write_text("from celery import Celery\napp = Celery()\n")
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "bare",
        "worker",
        "-P",
        "solo",
        "-n",
        "bare@%h",
        "--without-mingle",
    ]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "CELERY_BROKER_URL": settings.REDRIVE["DEMO_BROKER_URL"]},
        stdout=(tmp_path / "log").open("w"),
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
    )
    broker = redis.Redis.from_url(settings.REDRIVE["DEMO_BROKER_URL"])
    log = (tmp_path / "log").read_text
    wait_until(lambda: broker.smembers("_kombu.binding.celery.pidbox"), "the worker", process=process, text=log)
    yield process
    process.terminate()
    process.wait(60)


def test_a_channel_that_is_disabled_or_fails_is_shown(shop):
    Channel.objects.create(
        name="chat", kind="slack", disabled_at=timezone.now(), why_disabled="Slack's channel is gone."
    )
    Channel.objects.create(name="pager", kind="webhook", failures=7)
    code, output = doctor()
    assert code == 1
    assert "The channel chat is disabled: Slack's channel is gone." in output
    assert "The last 7 delivery attempts to the channel pager failed." in output


def test_a_heartbeat_that_is_refused_is_shown(shop, settings):
    settings.REDRIVE = settings.REDRIVE | {"HEARTBEAT_URL": "http://169.254.169.254/beat/very-secret"}
    code, output = doctor()
    assert code == 0
    assert "No heartbeat is sent" in output and "169.254.169.254 is not a public address" in output
    assert "very-secret" not in output


def test_a_payload_key_that_is_missing_is_severe_and_an_old_one_is_shown(shop, settings):
    [failure] = bury(1)
    body = config.payload_keys().encrypt(b"x")
    [old] = settings.REDRIVE["PAYLOAD_KEYS"]
    [name] = unsealing.key_ids()
    Payload.objects.create(failure=failure, run=1, body=body, size=1, sha256="0", payload_key=name)
    assert "payload keys: 1 key, the first is " + name in doctor()[1]
    new = Fernet.generate_key().decode()
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [new]}
    forget_configuration(config)
    code, output = doctor()
    assert code == 1 and f"1 message cannot be decrypted: key {name} is not in REDRIVE_PAYLOAD_KEYS." in output
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [new, old]}
    forget_configuration(config)
    code, output = doctor()
    assert code == 0 and f"The old key {name} is still needed: Still encrypted with the key: 1 message." in output
    while key_rotation.step():
        pass
    assert f"The old key {name} is no longer needed." in doctor()[1]
