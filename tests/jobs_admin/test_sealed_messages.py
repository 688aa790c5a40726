"""Raw messages are encrypted in the worker for the desk alone, and filed as the broker had them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import pytest
import redis
from cryptography.fernet import Fernet
from django.core.management import call_command
from django.utils import timezone

from jobs_admin import config, ingest
from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope, decode, encode
from jobs_admin.failures import contents
from jobs_admin.ingest import refiling
from jobs_admin.models import Failure, Unfiled
from jobs_admin.trust import unsealing
from jobs_admin.worker.sealing import BadPublicKey, sealer
from jobs_admin.worker.spool import Spool
from tests.kit.celery import RealWorker
from tests.kit.policies import obeyed
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.server]

SECRET = "the-customers-own-words"  # noqa: S105


def build_envelope(raw: bytes = SECRET.encode(), **more) -> Envelope:
    usual = {
        "source": "shop",
        "queue": "emails",
        "task": "shop.send",
        "job_id": "j1",
        "kind": "exception",
        "attempt": 1,
    }
    return Envelope(**usual | {"at": timezone.now().timestamp(), "raw": raw, "raw_size": len(raw)} | more)


@pytest.mark.parametrize("raw", [b"", b"\x00\xff" * 1000, SECRET.encode()])
def test_a_message_is_opened_as_it_was_sealed_and_reports_nothing_before(raw):
    seal = sealer(unsealing.public_key())
    entry = encode(seal(build_envelope(raw)))
    assert raw == b"" or raw not in b"".join(entry.values())
    assert encode(seal(build_envelope(raw)))[b"raw"] != entry[b"raw"]
    found = unsealing.opened(decode(entry))
    assert (found.raw, found.is_raw_complete, found.sealed) == (raw, True, "")


def test_the_command_prints_the_key_and_nothing_else(capsys):
    call_command("public_key")
    assert capsys.readouterr().out == f"{unsealing.public_key()}\n"
    assert len(base64.urlsafe_b64decode(unsealing.public_key())) == 32


@pytest.mark.parametrize("key", ["x", "not base64!", base64.urlsafe_b64encode(b"short").decode()])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(BadPublicKey, match="is not a key as"):
        sealer(key)


@pytest.mark.django_db
def test_what_no_key_opens_is_stored_raw_and_filed_once_its_key_is_back(settings, store):
    entry = encode(sealer(unsealing.public_key())(build_envelope()))
    old = settings.REDRIVE["PAYLOAD_KEYS"]
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    forget_configuration(config)
    assert ingest.file([(b"1-1", entry)]).unfiled == 1
    unfiled = Unfiled.objects.get()
    assert "which belongs to none of REDRIVE_PAYLOAD_KEYS" in unfiled.why and not Failure.objects.exists()
    settings.REDRIVE = settings.REDRIVE | {
        "PAYLOAD_KEYS": [*settings.REDRIVE["PAYLOAD_KEYS"], *old]
    }  # rotated, and the old one is kept
    forget_configuration(config)
    refiling.restart()
    while refiling.step():
        pass
    assert contents.opened(Failure.objects.get().payloads.get()) == SECRET.encode() and not Unfiled.objects.exists()
    forget_configuration(config)


@pytest.mark.django_db
def test_what_was_changed_on_its_way_is_stored_raw(store):
    entry = encode(sealer(unsealing.public_key())(build_envelope()))
    entry[b"raw"] = entry[b"raw"][:-1] + bytes([entry[b"raw"][-1] ^ 1])
    assert ingest.file([(b"1-1", entry)]).unfiled == 1
    assert "was changed or truncated in transit" in Unfiled.objects.get().why


@pytest.mark.django_db(transaction=True)
def test_nothing_of_a_message_is_in_clear_in_the_store_or_the_spool(engine, store):
    """Also not of a job that is kept while it runs, and of one that the store did not take."""
    broker = engine.url.removesuffix("/0") + "/1"
    redis.Redis.from_url(broker).flushdb()
    worker = RealWorker(broker, engine.url, environment={"REDRIVE_PUBLIC_KEY": unsealing.public_key()})
    worker.start()
    try:
        obeyed(worker, engine.url, {"name": "kept", "match": {"task": "until"}, "mode": "enforce", "file_lost": True})
        job = worker.send("fail", SECRET, kwargs={"note": SECRET})
        running = worker.send("until", "end", SECRET)
        worker.wait(lambda: store.keys("*:kept:*"), what="what is kept")
        worker.wait(lambda: store.xlen(keys.failures("shop")), what="the report")
        [heartbeat] = store.hvals(keys.workers("shop"))
        assert json.loads(heartbeat)["seals_for"] == unsealing.key_ids()[0]
        stored = [value for key in store.keys("*:kept:*") if store.type(key) == b"hash" for value in store.hvals(key)]
        assert any(running.encode() in one for one in stored) and all(b'"body"' not in one for one in stored)
        worker.let("end")
        worker.wait(lambda: store.xlen(keys.failures("shop")) == 2, what="both reports")
        entries = store.xrange(keys.failures("shop"))
        # What is shown of a job is not sealed: its words are in `meta`, redacted, and nowhere else.
        assert all(b'"body"' not in fields[b"raw"] and decode(fields).sealed for _, fields in entries)
        ingest.file(entries)
    finally:
        worker.kill()
    for one in (job, running):
        message = json.loads(contents.opened(Failure.objects.get(first_job_id=one).payloads.get()))
        assert SECRET in base64.b64decode(message["body"]).decode()


def test_reports_in_the_spool_are_sealed_too(tmp_path):
    spool = Spool(tmp_path / "spool")
    spool.append(encode(sealer(unsealing.public_key())(build_envelope())))
    assert all(SECRET.encode() not in file.read_bytes() for file in (tmp_path / "spool").iterdir())


def test_a_worker_that_cannot_seal_sends_nothing_in_clear(engine, store):
    broker = engine.url.removesuffix("/0") + "/1"
    worker = RealWorker(broker, engine.url, environment={"REDRIVE_PUBLIC_KEY": "no key"}).start()
    try:
        assert "REDRIVE_PUBLIC_KEY is not a key as Redrive's command public_key prints it" in worker.text()
        worker.send("fail", SECRET)
        worker.wait(lambda: "raised unexpected" in worker.text(), what="the failure")
    finally:
        worker.stop()
    assert not store.xlen(keys.failures("shop"))


def test_a_worker_without_the_library_reports_what_to_install():
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from jobs_admin.worker.sealing import BadPublicKey, sealer\n"
        "assert sealer('')(5) == 5\n"
        "try: sealer('A' * 43 + '=')\n"
        "except BadPublicKey as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, check=True)
    assert done.stdout == "REDRIVE_PUBLIC_KEY is set, but the library cryptography is not installed\n"
