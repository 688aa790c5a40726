"""Reports that claim to be the run of another job: what the desk itself knows of its replays decides."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs_admin import ingest, replays
from jobs_admin.core.envelope import Envelope, Lineage, encode
from jobs_admin.models import Attempt, Failure, ReplayItem
from jobs_admin.models.failure import FailureState
from tests.kit.replays import sent_all, start_replay
from tests.kit.reports import misindexed

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


@pytest.fixture
def item(shop, bury):
    """A job that was replayed, and runs."""
    replay = start_replay(bury())
    sent_all()
    return replay.items.get()


def file_report(job_id, kind="exception", run=2, item=None, source="shop", home="j0", attempt=1, **more):
    now = timezone.now()
    one = Envelope(
        source=source, queue="emails", task="of.another", job_id=job_id, kind=kind, attempt=attempt, at=now.timestamp(),
        error_type="Forged", message="of another", lineage=Lineage("emails", home, run, item), **more,
    )  # fmt: skip
    ingest.file([(b"1-0", encode(one))], now)


def of_the_job():
    return Failure.objects.filter(source="shop", first_job_id="j0").values().get()


@pytest.mark.parametrize("kind", ["exception", "success", "retry", "lost"])
@pytest.mark.parametrize("reported_item", [True, False])
def test_what_was_sent_under_another_id_changes_nothing_of_the_job_that_it_names(item, kind, reported_item):
    before = of_the_job()
    file_report("child", kind, item=item.pk if reported_item else None)
    assert of_the_job() == before and before["state"] == FailureState.REPLAYING
    assert not Attempt.objects.filter(failure=before["id"], run=2).exists()
    own = Failure.objects.filter(first_job_id="child").values_list("task", "job_id", "run", "queue", "error_type")
    assert list(own) == ([] if kind == "success" else [("of.another", "child", 1, "emails", "Forged")])
    assert not Attempt.objects.filter(job_id="child", item_id__isnull=False).exists()


def test_the_job_itself_is_heard_before_and_after(item):
    file_report("child", item=item.pk)
    file_report(item.job_id, item=item.pk)
    file_report("child", "success", item=item.pk)
    assert (of_the_job()["state"], of_the_job()["job_id"]) == (FailureState.DEAD, item.job_id)
    file_report(item.job_id, "success", item=item.pk)
    assert Attempt.objects.get(kind="success", job_id=item.job_id).failure_id == of_the_job()["id"]


def test_it_is_found_by_what_it_reports_and_not_by_whose_run_it_claims(item):
    file_report("child", item=item.pk)
    assert ("failure", Failure.objects.get(first_job_id="child").pk) not in misindexed()


def test_a_run_that_is_not_marked_as_sent_yet_is_believed(item):
    type(item).objects.filter(pk=item.pk).update(job_id="")
    file_report("quick", item=item.pk)
    assert of_the_job()["job_id"] == "quick"


def test_a_run_of_which_no_item_reports_any_more_is_believed(item):
    type(item).objects.all().delete()
    file_report("later", run=5)
    assert (of_the_job()["run"], of_the_job()["job_id"]) == (5, "later")


# -- of another source --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exception", "success", "retry", "lost"])
@pytest.mark.parametrize("reported_id", [True, False])
def test_a_report_of_another_source_changes_neither_the_item_that_it_names_nor_its_job(item, kind, reported_id):
    """The report has the job's own name, its run, its id and its item; only the source is another."""
    before, items = of_the_job(), list(ReplayItem.objects.values())
    file_report(item.job_id if reported_id else "forged", kind, item=item.pk, source="bank")
    replays.settle(timezone.now())
    assert of_the_job() == before and list(ReplayItem.objects.values()) == items
    assert not Attempt.objects.filter(item=item.pk).exists()
    assert Failure.objects.filter(source="shop").count() == 1


def test_an_item_of_another_job_of_the_same_source_is_not_believed(item, bury):
    (other,) = bury(1)
    file_report("own", item=item.pk, home=Failure.objects.get(pk=other).first_job_id)
    assert Attempt.objects.get(failure=other).item_id is None


# -- successes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_id", ["forged", "j0", "of the run"])
@pytest.mark.parametrize("run", [3, 7])
@pytest.mark.parametrize("names_item", [None, "its own", 999])
def test_a_run_that_the_desk_did_not_send_did_not_succeed(item, job_id, run, names_item):
    before, items = of_the_job(), list(ReplayItem.objects.values())
    file_report(
        item.job_id if job_id == "of the run" else job_id,
        "success",
        run=run,
        item=item.pk if names_item == "its own" else names_item,
        source="shop",
    )
    replays.settle(timezone.now())
    assert of_the_job() == before and list(ReplayItem.objects.values()) == items
    assert not Attempt.objects.filter(kind="success").exists()


def test_a_run_that_is_planned_did_not_succeed(shop, bury):
    start_replay(bury())
    file_report("forged", "success")
    assert of_the_job()["state"] == FailureState.DEAD


@pytest.mark.parametrize("kind", ["exception", "lost", "retry"])
def test_a_job_of_an_earlier_desk_succeeds_in_the_run_that_failed_last_or_in_the_next(item, kind):
    type(item).objects.all().delete()
    Failure.objects.update(state=FailureState.DEAD, run=1, job_id="j0")
    file_report("far", "success", run=3)
    assert of_the_job()["state"] == FailureState.DEAD
    file_report("r3", kind, run=3)
    file_report("forged", "success", run=3)
    assert of_the_job()["state"] != FailureState.RECOVERED
    file_report("r3", "success", run=3, attempt=2)
    assert of_the_job()["state"] == FailureState.RECOVERED
    file_report("r4", "success", run=4)
    assert (of_the_job()["run"], of_the_job()["job_id"]) == (4, "r4")


def test_of_a_job_that_was_pruned_a_success_that_was_stored_is_filed(item):
    Failure.objects.all().delete()
    file_report(item.job_id, "success", item=item.pk)
    assert of_the_job()["state"] == FailureState.RECOVERED
