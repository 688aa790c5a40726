"""Reports of a poison pill, or of a job that needs a person: one notice stands for it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import count, permutations

import pytest

from jobs_admin import ingest
from jobs_admin.core.envelope import Envelope, encode
from jobs_admin.models import Attempt, Failure, Notice

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
CRASHES = [
    {"how": "killed", "at": 1.0, "seen_at": 2.0, "worker": "w@a", "said": "signal 9", "alone": False, "beside": 0},
    {"how": "lost", "at": 3.0, "seen_at": 4.0, "worker": "w@b", "said": "", "alone": True, "beside": 0},
]
numbers = count(1)


def report(kind="worker_lost", attempt=1, crashes=CRASHES, **fields):
    return Envelope(
        source="shop", queue="emails", task="shop.resize", job_id="j1", kind=kind, attempt=attempt, at=NOW.timestamp(),
        error_type="WorkerLostError", message="signal 9", crashes=json.dumps(crashes) if crashes else "", **fields,
    )  # fmt: skip


def file(*reports):
    ingest.file([(b"%d-0" % next(numbers), encode(one)) for one in reports], NOW)


def test_a_pill_is_quarantined_with_its_crashes_in_whatever_order_its_reports_come():
    for order in permutations([report("retry", 1, None), report("retry", 2, None), report(attempt=3)]):
        Failure.objects.all().delete()
        for one in order:
            file(one)
        failure = Failure.objects.get()
        assert (failure.state, failure.kind, failure.attempts) == ("quarantined", "worker_lost", 3)
        assert json.loads(failure.crashes) == CRASHES


def test_it_reports_it_once_however_often_it_is_reported():
    file(report(), report())
    file(report())
    (notice,) = Notice.objects.all()
    assert (notice.type, notice.severity) == ("poison.quarantined", "critical")
    assert (
        notice.body["message"] == "A job of shop.resize on emails crashed its worker 2 times and will not start again."
    )
    assert notice.body["failure"] == Failure.objects.get().pk and notice.body["workers"] == ["w@a", "w@b"]
    assert Attempt.objects.count() == 1


def test_what_it_ran_into_before_it_ran_well_is_forgotten():
    file(report("retry", 1))
    file(report("success", 2))
    assert Failure.objects.values_list("state", "crashes").get() == ("recovered", None)
    assert not Notice.objects.exists()


@pytest.mark.parametrize(
    "crashes",
    ["no json", "{}", "[]", "[1, 2]", '"x"', "[" * 9000, '{"how": 1}', "null"],
    ids=lambda crashes: crashes[:9],
)
def test_crashes_that_cannot_be_read_quarantine_nothing(crashes):
    file(Envelope(source="shop", queue="q", task="t", job_id="j", kind="exception", attempt=1, at=1.0, crashes=crashes))
    assert Failure.objects.values_list("state", "crashes").get() == ("dead", None)


def test_hostile_crashes_are_cut_to_words_and_numbers():
    file(
        report(crashes=[{"how": "x" * 999, "at": "soon", "beside": 10**400, "worker": "a\x00b", "alone": "yes"}] * 500)
    )
    crashes = json.loads(Failure.objects.get().crashes)
    assert len(crashes) == 100 and crashes[0]["how"] == "x" * 20
    assert crashes[0] | {"how": ""} == {
        "how": "", "at": None, "seen_at": None, "worker": "a␀b", "said": "", "alone": False, "beside": 0,
    }  # fmt: skip


def test_a_job_out_of_attempts_whose_policy_escalates_is_reported_once_for_each_run():
    for _ in range(2):
        file(report("exception", 3, None, escalate=True, reason="exhausted"))
    (notice,) = Notice.objects.all()
    assert (notice.type, notice.severity) == ("job.escalated", "warning")
    assert "failed all 3 attempts" in notice.body["message"]
    assert (notice.body["task"], notice.body["error_type"]) == ("shop.resize", "WorkerLostError")
