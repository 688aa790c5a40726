"""Celery workers that begin where the imports have ended: each is a process of its own, as `python -m celery` makes it.

    process = forked.start(["-m", "celery", …], folder, environment, log)    # a subprocess.Popen in all that tests ask

A worker takes a second of a processor to import Celery, what stands below it and the guard. One process has imported that,
and forks for each worker that is wanted; the app, and what of the guard speaks with the store, is imported by the worker
itself, in its own environment. Workers with a Python of their own (tests/jobs_admin/worker/test_versions.py) import all.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
# Of Celery and what stands below it.
_IMPORTED = (
    "celery.bin.celery", "celery.bin.worker", "celery.apps.worker", "celery.concurrency.prefork", "celery.concurrency.solo",
    "celery.concurrency.thread", "celery.worker.consumer", "celery.fixups.django", "celery.worker.components",
    "celery.worker.autoscale", "celery.worker.strategy", "celery.app.trace", "celery.app.log", "celery.app.events",
    "celery.app.control", "celery.app.amqp", "celery.events.state", "celery.loaders.app", "celery.backends.base",
    "billiard.pool", "billiard.popen_fork", "kombu.transport.redis", "kombu.transport.pyamqp", "kombu.asynchronous.hub",
    "kombu.pools", "kombu.compression", "redis", "amqp", "json", "http.client", "concurrent.futures.thread", "ctypes",
    "billiard.sharedctypes", "billiard.synchronize", "celery.worker.consumer.delayed_delivery", "encodings.idna",
    "urllib.request",
)  # fmt: skip
# Of the guard: what no test changes before it is imported, as it does the timeouts of `jobs_admin.worker.line`.
_GUARD = (
    "jobs_admin.core.lint.configuration", "jobs_admin.core.hold_release", "jobs_admin.core.report_signature",
    "jobs_admin.core.worker_acl", "jobs_admin.core.stream", "jobs_admin.core.reconnect_delay", "jobs_admin.core.lint.rules",
    "jobs_admin.worker.breakers", "jobs_admin.worker.open_breakers", "jobs_admin.worker.pausing", "jobs_admin.worker.report",
    "jobs_admin.worker.unread", "jobs_admin.worker.policies", "jobs_admin.worker.delays", "jobs_admin.worker.spool",
)  # fmt: skip


class Forked:
    """The parts of a subprocess.Popen that tests use."""

    stdout: IO[str]  # of a process whose output somebody reads

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = threading.Event()

    def ended(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self.wait(timeout)
        with self.stdout:
            return self.stdout.read(), None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """A process that forks: `python arguments…`, which calls `serve` with the number that comes last of them. It ends when
    this process does.
    """

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, *arguments, str(theirs.fileno())],
            cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0,
        )  # fmt: skip
        theirs.close()
        self._socket = ours
        self._turn = threading.Lock()
        self._begun: list[Forked] = []
        self._heard = threading.Condition()
        self._forked: dict[int, Forked] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, request: dict[str, object]) -> Forked:
        with self._turn:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            with self._heard:
                assert self._heard.wait_for(lambda: self._begun, 120), "the process that forks does not answer"
                return self._begun.pop()

    def _listen(self) -> None:
        for line in self._socket.makefile("rb"):
            answer = json.loads(line)
            with self._heard:
                if "begun" in answer:
                    made = self._forked[answer["begun"]] = Forked(answer["begun"])
                    self._begun.append(made)
                    self._heard.notify_all()
                else:
                    self._forked.pop(answer["ended"]).ended(answer["returncode"])

    def stop(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


_forkers: dict[int, Forker] = {}


def start(arguments: list[str], folder: Path, environment: dict[str, str], log: Path) -> Forked:
    """`python arguments…` with this log as its output, at the head of a process group of its own."""
    forker = _forkers.get(os.getpid())
    if forker is None:
        known = {k: v for k, v in os.environ.items() if not k.startswith(("REDRIVE_", "CELERY_", "REAL_"))}
        forker = _forkers[os.getpid()] = Forker(["-m", "tests.kit.forked"], known)
        atexit.register(forker.stop)
    return forker.start({"arguments": arguments, "folder": str(folder), "environment": environment, "log": str(log)})


# --- the process that forks --------------------------------------------------------------------------------------


def serve(place: int, become: Callable[[dict[str, Any]], None]) -> None:
    """Fork for each request, whose process becomes what `become` makes of it, and say when one has ended."""
    import gc
    import selectors

    from jobs_admin.core.child_process import die_with_parent

    gc.collect()
    gc.freeze()  # what is here before the fork is looked at by no worker's collector
    connection = socket.socket(fileno=place)
    woken, waker = socket.socketpair()
    for end in (connection, woken, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reading = selectors.DefaultSelector()
    reading.register(connection, selectors.EVENT_READ)
    reading.register(woken, selectors.EVENT_READ)
    buffer = b""
    while True:
        for key, _ in reading.select():
            if key.fileobj is woken:
                woken.recv(4096)
                continue
            more = connection.recv(1 << 20)
            if not more:
                return
            buffer += more
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                request = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    die_with_parent()  # tests that are killed leave nothing behind
                    os.setpgid(0, 0)
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    reading.close()
                    for end in (connection, woken, waker):
                        end.close()
                    become(request)
                    sys.exit()
                with contextlib.suppress(OSError):
                    os.setpgid(pid, pid)  # whoever comes first: it can be ended by its group as soon as it is told of
                _report(connection, begun=pid)
        _reap(connection)


def _reap(connection: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _report(connection, ended=pid, returncode=os.waitstatus_to_exitcode(status))


def _report(connection: socket.socket, **what: int) -> None:
    connection.setblocking(True)
    connection.sendall(json.dumps(what).encode() + b"\n")
    connection.setblocking(False)


def _become_worker(request: dict[str, Any]) -> None:
    """As `python -m module` begins, but for what was imported already. Ends as an interpreter does."""
    import runpy

    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1), os.dup2(log, 2), os.close(log)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]
    _, module, *rest = request["arguments"]
    sys.argv = ["", *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import importlib

    for name in (*_IMPORTED, *_GUARD):
        importlib.import_module(name)
    assert "jobs_admin.worker.line" not in sys.modules
    serve(int(sys.argv[1]), _become_worker)
