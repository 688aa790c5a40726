"""A million failures that are not filed meanwhile: is the store's bound kept, each publish taken, each failure accounted for?

    python -m bench.flood_capture [--failures 1000000] [--processes 4] [--real 10000] [--spool FOLDER] [--file 20000]

One Redis is broker and store (`redis_url="broker"`, the worst case); stream and spool have their default bounds; no `watch` runs.
Real: a Celery worker with two children, whose jobs fail, for a part; and for the mass the guard itself in several processes, each
with its heartbeat: real messages of the broker, Celery's own Request objects, `Guard.job_failed`, Store and Spool. Made up is only that
no child ran the function. A producer publishes jobs to the same Redis all the while. Then `watch` is started: the first reports of
all that was kept are filed, and what the desk says of the rest is read. Prints JSON.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis

from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.core.envelope import decode
from tests.rigs.figures import spread

ROOT = Path(__file__).resolve().parent.parent
MB = 1024**2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--real", type=int, default=10_000)
    parser.add_argument("--spool", default="", help="where the spool is; without it, a temporary folder")
    parser.add_argument("--file", type=int, default=20_000, help="reports to be filed before it ends")
    parser.add_argument("--stream-mb", default="256")
    parser.add_argument("--spool-mb", default="1024")
    wanted = parser.parse_args()
    os.environ |= {"REDRIVE_STREAM_MB": wanted.stream_mb, "REDRIVE_SPOOL_MB": wanted.spool_mb}
    with (
        tempfile.TemporaryDirectory(prefix="flood-", dir=wanted.spool or None) as spool,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        engine = Engine(folder / "redis").start()
        try:
            figures = flood(engine, folder, Path(spool), wanted)
        finally:
            engine.stop()
    json.dump({"machine": machine(), "versions": versions(), **figures}, sys.stdout, indent=2)
    print()


def flood(engine: Engine, folder: Path, spool: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    os.environ["REDRIVE_SPOOL"] = str(spool)
    each = (wanted.failures - wanted.real) // wanted.processes
    counts = [each + (n < (wanted.failures - wanted.real) % wanted.processes) for n in range(wanted.processes)]
    fork = multiprocessing.get_context("fork")
    done, end = fork.Semaphore(0), fork.Event()
    began = time.monotonic()
    users = Users(engine.url)
    store = Watcher(engine.url)
    real = start_real(engine.url, folder, wanted.real)
    crowd = [fork.Process(target=worker, args=(n, engine.url, count, done, end)) for n, count in enumerate(counts)]
    for process in crowd:
        process.start()
    try:
        for _ in crowd:
            done.acquire()
        wait(lambda: failed_really(folder) >= wanted.real, 600, "the real worker's failures")
        time.sleep(3)
        took_s = time.monotonic() - began
        published, longest = users.end(), store.end()
        with redis.Redis.from_url(engine.url) as client:
            dropped = sum(json.loads(text)["count"] for text in client.hvals(keys.dropped("shop")))
            captured = {decode(fields).job_id for _, fields in pages(client)}
            in_stream = client.xlen(keys.failures("shop"))
        spooled, in_spool = on_disk(spool / "shop")
        figures = {
            "failures": wanted.failures,
            "of_these_by_a_real_worker": wanted.real,
            "guards": wanted.processes + 1,
            "took_s": round(took_s, 1),
            "load_average": round(os.getloadavg()[0], 1),
            "in_stream": in_stream,
            "in_spool": in_spool,
            "told_twice": in_stream + in_spool - len(captured | spooled),
            "dropped_and_counted": dropped,
            "accounted_for": len(captured | spooled) + dropped,
            "spool_mb": round(sum(file.stat().st_size for file in (spool / "shop").glob("*.spool")) / MB, 1),
            "most_in_the_store": longest,
            "publishing_by_users": published,
        }
        print(json.dumps(figures), file=sys.stderr, flush=True)
        figures["afterwards"] = filed(engine, folder, spool, wanted.file, dropped)
    finally:
        end.set()
        for process in crowd:
            process.join(20)
            process.kill()
        real.kill()
        real.wait()
    return figures


# -- who fails ---------------------------------------------------------------------------------------------------


class PartnerDown(Exception):
    pass


def charge(order: dict[str, Any], **more: Any) -> None:
    raise PartnerDown(f"the partner did not take order {order['id']}: 503 Service Unavailable")


def app_of(url: str) -> Any:
    from celery import Celery

    made = Celery("flood", broker=url, set_as_current=False)
    made.conf.update(broker_connection_retry_on_startup=True, task_default_queue="charges")
    made.task(name="shop.charge", shared=False)(charge)
    return made


def worker(number: int, url: str, count: int, done: Any, end: Any) -> None:
    """A guard with its heartbeat, and `count` jobs that fail as fast as they are reported to it."""
    from billiard.einfo import ExceptionInfo
    from celery.worker.request import Request
    from kombu import Connection
    from kombu.transport.virtual import Message

    from jobs_admin.worker import celery as installing
    from jobs_admin.worker.at_start import AtStart
    from jobs_admin.worker.calls import Calls
    from jobs_admin.worker.configuration import ConfigurationReport
    from jobs_admin.worker.guard import Guard
    from jobs_admin.worker.heartbeat import Heartbeat, Identity, known_tasks, new_boot
    from jobs_admin.worker.report import Origin
    from jobs_admin.worker.request import guarded

    app = app_of(url)
    store = installing._store(url, installing.Wish("shop", url, (), None))
    guard = Guard(Origin("shop", "", ()), store)
    boot, name = new_boot(), f"w{number}@flood"
    identity = Identity(
        name, "", "5.7", "bench", "prefork", "redis", 1, lambda: ["charges"], frozenset({False}), known_tasks(app.tasks),
        lambda: ConfigurationReport("", ""), boot=boot,
    )  # fmt: skip
    heartbeat = Heartbeat(guard, identity, AtStart(Calls(url, "nothing"), "shop", boot, name, "flood"))
    heartbeat.start()
    time.sleep(2)  # until it has a connection
    request_class = guarded(Request, guard)
    channel = Connection("memory://").channel()
    template = message_of(url)
    try:
        charge({"id": 1})
    except PartnerDown:
        error = ExceptionInfo()
    for n in range(count):
        payload = fill(template, f"{number}-{n}")
        request = request_class(
            Message(payload, channel=channel), app=app, hostname=name, task=app.tasks["shop.charge"]
        )
        guard.job_started(request)
        guard.job_failed(request, error)
    if guard.broken:
        raise SystemExit(f"{guard.broken} reports were not made")
    time.sleep(6)  # a heartbeat tells the count
    done.release()
    end.wait()
    os._exit(0)


def message_of(url: str) -> dict[str, Any]:
    queue = f"template-{os.getpid()}"
    app_of(url).send_task("shop.charge", args=[{"id": 0}], queue=queue)
    with redis.Redis.from_url(url) as client:
        message: dict[str, Any] = json.loads(client.lpop(queue))
    return message


def fill(template: dict[str, Any], name: str) -> dict[str, Any]:
    order = {
        "id": name,
        "customer": "acme",
        "lines": [{"sku": f"A-{n}", "amount": n, "price": "19.90"} for n in range(8)],
    }
    body = base64.b64encode(json.dumps([[order], {}, {}]).encode()).decode()
    headers = template["headers"] | {"id": str(uuid4())}
    properties = template["properties"] | {"correlation_id": headers["id"], "delivery_tag": headers["id"]}
    return template | {"headers": headers, "properties": properties, "body": body}


def start_real(url: str, folder: Path, count: int) -> subprocess.Popen[bytes]:
    template = message_of(url)
    with redis.Redis.from_url(url) as client:
        for start in range(0, count, 500):
            some = range(start, min(start + 500, count))
            client.lpush("charges", *(json.dumps(fill(template, f"r-{n}")) for n in some))
    environment = {**os.environ, "FLOOD_BROKER": url}
    command = [sys.executable, "-m", "celery", "-A", "bench.flood_capture:app", "worker", "-c", "2", "-l", "INFO", "-n", "real@%h",
               "-Q", "charges"]  # fmt: skip
    with (folder / "real.log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def failed_really(folder: Path) -> int:
    return (folder / "real.log").read_bytes().count(b"raised unexpected")


# -- who looks on ------------------------------------------------------------------------------------------------


class Users:
    """Publishes a job every five milliseconds, for others than us."""

    def __init__(self, url: str) -> None:
        self._app = app_of(url)
        self._end = threading.Event()
        self._failed: list[str] = []
        self._ms: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(0.005):
            began = time.monotonic()
            try:
                self._app.send_task("shop.ship", args=[1], queue="theirs", retry=False)
            except Exception as error:  # whatever it is, it is what a user would have seen
                self._failed.append(repr(error)[:200])
            self._ms.append((time.monotonic() - began) * 1000)

    def end(self) -> dict[str, Any]:
        self._end.set()
        self._thread.join()
        return {"jobs": len(self._ms), "failed": len(self._failed), "errors": self._failed[:3], "ms": spread(self._ms)}


class Watcher:
    """Looks at the store's memory twice a second."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._end = threading.Event()
        self._most = {"used_memory_mb": 0.0, "stream_mb": 0.0, "counted_mb": 0.0}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(0.5):
            seen = {
                "used_memory_mb": self._client.info("memory")["used_memory"],
                "stream_mb": self._client.memory_usage(keys.failures("shop"), samples=0) or 0,
                "counted_mb": int(self._client.get(keys.failures_bytes("shop")) or 0),
            }
            self._most = {name: max(most, round(seen[name] / MB, 1)) for name, most in self._most.items()}

    def end(self) -> dict[str, float]:
        self._end.set()
        self._thread.join()
        return self._most


def pages(client: redis.Redis) -> Any:
    after = "-"
    while some := client.xrange(keys.failures("shop"), min=after, count=5_000):
        yield from some
        after = b"(" + some[-1][0]


def on_disk(directory: Path) -> tuple[set[str], int]:
    """Jobs whose reports lie in a spool that its worker holds: read beside it, and left as it is."""
    from jobs_admin.worker.records import MAGIC, read

    found, count = set(), 0
    for path in directory.glob("*.spool"):
        try:
            file = path.open("rb")
        except FileNotFoundError:  # shipped meanwhile
            continue
        with file:
            for _, entry in read(file.fileno(), len(MAGIC), os.fstat(file.fileno()).st_size, set()):
                found.add(decode(entry).job_id)
                count += 1
    return found, count


def wait(reached: Any, seconds: float, what: str) -> None:
    ends = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > ends:
            raise SystemExit(f"Waited {seconds:.0f} s for {what}.")
        time.sleep(0.1)


# -- and afterwards ----------------------------------------------------------------------------------------------


def filed(engine: Engine, folder: Path, spool: Path, wanted: int, dropped: int) -> dict[str, Any]:
    from tests.rigs.empty_desk import desk

    place = folder / "desk"
    place.mkdir()
    desk(place, REDRIVE_REDIS_URL=engine.url, CELERY_BROKER_URL=engine.url)
    from django.utils import timezone

    from jobs_admin.fleet import uncaptured
    from jobs_admin.models import Failure
    from jobs_admin.models.access import ENGINE

    with (folder / "watch.log").open("ab") as log:
        watch = subprocess.Popen([sys.executable, "manage.py", "watch"], cwd=ROOT, stdout=log, stderr=log)
    began = time.monotonic()
    try:
        wait(lambda: Failure.objects.count() >= wanted, 900, f"{wanted} failures on the desk")
        took_s = time.monotonic() - began
        wait(lambda: uncaptured.recent_counts(ENGINE, timezone.now()), 60, "what was not captured, on the desk")
        uncaptured_counts = uncaptured.recent_counts(ENGINE, timezone.now())
        left = not Failure.objects.count()
        with redis.Redis.from_url(engine.url) as client:
            left = client.xlen(keys.failures("shop"))
        return {
            "filed": Failure.objects.count(),
            "seconds": round(took_s, 1),
            "left_in_stream": left,
            "left_in_spool": on_disk(spool / "shop")[1],
            "desk_says_not_captured": sum(one.count for one in uncaptured_counts),
            "is_to_the_job": sum(one.count for one in uncaptured_counts) == dropped,
        }
    finally:
        watch.terminate()
        watch.wait(20)


app = None
if os.environ.get("FLOOD_BROKER"):
    from jobs_admin.worker.celery import install

    app = app_of(os.environ["FLOOD_BROKER"])
    install(app, source="shop", redis_url="broker")


if __name__ == "__main__":
    main()
