"""A desk comes back from a backup with every row, and sends nothing twice that was sent since."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import struct
import zipfile
from collections import Counter

import pytest
import redis

from dashboard.setup.backups.store import MEMBER
from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from tests.kit.installations import Installation, hash_rows

pytestmark = [pytest.mark.databases, pytest.mark.usefixtures("store")]

START = """
bury({jobs})
replay = replays.start(ANN, replays.draft(ANN, query="state:dead", pace={{"style": "at_once", "in_flight": {sent}}}, reason="fixed"))
while replays.create_items(): pass
"""
SEND = """
Replay.objects.update(pace={{"style": "at_once", "in_flight": {sent}}}, may_send={sent})
ends = time.monotonic() + 60
while Replay.objects.get().sent < {sent} and time.monotonic() < ends: replays.send("sender")
"""
# As `watch` does after a restore: what its ledger has was sent.
SETTLE = """
ends = time.monotonic() + 60
while ReplayItem.objects.filter(claimed_at__isnull=False, state="planned").exists() and time.monotonic() < ends:
    replays.send("sender")
"""
COUNTS = """
names = ("state", "planned", "sent", "uncertain", "cancelled", "held_because")
say([{name: getattr(replay, name) for name in names} for replay in Replay.objects.order_by("pk")])
"""


@pytest.fixture
def broker(engine):
    client = redis.Redis.from_url(engine.url.removesuffix("0") + "1")
    yield client
    client.close()


@pytest.fixture
def desk(tmp_path, engine) -> Installation:
    return Installation(
        tmp_path / "desk", engine.url, forks=True, REDRIVE_DEMO_BROKER_URL=engine.url.removesuffix("0") + "1"
    )


def jobs_on_queue(broker: redis.Redis) -> Counter[int]:
    """The number of each job in its messages: how often it was sent."""
    import base64

    bodies = [json.loads(one)["body"] for one in broker.lrange("emails", 0, -1)]
    return Counter(json.loads(base64.b64decode(body))[0][0] for body in bodies)


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_jobs_sent_after_the_backup_are_not_sent_again_and_none_is_lost(desk, broker, tmp_path):
    desk.run(code=START.format(jobs=60, sent=20) + SEND.format(sent=20))
    file = tmp_path / "backup.zip"
    desk.run("backup", str(file))
    before = hash_rows(desk)
    desk.run(code=SEND.format(sent=40))
    assert sum(jobs_on_queue(broker).values()) == 40

    output = desk.run("restore", str(file), "--replace")
    assert "1 open replay is paused." in output, output
    after = hash_rows(desk)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"jobs_admin_replay", "jobs_admin_replayitem", "jobs_admin_auditevent"}, changed
    (replay,) = desk.read(COUNTS)
    assert (replay["state"], replay["planned"], replay["sent"]) == ("paused", 40, 20)
    assert replay["held_because"].startswith("Restored from a backup of ")
    assert replay["held_because"].endswith(" UTC; jobs may have been sent since.")

    (replay,) = desk.read(SETTLE + COUNTS)
    assert (replay["state"], replay["planned"], replay["sent"], replay["uncertain"]) == ("paused", 20, 40, 0)
    (replay,) = desk.read("replays.resume(ANN, Replay.objects.get())" + SEND.format(sent=60) + COUNTS)
    assert (replay["planned"], replay["sent"]) == (0, 60)
    assert jobs_on_queue(broker) == Counter(range(60))
    assert desk.run("audit", "verify").startswith("The chain is intact")


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_where_the_ledger_is_lost_too_unsent_jobs_are_uncertain(desk, broker, tmp_path):
    desk.run(code=START.format(jobs=12, sent=4) + SEND.format(sent=4))
    desk.run("backup", str(tmp_path / "backup.zip"))
    desk.run(code=SEND.format(sent=8))
    broker.delete(*broker.keys(f"{keys.PREFIX}:*:ledger:*"))
    desk.run("restore", str(tmp_path / "backup.zip"), "--replace")
    (replay,) = desk.read(SETTLE + COUNTS)
    assert (replay["planned"], replay["sent"], replay["uncertain"]) == (0, 4, 8)
    desk.run(code="replays.resume(ANN, Replay.objects.get())\nfor _ in range(5): replays.send('sender')")
    assert sorted(jobs_on_queue(broker).values()) == [1] * 8


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_drafts_and_jobs_without_items_do_not_start_again_by_themselves(desk, broker, tmp_path):
    desk.run(
        code=START.format(jobs=205, sent=1).split("while")[0]  # the first 200 have their items at once
        + "bury(3)\nreplays.draft(ANN, selection=list(Failure.objects.order_by('-pk').values_list('pk', flat=True)[:2]), reason='later')"
    )
    desk.run("backup", str(tmp_path / "backup.zip"))
    desk.run("restore", str(tmp_path / "backup.zip"), "--replace")
    (replay,) = desk.read("replays.create_items()" + SETTLE + COUNTS)
    assert (replay["state"], replay["planned"], replay["cancelled"]) == ("paused", 200, 5)
    assert replay["held_because"].endswith("Jobs whose items had not been created at that time were left out.")
    assert desk.query("SELECT COUNT(*) FROM jobs_admin_failure WHERE state = 'dead'") == [(208,)]
    assert not jobs_on_queue(broker)


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_the_store_gets_what_it_lacks_and_retries_that_are_not_due_yet(desk, store, tmp_path):
    stream, due = keys.failures("shop"), keys.due("shop")
    store.xadd(stream, {"v": "1"})
    store.set(keys.switch(), "off", ex=1000)
    now, later = 1000, 4_000_000_000_000
    store.zadd(due, {"early": now, "late": later})
    store.hset(keys.due_jobs("shop"), mapping={"early": "{}", "late": "{}"})
    store.set(f"{keys.PREFIX}:{{shop}}:ledger:r1", "of that time")
    desk.run("backup", str(tmp_path / "backup.zip"))
    store.flushdb()
    store.xadd(stream, {"v": "newer"})
    output = desk.run("restore", str(tmp_path / "backup.zip"), "--replace")
    assert "2 keys restored; 0 were already there, newer, and stay. Delayed retries: 1 restored, 1 left out" in output
    assert [fields for _, fields in store.xrange(stream)] == [{b"v": b"newer"}, {b"v": b"1"}]
    assert store.get(keys.switch()) == b"off" and 900 < store.ttl(keys.switch()) <= 1000
    assert (store.zrange(due, 0, -1), store.hkeys(keys.due_jobs("shop"))) == ([b"late"], [b"late"])
    assert not store.keys("*:restored") and not store.keys("*ledger*")


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_a_delayed_retry_that_ended_in_the_store_of_the_backup_is_not_restored_to_it(desk, store, tmp_path):
    stream, due = keys.failures("shop"), keys.due("shop")
    store.zadd(due, {"late": 4_000_000_000_000})
    store.hset(keys.due_jobs("shop"), mapping={"late": "{}"})
    store.xadd(stream, {"v": "1"})
    store.set(keys.failures_bytes("shop"), 70)
    desk.run("backup", str(tmp_path / "backup.zip"))
    store.delete(due, keys.due_jobs("shop"))
    output = desk.run("restore", str(tmp_path / "backup.zip"), "--replace")
    assert "0 left out (due since the backup), 1 left as they are" in output
    assert not store.exists(due, keys.due_jobs("shop")) and not store.keys("*:restored")
    # The stream has the report twice, which changes nothing once filed; its size is measured again.
    assert store.xlen(stream) == 2 and not store.exists(keys.failures_bytes("shop"))


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_each_error_is_a_sentence_and_changes_nothing(desk, store, tmp_path):
    file, other = tmp_path / "backup.zip", tmp_path / "other.zip"
    desk.run(code="bury(3)")
    store.xadd(keys.failures("shop"), {"v": "1"})
    desk.run("backup", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and not list(tmp_path.glob(".*"))
    before = hash_rows(desk)

    def refused(*arguments: str, **variables: str) -> str:
        output = desk.run(*arguments, expect=1, **variables)
        assert output.count("\n") == 1 and output.startswith("CommandError: "), output
        return output.removeprefix("CommandError: ").strip()

    assert refused("restore", str(file)).startswith("The desk is not empty: --replace deletes what it has")
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no backup"):
        other.write_bytes(damaged)
        assert "is not a complete Redrive backup" in refused("restore", str(other), "--replace")
    with zipfile.ZipFile(file) as was:
        name, manifest = was.namelist()[1], json.loads(was.read("manifest.json"))
        at = was.getinfo(name).header_offset + 200
    other.write_bytes(content[:at] + bytes(255 - byte for byte in content[at : at + 50]) + content[at + 50 :])
    assert f"is damaged: {name} does not match its checksum." in refused("restore", str(other), "--replace")

    def rewritten(**changes: object) -> str:
        with zipfile.ZipFile(file) as was, zipfile.ZipFile(other, "w") as now:
            for member in was.namelist():
                text = json.dumps(manifest | changes) if member == "manifest.json" else was.read(member)
                now.writestr(member, text)
        return str(other)

    newer = rewritten(migrations=[*manifest["migrations"], "jobs_admin.9999_later"], version="9.0.0")
    assert "was made by a newer version of Redrive (9.0.0)" in refused("restore", newer, "--replace")
    assert "is a backup of oracle" in refused("restore", rewritten(database="oracle"), "--replace")
    assert "(format 7; this one reads 1)" in refused("restore", rewritten(format=7), "--replace")
    short = rewritten(tables=manifest["tables"] | {"jobs_admin_failure": 4})
    assert "Nothing was changed." in refused("restore", short, "--replace")
    assert "lacks a key of the backup" in refused(
        "restore", str(file), "--replace", REDRIVE_PAYLOAD_KEYS="A" * 43 + "="
    )
    assert "no such file" in refused("restore", str(tmp_path / "none"), "--replace")
    away = {"REDRIVE_REDIS_URL": "redis://127.0.0.1:1/0"}
    assert refused("restore", str(file), "--replace", **away).startswith("The store failed (REDRIVE_REDIS_URL)")
    assert refused("backup", str(other), **away).endswith("No backup was made.")
    assert "The folder" in refused("backup", str(tmp_path / "none" / "b.zip"))
    assert "is a folder" in refused("backup", str(tmp_path))
    assert hash_rows(desk) == before and store.xlen(keys.failures("shop")) == 1
    desk.query("CREATE TABLE posts (id integer)")
    for arguments in ((), ("--replace",)):
        assert "has tables that are not Redrive's (posts)" in refused("restore", str(file), *arguments)
    assert hash_rows(desk) == before | {"posts": (0, "0")}


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_where_the_store_fails_after_the_database_the_message_is_to_restore_again(tmp_path):
    file, stream = tmp_path / "backup.zip", keys.failures("shop")
    full = Engine(tmp_path / "engine").start()
    try:
        client = redis.Redis.from_url(full.url)
        desk = Installation(tmp_path / "desk", full.url, forks=True)
        desk.run(code="bury(3)")
        client.xadd(stream, {"v": "1"})
        desk.run("backup", str(file))
        desk.run(code="bury(2)")
        client.delete(stream)
        client.config_set("maxmemory", 1)  # it answers, and takes no write
        output = desk.run("restore", str(file), "--replace", expect=1)
        assert "The database is restored and its replays are paused, but a later step failed: " in output
        assert output.strip().endswith("Fix the cause, then restore again with --replace."), output
        assert not client.exists(stream)
        client.config_set("maxmemory", 0)
        desk.run("restore", str(file), "--replace")
        assert desk.query("SELECT COUNT(*) FROM jobs_admin_failure") == [(3,)] and client.xlen(stream) == 1
        assert desk.run("audit", "verify").startswith("The chain is intact")
        client.close()
    finally:
        full.stop()


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_a_key_that_is_not_of_redrive_is_not_restored(desk, store, tmp_path):
    file, other = tmp_path / "backup.zip", tmp_path / "other.zip"
    store.set("house:sessions", "theirs")
    store.set(f"{keys.PREFIX}ish:switch", "theirs")
    store.set(keys.switch(), "off")
    desk.run("backup", str(file))
    with zipfile.ZipFile(file) as was:
        members = {name: was.read(name) for name in was.namelist()}
    for name in ("house:sessions", f"{keys.PREFIX}ish:switch"):
        value = store.dump(name)
        members[MEMBER] += struct.pack(">qII", -1, len(name), len(value)) + name.encode() + value
    manifest = json.loads(members["manifest.json"])
    manifest["members"][MEMBER] = {"bytes": len(members[MEMBER]), "sha256": hashlib.sha256(members[MEMBER]).hexdigest()}
    with zipfile.ZipFile(other, "w") as now:
        for name, content in (members | {"manifest.json": json.dumps(manifest)}).items():
            now.writestr(name, content)
    store.flushdb()
    assert "1 keys restored" in desk.run("restore", str(other), "--replace")
    assert not store.exists("house:sessions", f"{keys.PREFIX}ish:switch") and store.get(keys.switch()) == b"off"


@pytest.mark.skipif(os.getuid() != 0, reason="root alone may mount a small disk")
@pytest.mark.extras
@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_a_full_disk_leaves_no_half_file(desk, tmp_path):
    import subprocess

    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount a file system")
    try:
        output = desk.run("backup", str(small / "b.zip"), expect=1)
        assert "No backup was made" in output
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)
    shutil.rmtree(small)


@pytest.mark.sqlite
@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_a_new_machine_needs_the_file_alone(desk, engine, tmp_path):
    """Without settings, the backup brings the keys, and a private engine is started for as long as this takes."""
    desk.run(code="bury(3)")
    desk.run("backup", str(tmp_path / "backup.zip"))
    bare = {
        "SECRET_KEY": "",
        "REDRIVE_PAYLOAD_KEYS": "",
        "REDRIVE_REDIS_URL": "",
        "DATABASE_URL": "",
        "REDRIVE_DEMO_BROKER_URL": "",
    }
    fresh = Installation(tmp_path / "fresh", engine.url, is_empty=True, **bare)
    fresh.variables["DATABASE_URL"] = ""
    assert "Restored " in fresh.run("restore", str(tmp_path / "backup.zip"))
    made = json.loads((tmp_path / "fresh" / "up.json").read_text())
    assert made["SECRET_KEY"] == desk.variables["SECRET_KEY"] and made["engine"]["password"]
    messages = "say([config.payload_keys().decrypt(bytes(row.body))[:8].decode() for row in Payload.objects.all()])"
    assert fresh.read(messages) == ['{"body":'] * 3
    assert fresh.run("backup", str(tmp_path / "again.zip")).count("rows and") == 1


def test_a_running_process_is_named_and_nothing_is_changed(desk, tmp_path):
    desk.run("backup", str(tmp_path / "backup.zip"))
    code = "list(Failure.objects.all())\nprint('open', flush=True)\ntime.sleep(600)"
    with desk.start(code=code) as other:
        try:
            assert other.stdout.readline() == "open\n"
            output = desk.run("restore", str(tmp_path / "backup.zip"), "--replace", expect=1)
        finally:
            other.kill()
    assert "Stop watch, web and other commands, then restore. Nothing was changed." in output


@pytest.mark.postgresql
def test_no_password_is_on_a_command_line(desk, tmp_path):
    """Programs before `pg_dump` and `psql` on PATH write down how they are called, and call them."""
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    programs.mkdir()
    for name in ("pg_dump", "psql"):
        (programs / name).write_text(f'#!/bin/sh\necho "$0 $*" >>{calls}\nexec {shutil.which(name)} "$@"\n')
        (programs / name).chmod(0o755)
    desk.run(code="bury(3)")
    path, url = f"{programs}:{os.environ['PATH']}", f"{desk.database}?sslpassword=key-secret"
    desk.run("backup", str(tmp_path / "backup.zip"), PATH=path, DATABASE_URL=url)
    desk.run("restore", str(tmp_path / "backup.zip"), "--replace", PATH=path, DATABASE_URL=url)
    called = calls.read_text()
    password = re.search(r"://[^:]+:([^@]+)@", url)[1]
    assert "pg_dump --no-owner" in called and "psql -X" in called
    assert "key-secret" not in called and password not in called


@pytest.mark.postgresql
def test_without_pg_dump_the_sentence_names_the_package(desk, tmp_path):
    output = desk.run("backup", str(tmp_path / "backup.zip"), expect=1, PATH="/nonexistent")
    assert "pg_dump is not on PATH. Install PostgreSQL's client programs" in output
