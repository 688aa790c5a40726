"""sentry-sdk and OpenTelemetry see of an app's jobs what they saw before: a worker without the guard beside one with it."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from dashboard.setup.engine import Engine
from tests.kit.celery import RealWorker
from tests.kit.policies import obeyed, policy
from tests.kit.streams import of_job
from tests.workers.environments import Environments, OutOfReach

pytestmark = pytest.mark.server

# (task, arguments): each way to end that trackers have an opinion about.
JOBS = [
    ("ok", ()),
    ("fail", ()),
    ("again", (2,)),
    ("automatic", (2,)),
    ("automatic", (9,)),
    ("ignored", ()),
    ("rejected", ()),
    ("hard", ()),
    ("killed", ()),
]
_VARIES = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=Job: )\d+|(?<=pid:)\d+|(?<=ForkPoolWorker-)\d+")


class Watched:
    """The records of one worker's trackers. Jobs under a policy apart: without a guard there are none."""

    def __init__(self, worker: RealWorker, policed: list[str]) -> None:
        self.policed = policed
        events = [json.loads(line) for line in worker.marks("sentry")]
        spans = [json.loads(line) for line in worker.marks("spans")]
        self.events = [event for event in events if event.get("transaction") != "policed"]
        self.spans = [span for span in spans if span["name"] != "run/policed"]
        self.policed_events = [event for event in events if event.get("transaction") == "policed"]
        self.policed_spans = [span for span in spans if span["name"] == "run/policed"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A worker without the guard, and one with it."""
    try:
        home = Environments(tmp_path_factory.mktemp("environments"), ["celery-5.7"])["celery-5.7"]
    except OutOfReach as error:
        pytest.skip(str(error))
    broker = Engine(tmp_path_factory.mktemp("broker")).start()
    store = Engine(tmp_path_factory.mktemp("store")).start()
    try:
        yield [_run(home, broker, store, is_guarded) for is_guarded in (False, True)]
    finally:
        broker.stop()
        store.stop()


def _run(home, broker, store, is_guarded: bool) -> Watched:
    url = broker.url.removesuffix("/0") + f"/{int(is_guarded)}"
    worker = RealWorker(url, store.url, home=home, app="tests.workers.watched_app:app", concurrency=1)
    worker.environment |= {"WATCHED": str(worker.folder), "GUARDED": "1" if is_guarded else ""}
    policed = []
    try:
        worker.start()
        if is_guarded:
            obeyed(worker, store.url, policy("policed", "policed"))
            policed = [worker.send("policed", well_at) for well_at in (2, 9)]
            worker.wait(lambda: len(of_job(store, policed[0])) == 2 and len(of_job(store, policed[1])) == 3)
        for task, arguments in JOBS:
            worker.send(task, *arguments)
        worker.wait(lambda: "WorkerLostError" in worker.text(), what="the child to be killed")
        last = worker.send("ok")
        worker.wait(lambda: f"[{last}] succeeded" in worker.text(), what="the last job")
    finally:
        worker.stop()
    return Watched(worker, policed)


def frames(error) -> list[tuple[str, str, bool]]:
    found = (error.get("stacktrace") or {}).get("frames", [])
    return [(frame["module"], frame["function"], frame["in_app"]) for frame in found]


def seen_by_sentry(events) -> Counter:
    """Each event as a person would see it: without ids and times, and without what led to it (breadcrumbs)."""
    return Counter(
        _VARIES.sub(
            "…",
            json.dumps(
                {
                    "type": event.get("type", "error"),
                    "transaction": event.get("transaction"),
                    "level": event.get("level"),
                    "says": (event.get("logentry") or {}).get("formatted"),
                    "errors": [
                        (error["type"], error["value"], error["mechanism"], frames(error))
                        for error in (event.get("exception") or {}).get("values", [])
                    ],
                    "status": event["contexts"]["trace"].get("status") if event.get("type") else None,
                    "spans": [
                        (span["op"], span.get("status")) for span in event.get("spans", ()) if span["op"] != "db.redis"
                    ],
                    "job": {**(event.get("extra") or {}).get("celery-job", {}), "task_id": ""},
                    "tags": sorted(event.get("tags") or ()),
                },
                sort_keys=True,
            ),
        )
        for event in events
    )


def seen_by_opentelemetry(spans) -> Counter:
    return Counter(
        json.dumps(
            {
                "name": span["name"],
                "kind": span["kind"],
                "status": span["status"],
                "attributes": sorted(span["attributes"]),
                "state": span["attributes"].get("celery.state"),
                "has_parent": span["parent_id"] is not None,
                "errors": [
                    (e["attributes"]["exception.type"], e["attributes"]["exception.message"]) for e in span["events"]
                ],
            },
            sort_keys=True,
        )
        for span in spans
    )


def test_sentry_is_reported_the_same_events_with_the_same_frames(watched):
    stock, guarded = (seen_by_sentry(one.events) for one in watched)
    assert (guarded - stock, stock - guarded) == (Counter(), Counter())
    kinds = Counter(event.get("type", "error") for event in watched[0].events)
    assert kinds["transaction"] >= 10 and kinds["error"] >= 5  # so that there is something to compare


def test_opentelemetry_exports_the_same_spans(watched):
    stock, guarded = (seen_by_opentelemetry(one.spans) for one in watched)
    assert (guarded - stock, stock - guarded) == (Counter(), Counter())
    states = Counter(span["attributes"].get("celery.state") for span in watched[0].spans)
    assert states["SUCCESS"] >= 4 and states["RETRY"] == 3 and states["FAILURE"] >= 2


def test_a_retry_by_a_policy_is_as_quiet_as_celerys_own(watched):
    _, guarded = watched
    by_job: dict[str, list[str]] = {job: [] for job in guarded.policed}
    for event in guarded.policed_events:
        status = event["contexts"]["trace"]["status"] if event.get("type") else "an error"
        by_job[event["tags"]["celery_task_id"]].append(status)
    assert list(by_job.values()) == [["aborted", "ok"], ["aborted", "aborted", "an error", "internal_error"]]
    native = [event["contexts"]["trace"]["status"] for event in guarded.events if event.get("transaction") == "again"]
    assert native == by_job[guarded.policed[0]]
    spans = Counter(
        (span["attributes"]["celery.state"], span["status"]["status_code"]) for span in guarded.policed_spans
    )
    assert spans == {("RETRY", "UNSET"): 3, ("SUCCESS", "UNSET"): 1, ("FAILURE", "ERROR"): 1}


def test_an_error_under_a_policy_has_the_frames_that_it_has_without_one(watched):
    _, guarded = watched
    (policed,) = [event for event in guarded.policed_events if event.get("exception")]
    (plain,) = [event for event in guarded.events if event.get("exception") and event.get("transaction") == "fail"]
    stacks = [
        [frame[:1] + frame[2:] for frame in frames(event["exception"]["values"][0])] for event in (policed, plain)
    ]
    assert stacks[0] == stacks[1]
    assert all("jobs_admin" not in frame[0] for frame in stacks[0])
