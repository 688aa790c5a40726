"""The retry configuration of a live app, reported so that a fleet of the same app sends it once.

Read from the running app, not from its settings: annotations, options of the decorator and the worker's command line
are in it, and where two differ, the one that Celery heeds. No addresses, no arguments, no texts of the code.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from celery.app.routes import MapRoute

from jobs_admin.core import signature
from jobs_admin.core.lint.configuration import MOST_BYTES, MOST_TASKS, App, Configuration, Queue, Task, document
from jobs_admin.worker.client_retries import client_retries
from jobs_admin.worker.retry_calls import retry_calls
from jobs_admin.worker.retrying import AROUND

_MOST_QUEUES = 500
_MOST_CLASSES = 50
_LOOPBACK = ("", "localhost", "127.0.0.1", "::1")

logger = logging.getLogger("redrive.worker")


@dataclass(frozen=True, slots=True)
class ConfigurationReport:
    """`digest` travels with each heartbeat, `text` only where the store has none of that digest."""

    digest: str
    text: str


def build_report(found: Configuration) -> ConfigurationReport:
    """As many tasks as fit, those that are retried first; the rest is counted."""
    text = document(found)
    while len(text) > MOST_BYTES and found.tasks:
        fewer = found.tasks[: len(found.tasks) // 2]
        found = replace(found, tasks=fewer, left_out=found.left_out + len(found.tasks) - len(fewer))
        text = document(found)
    return ConfigurationReport(hashlib.sha256(text.encode()).hexdigest()[:32], text)


def configuration(app: Any, source: str, controller: Any = None) -> Configuration:
    """Return what the app has now. `controller` is the running worker, whose command line may overrule the app."""
    queues = tuple(_queues(app))
    tasks, left_out = [], 0
    for name in sorted(app.tasks):
        if name.startswith("celery."):
            continue
        try:
            tasks.append(_task(app, app.tasks[name], controller))
        except Exception:  # one odd task must not hide the others
            left_out += 1
            logger.debug("Redrive cannot read the configuration of %s.", name, exc_info=True)
    tasks.sort(key=lambda task: not (task.autoretry_for or task.calls or task.is_unread))
    left_out += max(0, len(tasks) - MOST_TASKS)
    listed = sorted(tasks[:MOST_TASKS], key=lambda task: task.name) if left_out == 0 else tasks[:MOST_TASKS]
    return Configuration(source, _app(app, controller), queues, tuple(listed), left_out)


# -- the app ------------------------------------------------------------------------------------------------------


def _app(app: Any, controller: Any) -> App:
    broker, timeout = _broker(app)
    prefetch = getattr(controller, "prefetch_multiplier", None)
    return App(
        broker=broker,
        broker_mark=_mark(app),
        visibility_timeout=timeout,
        result_backend=_result_backend(app),
        result_expires=_seconds(app.conf.result_expires) or None,
        prefetch_multiplier=int(app.conf.worker_prefetch_multiplier if prefetch is None else prefetch),
    )


def _broker(app: Any) -> tuple[str, float | None]:
    """(transport, visibility timeout). Makes a connection's object, and connects to nothing."""
    connection = app.connection_for_read()
    channel = getattr(connection.transport, "Channel", None)
    configured = connection.transport_options.get("visibility_timeout")
    usual = getattr(channel, "visibility_timeout", None)
    if isinstance(usual, property):  # SQS works it out of this
        usual = getattr(channel, "default_visibility_timeout", None)
    has_one = usual is not None
    return str(connection.transport.driver_type), _seconds(
        usual if configured is None else configured
    ) if has_one else None


def _mark(app: Any) -> str:
    """A hash of where the broker is. A loopback address is another broker on every host."""
    there = app.connection_for_read()
    host = str(there.hostname or "")
    if host in _LOOPBACK or host.startswith("/"):
        host = f"{socket.gethostname()}/{host if host.startswith('/') else 'loopback'}"
    place = f"{host}:{there.port or ''}/{str(there.virtual_host or '').strip('/') or '0'}"
    return hashlib.sha256(place.encode()).hexdigest()[:16]


def _result_backend(app: Any) -> str:
    backend = app.conf.result_backend
    if not backend or backend == "disabled":
        return ""
    return backend.partition(":")[0] if isinstance(backend, str) else "custom"


def _queues(app: Any) -> Iterator[Queue]:
    known = dict(app.amqp.queues)
    is_amqp = str(app.connection_for_read().transport.driver_type) == "amqp"
    arguments = {name: queue.queue_arguments or {} for name, queue in known.items()}
    has_quorum = is_amqp and any(one.get("x-queue-type") == "quorum" for one in arguments.values())
    for name in sorted(known)[:_MOST_QUEUES]:
        limit = arguments[name].get("x-delivery-limit")
        yield Queue(
            name,
            is_durable=bool(known[name].durable),
            kind=str(arguments[name].get("x-queue-type") or "classic"),
            delivery_limit=limit if isinstance(limit, int) and limit > 0 else None,
            # celery/app/base.py: where any queue is a quorum queue, and this one's exchange can pass delays on.
            delays_at_broker=has_quorum and getattr(known[name].exchange, "type", "") != "direct",
        )


# -- one task -----------------------------------------------------------------------------------------------------


def _task(app: Any, task: Any, controller: Any) -> Task:
    function = _function(task)
    calls, is_unread = retry_calls(
        function, {n: getattr(task, n, None) for n in ("default_retry_delay", "max_retries")}
    )
    native = _autoretry(task)
    return Task(
        name=str(task.name),
        queue=_queue_of(app, task),
        max_retries=None if task.max_retries is None else int(task.max_retries),
        default_retry_delay=_seconds(task.default_retry_delay) or 0,
        calls=calls,
        is_unread=is_unread,
        clients=client_retries(function),
        acks_late=bool(task.acks_late),
        reject_on_worker_lost=bool(task.reject_on_worker_lost),
        retry_on_worker_lost=bool(getattr(task, "retry_on_worker_lost", False)),
        time_limit=_limit(app, task, controller, "time_limit"),
        soft_time_limit=_limit(app, task, controller, "soft_time_limit"),
        rate_limit=str(task.rate_limit or ""),
        stores_result=not task.ignore_result and bool(_result_backend(app)),
        expires=_seconds(task.expires),
        signature=_signature(task),
        **(_of_autoretry(native) if native else _of_idle_backoff(task)),
    )


def _function(task: Any) -> Any:
    """The task's own code, under Celery's wrapper for autoretry and ours for policies."""
    inner = inspect.unwrap(task.run)
    return getattr(inner, "__func__", inner)


def _signature(task: Any) -> str | None:
    """Without `self`. Of a decorator of the user's own that of its wrapper, which may add arguments to those of a caller."""
    run = getattr(task, "_orig_run", None) or task.run
    run = getattr(run, AROUND, run)
    try:
        return signature.format_signature(inspect.signature(run, follow_wrapped=False))
    except (ValueError, TypeError):
        return None


def _autoretry(task: Any) -> dict[str, Any] | None:
    """Return what Celery's wrapper holds: an option of the decorator beats an annotation there, though the task shows the latter."""
    layer = task.run
    for _ in range(10):
        layer = getattr(layer, "__func__", layer)
        code = getattr(layer, "__code__", None)
        if code is not None and "retry_backoff_max" in code.co_freevars:
            return {name: cell.cell_contents for name, cell in zip(code.co_freevars, layer.__closure__, strict=True)}
        layer = getattr(layer, "__wrapped__", None)
        if layer is None:
            break
    return None


def _of_autoretry(native: Mapping[str, Any]) -> dict[str, Any]:
    kwargs = native["retry_kwargs"]
    most = kwargs.get("max_retries")  # None there means: as the task says
    return {
        "autoretry_for": _classes(native["autoretry_for"]),
        "dont_autoretry_for": _classes(native["dont_autoretry_for"]),
        "retry_backoff": float(native["retry_backoff"]),
        "retry_backoff_max": float(native["retry_backoff_max"]),
        "retry_jitter": bool(native["retry_jitter"]),
        "autoretry_max_retries": None if most is None else int(most),
        "autoretry_countdown": _seconds(kwargs.get("countdown")),
    }


def _of_idle_backoff(task: Any) -> dict[str, Any]:
    """Set for this very task; a base class that has it for its other tasks is no mistake."""
    factor = vars(type(task)).get("retry_backoff")
    return {"retry_backoff": float(factor), "idle_backoff": True} if isinstance(factor, int | float) and factor else {}


def _classes(named: Any) -> tuple[str, ...]:
    kinds = named if isinstance(named, tuple | list) else (named,)
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds[:_MOST_CLASSES])


def _queue_of(app: Any, task: Any) -> str:
    """By the task's own option, else by tables of routes, else the default; "" where code of the app decides."""
    named = getattr(task, "queue", None)
    if named is None:
        for route in app.amqp.router.routes:
            if not isinstance(route, MapRoute):
                return ""
            if hit := route(task.name):
                named = hit.get("queue")
                if named is None:
                    return ""  # by exchange and routing key
                break
        else:
            named = app.conf.task_default_queue
    return str(getattr(named, "name", named))


def _limit(app: Any, task: Any, controller: Any, name: str) -> float | None:
    worker = getattr(controller, name, None) if controller is not None else getattr(app.conf, f"task_{name}")
    return _seconds(getattr(task, name) or worker) or None


def _seconds(value: Any) -> float | None:
    """Seconds of a number, a text that is one, or a length of time; None for whatever else it is (a date)."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


if __name__ == "__main__":
    # For an app without a worker: `python -m jobs_admin.worker.configuration proj.celery:app` prints what one would tell.
    import sys

    from celery.app.utils import find_app

    sys.path.insert(0, "")
    named = find_app(sys.argv[1])
    named.loader.import_default_modules()
    named.finalize()
    print(build_report(configuration(named, sys.argv[1])).text)
