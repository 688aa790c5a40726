"""Payload keys are rotated: every row comes under the first, and a key behind it is given free only when nothing needs it."""

from __future__ import annotations

import ast
import json
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from cryptography.fernet import Fernet, InvalidToken
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from dashboard.setup.checkup import check_payload_keys
from jobs_admin import config, ingest, trust, watch
from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope, Unreadable, decode, encode
from jobs_admin.desk import key_rotation
from jobs_admin.desk.key_rotation import COLUMNS, UNKNOWN
from jobs_admin.failures import contents
from jobs_admin.fleet import heartbeats
from jobs_admin.ingest import refiling
from jobs_admin.models import AuditEvent, Channel, Failure, Payload, Source, Unfiled
from jobs_admin.models.access import ENGINE
from jobs_admin.notices import sealing
from jobs_admin.trust import source_keys, unsealing
from jobs_admin.worker.sealing import id_of, sealer
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_round(store):
    key_rotation.begin_again()


def set_keys(settings, *chosen: str) -> None:
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": list(chosen)}
    forget_configuration(config)
    key_rotation.begin_again()


def put_in_front(settings) -> tuple[str, str]:
    """A new key before the one of now; answers both."""
    [old], new = settings.REDRIVE["PAYLOAD_KEYS"], Fernet.generate_key().decode()
    set_keys(settings, new, old)
    return new, old


def envelope(job: str = "j1", **more) -> Envelope:
    raw = f"the message of {job}".encode()
    usual = {"source": "shop", "queue": "emails", "task": "shop.send", "job_id": job, "kind": "exception", "attempt": 1}
    return Envelope(**usual | {"at": timezone.now().timestamp(), "raw": raw, "raw_size": len(raw)} | more)


def report(count: int, *, start: int = 0) -> None:
    ingest.file([(f"{n + 1}-1".encode(), encode(envelope(f"j{n}"))) for n in range(start, start + count)])


def rotate() -> None:
    while key_rotation.step():
        pass


def rotation() -> key_rotation.Rotation:
    return key_rotation.rotation(datetime.now(UTC))


def run(*arguments: str) -> tuple[int, str]:
    output = StringIO()
    try:
        call_command("rotate_keys", *arguments, stdout=output, stderr=output)
    except SystemExit as end:
        return end.code, output.getvalue()
    return 0, output.getvalue()


def test_a_new_row_has_the_id_of_the_first_key(settings):
    report(2)
    ingest.file([(b"9-1", {b"v": b"99", b"meta": b"{}"})])
    [name] = unsealing.key_ids()
    assert {row.payload_key for kind in (Payload, Unfiled) for row in kind.objects.all()} == {name}
    assert id_of(unsealing.public_key()) == name


def test_every_column_comes_under_the_first_key_and_the_other_may_go(settings):
    report(5)
    ingest.file([(b"9-1", {b"v": b"99", b"meta": b"{}", b"raw": b"\xff\x00"})])
    Channel.objects.create(name="ops", kind="webhook", secrets=[sealing.seal("new secret"), sealing.seal("older")])
    key = source_keys.create(ENGINE, "shop")
    new, _ = put_in_front(settings)
    assert [use.rows for use in rotation().uses] == [
        {}, {"messages": 5, "unfiled reports": 1, "channel secrets": 2, "source keys": 1}
    ]  # fmt: skip
    assert "Still encrypted with the key: 5 messages, 1 unfiled report, 2 channel secrets, 1 source key." in " ".join(
        rotation().must_stay(rotation().older[0])
    )
    rotate()
    assert rotation().must_stay(rotation().older[0]) == [] and rotation().remaining == 0
    set_keys(settings, new)
    assert [contents.opened(one) for one in Payload.objects.order_by("pk")] == [
        f"the message of j{n}".encode() for n in range(5)
    ]
    assert sealing.unseal(Channel.objects.get().secrets) == ["new secret", "older"]
    assert source_keys.is_in_force(str(key))
    fields, _ = unsealing.decode_entry(config.payload_keys().decrypt(bytes(Unfiled.objects.get().body)))
    assert fields == {b"v": b"99", b"meta": b"{}", b"raw": b"\xff\x00"}
    entry = AuditEvent.objects.get(act="payload_keys.rotate")
    assert entry.after == {"messages": 5, "unfiled reports": 1, "channel secrets": 1, "source keys": 1}
    assert entry.object == unsealing.key_ids()[0]


def test_watch_reencrypts_beside_reconcile(settings):
    report(5)
    put_in_front(settings)
    watch.steps()["reconcile"].run("a process")
    assert rotation().remaining == 0 and AuditEvent.objects.get(act="payload_keys.rotate").after == {"messages": 5}


def test_rows_of_an_earlier_version_are_tried_before_a_key_may_go(settings):
    report(4)
    new, _ = put_in_front(settings)
    report(2, start=4)
    Payload.objects.update(payload_key=None)
    assert "Not checked yet: 6 messages." in rotation().must_stay(rotation().older[0])
    rotate()
    [first] = set(Payload.objects.values_list("payload_key", flat=True))
    assert first == unsealing.key_ids()[0] and rotation().must_stay(rotation().older[0]) == []
    set_keys(settings, new)
    assert all(contents.opened(one) for one in Payload.objects.all())


def test_rows_with_the_id_of_another_key_come_along_or_are_reported(settings):
    """As a desk of another version beside this one may leave them."""
    report(2)
    put_in_front(settings)
    report(1, start=2)
    _, older = unsealing.key_ids()
    lost = Fernet(Fernet.generate_key()).encrypt(b"x")
    Payload.objects.filter(pk=Payload.objects.latest("pk").pk).update(payload_key=older)
    Payload.objects.filter(pk=Payload.objects.earliest("pk").pk).update(body=lost)
    rotate()
    assert {use.id: use.rows for use in rotation().uses} == {
        unsealing.key_ids()[0]: {"messages": 2}, older: {}, UNKNOWN: {"messages": 1}
    }  # fmt: skip


def test_a_row_whose_key_is_missing_stays_and_comes_along_once_the_key_is_back(settings):
    report(3)
    [old], new = settings.REDRIVE["PAYLOAD_KEYS"], Fernet.generate_key().decode()
    [name] = unsealing.key_ids()
    before = bytes(Payload.objects.first().body)
    set_keys(settings, new)
    rotate()
    assert bytes(Payload.objects.first().body) == before and rotation().missing[0].id == name
    assert (
        run()[0] == 1 and f"Key {name} is not in REDRIVE_PAYLOAD_KEYS. Add the key again after the first." in run()[1]
    )
    Payload.objects.update(payload_key=None)  # and where no id says which key it is
    rotate()
    assert set(Payload.objects.values_list("payload_key", flat=True)) == {UNKNOWN}
    assert "A key of unknown id is not in REDRIVE_PAYLOAD_KEYS." in run("--status")[1]
    set_keys(settings, new, old)
    rotate()
    set_keys(settings, new)
    assert all(contents.opened(one) for one in Payload.objects.all()) and not rotation().missing


def test_a_row_that_changes_while_it_is_encrypted_keeps_its_change(settings):
    report(2)
    put_in_front(settings)
    column = next(one for one in COLUMNS if one.model is Payload)
    first, older = unsealing.key_ids()
    rows = column._next(older)
    changed = [(*key_rotation._with_first_key(body, first), pk, body) for pk, body in rows]
    newer = config.payload_keys().encrypt(b"a later attempt")
    Payload.objects.filter(pk=rows[0][0]).update(body=newer, payload_key=first)
    column._write(changed, older)
    assert [contents.opened(one) for one in Payload.objects.order_by("pk")] == [
        b"a later attempt",
        b"the message of j1",
    ]


def test_a_row_that_changes_under_the_same_old_key_keeps_its_change(settings):
    """As a desk that was not restarted yet writes it."""
    report(1)
    put_in_front(settings)
    column = next(one for one in COLUMNS if one.model is Payload)
    first, older = unsealing.key_ids()
    [(pk, body)] = column._next(older)
    Payload.objects.update(body=unsealing.ciphers()[older].encrypt(b"a later attempt"))
    column._write([(*key_rotation._with_first_key(body, first), pk, body)], older)
    rotate()
    assert contents.opened(Payload.objects.get()) == b"a later attempt" and rotation().remaining == 0


def test_of_rows_without_a_known_key_every_page_is_tried(settings, monkeypatch):
    report(5)
    [old], new = settings.REDRIVE["PAYLOAD_KEYS"], Fernet.generate_key().decode()
    Payload.objects.update(payload_key=UNKNOWN)
    set_keys(settings, new, old)
    monkeypatch.setattr(key_rotation, "_MOST_ROWS", 2)
    for column in COLUMNS:
        if column.model is Payload:
            monkeypatch.setattr(column, "_at_once", 2)
    rotate()
    assert set(Payload.objects.values_list("payload_key", flat=True)) == {unsealing.key_ids()[0]}


def test_a_message_that_a_worker_encrypted_for_the_old_key_is_filed_after_it_went(settings):
    """The message is in a report that could not be filed: under the payload key of the row, and for the worker's inside."""
    sealed = encode(sealer(unsealing.public_key())(envelope()))
    ingest.file([(b"1-1", sealed | {b"v": b"99"})])
    Unfiled.objects.update(body=config.payload_keys().encrypt(old_document(sealed | {b"v": b"99"})), payload_key=None)
    new, _ = put_in_front(settings)
    late = encode(sealer(id_key(settings.REDRIVE["PAYLOAD_KEYS"][1]))(envelope("j2")))
    ingest.file([(b"2-1", late | {b"v": b"99"})])  # of a worker that has the old public key still
    rotate()
    set_keys(settings, new)
    for row in Unfiled.objects.all():  # as if this were the version that can read them
        fields, key = unsealing.decode_entry(config.payload_keys().decrypt(bytes(row.body)))
        fields = fields | {b"v": b"1"}
        row.body = config.payload_keys().encrypt(unsealing.encode_entry(fields, key))
        row.save()
    refiling.restart()
    while refiling.step():
        pass
    assert not Unfiled.objects.exists()
    assert {contents.opened(one.payloads.get()) for one in Failure.objects.all()} == {
        b"the message of j1", b"the message of j2"
    }  # fmt: skip


def old_document(fields: dict[bytes, bytes]) -> bytes:
    """As versions before wrote it: the fields alone."""
    entry = json.loads(unsealing.encode_entry(fields))
    del entry[""]
    return json.dumps(entry).encode()


def id_key(payload_key: str) -> str:
    """The public key that belongs to a payload key."""
    import base64

    return base64.urlsafe_b64encode(unsealing._public(unsealing._private(payload_key))).decode()


def beat(store, name: str, *, source: str = "shop", **more) -> None:
    fields = {"v": 1, "source": source, "name": name, "boot": "b", "at": timezone.now().timestamp(), "queues": []}
    store.hset(keys.workers(source), name, json.dumps(fields | more))
    heartbeats.count_heartbeats(timezone.now())


def test_a_key_that_workers_encrypt_for_stays(settings, store):
    put_in_front(settings)
    first, old = unsealing.key_ids()
    beat(store, "w1", seals_for=old)
    warning = "Workers that still encrypt for the key (REDRIVE_PUBLIC_KEY): shop/w1."
    assert (why(), reported()) == ([], [warning])
    assert f"Only workers need {old}: {warning} This is not verified: heartbeats are not signed." in run()[1]
    report(1)
    Payload.objects.update(payload_key=old, body=config.payload_keys().encrypt(b"x"))
    assert (
        f"Keep {old} in REDRIVE_PAYLOAD_KEYS: Still encrypted with the key: 1 message. {warning}" in run("--status")[1]
    )
    Payload.objects.all().delete()
    beat(store, "w1", seals_for=first)
    assert run() == (0, f"{first}      encrypts  workers that encrypt for it: 1\n{old}      decrypts  not used\n"
                     f"{old} can be removed from REDRIVE_PAYLOAD_KEYS. Keep the key for backups made before "
                     "now.\n")  # fmt: skip
    beat(store, "w1", seals_for=first, spooled=3)
    assert reported() == ["Workers with reports on disk, which may be encrypted for the key: shop/w1."]
    beat(store, "w1", seals_for="")
    beat(store, "w2")
    assert reported() == ["Workers with an older guard do not report which key they encrypt for: shop/w2."]


def why() -> list[str]:
    return rotation().must_stay(rotation().older[0])


def reported() -> list[str]:
    return rotation().reported(rotation().older[0])


def test_claims_of_one_source_hide_no_worker_of_another_and_stay_few(settings, store):
    put_in_front(settings)
    _, old = unsealing.key_ids()
    Source.objects.create(name="evil")
    trust.forget()
    for n in range(30):
        beat(store, f"o{n:02}", source="evil", seals_for=old)
        beat(store, f"x{n:02}", source="evil", seals_for=f"{n:08x}")
    beat(store, "w1", seals_for=old)
    beat(store, "w2", seals_for="abcdef01")
    assert reported() == [
        "Workers that still encrypt for the key (REDRIVE_PUBLIC_KEY): evil/o00, evil/o01, evil/o02 and 27 more of evil, shop/w1."
    ]
    missing = {use.id: use.workers for use in rotation().missing}
    assert missing["abcdef01"] == (("shop", "w2"),) and len(missing) == 5 and len(missing[UNKNOWN]) == 27
    found = [one for one in check_payload_keys(timezone.now()).findings if one.id == "key-missing-workers"]
    assert {one.severity for one in found} == {"warning"}
    assert found[-1].text == (
        "Workers report that they encrypt for other keys, not in REDRIVE_PAYLOAD_KEYS: evil/x03, evil/x04, evil/x05 and 24 more of "
        "evil. Heartbeats are not signed."
    )


def test_a_report_that_waits_may_need_the_key_and_names_its_source(settings, store):
    put_in_front(settings)
    Source.objects.create(name="evil")
    store.xadd(keys.failures("evil"), {"v": "1"}, id="1-1")
    [finding] = reported()
    assert why() == [] and finding.startswith("The oldest report of evil has an ID that is not a valid time")


def test_ids_of_keys_in_stored_reports_of_one_source_stay_few():
    [first] = unsealing.key_ids()
    for n, source in enumerate(["evil"] * 6 + ["shop"]):
        why = f"{unsealing.UNOPENABLE}for key {n:08x}, which"
        row = {"body": b"", "size": 0, "payload_key": first, "received_at": timezone.now()}
        Unfiled.objects.create(entry_id=f"{source}/{n}-1", source=source, why=why, **row)
    counts = {use.id: use.count for use in rotation().missing}
    assert counts == {"00000000": 1, "00000001": 1, "00000002": 1, "00000006": 1, UNKNOWN: 3}


HOSTILE = "\x1b[31mw\n12345\r"


def test_what_a_worker_shows_is_printed_without_control_characters(settings, store):
    put_in_front(settings)
    _, old = unsealing.key_ids()
    beat(store, HOSTILE, seals_for=old)
    beat(store, "w2", seals_for="\x1b[31mYY")
    why = f"{unsealing.UNOPENABLE}for key \x1b[31mX\n, which"
    first = unsealing.key_ids()[0]
    Unfiled.objects.create(entry_id="1-1", received_at=timezone.now(), why=why, body=b"", size=0, payload_key=first)
    output = run("--status")[1]
    assert "\\x1b[31mw 12345\\x0d" in output and not set(output) & set("\x1b\r")
    assert f"Only workers need {old}" in output
    assert {one.seals_for for one in heartbeats.worker_reports(timezone.now())} == {old, None}, (
        "an id is eight hex digits"
    )


@pytest.mark.parametrize("key", ["\x1b[31mX", "\n12345\n", "deadbeef\n", "DEADBEEF", "deadbee", "deadbeef0", 7])
def test_a_message_for_a_key_whose_id_is_none_is_no_report(key):
    entry = encode(envelope("j1"))
    entry[b"meta"] = json.dumps(json.loads(entry[b"meta"]) | {"sealed": key}).encode()
    with pytest.raises(Unreadable, match="the id of its key"):
        decode(entry)


def test_a_store_that_does_not_answer_leaves_no_key_free(settings):
    put_in_front(settings)
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    assert "The store does not answer" in rotation().must_stay(rotation().older[0])[0]


def test_what_workers_encrypted_for_a_key_that_went_is_reported(settings):
    sealed = encode(sealer(unsealing.public_key())(envelope()))
    [gone] = unsealing.key_ids()
    set_keys(settings, Fernet.generate_key().decode())
    ingest.file([(b"1-1", sealed)])
    [missing] = rotation().missing
    assert (missing.id, missing.rows) == (gone, {"worker-encrypted reports": 1})


def test_a_read_only_desk_changes_nothing(settings):
    report(1)
    put_in_front(settings)
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert key_rotation.step() is False and rotation().remaining == 1
    with pytest.raises(CommandError, match="read-only"):
        run()
    assert run("--status")[0] == 0


def test_a_new_key_is_one(settings):
    _, output = run("--new-key")
    Fernet(output.strip())
    assert run("--new-key")[1] != output


# Which column each module encrypts into. A module that is not here, or a column that is not in COLUMNS, would be lost with the old key.
ENCRYPTS = {
    "jobs_admin/trust/admission.py": {("Unfiled", "body")},
    "jobs_admin/ingest/__init__.py": {("Payload", "body")},
    "jobs_admin/notices/changing.py": {("Channel", "secrets")},
    "jobs_admin/notices/slack.py": set(),  # an address that is valid for half an hour
    "jobs_admin/trust/__init__.py": {("SourceKey", "sealed")},
    "jobs_admin/rights/second_factor.py": {("SecondFactor", "sealed")},
}
_HELPERS = {"jobs_admin/notices/sealing.py", "jobs_admin/desk/key_rotation.py", "jobs_admin/worker/sealing.py"}


def test_every_column_that_is_encrypted_is_rotated():
    found = {
        str(path.relative_to(ROOT))
        for folder in ("jobs_admin", "dashboard", "demo")
        for path in (ROOT / folder).rglob("*.py")
        if _encrypts(ast.parse(path.read_text()))
    } - _HELPERS
    assert found == ENCRYPTS.keys()
    rotated = {(column.model.__name__, name) for column in COLUMNS for name in column.fields}
    assert set().union(*ENCRYPTS.values()) == rotated


def _encrypts(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and (node.attr == "encrypt" or (node.attr == "seal" and getattr(node.value, "id", "") == "sealing"))
        for node in ast.walk(tree)
    )


def test_the_column_of_an_id_reports_what_opens_the_body(settings):
    report(1)
    row = Payload.objects.get()
    with pytest.raises(InvalidToken):
        Fernet(Fernet.generate_key()).decrypt(bytes(row.body))
    assert key_rotation.key_of(bytes(row.body)) == row.payload_key
