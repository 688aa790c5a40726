"""A short run of bench/bullmq_incident.py: jobs that a real Node worker failed, brought back by the desk and by a dashboard."""

from __future__ import annotations

import pytest

from tests.kit import node
from tests.rigs.bullmq_incident import Incident

pytestmark = [pytest.mark.server, pytest.mark.sqlite, pytest.mark.django_db]
JOBS = 300


@pytest.mark.endurance
def test_the_worker_ran_each_replayed_job_once_and_its_partner_did_not_fall_over_again(tmp_path):
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    with Incident(tmp_path, JOBS, cold=40.0, warm=200.0, only="pull,lay,send,settle") as incident:
        incident.make()
        theirs = incident.retried("retryJobs", 2)
        index = incident.indexed()
        ours = incident.replayed({"style": "careful", "rate": 60})
    assert index["all_in_the_index_after_s"] > 0
    assert (ours["collapses"], ours["state"], ours["uncertain"]) == (0, "done", 0), ours
    assert ours["succeeded"] + ours["failed_again"] == JOBS
    worker, bullmq = ours["worker"], ours["bullmq"]
    # The worker's own lines, BullMQ's counts and the desk's say the same; priorities are kept, and attempts begin anew.
    assert (worker["jobs_that_ran_well"], worker["more_than_once"]) == (ours["succeeded"], 0), ours
    assert (bullmq["completed"], bullmq.get("failed", 0)) == (ours["succeeded"], ours["failed_again"]), ours
    assert ours["states"].get("recovered", 0) == ours["succeeded"], ours
    assert worker["began_at_attempt"]["0"] == JOBS
    assert ours["ready_in_the_first_second"] < JOBS / 2 < theirs["within_5_s"]
    assert theirs["collapses"] and theirs["dead_again"] > JOBS / 2, theirs
    assert (theirs["most_prioritized_at_once"], set(theirs["began_at_attempt"])) == (0, {"3"}), theirs
