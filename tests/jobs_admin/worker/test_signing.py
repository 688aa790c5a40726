"""Real workers that sign what they report: end to end, killed, cut off from the store, with keys that do not fit."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs_admin import ingest, trust
from jobs_admin.core import keys
from jobs_admin.core.report_signature import KEY
from jobs_admin.models import Failure, SourceKey, Unfiled
from jobs_admin.models.access import ENGINE
from jobs_admin.trust import admission, source_keys
from jobs_admin.trust.unsealing import public_key
from tests.kit.ledger import KEEPING, list_stored, reap
from tests.kit.policies import published, running
from tests.kit.streams import of_job

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]


def file_all() -> None:
    trust.forget()
    rounds = 0
    while ingest.step("test", wait_s=0.01) or rounds < 2:
        rounds += 1


def signing(key) -> dict[str, str]:
    return {"REDRIVE_SOURCE_KEY": str(key)}


@pytest.fixture
def desk(store):
    """A desk that believes signed reports alone."""
    admission.end(ENGINE, timezone.now())
    return store


@pytest.fixture
def key(desk):
    return source_keys.create(ENGINE, "shop")


def states() -> dict[str, str]:
    return dict(Failure.objects.values_list("first_job_id", "state"))


def test_what_a_signing_worker_reports_is_filed_and_ends_well(start, engine, desk, key):
    worker = start(engine.url, environment=signing(key))
    worker.wait(lambda: running(engine.url), what="its heartbeat")
    assert running(engine.url)[0]["key"] == key.id
    dead, again = worker.send("fail", "no"), worker.send("flaky", 1)
    worker.wait(lambda: len(of_job(engine, again)) == 2 and of_job(engine, dead), what="the reports")
    file_all()
    assert states() == {dead: "dead", again: "recovered"} and not Unfiled.objects.exists()
    assert SourceKey.objects.get().last_used_at


def test_what_a_killed_worker_stored_is_signed_by_it_and_filed_as_lost(start, engine, desk, key):
    """Also with its message encrypted for the desk."""
    published(engine.url, KEEPING)
    worker = start(engine.url, environment={**signing(key), "REDRIVE_PUBLIC_KEY": public_key()})
    job = worker.send("until", "never", kwargs={"error": ""})
    worker.wait(lambda: list_stored(desk) and worker.marks("until"), what="a job that runs")
    worker.kill()
    reap(desk)
    file_all()
    failure = Failure.objects.get()
    assert (failure.first_job_id, failure.kind, failure.state) == (job, "lost", "dead")
    assert failure.reason.startswith("worker ") and failure.payloads.get().is_whole


def test_what_went_by_the_spool_is_signed_too(start, engine, own_store, settings, desk, key):
    worker = start(own_store.url, environment=signing(key))
    worker.wait(lambda: running(own_store.url), what="its heartbeat")
    own_store.kill()
    job = worker.send("fail", "no")
    worker.wait(lambda: list(worker.spool.glob("*.spool")), what="its spool")
    own_store.start()
    worker.wait(lambda: of_job(own_store, job), what="what is shipped")
    fields = _only(own_store)
    assert ingest.file([fields]).new_failures == 1 and fields[1][KEY].decode() == key.id


def _only(engine):
    import redis

    with redis.Redis.from_url(engine.url) as client:
        ((entry_id, fields),) = client.xrange(keys.failures("shop"))
    return entry_id, fields


def test_a_success_of_a_job_that_had_been_called_lost_is_signed(start, engine, desk, key):
    published(engine.url, KEEPING)
    worker = start(engine.url, environment=signing(key))
    job = worker.send("until", "go", kwargs={"error": ""})
    worker.wait(lambda: list_stored(desk) and worker.marks("until"), what="a job that runs")
    _call_lost(desk, worker)
    worker.let("go")
    worker.wait(lambda: desk.xlen(keys.failures("shop")) == 2, what="its success")
    file_all()
    assert states() == {job: "recovered"} and not Unfiled.objects.exists()


def _call_lost(desk, worker) -> None:
    """As if it had given no sign for a while: its kept reports go onto the stream, and it goes on."""
    from tests.kit.ledger import fall_silent

    fall_silent(desk)
    reap(desk)


@pytest.mark.parametrize("fault", ["revoked", "another"])
def test_a_worker_whose_key_is_not_in_force_changes_nothing(start, engine, desk, key, fault):
    other = source_keys.create(ENGINE, "shop")
    worker = start(engine.url, environment=signing(other))
    if fault == "revoked":
        source_keys.revoke(ENGINE, other.id, timezone.now())
    else:
        SourceKey.objects.filter(key_id=other.id).delete()
    job = worker.send("fail", "no")
    worker.wait(lambda: of_job(engine, job), what="the report")
    file_all()
    assert not states()
    assert ("was revoked" if fault == "revoked" else "not known here") in Unfiled.objects.get().why


def test_a_worker_without_a_key_is_refused_once_the_time_is_over(start, engine, desk, key):
    worker = start(engine.url)
    job = worker.send("fail", "no")
    worker.wait(lambda: of_job(engine, job), what="the report")
    file_all()
    assert not states() and "is not signed" in Unfiled.objects.get().why


@pytest.mark.parametrize("fault", ["no key at all", "of another source"])
def test_a_worker_with_a_key_that_cannot_be_used_reports_it_and_reports_nothing(start, engine, desk, fault):
    text = fault if fault == "no key at all" else str(source_keys.create(ENGINE, "bank"))
    worker = start(engine.url, environment={"REDRIVE_SOURCE_KEY": text})
    assert "Redrive's guard is not installed: REDRIVE_SOURCE_KEY" in worker.text()
    assert text not in worker.text()
    worker.send("fail", "no")
    worker.wait(lambda: "raised unexpected" in worker.text(), what="the failure")
    assert not desk.xlen(keys.failures("shop"))


def test_the_key_may_stand_in_a_file(start, engine, desk, key, tmp_path):
    (tmp_path / "key").write_text(f"{key}\n")
    worker = start(engine.url, environment={"REDRIVE_SOURCE_KEY_FILE": str(tmp_path / "key")})
    job = worker.send("fail", "no")
    worker.wait(lambda: of_job(engine, job), what="the report")
    file_all()
    assert states() == {job: "dead"}
