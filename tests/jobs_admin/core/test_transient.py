"""Exceptions that are evidence that what a job calls is away."""

from __future__ import annotations

import errno
import socket
import sqlite3
import ssl
import subprocess
import tarfile
import time
import urllib.error
import xmlrpc.client
from email.message import Message
from http import HTTPStatus

import httpx
import psycopg
import pytest
import redis

from jobs_admin.core import policy as policies
from jobs_admin.core.transient import find_evidence, is_answer

NOW = 1_764_000_000.0


def _class(module: str, name: str, *bases: type, **body: object) -> type:
    return type(name, bases or (Exception,), {"__module__": module, **body})


def _http(status: int, **headers: str) -> Exception:
    request = httpx.Request("GET", "https://partner.example/")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status, headers=headers, request=request))


def _requests(status: int, **headers: str) -> Exception:
    response = _class("requests.models", "Response", object, __bool__=lambda self: False)()
    response.status_code, response.headers = status, headers
    error = _class("requests.exceptions", "HTTPError", OSError)("503 Server Error")
    error.response = response
    return error


def _attributes(module: str, name: str, *bases: type, **values: object) -> Exception:
    error = _class(module, name, *bases)("text")
    for key, value in values.items():
        setattr(error, key, value)
    return error


def _urllib(status: int) -> Exception:
    return urllib.error.HTTPError("https://partner.example/", status, "text", Message(), None)


def _raised(outer: Exception, inner: Exception, *, explicitly: bool) -> Exception:
    try:
        try:
            raise inner
        except Exception as error:
            raise outer from (error if explicitly else None)
    except Exception as error:
        return error


_TRANSPORT = _class("botocore.exceptions", "EndpointConnectionError")
EVIDENCE = [
    (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "connection"),
    (OSError(errno.EHOSTUNREACH, "no route"), "connection"),
    (socket.gaierror(-2, "Name or service not known"), "connection"),
    (ssl.SSLError("certificate has expired"), "connection"),
    (TimeoutError("timed out"), "timeout"),
    (httpx.ConnectError("refused"), "connection"),
    (httpx.ReadTimeout("slow"), "timeout"),
    (httpx.RemoteProtocolError("closed"), "connection"),
    (redis.ConnectionError("refused"), "connection"),
    (redis.exceptions.BusyLoadingError("loading"), "connection"),
    (psycopg.OperationalError("connection refused"), "connection"),
    (psycopg.errors.AdminShutdown("terminating"), "connection"),
    (_TRANSPORT("text"), "connection"),
    (_attributes("pymysql.err", "OperationalError", args=(2006, "gone away")), "connection"),
    (_attributes("urllib3.exceptions", "MaxRetryError"), "connection"),
    (_attributes("aiohttp.client_exceptions", "ServerDisconnectedError"), "connection"),
    (_attributes("pymongo.errors", "ServerSelectionTimeoutError"), "timeout"),
    (_attributes("stripe", "APIConnectionError"), "connection"),
    (_attributes("kombu.exceptions", "OperationalError"), "connection"),
    (_http(503), "http 503"),
    (_http(429), "http 429"),
    (_requests(502), "http 502"),
    (_urllib(500), "http 500"),
    (_attributes("aiohttp.client_exceptions", "ClientResponseError", status=504), "http 504"),
    (_attributes("google.api_core.exceptions", "ServiceUnavailable", code=HTTPStatus(503)), "http 503"),
    (
        _attributes("botocore.exceptions", "ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 503}}),
        "http 503",
    ),
    (
        _attributes(
            "botocore.exceptions",
            "ClientError",
            response={"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 400}},
        ),
        "rate limited",
    ),
    (httpx.ReadError("closed"), "connection"),
    (_attributes("asyncpg.exceptions", "TooManyConnectionsError"), "connection"),
    (_raised(RuntimeError("no stock"), httpx.ConnectError("refused"), explicitly=True), "connection"),
    (ExceptionGroup("two", [ValueError("x"), TimeoutError("slow")]), "timeout"),
]
NONE = [
    ValueError("wrong"),
    KeyError("customer"),
    FileNotFoundError(errno.ENOENT, "missing"),
    PermissionError(errno.EACCES, "denied"),
    sqlite3.OperationalError("no such table"),
    subprocess.TimeoutExpired("sleep", 1),
    psycopg.errors.UndefinedTable("no such table"),
    psycopg.errors.SerializationFailure("again"),
    _attributes("pymysql.err", "OperationalError", args=(1205, "lock wait timeout")),
    _attributes("billiard.exceptions", "SoftTimeLimitExceeded"),
    _attributes("shop.errors", "Odd", code=503),
    tarfile.ReadError("not a tar file"),
    httpx.LocalProtocolError("own fault"),
    redis.AuthenticationError("wrong password"),
    psycopg.OperationalError("the cursor is closed"),
    xmlrpc.client.ProtocolError("partner.example", 401, "Unauthorized", {}),
    _attributes("pymongo.errors", "DuplicateKeyError", _class("pymongo.errors", "WriteError")),
    _attributes("filelock", "Timeout", TimeoutError),
    _http(404),
    _http(400),
    _http(501),
    _requests(422),
    _raised(ValueError("wrong"), httpx.ConnectError("refused"), explicitly=False),
    _raised(ValueError("wrong"), _http(404), explicitly=True),
]


@pytest.mark.parametrize(("error", "kind"), EVIDENCE, ids=lambda one: type(one).__name__)
def test_an_error_of_a_dependency_that_is_away_is_evidence(error, kind):
    found = find_evidence(error, NOW)
    assert found is not None and found.kind == kind


@pytest.mark.parametrize("error", NONE, ids=lambda one: type(one).__name__)
def test_any_other_error_is_none(error):
    assert find_evidence(error, NOW) is None


def test_a_mistake_while_another_error_is_handled_is_no_evidence():
    for raised, kind in ((KeyError("fallback"), None), (RuntimeError("no stock"), "connection")):
        try:
            try:
                raise httpx.ConnectError("refused")
            except httpx.ConnectError:
                raise raised  # noqa: B904
        except Exception as error:
            found = find_evidence(error, NOW)
        assert (found and found.kind) == kind


def test_an_answer_proves_that_the_dependency_was_there():
    assert is_answer(_http(404)) and is_answer(psycopg.errors.UndefinedTable("no such table"))
    assert is_answer(_raised(ValueError("wrong"), _http(422), explicitly=True))
    assert (
        not is_answer(_http(503))
        and not is_answer(ValueError("wrong"))
        and not is_answer(httpx.ConnectError("refused"))
    )


def test_a_retry_of_celery_carries_the_evidence_of_its_reason():
    from celery.exceptions import Retry

    assert find_evidence(Retry("again", exc=httpx.ConnectError("refused")), NOW).kind == "connection"
    assert find_evidence(Retry("again", exc=ValueError("wrong")), NOW) is None


def test_the_wish_of_a_server_comes_along():
    assert find_evidence(_http(429, **{"Retry-After": "17"}), NOW).wish_s == 17
    assert find_evidence(_requests(503, **{"Retry-After": "9"}), NOW).wish_s == 9
    assert find_evidence(_http(503), NOW).wish_s is None


@pytest.mark.parametrize(
    ("error", "as_", "kind"),
    [
        (httpx.ConnectError("refused"), "permanent", None),
        (ValueError("stock service"), "transient", "transient"),
        (ValueError("too fast"), "rate_limited", "rate limited"),
        (httpx.ConnectError("refused"), "transient", "connection"),
    ],
)
def test_the_classes_of_a_policy_come_first(error, as_, kind):
    policy = policies.parse({"classes": [{"error": type(error).__name__, "as": as_}]})
    found = find_evidence(error, NOW, policy)
    assert (found and found.kind) == kind
    other = policies.parse({"classes": [{"error": "ZeroDivisionError", "as": as_}]})
    assert find_evidence(error, NOW, other) == find_evidence(error, NOW)


class _Slow(type):
    def __getattribute__(cls, name):
        time.sleep(0.2)
        raise SystemError(name)


class _Hostile(Exception, metaclass=_Slow):
    def __getattribute__(self, name):
        time.sleep(0.2)
        raise SystemError(name)

    @property
    def response(self):
        time.sleep(0.2)

    status_code = response


def test_no_code_of_an_exception_runs():
    error = BaseException.__new__(_Hostile)
    cyclic = ValueError("a")
    cyclic.__cause__ = KeyError("b")
    cyclic.__cause__.__cause__ = cyclic
    begun = time.monotonic()
    assert find_evidence(error, NOW) is None
    assert find_evidence(cyclic, NOW) is None
    assert time.monotonic() - begun < 0.1
