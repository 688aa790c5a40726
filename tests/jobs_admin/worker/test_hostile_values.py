"""Hostile values in a job: the worker goes on, each is reported once with its message as it was, and nothing is executed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import uuid
from collections import Counter

import pytest
import redis
from django.urls import reverse

from dashboard.setup.engine import Engine
from jobs_admin import config, ingest
from jobs_admin.core import keys
from jobs_admin.core.envelope import decode, encode
from jobs_admin.failures import contents
from jobs_admin.models import Failure
from tests.kit.hostile import ACTS, IN_CHILDREN_ALONE, MARKER, HostileWorker, build_messages
from tests.kit.people import log_in
from tests.kit.policies import obeyed, policy
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.server]

# Celery's pool of threads tells nobody of an error whose own code breaks Celery's telling: with and without the guard.
UNTOLD_IN_THREADS = frozenset({"class_lies", "getattr_raises", "nameless"})


class RunsCode:
    def __reduce__(self):
        return os.system, (f"touch $REAL_MARKS/{MARKER}",)


def bodies() -> dict[str, tuple[str, bytes]]:
    """Messages that no task may be given: content type, and body."""
    return {
        "pickle": ("application/x-python-serialize", pickle.dumps(([RunsCode()], {}, {}))),
        "pickle that says JSON": ("application/json", pickle.dumps(([RunsCode()], {}, {}))),
        "pickle by its old name": ("application/x-python-serialize\x00", pickle.dumps(RunsCode(), 0)),
        "yaml": ("application/x-yaml", f"!!python/object/apply:os.system ['touch $REAL_MARKS/{MARKER}']".encode()),
        "msgpack": ("application/x-msgpack", b"\x93\xc4\x00\x80\x80"),
        "a type without end": ("application/" + "x" * 100_000, b"[[], {}, {}]"),
        "a number too long": ("application/json", b"[[1" + b"0" * 5_000 + b"], {}, {}]"),
        "deeper than can be read": ("application/json", b"[" * 20_000 + b"]" * 20_000),
        "a name twice": ("application/json", b'[[], {"a": "first", "a": "second"}, {}]'),
        "half a pair": ("application/json", b'[["\\ud800 \\u0000"], {}, {}]'),
    }


class HostileReports:
    """The jobs that one worker was sent, and its reports."""

    def __init__(self, folder, pool: str) -> None:
        self.sent: dict[str, tuple[str, bytes]] = {}  # what it is -> job id, element of the list
        self.pool = pool
        self._ids, self._read_to = set(), "0"
        broker, store = Engine(folder / "broker").start(), Engine(folder / "store").start()
        self.worker = HostileWorker(broker.url, store.url, pool=pool, late_ack=False)
        try:
            self._send(broker)
            self.worker.start()
            policies = [policy(name, f"h.{name}_*", max_attempts=1) for name in ("asks", "headers")]
            obeyed(self.worker, store.url, *policies)
            with redis.Redis.from_url(broker.url) as client, redis.Redis.from_url(store.url) as reports:
                client.rename("held", "celery")
                self.worker.wait(lambda: not client.llen("celery") and not client.hlen("unacked"), 90, "all jobs")
                self.goes_on = self.worker.send("ok", "after all of it")
                self.worker.wait(
                    lambda: any("after all" in line for line in self.worker.marks("ok")), what="a good job"
                )
                # Acknowledged before it runs: one that the broker has no more may be at work for seconds, beside the last.
                awaited = {job for what, (job, _) in self.sent.items() if what not in self.untold}
                awaited.add(self.worker.send("fail", "the last"))
                self.worker.wait(lambda: awaited <= self._read_ids(reports), 90, "the report of each")
                # What the store did not take in time has gone by the disk.
                self.worker.wait(
                    lambda: not any(f.stat().st_size for f in self.worker.spool.glob("*.spool")), 60, "the spool"
                )
                self.entries = reports.xrange(keys.failures("shop"))
                self.beat = json.loads(next(iter(reports.hvals(keys.workers("shop")))))
        finally:
            self.worker.kill()
            broker.stop()
            store.stop()
        self.reports = [(entry_id, fields, decode(fields)) for entry_id, fields in self.entries]

    @property
    def untold(self) -> frozenset[str]:
        return UNTOLD_IN_THREADS if self.pool == "threads" else frozenset()

    def _read_ids(self, client) -> set[str]:
        for entry_id, fields in client.xrange(keys.failures("shop"), f"({self._read_to}"):
            self._read_to = entry_id.decode()
            self._ids.add(decode(fields).job_id)
        return self._ids

    def _send(self, broker: Engine) -> None:
        tasks = {name: (f"h.{name}", {}) for name in ACTS if self.pool == "prefork" or name not in IN_CHILDREN_ALONE}
        if self.pool == "prefork":  # elsewhere a message is read in the same way
            tasks |= {name: ("h.plain", options) for name, options in build_messages().items()}
            tasks |= {"a name of 64 kB": ("h." + "n" * 65_536, {}), "an odd name": ("h.<b>\n\x00\u202e</b>", {})}
            tasks |= {"an unknown name of 64 kB": ("u" * 65_536, {})}
        with redis.Redis.from_url(broker.url) as client:
            for what, (task, options) in tasks.items():
                options = {name: value for name, value in options.items() if name != "is_refused"}
                job = self.worker.send(task, *options.pop("args", ()), queue="held", **options)
                self._note(client, what, job)
            for what, (content_type, body) in (bodies() if self.pool == "prefork" else {}).items():
                job = str(uuid.uuid4())
                self.worker.send("h.plain", queue="held", task_id=job)
                message = json.loads(client.lpop("held"))
                message["content-type"] = content_type
                message["body"] = base64.b64encode(body).decode()
                client.lpush("held", json.dumps(message))
                self._note(client, what, job)

    def _note(self, client, what: str, job: str) -> None:
        for steps in ("", "\x06\x163", "\x06\x166", "\x06\x169"):
            if steps and client.exists(f"held{steps}"):
                client.lpush("held", client.rpop(f"held{steps}"))
        self.sent[what] = (job, client.lindex("held", 0))

    def reports_of(self, what: str):
        return [report for _, _, report in self.reports if report.job_id == self.sent[what][0]]


@pytest.fixture
def shop(settings):
    """The source that the jobs came from, as the desk knows it. Its broker is gone."""
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": "redis://127.0.0.1:1/0"}
    forget_configuration(config)
    yield
    forget_configuration(config)


@pytest.fixture(scope="module", params=["prefork", "threads"])
def hostile_reports(request, tmp_path_factory):
    return HostileReports(tmp_path_factory.mktemp("hostile"), request.param)


@pytest.mark.long("Starts a worker that fails with every hostile value.")
@pytest.mark.django_db
def test_the_worker_goes_on_each_is_reported_once_as_it_was_sent_and_the_desk_shows_it(
    hostile_reports, store, shop, django_user_model
):
    # One test: each process of the suite that runs a part of it would run the worker again.
    each_is_reported_once_and_the_worker_goes_on(hostile_reports)
    each_message_is_stored_byte_for_byte(hostile_reports)
    nothing_is_executed(hostile_reports)
    nothing_of_it_was_too_much_for_the_guard(hostile_reports)
    a_report_is_small_however_large_the_job_was(hostile_reports)
    an_error_is_named_by_its_class_whatever_name_it_claims(hostile_reports)
    no_wish_of_an_error_holds_its_job_up(hostile_reports)
    the_desk_files_each_and_shows_its_page(hostile_reports, log_in(django_user_model, "ann", every="admin"))


def each_is_reported_once_and_the_worker_goes_on(reported):
    expected = dict.fromkeys(reported.sent, 1) | dict.fromkeys(reported.untold, 0)
    # In the very same words twice where the store answered late (10 MB, a busy machine): the desk files that once.
    assert {
        what: len({encode(report)[b"meta"] for report in reported.reports_of(what)}) for what in reported.sent
    } == expected
    assert len(reported.sent) > 50


def each_message_is_stored_byte_for_byte(reported):
    for what, (_, element) in reported.sent.items():
        for report in reported.reports_of(what):
            assert report.raw == element and report.raw_sha256 == hashlib.sha256(element).hexdigest(), what


def nothing_is_executed(reported):
    assert not (reported.worker.folder / MARKER).exists()
    if reported.pool == "threads":
        return
    kinds = {what: [report.kind for report in reported.reports_of(what)] for what in bodies()}
    assert kinds["pickle"] == kinds["yaml"] == kinds["msgpack"] == ["bad_content"]


def nothing_of_it_was_too_much_for_the_guard(reported):
    assert "Redrive could not" not in reported.worker.text()
    assert reported.beat["dropped"] == 0 and reported.beat["broken"] == 0


def a_report_is_small_however_large_the_job_was(reported):
    for _, fields, report in reported.reports:
        rest = sum(len(value) for name, value in fields.items() if name != b"raw")
        assert rest < 250_000, (report.task[:50], {name: len(value) for name, value in fields.items()})


def an_error_is_named_by_its_class_whatever_name_it_claims(reported):
    def name(what):
        return reported.reports_of(what)[0].error_type

    assert name("class_is_retry") == "tests.kit.hostile.ClassIsRetry"
    assert name("str_raises") == "tests.kit.hostile.StrRaises"
    assert name("getattribute_raises") == "tests.kit.hostile.GetattributeRaises"
    assert [
        report.due_at for what in ("retry_nan", "retry_infinite", "retry_huge") for report in reported.reports_of(what)
    ] == [None] * 3


def no_wish_of_an_error_holds_its_job_up(reported):
    """Under a policy the guard asks an error when it would like to be tried again; a property that sleeps is not waited for."""
    (report,) = reported.reports_of("asks_sleeps")
    assert report.reason == "exhausted" and report.duration_s < 4.5
    assert [report.reason for report in reported.reports_of("headers_endless")] == ["exhausted"]


def the_desk_files_each_and_shows_its_page(reported, browser):
    filed = ingest.file([(entry_id, fields) for entry_id, fields, _ in reported.reports])
    assert filed.unfiled == 0
    expected = Counter(what for what in reported.sent if reported.reports_of(what))
    found = Counter()
    for what, (job, element) in reported.sent.items():
        failure = Failure.objects.filter(first_job_id=job).first()
        if failure is None:
            continue
        found[what] += 1
        assert contents.opened(failure.payloads.get()) == element
        page = read_page(browser, "failure-detail", failure)
        assert "onerror=alert" not in page.replace("&lt;img src=x onerror=alert", ""), what
        assert "\u202e" not in page, what
    assert found == expected

    if reported.pool == "prefork":
        every_page_of_a_job_of_odd_text_is_shown(reported, browser)


def every_page_of_a_job_of_odd_text_is_shown(reported, browser):
    """Halves of pairs, NUL, marks that turn the text around, and names that are such."""
    for what in ("odd text", "odd headers", "half a pair", "numbers without a value", "an odd name"):
        failure = Failure.objects.get(first_job_id=reported.sent[what][0])
        for name in ("failure-opened", "failure-attempts", "failure-related", "failure-edit"):
            read_page(browser, name, failure)
        for form in ("python", "json", "traceback"):
            read_page(browser, "failure-text", failure, form)
        read_page(browser, "group-detail", failure.group.fingerprint)
    for form in ("jsonl", "csv"):
        answer = browser.post(reverse("redrive:failure-export", args=[form]), {"q": "state:any"})
        assert b"hunter2" not in b"".join(answer.streaming_content)
    for name in ("failure-list", "group-list", "quarantine-list", "queue-list", "overview"):
        read_page(browser, name)


def read_page(browser, name: str, *args) -> str:
    answer = browser.get(reverse(f"redrive:{name}", args=[getattr(one, "pk", one) for one in args]))
    # Refused in words where there is nothing to show: no arguments, or such as cannot be edited.
    assert answer.status_code in {200, 302, 404, 409}, (name, args, answer.status_code)
    text = answer.content.decode()
    assert "hunter2" not in text, (name, args, text[text.find("hunter2") - 300 :][:400])
    return text
