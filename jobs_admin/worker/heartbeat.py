"""The guard's main thread: obeys the switch, reads policies, sends heartbeats, ships the spool.

Jobs never wait for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis
from celery.worker import state

from jobs_admin.core import keys
from jobs_admin.core.reconnect_delay import ReconnectDelay
from jobs_admin.worker.at_start import AtStart
from jobs_admin.worker.configuration import ConfigurationReport
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.pausing import Pausing
from jobs_admin.worker.policies import CAPTURE
from jobs_admin.worker.policing import Policing
from jobs_admin.worker.report import Origin, or_nothing, queue_of

POLL_SECONDS = 1.0  # polling the switch; `off` must reach every worker within 2 s
LONGEST_PAUSE_SECONDS = 5.0  # between two attempts to reach an unavailable store
BEAT_SECONDS = 5.0
FORGET_SECONDS = 86_400
# Time limits at shutdown: in total; in total if the store did not answer just before; reserved for the steps after the
# spool. Celery's own shutdown comes first, and Docker allows 10 s for all.
FAREWELL_SECONDS, AWAY_FAREWELL_SECONDS, SPARED_SECONDS = 3.0, 1.0, 0.5
MOST_IN_HAND = 200  # listed jobs; the rest is only counted
IN_HAND_EXPIRY_S = 86_400
MOST_KNOWN_TASKS = 2_000
MOST_KNOWN_BYTES = 64_000

logger = logging.getLogger("redrive.worker")


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of this worker, constant from start to end."""

    name: str  # Celery's node name
    release: str
    celery: str
    guard: str  # version of this package
    pool: str
    broker: str  # kombu's name of the broker type: redis, amqp
    concurrency: int | None
    queues: Callable[[], list[str]]  # may change by remote control
    late_ack: frozenset[bool]  # settings of the app's tasks, for queues on which no job has run yet
    tasks: KnownTasks
    configuration: Callable[[], ConfigurationReport]  # slow: reads the code of tasks
    boot: str


def new_boot() -> str:
    """Return an id that distinguishes two lives of one worker name."""
    return uuid4().hex


class Heartbeat:
    def __init__(
        self,
        guard: Guard,
        identity: Identity,
        at_start: AtStart,
        policing: Policing | None = None,
        pausing: Pausing | None = None,
    ) -> None:
        self.guard = guard
        self.identity = identity
        self._configuration: ConfigurationReport | None = None  # None: not read yet
        self.at_start = at_start
        self._store_user: str | None = None  # None: not queried yet
        self._in_hand = InHand(guard.origin, identity.boot, identity.name)
        self.pausing = pausing  # None: nothing is paused in this worker
        self.policing = policing  # None: no policy decides in this worker
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_leaving = False
        self._holds_nothing = False  # by `manage.py off` or `drain`
        self._is_away = False  # whether the store did not answer at the last call
        self._ships_until = math.inf  # monotonic
        self._beat_due = 0.0  # monotonic
        self._pauses = ReconnectDelay(POLL_SECONDS, LONGEST_PAUSE_SECONDS, least_s=POLL_SECONDS / 2)

    def start(self) -> None:
        """Start once, after the pool has forked: a thread does not survive a fork."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="redrive-heartbeat", daemon=True)
            self._thread.start()
            if self.policing is not None:
                self.policing.start()
            self._attempt(self._connect)

    def stop(self) -> None:
        """Ship the spool, report the final counts and close the files. Takes little more than 3 s.

        Or 1 s if the store did not answer at the last call. Anything not sent stays on disk for the next worker.
        """
        ends = time.monotonic() + (AWAY_FAREWELL_SECONDS if self._is_away else FAREWELL_SECONDS)
        self._ships_until = ends - SPARED_SECONDS
        self._stop.set()
        if self.policing is not None:
            self.policing.stop()
        if self._thread is not None:
            self._thread.join(max(0.0, ends - time.monotonic()))
        self.guard.end_pending()
        self.at_start.beat("gone")
        # If the thread hangs in a call, its connection must not be closed here.
        is_alone = self._thread is None or not self._thread.is_alive()
        self.guard.store.close(ends if is_alone and not self._is_away else 0.0, is_alone=is_alone)

    def _farewell(self) -> None:
        """Send the last reports, in the thread that owns the connection.

        Stops at a call without an answer: the next would hang too.
        """
        for act in (self._settle, self._ship, self._beat, self._report_dropped):
            if not self._attempt(act, is_last=True) and self._is_away:
                return

    def note_leaving(self, **_: object) -> None:
        """Note that the worker was ordered to shut down: if it is killed before it ends, none of its jobs is blamed.
        Signal handler.
        """
        self._is_leaving = True

    def _run(self) -> None:
        was_leaving = False
        while not self._stop.is_set():
            self._attempt(self.guard.store.dial)
            self.at_start.report_crashes()
            self._attempt(self._settle)
            self._attempt(self._pause_jobs)
            has_obeyed = is_reached = self._attempt(self._obey)
            self._is_away = self._is_away and not has_obeyed
            if time.monotonic() >= self._beat_due or self._is_leaving != was_leaving:
                self._beat_due, was_leaving = time.monotonic() + BEAT_SECONDS, self._is_leaving
                self.at_start.beat("leaving" if was_leaving else "")
                if self.policing is not None:
                    self.policing.shares.live_workers = self.at_start.live_workers
                self._attempt(self.guard.store.spool.tend)
                self._attempt(self.guard.store.keep_count)
                is_reached = self._attempt(self._beat) and self._attempt(self.guard.store.measure)
                if is_reached:
                    self._attempt(self._report_dropped)
                if self._configuration is None:
                    self._attempt(self._read_configuration)
                    self._beat_due = 0.0  # sent with the next beat, which is due at once
            if is_reached:
                self._attempt(self._ship)
            self._stop.wait(self._pause(has_obeyed))
        self._farewell()

    def _pause(self, has_obeyed: bool) -> float:
        """Return the pause in seconds, randomised so that a fleet that started together, or lost the store together,
        does not poll together.
        """
        if not has_obeyed:
            return self._pauses.failed()
        self._pauses.succeeded()
        return POLL_SECONDS * random.uniform(0.8, 1.2)

    def _attempt(self, act: Callable[[], None], *, is_last: bool = False) -> bool:
        if self._stop.is_set() and not is_last:
            return False  # `_farewell` does the rest
        try:
            act()
        except (redis.RedisError, OSError) as error:
            self._is_away = self._is_away or isinstance(error, redis.ConnectionError | redis.TimeoutError)
            return False  # store unavailable: the last state stays in force, and reports go to the spool
        except Exception:
            # This thread must survive any error: without it no `off` would be obeyed.
            self.guard.broken += 1
            logger.exception("Redrive's heartbeat failed; it goes on.")
            return False
        return True

    def _obey(self) -> None:
        client = self.guard.store.background
        pipeline = client.pipeline(transaction=False)
        pipeline.mget(keys.switch(), keys.policies_version())
        if self.pausing is not None:
            self.pausing.read(pipeline)
        # Separate results: a worker with an older access list may not read the pauses, but still obeys the switch.
        answers, *paused = pipeline.execute(raise_on_error=False)
        if isinstance(answers, Exception):
            raise answers
        switch, number = answers
        if self.pausing is not None:
            self.pausing.obey(*paused)
        is_silenced = switch == b"off"
        if is_silenced != self.guard.is_silenced:
            self.guard.is_silenced = is_silenced
            logger.warning("Redrive's guard was switched %s.", "off" if is_silenced else "on")
        self._holds_nothing = switch in (b"off", b"drain")
        self._pause_jobs()
        if self.policing is not None and self.policing.obey(client, switch, number):
            self._beat_due = 0.0  # report the versions in use at once

    def _pause_jobs(self) -> None:
        if self.pausing is not None and self.pausing.check(is_silenced=self._holds_nothing):
            self._beat_due = 0.0

    def _read_configuration(self) -> None:
        """Read the configuration once, after the first beat, which reports the worker as alive."""
        self._configuration = ConfigurationReport("", "")  # remains if reading fails
        self._configuration = self.identity.configuration()

    def _beat(self) -> None:
        guard, identity = self.guard, self.identity
        has = self._configuration or ConfigurationReport("", "")
        queues = identity.queues()
        counts = guard.counts.snapshot()
        values = {
            "v": 1,
            "name": identity.name,
            "boot": identity.boot,
            "at": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "release": identity.release,
            "celery": identity.celery,
            "guard": identity.guard,
            "key": guard.origin.key.id if guard.origin.key else "",
            "store_user": self._whoami(),
            "mode": "off" if guard.is_silenced else self.policing.policies.ceiling if self.policing else CAPTURE,
            "policies": self.policing.policies.versions if self.policing else {},
            "refused": self.policing.policies.refused if self.policing else {},
            **(self.pausing.describe() if self.pausing else {}),
            "pool": identity.pool,
            "broker": identity.broker,
            "concurrency": identity.concurrency,
            "queues": queues,
            "tasks": identity.tasks.digest,
            "tasks_cut": identity.tasks.is_cut,
            "configuration": has.digest,
            "late_ack": {queue: guard.counts.late_ack(queue, set(identity.late_ack)) for queue in {*queues, *counts}},
            "counts": counts,
            "seals_for": guard.origin.seals_for,
            "spooled": guard.store.spool.waiting,
            "dropped": guard.store.dropped,
            "broken": guard.broken,
            "uncounted": self.at_start.uncounted,
            "overrun": self.at_start.overrun,
            "shared_out": self.policing.shares.granted if self.policing else 0,
            "repeated": guard.once.repeated if guard.once else 0,
            "unasked": guard.once.unasked if guard.once else 0,
            "unplaced": guard.unplaced,
            "unkept": guard.ledger.unkept if guard.ledger else 0,
            "memory": resident_memory(),
        }
        source = guard.origin.source
        texts = {
            keys.tasks(source, identity.tasks.digest): identity.tasks.text,
            keys.configuration(source, has.digest): has.text,
        }
        pipeline = guard.store.background.pipeline(transaction=False)
        for name in texts:
            pipeline.expire(name, FORGET_SECONDS)
        pipeline.hset(keys.workers(source), identity.name, json.dumps(values))
        pipeline.expire(keys.workers(source), FORGET_SECONDS)
        self._in_hand.report(pipeline)
        known_flags = pipeline.execute()
        for name, known in zip(texts, known_flags, strict=False):
            if not known and texts[name]:
                guard.store.background.set(name, texts[name], ex=FORGET_SECONDS)

    def _whoami(self) -> str:
        """Return this worker's user name in the store; "" if the store does not return it."""
        if self._store_user is None:
            try:
                client: Any = self.guard.store.background
                answer = client.execute_command("ACL WHOAMI")
                self._store_user = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
            except redis.ResponseError:  # an older server, or one that denies this command
                self._store_user = ""
        return self._store_user

    def _report_dropped(self) -> None:
        self.guard.store.report_dropped()

    def _connect(self) -> None:
        if self.guard.ledger is not None:
            self.guard.ledger.connect()

    def _settle(self) -> None:
        if self.guard.ledger is not None:
            self.guard.ledger.settle()

    def _ship(self) -> None:
        shipped = self.guard.store.drain(lambda: time.monotonic() > self._ships_until)
        if shipped:
            logger.info("Redrive shipped %d reports from the spool.", shipped)


def resident_memory() -> int | None:
    """Return the resident bytes of this process and its children; None without Linux's /proc.

    Memory shared after a fork counts in each process.
    """
    try:
        of_threads = [task.read_text() for task in Path("/proc/self/task").glob("*/children")]
        pids = [str(os.getpid()), *(pid for children in of_threads for pid in children.split())]
        pages = 0
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a child that has just ended
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") or None
    except (OSError, ValueError, IndexError):
        return None


# Jobs in hand of a worker, reported with its heartbeat: those lost or left unacknowledged if it dies.


class InHand:
    """Jobs in hand during one life of a worker. No call while there are none, and no call per job."""

    def __init__(self, origin: Origin, boot: str, worker: str) -> None:
        self._origin = origin
        self._key = keys.in_hand(origin.source)
        self._boot = boot
        self._worker = worker
        self._is_reported = False

    def report(self, pipeline: redis.client.Pipeline) -> None:
        """Add the jobs in hand to a heartbeat's round trip."""
        requests = _requests()
        if not requests and not self._is_reported:
            return
        self._is_reported = bool(requests)
        if not requests:
            pipeline.hdel(self._key, self._boot)
            return
        jobs = [self._job(request) for request in requests[:MOST_IN_HAND]]
        timeout = or_nothing(lambda: requests[0].message.channel.visibility_timeout, None)
        values = {"worker": self._worker, "at": time.time(), "jobs": jobs, "more": max(0, len(requests) - MOST_IN_HAND)}
        values["visibility_timeout"] = timeout if isinstance(timeout, int | float) else None
        pipeline.hset(self._key, self._boot, json.dumps(values))
        pipeline.expire(self._key, IN_HAND_EXPIRY_S)

    def _job(self, request: Any) -> list[Any]:
        """Return delivery tag, id, task, queue, and whether the broker still has the job."""
        return [
            or_nothing(
                lambda: str(request.delivery_info.get("delivery_tag") or request.message.delivery_tag)[:200], ""
            ),
            or_nothing(lambda: str(request.id)[:200], ""),
            or_nothing(lambda: str(request.type)[:200], ""),
            or_nothing(lambda: queue_of(request, self._origin)[:200], ""),
            not or_nothing(lambda: bool(request.acknowledged), False),
        ]


def _requests() -> list[Any]:
    """Return the requests that were fetched and have not ended. Other threads change them meanwhile."""
    for _ in range(3):
        with contextlib.suppress(RuntimeError):
            return list(state.reserved_requests)
    return []


# Tasks registered by a worker, reported once per fleet of the same app.


@dataclass(frozen=True, slots=True)
class KnownTasks:
    """`digest` is sent with each heartbeat, `text` only if the store does not have that digest.

    "": too many to report.
    """

    digest: str
    text: str  # JSON list of names

    @property
    def is_cut(self) -> bool:
        return not self.digest


def known_tasks(names: Iterable[str]) -> KnownTasks:
    """Return the app's tasks, without Celery's own, which every worker has."""
    listed = sorted(name for name in names if not name.startswith("celery."))
    text = json.dumps(listed)
    # A partial list would be useless: a task missing in it could still be registered.
    if len(listed) > MOST_KNOWN_TASKS or len(text) > MOST_KNOWN_BYTES:
        return KnownTasks("", "")
    return KnownTasks(hashlib.sha256(text.encode()).hexdigest()[:32], text)
