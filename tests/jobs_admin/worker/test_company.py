"""The guard among classes of an app's own, in other pools of processes than a worker's, and under remote control."""

from __future__ import annotations

from collections import Counter

import pytest

from dashboard.setup.engine import Engine
from tests.kit.celery import RealWorker
from tests.kit.policies import obeyed, policy, running
from tests.kit.streams import of_job, reports

pytestmark = pytest.mark.server

APP = "tests.workers.custom_app:app"
JOBS = [("fine", ()), ("broken", ()), ("automatic", (2,)), ("automatic", (9,)), ("nobody", ())]


@pytest.fixture(scope="module")
def store_engine(tmp_path_factory):
    running = Engine(tmp_path_factory.mktemp("store")).start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def custom(broker, store_engine):
    """Workers of an app with classes of its own: without the guard, and with it."""
    made = []
    for number, guarded in enumerate(("", "1")):
        url = broker.url.removesuffix("/0") + f"/{5 + number}"
        one = RealWorker(url, store_engine.url, app=APP, concurrency=1)
        one.environment |= {"MARKS": str(one.folder / "marks"), "GUARDED": guarded}
        made.append(one.start())
    yield made
    for one in made:
        one.kill()


def marks_of(worker: RealWorker) -> Counter[str]:
    return Counter(worker.marks("marks"))


def ran(worker: RealWorker, jobs) -> Counter[str]:
    """Marks that were set while these jobs ran."""
    before = marks_of(worker)
    for task, arguments in jobs:
        worker.send(task, *arguments)

    def marked(start: str) -> int:
        return sum(count for mark, count in (marks_of(worker) - before).items() if mark.startswith(start))

    worker.wait(
        lambda: marked("after return") >= sum(task != "nobody" for task, _ in jobs) and marked("signal task_unknown")
    )
    worker.send("fine")  # behind all retries
    fine = "after return fine"
    worker.wait(lambda: marked(fine) > sum(task == "fine" for task, _ in jobs))
    worker.wait(lambda: marked("request accepted") == marked("before start"))  # the main process is told later
    return marks_of(worker) - before


def test_every_class_and_hook_of_the_app_is_called_as_without_the_guard(custom):
    stock, guarded = (ran(worker, JOBS) for worker in custom)
    assert guarded == stock
    for mark in (
        "request accepted broken", "request failed broken", "consumer unknown nobody",
        "called automatic", "before start automatic 1", "on failure broken PartnerDown", "on retry automatic PartnerDown",
        "after return automatic FAILURE", "signal task_retry automatic", "signal task_failure broken",
    ):  # fmt: skip
        assert stock[mark] > 0, mark
    assert "consumer starts" in marks_of(custom[1])


def test_what_the_app_does_itself_is_reported_all_the_same(custom, store_engine):
    _, worker = custom
    failed, retried, unknown = worker.send("broken"), worker.send("automatic", 2), worker.send("nobody")
    worker.wait(lambda: of_job(store_engine, failed) and of_job(store_engine, unknown))
    worker.wait(lambda: len(of_job(store_engine, retried)) == 2)
    assert [r.kind for r in of_job(store_engine, failed)] == ["exception"]
    assert {r.kind for r in of_job(store_engine, retried)} == {"retry", "success"}
    assert [(r.kind, r.task) for r in of_job(store_engine, unknown)] == [("unknown_task", "nobody")]


def test_a_policy_goes_through_the_apps_own_call_and_hooks(custom, store_engine):
    _, worker = custom
    obeyed(worker, store_engine.url, policy("policed", "policed"), policy("lost", "lost"))
    try:
        before = marks_of(worker)
        well, never, lost = worker.send("policed", 3), worker.send("policed", 9), worker.send("lost")
        worker.wait(lambda: [len(of_job(store_engine, job)) for job in (well, never, lost)] == [3, 3, 3])
        marks = marks_of(worker) - before
    finally:
        obeyed(worker, store_engine.url)
    assert marks["called policed"] == marks["request accepted policed"] == 6
    assert [marks[f"before start policed {n}"] for n in range(3)] == [2, 2, 2]
    assert (marks["on retry policed PartnerDown"], marks["signal task_retry policed"]) == (4, 4)
    assert (marks["on success policed"], marks["on failure policed PartnerDown"]) == (1, 1)
    assert marks["on retry lost WorkerLostError"] == 2  # told by the main process, as its child is no more


def test_install_in_a_worker_that_runs_already_reports_it_and_changes_nothing(custom):
    stock, guarded = custom
    for worker in custom:
        worker.send("installs")
        worker.wait(lambda worker=worker: any("installed late" in mark for mark in worker.marks("marks")))
    assert "installed late False " in stock.marks("marks")
    assert "install() was called when the worker had begun already" in stock.text()
    assert "installed late True 1" in guarded.marks("marks")  # by the line that came in time, whose source holds
    assert "had begun already" not in guarded.text()


def test_remote_control_works_as_without_the_guard(custom, store_engine):
    answers = []
    for worker in custom:
        control = worker.app.control
        inspect = control.inspect(timeout=60, limit=1)
        (name,) = inspect.ping()
        assert control.rate_limit("fine", "600/m", reply=True, timeout=60, limit=1)
        assert control.time_limit("fine", soft=20, hard=30, reply=True, timeout=60, limit=1)
        assert control.pool_grow(1, reply=True, timeout=60, limit=1)
        answers.append(
            {
                "registered": sorted(inspect.registered()[name]),
                "queues": [queue["name"] for queue in inspect.active_queues()[name]],
                "active": inspect.active()[name],
                "keys": sorted(inspect.stats()[name]),
            }
        )
        worker.wait(lambda inspect=inspect, name=name: len(inspect.stats()[name]["pool"]["processes"]) == 2)
    assert answers[0] == answers[1]
    # Of both processes, the new one too.
    jobs = [custom[1].send("broken") for _ in range(8)]
    custom[1].wait(lambda: all(of_job(store_engine, job) for job in jobs), what="the reports of both processes")


def test_a_worker_with_beat_in_it_is_guarded_and_its_beat_is_not(broker, tmp_path, own_store):
    url = broker.url.removesuffix("/0") + "/7"
    worker = RealWorker(url, own_store.url, app=APP, concurrency=1)
    worker.environment |= {"GUARDED": "1", "BEAT": "1"}
    worker._command += ["-B", "-s", str(tmp_path / "schedule")]
    try:
        worker.start()
        worker.wait(lambda: len(reports(own_store)) >= 2, what="what beat sent")
        assert {report.task for report in reports(own_store)} == {"scheduled"}
        worker.wait(lambda: running(own_store.url), what="its sign of life")
        assert len(running(own_store.url)) == 1
    finally:
        worker.kill()
