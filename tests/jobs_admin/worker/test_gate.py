"""Requests that the main process hands to the pool, and when. Requests are played; nothing of the gate is."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
from celery.exceptions import Reject, TaskRevokedError
from celery.worker.request import Request

from jobs_admin.worker.at_start import ALONE, RunAlone
from jobs_admin.worker.gate import Gate
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.report import Origin
from jobs_admin.worker.request import guarded

RUNS_ALONE = SimpleNamespace(exception=RunAlone())
FAILED = SimpleNamespace(exception=ValueError())


class Worker:
    def __init__(self):
        self.later, self.began = [], []
        self.patience = []
        self.freed = 0
        self.gate = Gate(lambda seconds, act: (self.patience.append(seconds), self.later.append(act)), self.free_place)

    def free_place(self):
        self.freed += 1

    def gets(self, *names, error=None):
        got = [SimpleNamespace(name=name, _request_dict={"id": name}) for name in names]
        for one in got:

            def go(one=one):
                if error:
                    raise error
                self.began.append(one.name)

            if self.gate.enters(one, go):
                go()
        return got if len(got) > 1 else got[0]

    def how(self, request):
        return request._request_dict.get(ALONE)


@pytest.fixture
def worker():
    return Worker()


def test_jobs_go_to_the_pool_as_they_come(worker):
    worker.gets("a", "b", "c")
    assert worker.began == ["a", "b", "c"]


def test_a_message_cannot_claim_to_run_alone(worker):
    forged = SimpleNamespace(name="forged", _request_dict={"id": "forged", ALONE: "alone"})
    assert worker.gate.enters(forged, lambda: None) and worker.how(forged) is None


def test_a_suspect_starts_again_when_the_others_have_ended_and_before_those_that_came_later(worker):
    a, b, pill = worker.gets("a", "b", "pill")
    assert worker.gate.takes_back(pill, RUNS_ALONE) and worker.how(pill) is None
    worker.gets("later")
    worker.gate.release(a)
    assert worker.began == ["a", "b", "pill"]
    worker.gate.release(b)
    assert worker.began == ["a", "b", "pill", "pill"] and worker.how(pill) == "alone"
    worker.gets("latest")
    worker.gate.release(pill)
    assert worker.began[4:] == ["later", "latest"]


def test_suspects_are_alone_one_after_the_other(worker):
    one, two = worker.gets("one", "two")
    worker.gate.takes_back(one, RUNS_ALONE)
    worker.gate.takes_back(two, RUNS_ALONE)
    assert worker.began[2:] == ["one"]
    worker.gate.release(one)
    assert worker.began[2:] == ["one", "two"]


def test_a_suspect_that_cannot_be_alone_runs_beside_the_others_and_everything_goes_on(worker):
    _long, pill = worker.gets("long", "pill")
    worker.gate.takes_back(pill, RUNS_ALONE)
    worker.gets("later")
    worker.later.pop()()
    assert worker.began[2:] == ["pill", "later"] and worker.how(pill) == "beside"


def test_a_suspect_never_joins_one_that_runs_alone(worker):
    """No one could say which of them ended the worker."""
    one, two = worker.gets("one", "two")
    worker.gate.takes_back(one, RUNS_ALONE)
    worker.gate.takes_back(two, RUNS_ALONE)
    assert worker.began[2:] == ["one"]
    worker.later[1]()
    assert worker.began[2:] == ["one"] and len(worker.later) == 3  # it is looked at again
    worker.gate.release(one)
    assert worker.began[2:] == ["one", "two"] and worker.how(two) == "alone"


def test_the_more_workers_died_with_a_suspect_the_longer_it_waits_for_the_others(worker):
    _long, *pills = worker.gets("long", "once", "twice", "often")
    for pill, deaths in zip(pills, (1, 2, 60), strict=True):
        worker.gate.takes_back(pill, SimpleNamespace(exception=RunAlone(deaths)))
    assert worker.patience == [30, 120, 3600]


def test_patience_that_ends_after_its_turn_changes_nothing(worker):
    pill = worker.gets("pill")
    worker.gate.takes_back(pill, RUNS_ALONE)
    worker.later.pop()()
    assert worker.began == ["pill", "pill"] and worker.how(pill) == "alone"


def test_any_other_end_is_an_end(worker):
    one = worker.gets("one")
    assert not worker.gate.takes_back(one, FAILED)


def test_one_that_is_not_known_is_not_taken_back_and_goes_back_to_the_broker(worker):
    """Celery acknowledges an Ignore, and RunAlone is one: the job would be gone."""
    reports = []

    class Plain(Request):
        def __init__(self):
            self._request_dict = {}

        def on_failure(self, exc_info, *args, **options):
            reports.append(exc_info.exception)

    stranger = guarded(Plain, Guard(Origin("shop", "", ()), None, worker.gate))()
    assert not worker.gate.takes_back(stranger, RUNS_ALONE)
    stranger.on_failure(RUNS_ALONE)
    (error,) = reports
    assert isinstance(error, Reject) and error.requeue


def test_that_it_wants_to_be_alone_travels_from_the_pool_in_full():
    assert pickle.loads(pickle.dumps(RunAlone(3))).deaths == 3


@pytest.mark.parametrize("error", [TaskRevokedError("gone"), RuntimeError("the pool is closed")])
def test_one_that_cannot_begin_holds_up_no_one(worker, error):
    pill = worker.gets("pill")
    worker.gate.takes_back(pill, RUNS_ALONE)
    worker.gets("broken", error=error)
    worker.gets("later")
    worker.gate.release(pill)
    assert worker.began == ["pill", "pill", "later"]


def test_a_job_that_waited_behind_a_suspect_and_may_not_start_frees_its_place_in_the_pool(worker):
    a, pill = worker.gets("a", "pill")
    worker.gate.takes_back(pill, RUNS_ALONE)
    worker.gets("paused", error=TaskRevokedError("paused"))
    worker.gets("later")
    worker.gate.release(a)
    assert worker.freed == 0
    worker.gate.release(pill)
    assert (worker.freed, worker.began[-1]) == (1, "later")


def test_a_suspect_that_may_not_start_frees_no_place_for_it_holds_none(worker):
    a, pill = worker.gets("a", "pill")
    worker.gate.takes_back(pill, RUNS_ALONE)
    worker.gate._ways[id(pill)] = _revoked
    worker.gate.release(a)
    assert worker.freed == 0


def _revoked():
    raise TaskRevokedError("revoked")
