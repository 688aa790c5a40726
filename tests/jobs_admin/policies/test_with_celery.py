"""The whole way with a real worker: published on the desk, run by the worker, reported by its attempts."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs_admin import ingest, policies
from jobs_admin.fleet import heartbeats
from jobs_admin.models import Attempt, Failure
from jobs_admin.models.access import ENGINE
from tests.kit.people import ANN
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db]

SOON = {"kind": "fixed", "first_delay_s": 0.05}


def until(worker, reached, what):
    """Run the desk's steps until it is so."""

    def steps():
        ingest.step("test"), heartbeats.count_heartbeats(timezone.now())

    return wait_until(reached, what, progress=worker.text, meanwhile=steps, text=worker.text)


def publish(worker, expected, attempts):
    document = {"match": {"task": "try"}, "mode": "enforce", "max_attempts": attempts, "backoff": SOON}
    made = policies.publish(ANN, "tries", document, expected_version=expected)
    policies.push()
    wanted = f"1 of 1 workers on v{made.version}"
    until(worker, lambda: policies.in_force(ENGINE, [made])["tries"].sentence == wanted, wanted)


def died(worker, n):
    """Send a job that always fails; what decided each of its attempts."""
    worker.send("try", queue="emails")
    until(worker, lambda: Failure.objects.filter(state="dead").count() == n, "the job to be dead")
    found = Attempt.objects.filter(failure=Failure.objects.latest("pk")).order_by("attempt")
    return list(found.values_list("policy", "kind"))


def test_an_edit_decides_over_the_next_job_and_each_attempt_names_its_version(worker):
    publish(worker, None, attempts=2)
    assert died(worker, 1) == [("tries@1", "retry"), ("tries@1", "exception")]
    publish(worker, 1, attempts=1)
    assert died(worker, 2) == [("tries@2", "exception")]
    policies.withdraw(ANN, "tries")
    policies.push()
    until(worker, lambda: died_without(worker), "the worker to let go of it")


def died_without(worker):
    return died(worker, Failure.objects.count() + 1)[-1][0] == ""
