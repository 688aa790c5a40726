"""Changes that an observing policy would have made."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs_admin import policies
from jobs_admin.models import Attempt
from jobs_admin.models.access import VIEWER, Viewer
from tests.kit.failures import bury
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db


@pytest.fixture
def version(publish):
    return publish(mode="observe")


def judged(*reasons, kind="exception", delay_s=None, policy="emails@1", **changes):
    """A failed attempt for each, of a job of its own."""
    for reason in reasons:
        (failure,) = bury(**changes)
        Attempt.objects.create(
            failure=failure, run=1, attempt=1, kind=kind, job_id="j", reason=reason, delay_s=delay_s, policy=policy,
            ended_at=timezone.now(), received_at=timezone.now(),
        )  # fmt: skip


def test_another_end_is_a_change_and_the_same_end_is_none(version):
    judged("would retry in 12 s", "would retry in 1.2e+03 s: asked to wait 1,200 s", "would be dead: permanent")
    judged("would be dead: budget", kind="retry", delay_s=3)
    found = policies.observed(ANN, version)
    assert (found.attempts, found.changed, found.tried_again, found.given_up) == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("would", "waited_s", "is_changed"),
    [(12, 12.9, False), (12, 30, True), (1_000, 1_080, False), (1_000, 1_200, True)],
)
def test_a_wait_of_about_as_long_is_no_change(version, would, waited_s, is_changed):
    judged(f"would retry in {would:,.3g} s", kind="retry", delay_s=waited_s)
    found = policies.observed(ANN, version)
    assert (found.waited_otherwise, found.changed) == (is_changed, is_changed)


def test_what_it_decided_and_what_another_version_reported_does_not_count(version):
    judged("exhausted")
    judged("would retry in 12 s", policy="emails@2")
    assert policies.observed(ANN, version).attempts == 0


def test_the_latest_are_checked_and_it_is_reported_that_there_are_more(version):
    judged("would be dead: permanent", "would be dead: permanent", "would retry in 12 s")
    found = policies.observed(ANN, version, most=2)
    assert (found.attempts, found.changed, found.is_capped) == (2, 1, True)


def test_jobs_of_a_source_out_of_sight_are_not_counted(publish):
    version = publish("all", mode="observe", match={"source": "*", "task": "*"})
    judged("would retry in 12 s", policy="all@1")
    judged("would retry in 12 s", policy="all@1", source="bank")
    assert policies.observed(ANN, version).attempts == 2
    assert policies.observed(Viewer("lou", {"shop": VIEWER}), version).attempts == 1
