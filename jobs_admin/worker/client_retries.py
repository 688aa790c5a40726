"""Clients that a task's code uses and that try again by themselves: looked at, never called.

Followed are names of the module that the code mentions, and functions of the same package among them. A client that is
made while the job runs, or that another library hides, is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from jobs_admin.core.lint.configuration import ClientRetries

MOST = 10
_MOST_FUNCTIONS = 100  # looked through for one task
_MOST_ATTEMPTS = 1_000


def client_retries(function: Callable[..., Any]) -> tuple[ClientRetries, ...]:
    """Return what is found from the function on, by the names that the code uses, each once."""
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
    return tuple(found.values())[:MOST]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_of(function: FunctionType, package: str) -> bool:
    return bool(function.__module__) and function.__module__.partition(".")[0] == package


def _attempts(value: Any) -> Iterator[tuple[str, int]]:
    """(library, attempts in all) of one object, by what its class is called: no library is imported for it."""
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
    """Return what an object or a dict holds under the name, and nothing that would have to be worked out."""
    if isinstance(value, dict):
        return value.get(name)
    attributes = getattr(value, "__dict__", None)
    return attributes.get(name) if isinstance(attributes, dict) else None


def _bounded(library: str, number: Any, first: int) -> Iterator[tuple[str, int]]:
    if type(number) is int and number > 0:
        yield library, number + first
