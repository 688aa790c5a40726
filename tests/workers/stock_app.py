"""A Celery app that knows nothing of Redrive. Each attempt writes a line to STOCK_LINES: its id, task, attempt and end.

`celery -A tests.workers.stock_app worker`; STOCK_EVENTS switches task events on.
"""

from __future__ import annotations

import os
import time

from celery import Celery
from celery.exceptions import Reject

app = Celery(
    "stock", broker=os.environ["STOCK_BROKER"], backend=os.environ.get("STOCK_RESULTS") or None, set_as_current=False
)
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_send_task_events=bool(os.environ.get("STOCK_EVENTS")),
    result_extended=bool(os.environ.get("STOCK_EXTENDED")),
    task_track_started=False,
)


class PartnerDown(Exception):
    pass


def write_line(task, end):
    place = os.open(os.environ["STOCK_LINES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(place, f"{task.request.id} {task.name} {task.request.retries + 1} {end}\n".encode())
    finally:
        os.close(place)


@app.task(name="shop.ok", bind=True)
def ok(self, n=0):
    write_line(self, "succeeded")
    return n


@app.task(name="shop.pay", bind=True)
def pay(self, order, password=""):
    write_line(self, "failed")
    raise ValueError(f"order {order} was declined")


@app.task(name="shop.ship", bind=True)
def ship(self, order):
    write_line(self, "failed")
    raise LookupError("no carrier") if order % 2 else PermissionError("customs")


@app.task(name="shop.mail", bind=True, max_retries=2)
def mail(self, order, well_at=3):
    """Succeeds at the attempt `well_at`, of three."""
    if self.request.retries + 1 >= well_at:
        write_line(self, "succeeded")
        return
    write_line(self, "failed" if self.request.retries == self.max_retries else "retried")
    try:
        raise PartnerDown("the mail server is away")
    except PartnerDown as error:
        raise self.retry(exc=error, countdown=0.1) from error


@app.task(name="shop.refuse", bind=True)
def refuse(self):
    write_line(self, "rejected")
    raise Reject("not for me", requeue=False)


@app.task(name="shop.slow", bind=True, time_limit=1)
def slow(self):
    write_line(self, "failed")
    time.sleep(30)
