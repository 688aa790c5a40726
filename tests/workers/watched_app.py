"""A worker that sentry-sdk and OpenTelemetry watch, each as its own documentation says, with what they would send written to files.

`celery -A tests.workers.watched_app worker`; WATCHED is the folder of the files, GUARDED puts the guard in.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import sentry_sdk
from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport


def _write(name: str, what: Any) -> None:
    place = os.open(Path(os.environ["WATCHED"], name), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(place, (json.dumps(what, default=str) + "\n").encode())
    finally:
        os.close(place)


class ToFile(Transport):
    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type in ("event", "transaction"):
                _write("sentry", item.payload.json)


class SpansToFile(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        for span in spans:
            _write("spans", json.loads(span.to_json()))
        return SpanExportResult.SUCCESS


class Expected(Exception):
    """An error that Sentry ignores."""


class Unsent(Exception):
    """An error whose event is dropped before it is sent."""


def _before_send(event: Any, hint: Any) -> Any:
    return None if isinstance(hint.get("exc_info", (None, None))[1], Unsent) else event


# With a DSN the SDK's own transport sends to it.
SENT_TO = (
    {"dsn": os.environ["WATCHED_DSN"]}
    if "WATCHED_DSN" in os.environ
    else {"dsn": "http://key@localhost/1", "transport": ToFile}
)
sentry_sdk.init(
    **SENT_TO, integrations=[CeleryIntegration(monitor_beat_tasks=True)], traces_sample_rate=1.0, release="2026.11",
    ignore_errors=[Expected], before_send=_before_send, transport_queue_size=1_000,
)  # fmt: skip


@worker_process_init.connect(weak=False)
def _trace(**_: Any) -> None:
    if "WATCHED_DSN" in os.environ:
        sentry_sdk.capture_message("a process begins")  # an event of no job
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SpansToFile()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


if os.environ.get("WATCHED_THREADS"):  # a pool of threads begins no process
    _trace()


class PartnerDown(Exception):
    pass


app = Celery("watched", broker=os.environ["REAL_BROKER"], set_as_current=False)
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)


@app.task(name="send")
def send(count: int, task: str) -> None:
    for n in range(count):
        app.send_task(task, [f"partner {n} is down"])


@app.task(name="quiet")
def fail_quietly(why: str) -> None:
    raise Expected(why)


@app.task(name="ok")
def ok(*args: Any) -> str:
    return "ok"


@app.task(name="fail")
def fail(why: str = "the partner is down") -> None:
    raise PartnerDown(why)


@app.task(name="unsent")
def fail_unsent(why: str = "") -> None:
    raise Unsent(why)


class Noisy(Task):
    """A task whose failures are logged: Sentry is sent another event after that of the error."""

    def on_failure(self, *_: Any) -> None:
        logging.error("it failed")


@app.task(name="noisy", base=Noisy)
def fail_noisily(why: str) -> None:
    raise PartnerDown(why)


@app.task(name="logged-quiet")
def log_and_fail_quietly(why: str) -> None:
    try:
        raise ValueError(why)
    except ValueError:
        logging.exception("it goes on")
    raise Expected(why)


@app.task(name="captured")
def capture_and_fail(why: str) -> None:
    try:
        raise PartnerDown(why)
    except PartnerDown as error:
        sentry_sdk.capture_exception(error)
        logging.error("it goes on")
        raise


@app.task(name="again", bind=True, max_retries=3)
def retry_until(self: Any, well_at: int) -> None:
    if self.request.retries + 1 < well_at:
        try:
            raise PartnerDown("not yet")
        except PartnerDown as error:
            raise self.retry(exc=error, countdown=0)


@app.task(
    name="automatic", bind=True, autoretry_for=(PartnerDown,), retry_backoff=False, default_retry_delay=0, max_retries=1
)
def automatic(self: Any, well_at: int) -> None:
    if self.request.retries + 1 < well_at:
        raise PartnerDown("not yet")


@app.task(name="policed", bind=True)
def policed(self: Any, well_at: int) -> None:
    if self.request.retries + 1 < well_at:
        raise PartnerDown("not yet")


@app.task(name="ignored")
def ignored() -> None:
    raise Ignore


@app.task(name="rejected")
def rejected() -> None:
    raise Reject("not for me", requeue=False)


@app.task(name="killed")
def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="hard", time_limit=1)
def hard() -> None:
    time.sleep(30)


if os.environ.get("GUARDED"):
    from jobs_admin.worker.celery import install

    install(app, source="shop")
