"""An app that has classes of its own wherever Celery lets it: request, consumer, and tasks with every hook; each leaves a mark.

`celery -A tests.workers.custom_app worker`; MARKS is the file of the marks, GUARDED puts the guard in, BEAT sends a job each second.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task
from celery.signals import task_failure, task_postrun, task_prerun, task_retry, task_unknown
from celery.worker.consumer import Consumer
from celery.worker.request import Request

PLACE = os.environ.get("MARKS", os.devnull)


def mark(*what: object) -> None:
    place = os.open(PLACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(place, (" ".join(map(str, what)) + "\n").encode())
    finally:
        os.close(place)


class ShopRequest(Request):
    def on_accepted(self, *args: Any, **options: Any) -> Any:
        mark("request accepted", self.name)
        return super().on_accepted(*args, **options)

    def on_failure(self, *args: Any, **options: Any) -> Any:
        mark("request failed", self.name)
        return super().on_failure(*args, **options)


class ShopConsumer(Consumer):
    def on_unknown_task(self, body: Any, message: Any, exc: Any) -> Any:
        mark("consumer unknown", message.headers["task"])
        return super().on_unknown_task(body, message, exc)

    def start(self) -> Any:
        mark("consumer starts")
        return super().start()


class ShopTask(Task):
    abstract = True
    Request = f"{__name__}:ShopRequest"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mark("called", self.name)
        return super().__call__(*args, **kwargs)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        mark("before start", self.name, self.request.retries)

    def on_success(self, *args: Any) -> None:
        mark("on success", self.name)

    def on_failure(self, exc: Any, *args: Any) -> None:
        mark("on failure", self.name, type(exc).__name__)

    def on_retry(self, exc: Any, *args: Any) -> None:
        mark("on retry", self.name, type(exc).__name__)

    def after_return(self, status: str, *args: Any) -> None:
        mark("after return", self.name, status)


class PartnerDown(Exception):
    pass


app = Celery("custom", broker=os.environ["REAL_BROKER"], task_cls=ShopTask, set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_consumer=f"{__name__}:ShopConsumer",
    beat_schedule={"each second": {"task": "scheduled", "schedule": 1.0}} if os.environ.get("BEAT") else {},
)
for signal in (task_prerun, task_postrun, task_failure, task_retry):
    signal.connect(lambda sender=None, _name=signal.name, **_: mark("signal", _name, sender.name), weak=False)
task_unknown.connect(lambda name=None, **_: mark("signal", "task_unknown", name), weak=False)


@app.task(name="fine")
def fine() -> None:
    pass


@app.task(name="broken")
def broken() -> None:
    raise PartnerDown("down")


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


@app.task(name="lost", acks_late=True)
def lost() -> None:
    os.kill(os.getpid(), 9)


@app.task(name="scheduled")
def scheduled() -> None:
    raise PartnerDown("each second")


@app.task(name="installs")
def installs() -> None:
    """Too late: a worker runs already."""
    from jobs_admin.worker.celery import install

    other = os.environ.get("GUARDED")
    install(app, source="late")
    mark("installed late", getattr(app, "redrive_wish", None) is not None, other)


if os.environ.get("GUARDED"):
    from jobs_admin.worker.celery import install

    install(app, source="shop")
