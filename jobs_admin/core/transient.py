"""Evidence in an exception that a dependency is unavailable: no connection, no answer in time, HTTP 5xx or 429.

Found by class names, plain attributes and the chain of causes. No other code is run and nothing raises: properties are
not read. A policy's `classes` take precedence.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs_admin.core import retry_after
from jobs_admin.core.matching import named_class_of
from jobs_admin.core.policy.shape import PERMANENT, RATE_LIMITED, Policy

CONNECTION, TIMEOUT, RATE_LIMIT, NAMED = "connection", "timeout", "rate limited", "transient"
LONGEST_CHAIN = 8
MOST_IN_GROUP = 5
TOO_MANY, REQUEST_TIMEOUT = 429, 408
_NOT_AWAY = (501, 505)  # permanent

# Last part of a class's name, in any library.
_CONNECTION = re.compile(
    r"(?:(?:API|Client|Server|AMQP|Recoverable|Endpoint|Proxy|New|Socket|Broker|Gateway|Http|TooMany)?Connect(?:ion|ions|or)?"
    r"(?:Error|Failure|Refused|RefusedError|Reset|ResetError|Closed|ClosedError|Aborted|AbortedError|DoesNotExistError|Lost)"
    r"|TooManyConnectionsError|NetworkError|NetworkUnavailable|ServerDisconnectedError|ClientPayloadError|MaxRetryError"
    r"|ChunkedEncodingError|ProxyError|SMTPServerDisconnected|SMTPConnectError|AutoReconnect|NoBrokersAvailable|NoNameservers"
    r"|BusyLoadingError|gaierror|SSLError|ServiceUnavailable|ServiceUnavailableError|HTTPClientError|HostUnreachable|NotConnected)\Z"
)
# The same, only in HTTP client libraries: elsewhere these names mean a bad file or a rejected document.
_OF_CLIENT = re.compile(r"(?:Read|Write|Close|Protocol|RemoteProtocol|IncompleteRead)(?:Error)?\Z")
_CLIENTS = frozenset({"httpx", "httpcore", "httpx2", "urllib3", "aiohttp", "http"})
_OWN_FAULT = frozenset({"LocalProtocolError", "UnsupportedProtocol", "AuthenticationError"})
_TIMEOUT = re.compile(
    r"(?:Connect|Connection|Read|Write|Pool|Socket|Server|ServerSelection|Network|Gateway|Request|API|Kafka|Lifetime|Http)?"
    r"(?:[Tt]ime[Oo]ut|Timedout)(?:Error|Exception)?\Z"
)
_OF_DATABASE = ("OperationalError", "InterfaceError")
# Waiting inside the program itself, or a database in a file, rather than a dependency.
_OWN = frozenset(
    {
        *("celery", "billiard", "concurrent", "multiprocessing", "queue", "subprocess", "threading", "sqlite3"),
        *("asyncio", "filelock"),
    }
)
# Programming errors: the exception being handled when they were raised is not their cause.
_MISTAKES = frozenset(
    {
        *("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "AssertionError", "NameError"),
        "ArithmeticError",
    }
)
_THROTTLED = re.compile("Throttl|TooManyRequests|SlowDown|RequestLimitExceeded|ProvisionedThroughputExceeded")
_ERRNOS = frozenset(
    {
        *(
            errno.ECONNREFUSED,
            errno.ECONNRESET,
            errno.ECONNABORTED,
            errno.EHOSTUNREACH,
            errno.ENETUNREACH,
            errno.ENETDOWN,
        ),
        *(errno.ETIMEDOUT, errno.EPIPE, errno.EHOSTDOWN),
    }
)
_MYSQL = frozenset({1040, 1053, 1077, 1203, 2002, 2003, 2005, 2006, 2013, 2055})  # no connection, or a lost one
_SQLSTATE = ("08", "57P", "53")  # connection, shutdown, out of resources
_GRPC = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})
_STATUS = ("status_code", "http_status", "status", "errcode")
_CODED = re.compile("http|api", re.IGNORECASE)  # classes whose `code` is an HTTP status


@dataclass(frozen=True, slots=True)
class Evidence:
    kind: str  # connection, timeout, http 503, rate limited, transient (by the policy's classes)
    wish_s: float | None = None  # Retry-After, seconds from now


def find_evidence(error: BaseException, now: float, policy: Policy | None = None) -> Evidence | None:
    """Return the evidence in an exception or its causes; None if there is none. `now`: Unix seconds."""
    try:
        return _find(error, now, policy)
    except Exception:  # another library's object, in a worker that must go on
        return None


def is_answer(error: BaseException) -> bool:
    """Return whether an exception or a cause proves that the dependency was available: an HTTP 4xx, a query error."""
    try:
        return next((kind == "" for kind in map(_kind, _chain(error)) if kind is not None), False)
    except Exception:  # another library's object, in a worker that must go on
        return False


def _find(error: BaseException, now: float, policy: Policy | None) -> Evidence | None:
    links = list(_chain(error))
    if policy is not None and policy.classes and (named := named_class_of(policy, _names(error))):
        if named == PERMANENT:
            return None
        of_chain = next(filter(None, map(_kind, links)), None) or NAMED
        return Evidence(RATE_LIMIT if named == RATE_LIMITED else of_chain, _wish_s(links, now))
    for link in links:
        if (kind := _kind(link)) is not None:
            return Evidence(kind, _wish_s(links, now)) if kind else None
    return None


def _kind(error: BaseException) -> str | None:
    """Return the kind of evidence; "" if the error shows that the dependency was available, None if it shows
    nothing.
    """
    status = _status(error)
    if status is not None:
        if status == 400 and _THROTTLED.search(_aws_code(error)):
            return RATE_LIMIT
        if status in (TOO_MANY, REQUEST_TIMEOUT) or (500 <= status <= 599 and status not in _NOT_AWAY):
            return f"http {status}"
        return ""
    mro = _mro(error)
    if any(module.partition(".")[0] in _OWN for module, _ in mro):
        return None
    if _THROTTLED.search(_aws_code(error)):
        return RATE_LIMIT
    short = [name for _, name in mro]
    if state := _sql_state(error):
        return CONNECTION if state.startswith(_SQLSTATE) else ""
    if any(name in _OF_DATABASE for name in short):
        return _database(error)
    if code := _grpc(error):
        return TIMEOUT if code == "DEADLINE_EXCEEDED" else CONNECTION
    if not _OWN_FAULT.isdisjoint(short):
        return None
    if any(map(_TIMEOUT.match, short)):
        return TIMEOUT
    if any(module.partition(".")[0] in _CLIENTS and _OF_CLIENT.match(name) for module, name in mro):
        return CONNECTION
    if any(map(_CONNECTION.match, short)) or _errno(error) in _ERRNOS:
        return CONNECTION
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its causes, nearest first; for a group, its first members."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting and len(seen) < LONGEST_CHAIN:
        one = waiting.pop(0)
        if not issubclass(type(one), BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if _mro(one)[0][0].partition(".")[0] == "celery":
            waiting.append(_plain(one, "exc"))  # cause of a Retry
        cause = BaseException.__dict__["__cause__"].__get__(one)
        is_mistake = any(name in _MISTAKES for _, name in _mro(one))
        if cause is None and not is_mistake and not BaseException.__dict__["__suppress_context__"].__get__(one):
            cause = BaseException.__dict__["__context__"].__get__(one)
        waiting.append(cause)
        if any(name == "BaseExceptionGroup" for _, name in _mro(one)):
            waiting.extend((_plain(one, "exceptions") or ())[:MOST_IN_GROUP])


def _status(error: BaseException) -> int | None:
    response = _plain(error, "response")
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        return _http(metadata.get("HTTPStatusCode")) if isinstance(metadata, dict) else None
    if response is not None:
        for name in _STATUS:
            if (found := _http(_plain(response, name))) is not None:
                return found
    for name in _STATUS:
        if (found := _http(_plain(error, name))) is not None:
            return found
    if any(_CODED.search(name) or _CODED.search(module) for module, name in _mro(error)):
        return _http(_plain(error, "code"))
    return None


def _database(error: BaseException) -> str | None:
    """Return the kind of a database error; None also if it wraps another, which is judged separately."""
    if BaseException.__dict__["__cause__"].__get__(error) is not None:
        return None
    args = BaseException.__dict__["args"].__get__(error)
    if args and isinstance(args[0], str) and "closed" in args[0] and "cursor" in args[0]:
        return None  # a programming error
    if args and type(args[0]) is int:
        return CONNECTION if args[0] in _MYSQL else ""
    return CONNECTION


def _sql_state(error: BaseException) -> str:
    state = _plain(error, "sqlstate") or _plain(error, "pgcode")
    return state if isinstance(state, str) else ""


def _aws_code(error: BaseException) -> str:
    response = _plain(error, "response")
    part = response.get("Error") if isinstance(response, dict) else None
    code = part.get("Code") if isinstance(part, dict) else None
    return code if isinstance(code, str) else ""


def _grpc(error: BaseException) -> str:
    state = _plain(error, "_state")
    code = None if state is None else _plain(state, "code")
    name = None if code is None else _plain(code, "_name_")
    return name if isinstance(name, str) and name in _GRPC else ""


def _errno(error: BaseException) -> int | None:
    return OSError.__dict__["errno"].__get__(error) if issubclass(type(error), OSError) else None


def _wish_s(links: list[BaseException], now: float) -> float | None:
    for link in links:
        if retry_after.is_at_hand(link) and (wish := retry_after.find_wish(link)) is not None:
            return retry_after.seconds(wish, now)
    return None


def _plain(thing: Any, name: str) -> Any:
    """Return an attribute without running other code; None if that is impossible."""
    try:
        return retry_after.read_plain(thing, name)
    except retry_after.Dynamic:
        return None


def _http(value: Any) -> int | None:
    """Return a status; None for anything else. `HTTPStatus` is an int, too."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(value) if 100 <= value <= 599 else None


def _mro(error: BaseException) -> list[tuple[str, str]]:
    """Return module and name of an exception's class and its bases, nearest first."""
    found = []
    for one in type.__dict__["__mro__"].__get__(type(error)):
        module = type.__dict__["__dict__"].__get__(one).get("__module__")
        found.append((module if isinstance(module, str) else "", type.__dict__["__name__"].__get__(one)))
    return found


def _names(error: BaseException) -> list[str]:
    return [
        name if module in ("builtins", "__main__", "") else f"{module}.{name}"
        for module, name in _mro(error)
        if name != "object"
    ]
