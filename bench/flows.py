"""Files of the product that are entered for four flows, step by step.

    python -m bench.flows [--names]

A desk of its own (SQLite, Valkey), a real Celery worker of one process, pages by Django's test client, steps of `watch` in
this process. Each flow runs twice and the second run is traced, so that imports, first connections and filled caches are not
counted. Counted are the distinct `.py` files below `jobs_admin/` and `dashboard/` in which a function was entered, in all
threads of the step: for a step of the worker in the worker's two processes, else in this one. *worker reads* is two seconds of
an idle worker. Prints a Markdown table; `--names` lists the files under it.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from tests.kit.celery import RealWorker
from tests.rigs.empty_desk import served_desk

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = (f"{ROOT}/jobs_admin/", f"{ROOT}/dashboard/")
PATIENCE_S = 30.0
TRACE = "FLOWS_TRACE"  # the environment variable with the file that every traced process appends to
QUEUES = ("first", "second")  # of the warm-up and of the traced run


def trace(file: str, *, is_worker: bool) -> None:
    """Write `time is_worker file` for each call of a function of the product, at most once in 10 ms for each file and process."""
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    last: dict[str, float] = {}

    def on_call(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT) and code.co_name != "<module>":
            now = time.monotonic()
            if now - last.get(code.co_filename, 0.0) > 0.01:
                last[code.co_filename] = now
                os.write(out, f"{now} {is_worker:d} {code.co_filename}\n".encode())

    threading.setprofile(on_call)
    sys.setprofile(on_call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="also list the files of each step")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-flows-") as folder:
        flows = measure(Path(folder))
    print("| flow | step | files |\n|---|---|---|")
    for flow, steps in flows.items():
        for step, files in steps.items():
            print(f"| {flow} | {step} | {len(files)} |")
        print(f"| {flow} | **all** | **{len(set().union(*steps.values()))}** |")
    for flow, steps in flows.items() if wanted.names else ():
        for step, files in steps.items():
            print(f"\n{flow}, {step}", *sorted(files), sep="\n  ")


def measure(folder: Path) -> dict[str, dict[str, set[str]]]:
    os.environ[TRACE] = str(folder / "trace")
    with contextlib.ExitStack() as stack:
        store, broker = served_desk(stack, folder)
        worker = RealWorker(
            broker.url,
            store.url,
            concurrency=1,
            queues=",".join(QUEUES),
            app="bench.flows:app",
            environment={"REAL_SOURCE": "celery", "DJANGO_SETTINGS_MODULE": ""},
        )
        stack.callback(worker.stop)
        flows = Flows(worker.start(), redis.Redis.from_url(store.url), folder / "trace")
        trace(os.environ[TRACE], is_worker=False)
        threading.Thread(target=flows.receiver.serve_forever, args=(0.05,), daemon=True).start()
        stack.callback(flows.receiver.shutdown)
        for queue in QUEUES:
            flows.run_all(queue)
    return flows.entered


class Flows:
    """The four flows, and the files entered in the latest run of each step."""

    def __init__(self, worker: RealWorker, store: redis.Redis, log: Path) -> None:
        from django.contrib.auth.models import User
        from django.test import Client

        from jobs_admin import notices, watch
        from jobs_admin.models import Rule
        from jobs_admin.models.access import ENGINE
        from tests.kit.receiver import Receiver

        self.worker, self.store, self.log = worker, store, log
        self.steps = watch.steps()
        self.browser = Client(SERVER_NAME="127.0.0.1")
        self.browser.force_login(User.objects.create_superuser("ann"))
        self.receiver = Receiver()
        self.entered: dict[str, dict[str, set[str]]] = {}
        Rule.objects.all().delete()
        url = f"http://127.0.0.1:{self.receiver.server_address[1]}/"
        notices.save_channel(
            ENGINE, {"name": "receiver", "kind": "webhook", "url": url, "secret": self.receiver.secret}
        )

    @contextlib.contextmanager
    def trace_step(self, flow: str, step: str) -> Iterator[None]:
        time.sleep(0.05)  # a call of just before would hide one of now
        began = time.monotonic()
        yield
        ended = time.monotonic()
        process = "1" if step.startswith("worker") else "0"  # jobs of a replay run while it is sent
        lines = (line.split(" ", 2) for line in self.log.read_text().splitlines())
        files = {file for at, by, file in lines if by == process and began <= float(at) <= ended}
        self.entered.setdefault(flow, {})[step] = {file.removeprefix(f"{ROOT}/") for file in files}

    def run_all(self, queue: str) -> None:
        self.sample_to_webhook(queue)
        self.job_to_screen(queue)
        self.replay(queue)
        self.policy_to_decision(queue)

    def job_to_screen(self, queue: str) -> None:
        flow = "failing job to screen"
        with self.trace_step(flow, "worker"):
            self.fail("fail", queue)
        with self.trace_step(flow, "ingest"):
            self.step("ingest")
        with self.trace_step(flow, "screen"):
            assert b"PartnerDown" in self.get("/failures/", q=f"queue:{queue}")

    def replay(self, queue: str) -> None:
        from jobs_admin.models import Replay

        flow, query = "replay", f"queue:{queue} state:dead"
        with self.trace_step(flow, "preview"):
            page = self.get("/replays/new/", q=query)
        form = hidden_fields(page) | {"q": query, "step": "start", "reason": "The partner is back."}
        with self.trace_step(flow, "draft and start"):
            self.post("/replays/new/", form | {"style": "at_once", "confirm": "2"})
        replay = Replay.objects.latest("pk")
        with self.trace_step(flow, "create items"):
            self.step("lay")
        known = self.reports()
        with self.trace_step(flow, "send"):
            self.until(lambda: self.step("send") or replay.items.filter(state="sent").count() == 2)
        self.until(lambda: self.reports() >= known + 2)
        self.step("ingest")
        with self.trace_step(flow, "settle"):
            self.until(lambda: self.step("settle") or Replay.objects.get(pk=replay.pk).state == "done")

    def policy_to_decision(self, queue: str) -> None:
        flow, name = "policy edit to decision", "flows"
        form = {"name": name, "match.source": "celery", "match.task": "try", "mode": "enforce", "reason": queue}
        form |= {"max_attempts": "9", "backoff.kind": "fixed", "backoff.first_delay_s": "1 h"}
        if queue == QUEUES[0]:
            self.post("/policies/new/publish/", form | {"max_attempts": "5"})
        with self.trace_step(flow, "editor"):
            page = self.get(f"/policies/{name}/")
        with self.trace_step(flow, "publish"):
            self.post(f"/policies/{name}/publish/", hidden_fields(page) | form | {"max_attempts": str(10 + len(queue))})
        with self.trace_step(flow, "step policies"):
            self.step("policies")
        with self.trace_step(flow, "worker reads"):
            time.sleep(2)  # each second
        with self.trace_step(flow, "worker decides"):
            self.fail("try", queue)

    def sample_to_webhook(self, queue: str) -> None:
        from jobs_admin import alerts
        from jobs_admin.models import Alert, Failure
        from jobs_admin.models.access import ENGINE

        flow = "sample to webhook"
        rule = {"name": queue, "metric": "dead", "queue": queue, "threshold": 0, "for_s": 0}
        alerts.save_rule(ENGINE, {**rule, "channels": ["receiver"]})
        self.fail("fail", queue)
        self.until(lambda: self.step("ingest") or Failure.objects.filter(queue=queue).exists())
        time.sleep(10.1 - time.time() % 10)  # a queue has a sample for each ten seconds
        with self.trace_step(flow, "sample"):
            self.step("sample")
        with self.trace_step(flow, "judge"):
            self.until(
                lambda: self.step("judge") or Alert.objects.filter(rule__name=queue, fired_at__isnull=False).exists()
            )
        known = len(self.receiver.told)
        with self.trace_step(flow, "deliver"):
            self.until(lambda: self.step("deliver") or len(self.receiver.told) > known)
            time.sleep(0.2)  # the answer's record

    # -- the desk, as its people and `watch` use it ----------------------------------------------------------------

    def step(self, name: str) -> None:
        self.steps[name].run("flows")

    def get(self, path: str, **query: str) -> bytes:
        answer = self.browser.get(path, query)
        assert answer.status_code == 200, (path, answer.status_code)
        return answer.content

    def post(self, path: str, form: dict[str, str]) -> None:
        answer = self.browser.post(path, form)
        assert answer.status_code == 302, (path, answer.status_code, answer.content.decode()[-3000:])

    def fail(self, task: str, queue: str) -> None:
        known = self.reports()
        self.worker.send(task, queue=queue)
        self.until(lambda: self.reports() > known)
        time.sleep(0.1)  # the acknowledgement

    def reports(self) -> int:
        """Return how many reports all streams have had."""
        streams = self.store.scan_iter(_type="stream")
        return sum(self.store.xinfo_stream(stream)["entries-added"] for stream in streams)

    def until(self, reached: Callable[[], Any]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not reached():
            assert time.monotonic() < ends
            time.sleep(0.01)


def hidden_fields(page: bytes) -> dict[str, str]:
    """Return the hidden fields of the page's forms."""
    fields = re.findall(r'<input type="hidden"\s+name="([\w.]+)"\s+value="([^"]*)"', page.decode())
    return {name: html.unescape(value) for name, value in fields}


if __name__ == "__main__":
    main()
elif os.environ.get("REAL_BROKER"):  # in the worker
    from tests.kit.celery import app  # noqa: F401

    trace(os.environ[TRACE], is_worker=True)
