"""An app as processes import it that run no jobs: at its end each writes down what it has loaded, its threads and its sockets.

The broker is a folder, so that whatever is loaded of a Redis client, and whatever connects, is the guard's doing.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from pathlib import Path

from celery import Celery

from jobs_admin.worker.celery import install

folder = os.environ["QUIET"]
app = Celery("quiet", broker="filesystem://", set_as_current=False)
app.conf.update(
    broker_transport_options={
        "data_folder_in": folder,
        "data_folder_out": folder,
        "control_folder": f"{folder}/control",
    },
    beat_schedule={"often": {"task": "one", "schedule": 0.2}},
    task_always_eager=bool(os.environ.get("EAGER")),
    task_eager_propagates=False,
)
install(app, source="shop")


class Down(Exception):
    pass


@app.task(name="one", bind=True, autoretry_for=(Down,), retry_backoff=False, default_retry_delay=0, max_retries=2)
def one(self, fails=0):
    if self.request.retries < fails:
        raise Down("not yet")
    return self.request.retries


@atexit.register
def _write() -> None:
    fds = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    ours = ("jobs_admin", "redis", "hiredis")
    fields = {
        "modules": sorted(name for name in sys.modules if name.partition(".")[0] in ours),
        "threads": sorted(thread.name for thread in threading.enumerate() if "redrive" in thread.name),
        "sockets": sum(fd.startswith("socket:") for fd in fds),
    }
    Path(folder, f"seen-{os.getpid()}").write_text(json.dumps(fields))
