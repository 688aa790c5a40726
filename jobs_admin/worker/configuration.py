"""Retry configuration of a live app, reported once per fleet of the same app.

Read from the running app, not from its settings file, so it includes annotations, decorator options and the worker's
command line; where they differ, the value that Celery uses. Contains no addresses, arguments or strings of the code.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import logging
import socket
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import CodeType, FunctionType, ModuleType
from typing import Any

from celery.app.routes import MapRoute

from jobs_admin.core import signature
from jobs_admin.core.lint.configuration import (
    MOST_BYTES,
    MOST_TASKS,
    App,
    ClientRetries,
    Configuration,
    Queue,
    RetryCall,
    Task,
    document,
)
from jobs_admin.worker.retrying import AROUND

_MOST_QUEUES = 500
_MOST_CLASSES = 50
_LOOPBACK = ("", "localhost", "127.0.0.1", "::1")

logger = logging.getLogger("redrive.worker")


@dataclass(frozen=True, slots=True)
class ConfigurationReport:
    """`digest` is sent with each heartbeat, `text` only if the store does not have that digest."""

    digest: str
    text: str


def build_report(found: Configuration) -> ConfigurationReport:
    """Return a report with as many tasks as fit, those with retries first, and the number of the rest."""
    text = document(found)
    while len(text) > MOST_BYTES and found.tasks:
        fewer = found.tasks[: len(found.tasks) // 2]
        found = replace(found, tasks=fewer, left_out=found.left_out + len(found.tasks) - len(fewer))
        text = document(found)
    return ConfigurationReport(hashlib.sha256(text.encode()).hexdigest()[:32], text)


def configuration(app: Any, source: str, controller: Any = None) -> Configuration:
    """Return the app's current configuration.

    `controller`: the running worker, whose command line may override the app.
    """
    queues = tuple(_queues(app))
    tasks, left_out = [], 0
    for name in sorted(app.tasks):
        if name.startswith("celery."):
            continue
        try:
            tasks.append(_task(app, app.tasks[name], controller))
        except Exception:  # one unreadable task must not hide the others
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
    """Return (transport, visibility timeout). Creates a connection object but does not connect."""
    connection = app.connection_for_read()
    channel = getattr(connection.transport, "Channel", None)
    configured = connection.transport_options.get("visibility_timeout")
    usual = getattr(channel, "visibility_timeout", None)
    if isinstance(usual, property):  # SQS computes it from this one
        usual = getattr(channel, "default_visibility_timeout", None)
    has_one = usual is not None
    return str(connection.transport.driver_type), _seconds(
        usual if configured is None else configured
    ) if has_one else None


def _mark(app: Any) -> str:
    """Return a hash of the broker's location. A loopback address is a different broker on every host."""
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
            # As in celery/app/base.py: some queue is a quorum queue, and this queue's exchange can route delays.
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
    """Return the task's own function, without Celery's autoretry wrapper and ours for policies."""
    inner = inspect.unwrap(task.run)
    return getattr(inner, "__func__", inner)


def _signature(task: Any) -> str | None:
    """Return the signature without `self`. For a custom decorator, that of its wrapper, which may add arguments."""
    run = getattr(task, "_orig_run", None) or task.run
    run = getattr(run, AROUND, run)
    try:
        return signature.format_signature(inspect.signature(run, follow_wrapped=False))
    except (ValueError, TypeError):
        return None


def _autoretry(task: Any) -> dict[str, Any] | None:
    """Return the options in Celery's wrapper: there a decorator option overrides an annotation, although the task shows
    the annotation.
    """
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
    most = kwargs.get("max_retries")  # None here: the task's own value
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
    """Only if set on this very task; on a base class it may be meant for its other tasks."""
    factor = vars(type(task)).get("retry_backoff")
    return {"retry_backoff": float(factor), "idle_backoff": True} if isinstance(factor, int | float) and factor else {}


def _classes(named: Any) -> tuple[str, ...]:
    kinds = named if isinstance(named, tuple | list) else (named,)
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds[:_MOST_CLASSES])


def _queue_of(app: Any, task: Any) -> str:
    """Return the queue by the task's option, route tables or the default; "" if the app's code decides."""
    named = getattr(task, "queue", None)
    if named is None:
        for route in app.amqp.router.routes:
            if not isinstance(route, MapRoute):
                return ""
            if hit := route(task.name):
                named = hit.get("queue")
                if named is None:
                    return ""  # routed by exchange and routing key
                break
        else:
            named = app.conf.task_default_queue
    return str(getattr(named, "name", named))


def _limit(app: Any, task: Any, controller: Any, name: str) -> float | None:
    worker = getattr(controller, name, None) if controller is not None else getattr(app.conf, f"task_{name}")
    return _seconds(getattr(task, name) or worker) or None


def _seconds(value: Any) -> float | None:
    """Return a number, numeric string or timedelta in seconds; None for anything else, such as a date."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


# Calls of `self.retry(…)` in a task's own function, with the delays they request: read from source; nothing is run.

MOST_CALLS = 20
_LONGEST = 300  # characters of an expression
_LONGEST_LIST = 50
_DEEPEST = 5  # depth of names that refer to names
_POSITIONS = ("args", "kwargs", "exc", "throw", "eta", "countdown", "max_retries")  # of Task.retry
_REPORTED = ("exc", "countdown", "eta", "max_retries")
_CELERYS = {"current_task"}


def retry_calls(function: Callable[..., Any], settings: Mapping[str, Any]) -> tuple[tuple[RetryCall, ...], bool]:
    """Return the calls in the function, and whether it makes calls that cannot be read because its source is missing.

    `settings`: the task's own values (`default_retry_delay` …), for expressions such as `self.default_retry_delay * 2`.
    """
    if not isinstance(function, FunctionType) or not calls_retry(function.__code__):
        return (), False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return (), True
    reader = _Reader(tree, function, settings)
    return tuple(reader.calls())[:MOST_CALLS], False


def calls_retry(code: CodeType) -> bool:
    """Return whether the code or a nested function uses the name `retry`. Most tasks are done with this check."""
    return "retry" in code.co_names or any(calls_retry(c) for c in code.co_consts if isinstance(c, CodeType))


class _Reader:
    def __init__(self, tree: ast.AST, function: FunctionType, settings: Mapping[str, Any]) -> None:
        self.tree, self.globals, self.settings = tree, function.__globals__, settings
        code = function.__code__
        self.names = {*code.co_varnames[: min(1, code.co_argcount)], function.__name__, *_CELERYS}
        self.locals = _assigned(tree)

    def calls(self) -> Iterator[RetryCall]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "retry":
                owner = node.func.value
                if isinstance(owner, ast.Name) and owner.id in self.names:
                    yield self._call(node)

    def _call(self, node: ast.Call) -> RetryCall:
        given = dict(zip(_POSITIONS, node.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        is_hidden = any(keyword.arg is None for keyword in node.keywords) or any(
            isinstance(one, ast.Starred) for one in node.args
        )
        reported = {name: value for name, value in given.items() if name in _REPORTED and not _is_none(value)}
        countdown = self._text(reported["countdown"]) if "countdown" in reported else None
        return RetryCall(
            quoted=_quoted(node, reported, is_hidden),
            countdown="**" if is_hidden and countdown is None else countdown,
            is_eta="eta" in reported,
            max_retries=self._text(reported["max_retries"]) if "max_retries" in reported else None,
            is_plain=not is_hidden and _is_plain(given),
        )

    def _text(self, node: ast.expr) -> str:
        """Return the expression with module constants and single assignments substituted."""
        return ast.unparse(_without_texts(self._filled(node, 0)))[:_LONGEST]

    def _filled(self, node: ast.expr, depth: int) -> ast.expr:
        reader = self

        class Fill(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.expr:
                if name.id in reader.locals:
                    value = reader.locals[name.id]
                    return name if value is None or depth >= _DEEPEST else reader._filled(value, depth + 1)
                return _constant(reader.globals.get(name.id)) or name

            def visit_Attribute(self, attribute: ast.Attribute) -> ast.expr:
                owner = attribute.value
                if isinstance(owner, ast.Name) and owner.id in reader.names:
                    return _constant(reader.settings.get(attribute.attr)) or attribute
                if isinstance(owner, ast.Name) and isinstance(module := reader.globals.get(owner.id), ModuleType):
                    return _constant(vars(module).get(attribute.attr)) or attribute
                return self.generic_visit(attribute)  # type: ignore[return-value]

        return Fill().visit(ast.parse(ast.unparse(node), mode="eval").body)  # type: ignore[no-any-return]


def _assigned(tree: ast.AST) -> dict[str, ast.expr | None]:
    """Return local names -> expression of their only assignment; None for several, or for other kinds of assignment."""
    found: dict[str, ast.expr | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        elif isinstance(node, ast.arg):
            found[node.arg] = None
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and stored.count(target.id) == 1:
                found[target.id] = node.value
    return found


def _constant(value: Any) -> ast.expr | None:
    """Return a number or a list of numbers as an expression; None for anything else."""
    if type(value) in (int, float):
        return ast.parse(repr(value), mode="eval").body
    if type(value) in (list, tuple) and len(value) <= _LONGEST_LIST and all(type(one) in (int, float) for one in value):
        return ast.parse(repr(list(value)), mode="eval").body
    return None


def _quoted(node: ast.Call, reported: Mapping[str, ast.expr], is_hidden: bool) -> str:
    """Return the call as source text, without the job's arguments and without strings, which may be secrets."""
    parts = [f"{name}={ast.unparse(_without_texts(value))}" for name, value in reported.items()]
    if is_hidden:
        parts.append("…")
    return f"{ast.unparse(node.func)}({', '.join(parts)})"[:_LONGEST]


def _without_texts(node: ast.expr) -> ast.expr:
    class Mask(ast.NodeTransformer):
        def visit_Constant(self, constant: ast.Constant) -> ast.expr:
            if not isinstance(constant.value, str | bytes) or str(constant.value).lower() == "retry-after":
                return constant
            return ast.Constant("…")

        def visit_JoinedStr(self, text: ast.JoinedStr) -> ast.expr:
            return ast.Constant("…")

    return Mask().visit(ast.parse(ast.unparse(node), mode="eval").body)  # type: ignore[no-any-return]


def _is_plain(given: Mapping[str, ast.expr]) -> bool:
    """Return whether the call is a plain retry by the criteria of `worker/retrying.py`; other calls stay Celery's."""
    throws = given.get("throw")
    more = {name for name, value in given.items() if name not in _REPORTED and name != "throw" and not _is_none(value)}
    return not more and (throws is None or (isinstance(throws, ast.Constant) and bool(throws.value)))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


# Client libraries with their own retries, found in a task's code: read, never called.
# The search follows module names that the code mentions, and functions of the same package among them. Clients created
# while the job runs, or hidden by another library, are not found.

MOST_CLIENTS = 10
_MOST_FUNCTIONS = 100  # searched per task
_MOST_ATTEMPTS = 1_000


def client_retries(function: Callable[..., Any]) -> tuple[ClientRetries, ...]:
    """Return the clients found from this function by name, each once."""
    if not isinstance(function, FunctionType):
        return ()
    package = function.__module__.partition(".")[0] if function.__module__ else ""
    found: dict[str, ClientRetries] = {}
    waiting, seen = [function], {function}
    while waiting and len(seen) <= _MOST_FUNCTIONS:
        current = waiting.pop(0)
        for name in _names(current.__code__):
            value = current.__globals__.get(name)
            for library, attempts in _attempts(value):
                if attempts > 1:
                    found.setdefault(name, ClientRetries(library, name, min(attempts, _MOST_ATTEMPTS)))
            inner = getattr(value, "__wrapped__", value)
            if isinstance(inner, FunctionType) and inner not in seen and _is_of(inner, package):
                seen.add(inner)
                waiting.append(inner)
    return tuple(found.values())[:MOST_CLIENTS]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_of(function: FunctionType, package: str) -> bool:
    return bool(function.__module__) and function.__module__.partition(".")[0] == package


def _attempts(value: Any) -> Iterator[tuple[str, int]]:
    """Yield (library, total attempts) of one object, by class name: no library is imported."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    if "urllib3.util.retry.Retry" in names:
        yield from _bounded("urllib3", _at(value, "total"), 1)
    elif "urllib3.poolmanager.PoolManager" in names:
        yield from _attempts(_at(_at(value, "connection_pool_kw"), "retries"))
    elif "requests.sessions.Session" in names:
        adapters = _at(value, "adapters")
        totals = [
            _at(_at(one, "max_retries"), "total") for one in (adapters.values() if hasattr(adapters, "values") else ())
        ]
        yield from _bounded("requests", max((n for n in totals if type(n) is int), default=None), 1)
    elif names & {"httpx.Client", "httpx.AsyncClient", "httpx._client.Client", "httpx._client.AsyncClient"}:
        yield from _bounded("httpx", _at(_at(_at(value, "_transport"), "_pool"), "_retries"), 1)
    elif "tenacity.BaseRetrying" in {f"{k.__module__}.{k.__qualname__}" for k in type(_at(value, "retry")).__mro__}:
        yield from _bounded("tenacity", _at(_at(_at(value, "retry"), "stop"), "max_attempt_number"), 0)


def _at(value: Any, name: str) -> Any:
    """Return a stored attribute or dict value; computed attributes are not evaluated."""
    if isinstance(value, dict):
        return value.get(name)
    attributes = getattr(value, "__dict__", None)
    return attributes.get(name) if isinstance(attributes, dict) else None


def _bounded(library: str, number: Any, first: int) -> Iterator[tuple[str, int]]:
    if type(number) is int and number > 0:
        yield library, number + first


if __name__ == "__main__":
    # For an app without a worker: `python -m jobs_admin.worker.configuration proj.celery:app` prints its report.
    import sys

    from celery.app.utils import find_app

    sys.path.insert(0, "")
    named = find_app(sys.argv[1])
    named.loader.import_default_modules()
    named.finalize()
    print(build_report(configuration(named, sys.argv[1])).text)
