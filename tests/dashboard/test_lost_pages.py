from __future__ import annotations

import pytest

from jobs_admin.ingest import lost_jobs
from jobs_admin.models import Failure
from tests.kit.failures import bury

pytestmark = pytest.mark.django_db


def page(client, **changes) -> str:
    (failure,) = bury(1, **changes)
    return client.get(f"/failures/{failure.pk}/").content.decode()


def test_a_job_that_was_lost_with_its_worker_shows_what_is_known_and_what_to_do(vera):
    why = lost_jobs._worker_reason("w1@<b>host</b>", 1_795_000_000_000.0, False)
    message = page(vera, kind="lost", error_type="", message="", reason=why)
    assert "Outcome unknown" in message and "The worker stopped while the job ran" in message
    assert "stopped soon after 2026-11-18" in message and "<b>host" not in message
    assert "the broker will not redeliver it" in message
    assert "It may have done all, some or none of its work" in message


def test_a_retry_that_never_came_shows_something_else(vera):
    message = page(vera, kind="lost", reason=f"{lost_jobs.RETRY_REASON} within 3660 s of its due time")
    assert "a retry was due" in message and "The worker stopped while" not in message


@pytest.mark.parametrize("changes", [{"kind": "exception"}, {"kind": "lost", "reason": "drained: it waited"}])
def test_others_show_nothing_of_it(vera, changes):
    assert "Outcome unknown" not in page(vera, **changes)
    assert Failure.objects.count() == 1


def test_the_longest_reason_is_stored_in_full():
    from jobs_admin.ingest.report import _text

    why = lost_jobs._worker_reason("w" * 500, 1_795_000_000_000.0, False)
    assert _text(why, 200) == why
