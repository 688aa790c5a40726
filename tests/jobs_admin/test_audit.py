from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from django.db import connection, transaction

from jobs_admin.db import audit
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import ENGINE, Viewer
from tests.kit import migrated

pytestmark = pytest.mark.databases

ROOT = Path(__file__).resolve().parent.parent.parent
ANN = Viewer(name="ann", user_id=None, token_id=7)


@pytest.fixture
def chain(db):
    for n in range(6):
        audit.record(ANN, "failure.discard", f"failure:{n}", source="shop", after={"n": n, "rate": 0.5})
    return list(AuditEvent.objects.order_by("id"))


def test_an_untouched_chain_is_complete(chain):
    assert audit.verify() is None
    assert len({event.mac for event in chain}) == 6


def test_a_changed_row_is_named(chain):
    AuditEvent.objects.filter(pk=chain[3].pk).update(actor="bob")
    assert audit.verify() == chain[3].pk


def test_a_changed_json_value_is_found(chain):
    AuditEvent.objects.filter(pk=chain[2].pk).update(after={"n": 2, "rate": 0.6})
    assert audit.verify() == chain[2].pk


@pytest.mark.parametrize("n", range(5))
def test_a_row_taken_out_is_found_at_the_next(chain, n):
    chain[n].delete()
    assert audit.verify() == chain[n + 1].pk


def test_a_row_put_in_is_found(chain):
    forged = AuditEvent(at=chain[0].at, actor="bob", act="replay.start", mac="f" * 64)
    forged.save()
    assert audit.verify() == forged.pk


def test_two_rows_that_changed_places_are_found(chain):
    AuditEvent.objects.filter(pk=chain[1].pk).update(id=10_000_000)
    AuditEvent.objects.filter(pk=chain[2].pk).update(id=chain[1].pk)
    AuditEvent.objects.filter(pk=10_000_000).update(id=chain[2].pk)
    assert audit.verify() == chain[1].pk


def test_random_forgeries_are_all_found(chain):
    pick = random.Random(1)
    fields = {"actor": "x", "act": "x", "source": "x", "object": "x", "reason": "x", "token_id": 9, "allowed": False}
    for _ in range(300):
        event, field = pick.choice(chain), pick.choice(sorted(fields))
        AuditEvent.objects.filter(pk=event.pk).update(**{field: fields[field]})
        assert audit.verify() == event.pk
        AuditEvent.objects.filter(pk=event.pk).update(**{field: getattr(event, field)})


def test_another_secret_breaks_the_chain(chain, settings):
    settings.SECRET_KEY = "another"  # noqa: S105
    assert audit.verify() == chain[0].pk


def test_a_refused_act_is_recorded_as_refused(db):
    assert not audit.record(ANN, "replay.start", allowed=False, reason="needs operator on shop").allowed
    assert audit.verify() is None


def test_hostile_and_numeric_values_survive_both_databases(db):
    odd = {"a\x00": ["\udfff", 50.0, 1e20, 1e-7, float("nan"), None, True, {1}]}
    audit.record(Viewer(name="a\x00b"), "x", "\ud800", after=odd)
    assert audit.verify() is None


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_nothing_is_recorded():
    with pytest.raises(transaction.TransactionManagementError):
        audit.record(ENGINE, "x")


@pytest.mark.django_db(transaction=True)
def test_a_record_vanishes_with_the_act_that_was_rolled_back():
    with pytest.raises(RuntimeError), transaction.atomic():
        audit.record(ENGINE, "x")
        raise RuntimeError
    assert AuditEvent.objects.count() == 0


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_many_at_once_make_one_chain():
    def act():
        for _ in range(10):
            with transaction.atomic():
                audit.record(ENGINE, "x")
        connection.close()

    threads = [threading.Thread(target=act) for _ in range(4)]
    [t.start() for t in threads]
    [t.join(120) for t in threads]
    assert AuditEvent.objects.count() == 40
    assert audit.verify() is None


WRITER = """
import django; django.setup()
from django.db import transaction
from jobs_admin.db import audit
from jobs_admin.models.access import ENGINE
for _ in range(20):
    with transaction.atomic():
        audit.record(ENGINE, "x")
"""
READER = """
import django; django.setup()
from jobs_admin.db import audit
from jobs_admin.models import AuditEvent
print(AuditEvent.objects.count(), audit.verify())
"""


@pytest.mark.sqlite
def test_many_at_once_make_one_chain_in_a_file(tmp_path):
    def start(*command: str) -> subprocess.Popen[str]:
        url = f"sqlite:///{tmp_path}/redrive.sqlite3"
        environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, text=True, **both)

    migrated.into(tmp_path)
    writers = [start("-c", WRITER) for _ in range(3)]
    assert [writer.communicate(timeout=180)[0] for writer in writers] == ["", "", ""]
    assert start("-c", READER).communicate(timeout=180)[0].split() == ["60", "None"]
