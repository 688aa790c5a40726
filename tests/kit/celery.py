"""A real Celery worker for tests: an app of tasks that fail in every way, and the process that runs them.

    worker = RealWorker(broker_url, store_url).start()
    worker.send("fail", "no such customer", queue="emails")

As a module it is the app itself: `celery -A tests.kit.celery worker` (settings come from the environment).
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import math
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request as HTTPRequest
from urllib.request import urlopen

import redis
from celery import Celery, Task, chord
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu import Queue, compression
from kombu.common import Broadcast
from kombu.serialization import register

if TYPE_CHECKING:
    from tests.kit.forked import Forked

ROOT = Path(__file__).resolve().parents[2]
START_S = 90.0  # for a worker to be ready: on a machine that has nothing else to do it takes two
QUEUES = "celery,emails,webhooks"

# A serializer of the shop's own: bytes that are no text, which nobody but its workers can read.
OWN_SERIALIZER = ("shop",)
register(
    *OWN_SERIALIZER,
    lambda value: b"\xff\x00" + json.dumps(value).encode(),
    lambda body: json.loads(bytes(body)[2:]),
    content_type="application/x-shop",
    content_encoding="binary",
)


class ShopTask(Task):
    """A user's own base class, with a user's own request class: the guard must live with both."""

    abstract = True


class ShopRequest(Request):
    """Leaves a mark, so that a test can see that it was still called."""

    def on_failure(self, exc_info, *args, **options):
        _mark("shop_request", self.id)
        if os.environ.get("REAL_DIE_BEFORE_ACK"):
            os.kill(os.getpid(), signal.SIGKILL)  # after the guard has told, before Celery acknowledges
        return super().on_failure(exc_info, *args, **options)


class DyingConsumer(Consumer):
    """A user's own consumer, in whose hands the worker dies: after the guard has reported, before Celery forgets the message."""

    def on_unknown_task(self, body, message, exc):
        _mark("dying_consumer", message.headers["id"])
        os.kill(os.getpid(), signal.SIGKILL)


def make_app(broker_url: str, *, late_ack: bool = False) -> Celery:
    address, of_sentinels = broker_url, {}
    if "sentinel" in broker_url.partition("://")[0]:
        from jobs_admin.core import sentinel_url  # not in the environments without Redrive

        address, of_sentinels, _ = sentinel_url.for_kombu(broker_url)
    made = Celery("real", broker=address, set_as_current=False)
    made.conf.update(
        result_backend=os.environ.get("REAL_BACKEND"),
        task_acks_late=late_ack,
        task_default_queue="celery",
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        broker_transport_options=_transport_options(broker_url) | of_sentinels,
    )
    if broker_url.startswith("amqp://"):  # priorities mean something there only if queue and prefetch are such
        made.conf.update(task_queue_max_priority=10, worker_prefetch_multiplier=1)
    if temporary := os.environ.get("REAL_AUTO_DELETE"):  # a queue that RabbitMQ deletes with its last consumer
        made.conf.task_queues = [Queue(temporary, auto_delete=True)]
    if quorum := os.environ.get("REAL_QUORUM"):  # a queue of RabbitMQ that drops what was delivered twice
        made.conf.update(task_queues=[quorum_queue(quorum)], task_queue_max_priority=None)
    if everywhere := os.environ.get("REAL_BROADCAST"):
        made.conf.task_queues = [Broadcast(everywhere)]
    if prefetch := os.environ.get("REAL_PREFETCH"):  # jobs that a worker fetches ahead, for each place of its pool
        made.conf.worker_prefetch_multiplier = int(prefetch)
    made.conf.accept_content = ["json", *OWN_SERIALIZER]
    if os.environ.get("REAL_DYING_CONSUMER"):
        made.conf.worker_consumer = "tests.kit.celery:DyingConsumer"
    if os.environ.get("REAL_REQUEST"):
        made.Task.Request = ShopRequest
    _define(made)
    return made


def quorum_queue(name: str) -> Queue:
    return Queue(name, queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 1})


def _transport_options(broker_url: str) -> dict[str, Any]:
    if broker_url.startswith("filesystem://"):  # a broker that is not Redis, and real: `filesystem://` and a folder
        folder = broker_url.removeprefix("filesystem://")
        return {"data_folder_in": folder, "data_folder_out": folder, "control_folder": f"{folder}/control"}
    if broker_url.startswith("amqp://"):
        return {}
    return {"visibility_timeout": int(os.environ.get("REAL_VISIBILITY", "3600"))}


def _mark(name: str, value: str) -> None:
    folder = os.environ.get("REAL_MARKS")
    if folder:
        with (Path(folder) / name).open("a") as file:
            file.write(f"{value}\n")


def _is_broken(name: str) -> bool:
    return (Path(os.environ["REAL_MARKS"]) / f"broken-{name}").exists()


def _wait_for(name: str) -> None:
    while not (Path(os.environ["REAL_MARKS"]) / f"let-{name}").exists():
        time.sleep(0.01)


def _note(what: str, n: int, key: str, again: str) -> None:
    """One line in one write, so that a history is whole whoever dies: what, when (monotonic), which, whose, delivery."""
    place = os.open(f"{os.environ['REAL_MARKS']}/noted", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(place, f"{what} {time.monotonic():.6f} {n} {key or '-'} {again}\n".encode())
    finally:
        os.close(place)


def _call(place: str, n: int, tenant: str, again: str) -> None:
    """One request to the partner at `host:port`, which knows who is down. Raises OSError or HTTPError, as a task's own code does."""
    _note("start", n, tenant, again)
    with urlopen(f"http://{place}/{tenant or '-'}/{n}", timeout=5) as answer:
        answer.read()
    _note("end", n, tenant, again)


def _request(place: str) -> None:
    """One request to the service at `host:port`. Raises PartnerDown."""
    there = HTTPConnection(place, timeout=5)
    try:
        there.request("POST", "/hook", b"{}")
        status = there.getresponse().status
    except OSError as error:
        raise PartnerDown("it cut the connection") from error
    finally:
        there.close()
    if status != 200:
        raise PartnerDown(f"it answered {status}")


class Unpicklable(Exception):
    def __init__(self, why: str, thing: Any) -> None:
        super().__init__(why)
        self.thing = lambda: thing


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class PartnerDown(Exception):
    pass


class OddCustomer(Exception):
    pass


class Answered(PartnerDown):
    """Cannot be pickled, as httpx's own errors cannot: Celery sends its base class in its place."""

    def __init__(self, why: str, *, status: int) -> None:
        super().__init__(why)
        self.status = status


class Refused(PartnerDown):
    def __init__(self, why: str, retry_after: float) -> None:
        super().__init__(why)
        self.retry_after = retry_after


def _raise(what: str) -> None:
    """`down`, `wrong` (an error that no retry fixes), `unpicklable`, `refused 1.5` (seconds to wait)."""
    kind, _, more = what.partition(" ")
    if kind == "wrong":
        raise ValueError("no such customer")
    if kind == "unpicklable":
        raise Unpicklable("cannot travel", object())
    if kind == "refused":
        raise Refused("it said 429", float(more))
    raise PartnerDown("the partner is down")


def _define_retried(task: Any) -> None:
    """Tasks that policies are tried on. Each writes one line an attempt: id, attempt, when it began (seconds since 1970)."""

    def began(self) -> int:
        attempt = self.request.retries + 1
        _mark("attempts", f"{self.request.id} {attempt} {time.time():.4f}")
        return attempt

    def try_(self, error="down", well_at=10**6, **kwargs):
        if began(self) < well_at:
            _raise(error)
        return "at last"

    for name in ("try", *(f"try{n}" for n in range(10))):  # so that as many policies can be tried at once
        task(name=name, bind=True)(try_)

    @task(name="asks", bind=True, max_retries=1, default_retry_delay=60)
    def request_retry(self, well_at=10**6, swallows=False, **options):
        if began(self) < well_at:
            try:
                _raise("down")
            except PartnerDown as error:
                try:
                    raise self.retry(exc=error, **options)
                except Exception:
                    if not swallows:
                        raise

    @task(name="autoretries", bind=True, autoretry_for=(PartnerDown,), max_retries=1, default_retry_delay=60)
    def autoretries(self, well_at=10**6):
        if began(self) < well_at:
            _raise("down")

    @task(name="dies", bind=True, acks_late=True, reject_on_worker_lost=True)
    def dies(self, well_at=10**6):
        if began(self) < well_at:
            os.kill(os.getpid(), signal.SIGKILL)

    @task(name="hangs", bind=True, time_limit=1, acks_late=True)
    def hangs(self, well_at=10**6):
        if began(self) < well_at:
            time.sleep(30)

    class Fallen(Task):
        def on_success(self, *args):
            os.kill(os.getpid(), signal.SIGKILL)  # its SUCCESS stands in the result backend already

    @task(name="falls", bind=True, base=Fallen, acks_late=True)
    def falls(self):
        began(self)

    @task(name="note")
    def note(*args):
        _mark("notes", str(args))

    @task(name="together", bind=True)
    def together(self, well_at):
        """A chord of two; sent from a worker, which asks the result backend for nothing."""
        tasks = self.app.tasks
        body = note.si("body").on_error(note.si("broken"))
        chord([tasks["try"].s("down", well_at), tasks["ok"].s()], app=self.app)(body)


def _define_kinds(app: Celery, task: Any) -> None:
    """A task for each way in which a job can fail, until its worker is started with REAL_MENDED: the next deployment."""
    is_fixed = bool(os.environ.get("REAL_MENDED"))

    def until_fixed(name: str, **options: Any) -> Any:
        def decorate(fails: Any) -> Any:
            def run(self, *args):
                if not is_fixed:
                    fails(self)
                _mark("ran", f"{name} {self.request.id}")

            return task(name=name, bind=True, **options)(run)

        return decorate

    @until_fixed("kind.raises")
    def raises(self):
        raise PartnerDown("down")

    @until_fixed("kind.exhausts", max_retries=1)
    def exhausts(self):
        try:
            raise PartnerDown("still down")
        except PartnerDown as error:
            raise self.retry(exc=error, countdown=0)

    @until_fixed("kind.rejects")
    def rejects(self):
        raise Reject("not for me", requeue=False)

    @until_fixed("kind.unpicklable")
    def cannot_travel(self):
        raise Unpicklable("cannot travel", object())

    @until_fixed("kind.soft", soft_time_limit=1)
    def soft(self):
        time.sleep(30)

    @until_fixed("kind.hard", time_limit=1)
    def hard(self):
        time.sleep(30)

    @until_fixed("kind.killed")
    def killed(self):
        os.kill(os.getpid(), signal.SIGKILL)

    @until_fixed("kind.segfault")
    def segfault(self):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(0)

    @until_fixed("kind.os_exit")
    def os_exit(self):
        os._exit(3)

    @until_fixed("kind.sys_exit")
    def sys_exit(self):
        sys.exit(3)

    @until_fixed("kind.memory")
    def memory(self):
        raise MemoryError("no room")

    if is_fixed:
        until_fixed("kind.unknown")(lambda self: None)
        until_fixed("kind.arguments")(lambda self: None)
        app.conf.accept_content = ["json", "pickle"]
        compression.register(zlib.compress, zlib.decompress, "x-own")
    else:

        @task(name="kind.arguments")
        def arguments():
            """Called with one more than it takes."""


def _define(app: Celery) -> None:
    task = partial(app.task, shared=False)  # else every app of this process would get them, and warn
    _define_retried(task)
    _define_kinds(app, task)

    @task(name="ok")
    def ok(*args, **kwargs):
        _mark("ok", str(args))
        return "ok"

    @task(name="fail", base=ShopTask)
    def fail(message="it failed", **kwargs):
        raise PartnerDown(message)

    @task(name="hands_on", bind=True)
    def hands_on(self, child, child_id, error=""):
        """The job's own headers go to the job that it sends, as tenants and traces are passed on."""
        self.app.send_task(child, task_id=child_id, headers=self.request.headers)
        if error:
            raise PartnerDown(error)

    @task(name="replaced", bind=True)
    def replaced(self, by, **options):
        self.replace(self.app.signature(by, args=("in its place",), headers=self.request.headers, **options))

    @task(name="flaky", bind=True, max_retries=5)
    def flaky(self, failures, countdown=0):
        if self.request.retries < failures:
            try:
                raise PartnerDown(f"not yet ({self.request.retries})")
            except PartnerDown as error:
                raise self.retry(exc=error, countdown=countdown)
        return "at last"

    @task(name="autoretry", bind=True, autoretry_for=(PartnerDown,), retry_backoff=False, max_retries=2,
              default_retry_delay=0)  # fmt: skip
    def autoretry(self, failures):
        if self.request.retries < failures:
            raise PartnerDown("again")

    @task(name="answered", bind=True, max_retries=1)
    def answered(self):
        try:
            raise Answered("it said 503", status=503)
        except Answered as error:
            raise self.retry(exc=error, countdown=0)

    @task(name="exhaust", bind=True, max_retries=1)
    def exhaust(self):
        try:
            raise PartnerDown("never")
        except PartnerDown as error:
            raise self.retry(exc=error, countdown=0)

    @task(name="bare_retry", bind=True, max_retries=1)
    def bare_retry(self):
        if self.request.retries == 0:
            try:
                raise PartnerDown("in passing")
            except PartnerDown:
                self.retry(countdown=0)

    @task(name="soft", soft_time_limit=1)
    def soft():
        time.sleep(30)

    @task(name="soft_caught", soft_time_limit=1)
    def soft_caught():
        try:
            time.sleep(30)
        except SoftTimeLimitExceeded:
            return "cleaned up"

    @task(name="hard", time_limit=1)
    def hard():
        time.sleep(30)

    @task(name="killed")
    def killed():
        os.kill(os.getpid(), signal.SIGKILL)

    @task(name="leaves")
    def leaves():
        sys.exit(3)

    @task(name="unpicklable")
    def unpicklable():
        raise Unpicklable("cannot travel", object())

    @task(name="http_error")
    def http_error():
        raise HTTPError("http://partner.example/17", 503, "Service Unavailable", {}, io.BytesIO())

    @task(name="group")
    def group():
        raise ExceptionGroup("2 of 3 meters failed", [TimeoutError("late"), Unpicklable("cannot travel", object())])

    @task(name="unprintable")
    def unprintable():
        raise Unprintable

    @task(name="reject")
    def reject():
        raise Reject("not for me", requeue=False)

    @task(name="ignore")
    def ignore():
        raise Ignore

    @task(name="memory")
    def memory():
        raise MemoryError("no room")

    @task(name="slow")
    def slow(seconds, **kwargs):
        time.sleep(seconds)

    @task(name="until")
    def until(name, error=""):
        """Runs until a test says so (`worker.let`), and then ends well, or not."""
        _mark("until", name)
        _wait_for(name)
        if error:
            raise PartnerDown(error)

    @task(name="fail_slowly")
    def fail_slowly(seconds):
        time.sleep(seconds)
        raise PartnerDown("after a while")

    @task(name="hostile")
    def hostile(size=0):
        raise ValueError("a\x00b\ud800c password=hunter2 " + "x" * size)

    @task(name="deliver", bind=True, max_retries=5)
    def deliver(self, customer):
        """To a partner that a test breaks and fixes: for all, or so that one customer's jobs are what is wrong."""
        _mark("requests", customer)
        if _is_broken(customer):
            raise OddCustomer(customer)
        try:
            if _is_broken("partner"):
                raise PartnerDown("the partner is down")
        except PartnerDown as error:
            raise self.retry(exc=error, countdown=0.2)
        _mark("delivered", customer)

    @task(name="post", bind=True, max_retries=5)
    def post(self, place, n, *, tenant):
        """A customer's webhook: six attempts, 1, 2, 4, 8 and 16 s apart (±10 %). Writes down how the job ended, and when."""
        try:
            _request(place)
        except PartnerDown as error:
            if self.request.retries < self.max_retries:
                raise self.retry(exc=error, countdown=2**self.request.retries * random.uniform(0.9, 1.1))
            _mark("posted", f"{tenant} {n} failed {time.monotonic():.3f}")
            raise
        _mark("posted", f"{tenant} {n} ok {time.monotonic():.3f}")

    @task(name="traced", bind=True)
    def traced(self, *args, **kwargs):
        """Writes down all that Celery reports to it. Fails while the partner is broken."""
        request = self.request
        seen = {name: getattr(request, name, None) for name in (
            "id", "root_id", "parent_id", "group", "group_index", "timelimit", "shadow", "stamps", "stamped_headers",
            "reply_to", "correlation_id", "retries", "expires", "eta", "origin", "ignore_result",
        )}  # fmt: skip
        delivery = request.delivery_info or {}
        seen |= {
            "args": args,
            "kwargs": kwargs,
            "own": request.get("x-own"),
            "priority": delivery.get("priority"),
            "from": [delivery.get("exchange"), delivery.get("routing_key")],
            "follow": [
                len(request.chain or ()),
                len(request.callbacks or ()),
                len(request.errbacks or ()),
                bool(request.chord),
            ],
        }
        _mark("traced", json.dumps(seen, default=repr))
        if _is_broken("partner"):
            raise PartnerDown("the partner is down")
        return args[0] if args else None

    @task(name="fail_plain")
    def fail_plain():
        raise PartnerDown("it failed early")

    @task(name="noted", bind=True)
    def note_run(self, n, seconds=0.0, key=""):
        """Run for these seconds, or until a test lets the one of this name end (`worker.let`)."""
        again = "again" if (self.request.delivery_info or {}).get("redelivered") else "first"
        _note("start", n, key, again)
        _wait_for(seconds) if isinstance(seconds, str) else time.sleep(seconds)
        _note("end", n, key, again)

    @task(name="call", bind=True, max_retries=0)
    def call(self, place, n, tenant=""):
        _call(place, n, tenant, self.request.retries)

    @task(name="call_automatic", bind=True, autoretry_for=(OSError,), max_retries=3, default_retry_delay=1)
    def call_automatic(self, place, n, tenant=""):
        _call(place, n, tenant, self.request.retries)

    @task(
        name="order", autoretry_for=(OSError,), max_retries=3, retry_backoff=1, retry_backoff_max=4, retry_jitter=True
    )
    def order(place, n, *, tenant):
        """As the demo's warehouse order: tried four times within some seconds. Writes down that it succeeded, and when."""
        with urlopen(HTTPRequest(f"http://{place}/hook", b"{}", method="POST"), timeout=5) as answer:  # noqa: S310
            answer.read()
        _mark("ordered", f"{tenant} {n} {time.monotonic():.3f}")

    @task(name="call_again", bind=True, max_retries=3)
    def call_again(self, place, n, tenant=""):
        try:
            _call(place, n, tenant, self.request.retries)
        except OSError as error:
            raise self.retry(exc=error, countdown=1) from error

    @task(name="late", acks_late=True)
    def late(message="it failed late"):
        raise PartnerDown(message)


@dataclass(frozen=True, slots=True)
class Home:
    """The place of a worker: which Python, and the folder that this app is imported from."""

    python: Path
    folder: Path


HERE = Home(Path(sys.executable), ROOT)


# Others patch what is imported before they import it.
_FORKABLE = ("prefork", "solo", "threads")


def _of_interpreter(environment: dict[str, str]) -> bool:
    """Return whether it says something that an interpreter reads only when it begins."""
    names = {name for name in {*environment, *os.environ} if name.startswith(("PYTHON", "LD_", "TZ"))}
    return any(environment.get(name) != os.environ.get(name) for name in names)


class RealWorker:
    """`celery worker` as its own process group. Every wait ends when the process dies, or at its deadline."""

    def __init__(
        self,
        broker_url: str,
        store_url: str | None,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: str = QUEUES,
        late_ack: bool = False,
        environment: dict[str, str] | None = None,
        home: Home = HERE,
        app: str = "tests.kit.celery:app",
    ) -> None:
        self.home = home
        self.broker_url = broker_url
        self.app = make_app(broker_url, late_ack=late_ack)
        self.folder = Path(tempfile.mkdtemp(prefix="real-worker-"))
        self.log = self.folder / "worker.log"
        self.name = f"w{os.getpid()}-{id(self):x}@{socket.gethostname()}"
        self._command = [
            str(home.python), "-m", "celery", "-A", app, "worker", "-P", pool, "-c", str(concurrency),
            "-Q", queues, "-l", "INFO", "--without-gossip", "--without-mingle", "-n", self.name,
        ]  # fmt: skip
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "",  # the desk's own: Celery would load and check all of it in each worker
            "REAL_BROKER": broker_url,
            "REAL_LATE_ACK": "1" if late_ack else "",
            "REAL_MARKS": str(self.folder),
            "REDRIVE_SPOOL": str(self.folder / "spool"),
            "REDRIVE_REDIS_URL": store_url or "",
            # What a busy machine does not answer in a tenth of a second is no part of most tests; and a bench measures.
            "REAL_PATIENCE": "10" if "PYTEST_VERSION" in os.environ else "",
            **(environment or {}),
        }
        self._pool = pool
        self.process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def spool(self) -> Path:
        return self.folder / "spool" / "shop"

    def start(self, deadline_s: float = START_S) -> RealWorker:
        seen = self.text().count(" ready.")
        self._wait_until_visible()
        self.process = self._begin()
        self.wait(lambda: self.text().count(" ready.") > seen, deadline_s, "the worker to be ready")
        return self

    def _wait_until_visible(self) -> None:
        """A worker asks Redis for what dead ones had as it begins, and then each hundred seconds: wait until that is visible."""
        timeout_s = int(self.environment.get("REAL_VISIBILITY", "3600"))
        if timeout_s > 10 or not self.broker_url.startswith("redis"):
            return
        with redis.Redis.from_url(self.broker_url) as client:
            latest = client.zrange("unacked_index", -1, -1, withscores=True)
        for _, at in latest:
            time.sleep(max(0.0, at + timeout_s + 0.1 - time.time()))

    def _begin(self) -> subprocess.Popen[bytes] | Forked:
        is_test = "PYTEST_VERSION" in os.environ  # a bench measures a whole start
        if is_test and self.home == HERE and self._pool in _FORKABLE and not _of_interpreter(self.environment):
            from tests.kit import forked  # not beside the app in an environment of its own

            return forked.start(self._command[1:], self.home.folder, self.environment, self.log)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command, cwd=self.home.folder, env=self.environment, stdout=log, stderr=log, process_group=0
            )

    def send(self, task: str, *args: Any, queue: str = "celery", **options: Any) -> str:
        kwargs = options.pop("kwargs", None)
        return self.app.send_task(task, args=args, kwargs=kwargs, queue=queue, **options).id

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def marks(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def break_(self, name: str) -> None:
        """`partner`, or one customer's jobs: see the task `deliver`."""
        (self.folder / f"broken-{name}").touch()

    def let(self, name: str) -> None:
        """The task `until` or `noted` of that name may end."""
        (self.folder / f"let-{name}").touch()

    def fix(self, name: str) -> None:
        (self.folder / f"broken-{name}").unlink()

    def wait(
        self, reached: Callable[[], Any], deadline_s: float = 60, what: str = "it", *, may_die: bool = False
    ) -> Any:
        """Wait until `reached` is true and return its answer. Fails when the worker dies, or prints nothing for `deadline_s`."""
        from tests.kit.waiting import wait_until  # this module is an app of workers too, alone in a folder

        return wait_until(
            reached,
            what,
            progress=lambda: self.log.stat().st_size if self.log.exists() else 0,
            within_s=deadline_s,
            process=None if may_die else self.process,
            text=self.text,
        )

    def stop(self, deadline_s: float = 15) -> None:
        """Warm shutdown, then none left of the group."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(deadline_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the main process and its children, and to nothing else."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _die_once_it_waits() -> None:
    from jobs_admin.worker.later import Later

    really = Later.hold

    def hold(self, request, decision, **options):
        really(self, request, decision, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    Later.hold = hold


def _lose_answers(number: int) -> None:
    """Let the first jobs be put aside without the worker learning it."""
    from jobs_admin.worker.delays import Delays

    really, seen = Delays.schedule, []

    def schedule(self, *arguments, **options):
        answer = really(self, *arguments, **options)
        seen.append(answer)
        if len(seen) <= number:
            raise redis.TimeoutError("the answer was lost")
        return answer

    Delays.schedule = schedule


def _drop_a_call() -> None:
    """Drop the first call into the consumer's thread, as kombu's hub does with a batch of which one raised."""
    from jobs_admin.worker.pausing import Pausing

    really, seen = Pausing._settle, []

    def settle(self):
        seen.append(self)
        return really(self) if len(seen) > 1 else None

    Pausing._settle = settle


def _die_giving_back(moment: str, number: int) -> None:
    """Before or after the broker has the job again."""
    from jobs_admin.worker.pausing import Pausing

    really, seen = Pausing._give_back, []

    def give_back(self, message):
        seen.append(message)
        if moment == "after":
            really(self, message)
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == "before":
            really(self, message)

    Pausing._give_back = give_back


def _die_at_its_end() -> None:
    from jobs_admin.worker.ledger import Ledger

    Ledger.ended = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def _app_of_the_environment() -> Celery | None:
    if not os.environ.get("REAL_BROKER"):
        return None
    made = make_app(os.environ["REAL_BROKER"], late_ack=bool(os.environ.get("REAL_LATE_ACK")))
    if not os.environ.get("REAL_STOCK"):
        if os.environ.get("REAL_PATIENCE"):
            from jobs_admin.worker import line

            # Before the others read them.
            line.CALL_TIMEOUT = line.BACKGROUND_TIMEOUT = float(os.environ["REAL_PATIENCE"])
            from jobs_admin.worker import store

            # Slow answers that add up would send reports by the spool too: twice, or some seconds later.
            store.LONG_SECONDS = math.inf
        from jobs_admin.worker import celery as guard
        from jobs_admin.worker.celery import install

        if os.environ.get("REAL_DIE_ONCE_IT_WAITS"):
            _die_once_it_waits()
        if lost := os.environ.get("REAL_UNANSWERED"):
            _lose_answers(int(lost))
        if os.environ.get("REAL_DROPPED_CALL"):
            _drop_a_call()
        if giving_back := os.environ.get("REAL_DIE_GIVING_BACK"):
            moment, number = giving_back.split()
            _die_giving_back(moment, int(number))
        if most := os.environ.get("REAL_MOST_WAITING"):
            from jobs_admin.worker import delays

            delays.MOST_WAITING = int(most)
        if os.environ.get("REAL_DIE_ONCE_IT_IS_TOLD"):
            _die_at_its_end()
        guard.CELERY_VERSION = os.environ.get("REAL_CELERY_VERSION", guard.CELERY_VERSION)
        for _ in range(2):  # the second line must change nothing
            install(
                made,
                source=os.environ.get("REAL_SOURCE", "shop"),
                tenant=["kwargs.customer.id", "kwargs.tenant"],
                release="2026.11",
                reconnect_jitter=float(os.environ.get("REAL_RECONNECT_JITTER", "0")),
            )
    return made


app = _app_of_the_environment()
