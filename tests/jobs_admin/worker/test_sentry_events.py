"""Real SDKs of Sentry and OpenTelemetry in real workers: each failing job is reported with its own event and trace."""

from __future__ import annotations

import gc
import gzip
import json
import weakref
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from dashboard.setup.engine import Engine
from jobs_admin.core.trace_context import SENTRY_TRACE, find_trace, find_traces
from jobs_admin.worker import sentry
from tests.kit.celery import RealWorker
from tests.kit.policies import obeyed, policy
from tests.kit.streams import reports
from tests.workers.environments import Environments, OutOfReach

JOBS = 100


class SentryServer(ThreadingHTTPServer):
    """Takes envelopes as Sentry does. `events`: job id -> its error event."""

    check_ins = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Envelope)
        self.events: dict[str, dict] = {}
        Thread(target=self.serve_forever, daemon=True).start()


class _Envelope(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
        lines = body.split(b"\n")
        for header, payload in zip(lines[1::2], lines[2::2], strict=False):
            self.server.check_ins += json.loads(header).get("type") == "check_in"
            event = json.loads(payload) if json.loads(header).get("type") == "event" else {}
            if "celery-job" in event.get("extra", {}) and "exception" in event:
                self.server.events[event["tags"]["celery_task_id"]] = event
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    try:
        return Environments(tmp_path_factory.mktemp("environments"), ["celery-5.7"])["celery-5.7"]
    except OutOfReach as error:
        pytest.skip(str(error))


@pytest.fixture
def watched(home, tmp_path):
    """Start a worker of a pool whose Sentry is the receiver here; stop all."""
    stops = []

    def start(pool: str) -> SimpleNamespace:
        broker, store = Engine(tmp_path / "broker").start(), Engine(tmp_path / "store").start()
        there = SentryServer()
        stops.extend([there.shutdown, there.server_close, broker.stop, store.stop])
        worker = RealWorker(
            broker.url, store.url, pool=pool, home=home, app="tests.workers.watched_app:app", concurrency=4
        )
        dsn = f"http://key@127.0.0.1:{there.server_port}/1"
        worker.environment |= {"WATCHED": str(worker.folder), "GUARDED": "1", "WATCHED_DSN": dsn}
        worker.environment["WATCHED_THREADS"] = "1" if pool == "threads" else ""
        stops.insert(0, worker.stop)
        return SimpleNamespace(worker=worker.start(), store=store, there=there)

    yield start
    for stop in stops:
        stop()


@pytest.mark.server
@pytest.mark.long("A worker of each pool with two real SDKs, and a hundred failing jobs.")
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_each_of_a_hundred_failing_jobs_has_its_event_and_its_trace(watched, pool):
    desk = watched(pool)
    desk.worker.send("send", JOBS, "fail")
    desk.worker.wait(lambda: len(reports(desk.store)) == JOBS and len(desk.there.events) == JOBS, what="the reports")
    desk.worker.stop()
    found, events = {one.job_id: one for one in reports(desk.store)}, desk.there.events
    assert {job: one.event_id for job, one in found.items()} == {job: one["event_id"] for job, one in events.items()}
    assert len({one.event_id for one in found.values()}) == JOBS

    spans = [json.loads(line) for line in desk.worker.marks("spans")]
    ran = {s["attributes"]["messaging.message.id"]: s for s in spans if s["name"] == "run/fail"}
    traces = {job: find_trace(one.headers) for job, one in found.items()}
    assert {job: (one.trace_id, one.span_id) for job, one in traces.items()} == {
        job: (span["context"]["trace_id"].removeprefix("0x"), span["parent_id"].removeprefix("0x"))
        for job, span in ran.items()
    }
    in_sentry = {job: find_traces(one.headers)[SENTRY_TRACE].trace_id for job, one in found.items()}
    assert in_sentry == {job: one["contexts"]["trace"]["trace_id"] for job, one in events.items()}


@pytest.mark.server
def test_an_error_that_sentry_ignores_has_no_event_although_others_of_the_process_have(watched):
    desk = watched("prefork")
    for task in ("fail", "quiet", "fail", "quiet"):
        desk.worker.send("send", 10, task)
    desk.worker.wait(lambda: len(reports(desk.store)) == 40, what="the reports")
    assert Counter((one.task, bool(one.event_id)) for one in reports(desk.store)) == {
        ("fail", True): 20,
        ("quiet", False): 20,
    }


@pytest.mark.server
def test_under_a_policy_the_last_attempt_has_the_event(watched):
    desk = watched("prefork")
    obeyed(desk.worker, desk.store.url, policy("policed", "policed"))
    job = desk.worker.send("policed", 9)
    desk.worker.wait(lambda: len(reports(desk.store)) == 3, what="three attempts")
    desk.worker.wait(lambda: job in desk.there.events, what="the event")
    by_attempt = {one.attempt: one.event_id for one in reports(desk.store)}
    assert by_attempt == {1: "", 2: "", 3: desk.there.events[job]["event_id"]}


BEAT = {"sentry-monitor-slug": "nightly", "sentry-monitor-check-in-id": "c" * 32}


@pytest.mark.server
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_only_the_event_of_the_jobs_own_error_is_reported(watched, pool):
    desk = watched(pool)
    with_event = {"fail", "noisy", "captured"}  # of these Sentry has the error's event
    sent = {
        desk.worker.send(task, f"{task} {n}", headers=headers): task
        for task in (*with_event, "unsent", "quiet", "logged-quiet")
        for n in range(3)
        for headers in ({}, BEAT)
    }
    desk.worker.wait(lambda: len(reports(desk.store)) == len(sent), what="the reports")
    own = {job for job, task in sent.items() if task in with_event}
    desk.worker.wait(lambda: own <= set(desk.there.events), what="the events")
    assert {one.job_id: one.event_id for one in reports(desk.store)} == {
        job: desk.there.events[job]["event_id"] if job in own else "" for job in sent
    }
    assert desk.there.check_ins > 0


# -- hostile modules of that name -------------------------------------------------------------------------------------


def failed(monkeypatch, answers, *, id_of_event="a" * 32, error=None) -> str:
    """Return the event that a job is reported with, where the SDK answers this when asked for the last event."""

    def last_event_id():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def register(processor):
        processors.append(processor)

    error, info, processors = error or ValueError("no"), SimpleNamespace(), []
    scope = SimpleNamespace(global_event_processors=processors, add_global_event_processor=register)
    monkeypatch.setitem(sentry.sys.modules, "sentry_sdk", SimpleNamespace(last_event_id=last_event_id))
    monkeypatch.setitem(sentry.sys.modules, "sentry_sdk.scope", scope)
    sentry.begin_job()
    event, hint = {"event_id": id_of_event}, {"exc_info": (type(error), error, None)}
    assert [processor(event, hint) is event for processor in processors] in ([True], [])
    sentry.keep_event(exception=error, einfo=info)
    return sentry.event_of(info)


@pytest.mark.parametrize(
    ("answers", "event"),
    [
        ([None, None, "a" * 32], "a" * 32),
        (["b" * 32, "b" * 32, "a" * 32], "a" * 32),
        (["b" * 32, "b" * 32, "b" * 32], ""),
        ([None, None, None], ""),
        ([RuntimeError("no"), "a" * 32, "a" * 32], ""),
        ([None, RuntimeError("no"), "a" * 32], ""),
        ([None, None, RuntimeError("no")], ""),
        ([None, None, "x" * 1_000_000], ""),
        ([None, None, object()], ""),
        ([7, 7, ["a" * 32]], ""),
    ],
)
def test_only_an_event_that_was_sent_is_reported(monkeypatch, answers, event):
    assert failed(monkeypatch, answers) == event


@pytest.mark.parametrize("value", ["x" * 1_000_000, "javascript:alert(1)", "a" * 31 + "\n", None, 7, [], object()])
def test_an_id_of_another_form_is_not_reported(monkeypatch, value):
    assert failed(monkeypatch, [None, None, value], id_of_event=value) == ""


def test_an_exception_that_lived_before_the_job_does_not_bring_its_former_event(monkeypatch):
    error = ValueError("one for all")
    assert failed(monkeypatch, [None, None, "a" * 32], error=error) == "a" * 32
    assert failed(monkeypatch, ["a" * 32, "a" * 32, "b" * 32], id_of_event="b" * 32, error=error) == "b" * 32
    monkeypatch.setattr(sentry.sys.modules["sentry_sdk"], "last_event_id", lambda: "b" * 32)
    sentry.begin_job()
    info = SimpleNamespace()
    sentry.keep_event(exception=error, einfo=info)
    assert sentry.event_of(info) == ""


def test_an_exception_is_not_referenced_by_its_note():
    class Collected(Exception):
        pass

    error = Collected()
    sentry._note_event({"event_id": "a" * 32}, {"exc_info": (Collected, error, None)})
    known = weakref.ref(error)
    del error
    gc.collect()
    assert known() is None


def test_a_module_without_the_functions_or_none_at_all_is_no_error(monkeypatch):
    error, info = ValueError("no"), SimpleNamespace()
    for module in (None, SimpleNamespace()):
        for name in ("sentry_sdk", "sentry_sdk.scope"):
            if module is None:
                monkeypatch.delitem(sentry.sys.modules, name, raising=False)
            else:
                monkeypatch.setitem(sentry.sys.modules, name, module)
        sentry.begin_job()
        sentry.keep_event(exception=error, einfo=info)
        sentry.keep_event()
        assert sentry.event_of(info) == ""
        for hint in (None, {}, {"exc_info": None}, {"exc_info": (None, None, None)}, {"exc_info": (0, object(), 0)}):
            assert sentry._note_event({"event_id": 7}, hint) == {"event_id": 7}
