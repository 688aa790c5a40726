"""The Node side of the tests: each major of BullMQ that they are about obeys its commands."""

from __future__ import annotations

import pytest

from dashboard.setup.engine import Engine
from tests.kit import node

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def bullmq(tmp_path_factory):
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    running = Engine(tmp_path_factory.mktemp("bullmq")).start()
    yield running
    running.stop()


@pytest.mark.parametrize("major", node.MAJORS)
def test_a_job_of_each_major_fails_as_often_as_it_reports_and_then_runs_well(bullmq, major):
    with node.Bullmq(major, bullmq.url, work=[f"emails{major}"]) as bull:
        job = bull.add(f"emails{major}", "welcome", {"fails": 1}, attempts=2)
        assert bull.wait_for_event("completed", id=job)["attempt"] == 2
        assert [line["more"] for line in bull.list_events("failed", id=job)] == ["the partner is down"]


def test_typescript_runs_with_the_bullmq_of_a_major(bullmq, tmp_path):
    home = node.project(tmp_path / "shop", bullmq=5)
    script = home / "shop.ts"
    script.write_text(
        "import { Queue } from 'bullmq';\nconst queue: Queue = new Queue('shop', { connection: { url: process.argv[2] } });\n"
        "await queue.add('x', {});\nconsole.log(JSON.stringify((await queue.getJobCounts()).waiting));\nprocess.exit(0);\n"
    )
    with node.Script(script, bullmq.url, typescript=True) as running:
        assert running.wait_for(lambda line: line == "1")
