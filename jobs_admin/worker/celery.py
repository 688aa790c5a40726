"""Setup in one line of a Celery app: `install(app, source="shop")`.

Failures are recorded; retries follow published policies, if any.

`install` only stores its arguments in the app. The guard is set up when a worker starts from that app: in a producer,
beat or a web process nothing is imported, connected or changed. It never raises into the app: a problem is logged, and
the worker starts without the guard.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import __version__ as CELERY_VERSION
from celery import bootsteps, signals
from celery.utils.imports import symbol_by_name

from jobs_admin.core import keys
from jobs_admin.worker.versions import LATEST, OLDEST, TESTED, VERSION

if TYPE_CHECKING:
    from jobs_admin.core.report_signature import SigningKey
    from jobs_admin.worker.guard import Guard
    from jobs_admin.worker.heartbeat import Heartbeat
    from jobs_admin.worker.raw_message import Refused
    from jobs_admin.worker.store import Store

# Celery polls the parts of a chord with this task on backends without counters: its retries are no failures.
WAITING_BY_RETRY = frozenset({"celery.chord_unlock"})
GREEN_POOLS = ("gevent", "eventlet")
MODES = ("off", "capture", "observe", "enforce")

logger = logging.getLogger("redrive.worker")


class NotInstalled(Exception):
    """The guard cannot work here. Nothing was changed; the message gives the reason and what to do."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The arguments of `install`."""

    source: str
    redis_url: str | None
    tenant: tuple[str, ...]
    release: str | None
    reconnect_jitter: float = 0.0
    source_key: str | None = field(default=None, repr=False)


def install(
    app: Any,
    source: str = "celery",
    redis_url: str | None = None,
    *,
    tenant: str | Iterable[str] = (),
    release: str | None = None,
    reconnect_jitter: float = 0.0,
    source_key: str | None = None,
) -> None:
    """Record the failures of this app's workers in Redrive.

    `source`: the app's name in Redrive.
    `redis_url`: the store, else REDRIVE_REDIS_URL; "broker" uses the broker's own Redis.
    `tenant`: where a job's arguments contain its tenant (`kwargs.customer_id`, `args.0.tenant`; the first path found).
    `release`: the deployed version of your code, else REDRIVE_RELEASE.
    `reconnect_jitter`: seconds over which a fleet that lost its broker reconnects, longer if the broker stays away; 0
    leaves that to Celery, whose workers all reconnect at once.
    `source_key`: signs the reports (`manage.py source-key create`), else REDRIVE_SOURCE_KEY or the file
    REDRIVE_SOURCE_KEY_FILE.

    Retries change only where a published policy in mode `enforce` matches a task. REDRIVE_MODE is a ceiling (`capture`:
    never). REDRIVE_MODE=off leaves the app unchanged.
    """
    try:
        _leave_note(app, source, redis_url, tenant, release, reconnect_jitter, source_key)
    # never raise into the app: its attributes, and objects of other code read here, may be of any type
    except Exception:
        logger.exception("Redrive's guard is not installed.")


def _leave_note(
    app: Any,
    source: str,
    redis_url: str | None,
    tenant: str | Iterable[str],
    release: str | None,
    jitter: float,
    source_key: str | None,
) -> None:
    if getattr(app, "redrive_wish", None) is not None:
        return  # a module imported twice, or a second call: the first one counts
    if _has_begun(app):
        logger.warning(
            "Redrive's guard is not installed: install() was called when the worker had begun already. Nothing was changed; "
            "call it where the app is made."
        )
        return
    paths = (tenant,) if isinstance(tenant, str) else tuple(tenant)
    app.redrive_wish = Wish(source, redis_url, paths, release, jitter, source_key)
    app.steps["consumer"].add(GuardStep)


def _has_begun(app: Any) -> bool:
    """Return whether a worker of this app has built its steps, after which none can be added.

    Also true in its children.
    """
    if not getattr(app, "use_fast_trace_task", False):
        return False  # no worker starts in this process: a cheap check
    consumer = sys.modules.get("celery.worker.consumer.consumer")
    # By type, not isinstance: that reads `__class__` of each lazy object of the app, which runs other code.
    return consumer is not None and any(
        issubclass(type(one), consumer.Consumer) and one.app is app for one in gc.get_objects()
    )


def is_supported(version: str) -> bool:
    """Return whether the guard supports this version of Celery."""
    return OLDEST <= _series(version) <= LATEST


def _series(version: str) -> tuple[int, int]:
    """Return 5.7.1 as (5, 7); (0, 0) for anything but a version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _list_versions(versions: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in versions)


class GuardStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Consumer step: created before the consumer connects, started after the pool has forked."""

    label = "Redrive"
    requires = ("celery.worker.consumer.tasks:Tasks",)  # its channel exists by then, and nothing has been read from it

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self.heartbeat: Heartbeat | None = None
        self.elements_refused: Refused = lambda *_: False
        try:
            self.heartbeat = _attach(parent)
            if self.heartbeat is not None:
                self.elements_refused = _wrap_hooks(parent, self.heartbeat.guard)
        except NotInstalled as reason:
            logger.warning("Redrive's guard is not installed: %s", reason)
        except Exception:  # no error of ours may keep a worker from starting
            logger.exception("Redrive's guard is not installed.")

    def start(self, parent: Any) -> None:
        """Also called after each reconnection to the broker."""
        heartbeat = self.heartbeat
        if heartbeat is None:
            return
        from jobs_admin.worker.raw_message import keep_bodies, keep_elements

        try:
            heartbeat.guard.origin.queues.connected(parent.task_consumer)
            if heartbeat.pausing is not None:
                heartbeat.pausing.connected()
            keep_elements(parent.task_consumer.channel, self.elements_refused)
            keep_bodies(parent.task_consumer.channel)
        except Exception:  # reports are still made, from a re-encoded message
            heartbeat.guard.broken += 1
            logger.exception("Redrive's guard cannot keep the broker's own bytes.")
        controller = parent.controller

        def stop(sender: Any, **_: Any) -> None:
            if sender is controller:
                heartbeat.stop()

        # The consumer stops before the pool has finished its jobs, whose reports are still to come.
        signals.worker_shutdown.connect(stop, weak=False, dispatch_uid=f"redrive-{id(heartbeat)}")
        signals.worker_shutting_down.connect(
            heartbeat.note_leaving, weak=False, dispatch_uid=f"redrive-leaving-{id(heartbeat)}"
        )
        heartbeat.start()

    def stop(self, parent: Any) -> None:
        """Do nothing: the consumer stops at each lost connection, but the guard ends with the worker."""

    terminate = stop


def _attach(consumer: Any) -> Heartbeat | None:
    """Wrap the request class of every task. Does not connect yet."""
    # In one function: each part needs the parts before it, and checks that can fail come first.
    app = consumer.app
    wish: Wish = app.redrive_wish
    mode = _mode()
    if mode == "off":
        logger.info("Redrive's guard is off (REDRIVE_MODE).")
        return None
    if not is_supported(CELERY_VERSION):
        raise NotInstalled(
            f"Celery {CELERY_VERSION} is not one of {_list_versions([OLDEST])} to {_list_versions([LATEST])}, which it accepts."
        )
    if _series(CELERY_VERSION) not in TESTED:
        logger.warning(
            "Redrive's guard accepts Celery %s, and is tested with %s.", CELERY_VERSION, _list_versions(TESTED)
        )
    if not keys.valid_source(wish.source):
        raise NotInstalled(f"{wish.source!r} cannot name a source: use a-z, 0-9, - and _.")
    pool = type(consumer.pool).__module__.rpartition(".")[2]
    if pool in GREEN_POOLS:
        raise NotInstalled(
            f"the pool {pool} is not supported: its threads are patched, and a report could wait for the jobs that it is of. "
            "Use the pool prefork, threads or solo."
        )
    # Imported here so that a producer that calls `install` does not load them.
    from jobs_admin.worker import reconnecting
    from jobs_admin.worker.at_start import AtStart
    from jobs_admin.worker.calls import Calls
    from jobs_admin.worker.configuration import build_report, configuration
    from jobs_admin.worker.gate import Gate
    from jobs_admin.worker.guard import Guard
    from jobs_admin.worker.heartbeat import Heartbeat, Identity, known_tasks, new_boot
    from jobs_admin.worker.ledger import Ledger
    from jobs_admin.worker.line import client
    from jobs_admin.worker.once import Once
    from jobs_admin.worker.outcome import keep_raised
    from jobs_admin.worker.pausing import pausing_of
    from jobs_admin.worker.policing import Policing
    from jobs_admin.worker.queues import Queues, bound_in
    from jobs_admin.worker.report import Origin
    from jobs_admin.worker.sealing import VARIABLE, BadPublicKey, id_of, sealer
    from jobs_admin.worker.sentry import begin_job, keep_event

    if not reconnecting.is_jitter(wish.reconnect_jitter):
        raise NotInstalled(f"reconnect_jitter={wish.reconnect_jitter!r} is not a number of seconds from 0 to 300.")
    release = wish.release or os.environ.get("REDRIVE_RELEASE", "")
    boot = new_boot()
    url = _store_url(app, wish)

    def free_place() -> None:
        if (places := getattr(consumer.controller, "semaphore", None)) is not None:
            places.release()

    gate = Gate(lambda seconds, act: consumer.timer.call_after(seconds, act), free_place)
    queues = Queues(lambda: bound_in(app), lambda: app.amqp.queues.consume_from)
    try:
        public_key = os.environ.get(VARIABLE, "")
        seal = sealer(public_key)
    except BadPublicKey as error:  # rather than storing plain text
        raise NotInstalled(f"{error}.") from error
    origin = Origin(wish.source, release, wish.tenant, queues, seal, id_of(public_key), _source_key(wish))
    guard = Guard(origin, _store(url, wish), gate)
    guard.once = Once(Calls(url, "telling a second copy of a replayed job from the first"), wish.source, boot)
    calls = Calls(url, "limits, budgets and counts of crashes")
    at_start = AtStart(calls, wish.source, boot, consumer.hostname, socket.gethostname())
    tasks = _guard_tasks(app, guard)
    policing = None
    if mode != "capture" and _forks(consumer):
        policing = Policing(app, origin, guard.store, url, mode, at_start, calls)
        policing.wrap(tasks)
        guard.acting = policing.acting
        # A separate connection: a long message must not delay the counts at a job's start.
        keeping = Calls(url, "keeping jobs that are acknowledged before they run")
        guard.ledger = Ledger(keeping, policing.policies.in_force(), origin, boot, guard.store.stream_bytes)
        signals.worker_process_init.connect(
            policing.begin_child, weak=False, dispatch_uid=f"redrive-child-{id(policing)}"
        )
    later, breakers = (policing.later, policing.breakers) if policing else (None, None)
    guard.breakers = breakers
    guard.pausing = pausing_of(
        consumer, queues, wish.source, guard.store.spool.directory, later, breakers, lambda: client(url)
    )
    if policing is not None:
        policing.acting.keep, guard.pausing.forget = guard.pausing.keep, guard.let_go
    signals.task_failure.connect(keep_raised, weak=False, dispatch_uid="redrive-raised")
    signals.task_prerun.connect(begin_job, weak=False, dispatch_uid="redrive-before")
    signals.task_failure.connect(keep_event, weak=False, dispatch_uid="redrive-event")
    # sentry-sdk's own receiver sends a check-in, which would become the last event.
    signals.task_failure.receivers.sort(key=lambda one: one[1] is not keep_event)
    if wish.reconnect_jitter:
        reconnecting.spread_reconnects(consumer, float(wish.reconnect_jitter), lambda: guard.is_silenced)
    logger.info("Redrive's guard records the failures of %d tasks as source %s (%s).", len(tasks), wish.source, mode)
    return Heartbeat(
        guard,
        Identity(
            name=consumer.hostname,
            release=release,
            celery=CELERY_VERSION,
            guard=VERSION,
            pool="threads" if pool == "thread" else pool,
            broker=_transport(app),
            concurrency=getattr(consumer.controller, "concurrency", None),
            queues=lambda: sorted(app.amqp.queues.consume_from),
            late_ack=frozenset(bool(t.acks_late) for t in app.tasks.values() if not t.name.startswith("celery.")),
            tasks=known_tasks(app.tasks),
            configuration=lambda: build_report(configuration(app, wish.source, consumer.controller)),
            boot=boot,
        ),
        at_start,
        policing,
        guard.pausing,
    )


def _wrap_hooks(consumer: Any, guard: Guard) -> Refused:
    """Wrap Celery's hooks for messages that never become a job."""
    from jobs_admin.worker.consuming import Consuming

    consuming = Consuming(guard, consumer, consumer.hostname)
    consuming.wrap()
    return consuming.element_refused


def _guard_tasks(app: Any, guard: Any) -> list[Any]:
    from jobs_admin.worker.request import NotARequest, guarded

    tasks = []
    for task in app.tasks.values():
        if task.name in WAITING_BY_RETRY:
            continue
        try:
            # Set on the task, not on a class of Celery: other apps in this process stay unchanged.
            task.Request = guarded(symbol_by_name(task.Request), guard)
            tasks.append(task)
        except (NotARequest, ImportError, AttributeError) as error:
            logger.warning("Redrive's guard leaves the task %s alone: %s.", task.name, error)
    return tasks


def _forks(consumer: Any) -> bool:
    """Return whether the pool's children inherit the wrappers of the tasks."""
    if getattr(consumer.pool, "forking_enable", True):
        return True
    logger.warning("Redrive's retry policies need a pool that forks (worker_pool_start_method): none is in force here.")
    return False


def _mode() -> str:
    """Return the highest mode that a policy may have in this worker; without REDRIVE_MODE, the policy's own."""
    mode = os.environ.get("REDRIVE_MODE", "").strip().lower() or "enforce"
    if mode not in MODES:
        # A mistyped mode was meant to restrict the guard, so the safest reading is `off`.
        raise NotInstalled(f"REDRIVE_MODE={mode!r} is none of {', '.join(MODES)}.")
    return mode


def _store(url: str, wish: Wish) -> Store:
    from jobs_admin.worker.spool import MAX_BYTES, Spool, directory_for, former_directory
    from jobs_admin.worker.store import STREAM_BYTES, Store

    configured = os.environ.get("REDRIVE_SPOOL", "")
    spool = Spool(
        directory_for(wish.source, configured, url),
        _megabytes("REDRIVE_SPOOL_MB", MAX_BYTES),
        former_directory(wish.source, configured),
    )
    spool.take_over_former()
    try:
        return Store(url, wish.source, spool, _megabytes("REDRIVE_STREAM_MB", STREAM_BYTES))
    except ValueError as error:  # names the scheme, never the URL
        raise NotInstalled(f"the store's URL cannot be used: {error}") from error


def _store_url(app: Any, wish: Wish) -> str:
    url = wish.redis_url or os.environ.get("REDRIVE_REDIS_URL", "") or _from_file("REDRIVE_REDIS_URL_FILE")
    if url == "broker":
        url = str(app.conf.broker_read_url or app.conf.broker_url or "")
        if not url.startswith(("redis://", "rediss://", "redis+socket://")):
            raise NotInstalled('redis_url="broker" needs a broker on Redis; set REDRIVE_REDIS_URL instead.')
        logger.warning(
            "Redrive keeps its reports in the broker's own Redis: when that is full or lost, so are they. "
            "Set REDRIVE_REDIS_URL to a Redis of its own for production."
        )
    if not url:
        raise NotInstalled("it knows no store. Set REDRIVE_REDIS_URL, or give install() a redis_url.")
    return url


def _source_key(wish: Wish) -> SigningKey | None:
    """Return the key that signs reports; None if none is configured."""
    from jobs_admin.core.report_signature import BadSourceKey, SigningKey

    text = wish.source_key or os.environ.get("REDRIVE_SOURCE_KEY", "") or _from_file("REDRIVE_SOURCE_KEY_FILE")
    if not text.strip():
        return None
    try:
        key = SigningKey.parse(text)
    except BadSourceKey as error:  # rather than sending unsigned reports
        raise NotInstalled(f"REDRIVE_SOURCE_KEY cannot be used: {error}.") from error
    if key.source != wish.source:
        raise NotInstalled(
            f"REDRIVE_SOURCE_KEY is the key of source {key.source}, and install() names the source {wish.source}: "
            "the desk would refuse every report. Give this worker a key of its own source."
        )
    return key


def _from_file(name: str) -> str:
    path = os.environ.get(name)
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise NotInstalled(f"{name} ({path}) cannot be read: {error.strerror}.") from error


def _megabytes(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return otherwise
    if not text.isdecimal() or int(text) < 1:
        raise NotInstalled(f"{name}={text!r} is not a whole number of megabytes.")
    return int(text) * 1024**2


def _transport(app: Any) -> str:
    """Return kombu's name of the broker type; "" if unknown. Does not connect."""
    try:
        return str(app.connection_for_read().transport.driver_type)
    except Exception:  # a transport of the app that cannot be created: the worker reports it
        return ""
