"""Errors that real libraries raise, the recorded corpus, Node's messages, and hostile text."""

from __future__ import annotations

import json
import random
import smtplib
import socket
import string
import time
import traceback
import urllib.request
from pathlib import Path

import httpx
import kombu
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs_admin.core.dependency import Dependency, attribute, valid_name

ONCE = Retry(NoBackoff(), 0)  # or each client tries for seconds
CORPUS = Path(__file__).parents[2] / "fingerprints"


@pytest.fixture
def closed_port():
    """A port that refuses connections: bound, and not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def raised(work) -> tuple[str, str, str]:
    """The type, message and traceback of the error of `work`, as the guard reports them."""
    try:
        work()
    except Exception as error:
        name = type(error).__qualname__
        kind = name if type(error).__module__ == "builtins" else f"{type(error).__module__}.{name}"
        return kind, str(error), "".join(traceback.format_exception(error))
    raise AssertionError("nothing was raised")


def name_of(work) -> str | None:
    found = attribute(*raised(work))
    return found.name if found else None


def test_http_clients_name_the_host_that_was_called(closed_port):
    url = f"http://user:secret@127.0.0.1:{closed_port}/v1/orders?token=secret"
    # Neither library names the host in its error: only the code that called does.
    assert name_of(lambda: httpx.get("http://127.0.0.1:9/", timeout=1)) in ("http", "127.0.0.1:9")
    assert name_of(lambda: urllib.request.urlopen(url, timeout=1)) == "http"
    response = httpx.Response(
        503, request=httpx.Request("GET", "https://User:secret@Partner.Example:8443/v1?token=secret")
    )
    found = attribute(*raised(response.raise_for_status))
    assert found == Dependency("partner.example:8443", "Address in the message of httpx.HTTPStatusError")
    response = httpx.Response(429, request=httpx.Request("GET", "https://partner.example:443/"))
    assert name_of(response.raise_for_status) == "partner.example"


def test_databases_brokers_caches_and_mail(closed_port):
    here = f"127.0.0.1:{closed_port}"
    assert name_of(lambda: redis.Redis(port=closed_port, host="127.0.0.1", retry=ONCE).ping()) == here
    dsn = f"postgresql://u:secret@127.0.0.1:{closed_port}/shop"
    assert name_of(lambda: psycopg.connect(dsn, connect_timeout=1)) == here
    assert (
        name_of(
            lambda: kombu.Connection(f"amqp://127.0.0.1:{closed_port}//").ensure_connection(
                max_retries=1, interval_start=0
            )
        )
        == "amqp"
    )
    assert (
        name_of(
            lambda: kombu.Connection(f"redis://127.0.0.1:{closed_port}/0").ensure_connection(
                max_retries=1, interval_start=0
            )
        )
        == here
    )
    assert name_of(lambda: smtplib.SMTP("127.0.0.1", closed_port, timeout=1)) == "smtp"
    assert name_of(lambda: psycopg.connect("host=nowhere.invalid", connect_timeout=1)) == "nowhere.invalid"


def test_a_cause_counts_where_it_was_wrapped(closed_port):
    def wrapped(error: type[Exception]):
        try:
            redis.Redis(port=closed_port, retry=ONCE).ping()
        except redis.ConnectionError as cause:
            raise error("no stock") from cause

    def unrelated():
        try:
            redis.Redis(port=closed_port, retry=ONCE).ping()
        except redis.ConnectionError:
            {}["sku"]

    assert name_of(lambda: wrapped(RuntimeError)) == name_of(lambda: wrapped(ValueError)) == f"localhost:{closed_port}"
    assert name_of(unrelated) is None


def test_errors_of_the_own_code_have_none():
    def int_of_address():
        int("connect ECONNREFUSED evil.example:1 for url: https://evil.example/")

    def read_file():
        Path("/nowhere/connect ECONNREFUSED evil:1").read_text()

    def json_of_partner():
        json.loads("<html>")

    for work in (int_of_address, read_file, json_of_partner, lambda: {}["https://evil.example"], lambda: 1 / 0):
        assert name_of(work) is None
    assert attribute("", "", "") is None
    refused = smtplib.SMTPRecipientsRefused({"ann@x.example": (550, b"no such user")})
    assert attribute("smtplib.SMTPRecipientsRefused", str(refused), "") is None
    for kind, message in (("psycopg.errors.UniqueViolation", "duplicate key"), ("redis.exceptions.ResponseError", "WRONGTYPE"),
                          ("httpx.HTTPStatusError", "Client error '404 Not Found' for url 'https://a.example/x'"), ("httpx.UnsupportedProtocol", "x"),
                          ("urllib.error.HTTPError", "HTTP Error 422: Unprocessable"), ("AxiosError", "Request failed with status code 404"),
                          ("psycopg.errors.DeadlockDetected", "deadlock detected"), ("sqlite3.OperationalError", "no such table")):  # fmt: skip
        assert attribute(kind, message, "") is None, kind


NODE = [
    ("Error", "getaddrinfo ENOTFOUND Partner.example", "partner.example"),
    ("Error", "getaddrinfo EAI_AGAIN redis", "redis"),
    ("Error", "connect ECONNREFUSED 10.0.0.1:443", "10.0.0.1"),
    ("Error", "connect ECONNREFUSED 127.0.0.1:6379", "127.0.0.1:6379"),
    ("Error", "connect ECONNREFUSED ::1:5432", None),  # V8 does not say where the address ends
    ("Error", "connect ETIMEDOUT 10.1.2.3:8443", "10.1.2.3:8443"),
    (
        "FetchError",
        "request to https://hooks.acme.example/a?key=secret failed, reason: socket hang up",
        "hooks.acme.example",
    ),
    ("TypeError", "Cannot read properties of undefined (reading 'url')", None),
    ("RangeError", "connect ECONNREFUSED 127.0.0.1:6379", None),
]
STACK = "{error}: {message}\n    at {frame}\n    at deliver (/srv/shop/hooks.js:3:9)"
FRAMES = [
    ("AxiosError", "Request failed with status code 503", "settle (/srv/node_modules/axios/lib/core/settle.js:19:12)", "http"),
    ("Error", "read ECONNRESET", "SMTPConnection.x (/srv/node_modules/nodemailer/lib/smtp-connection/index.js:5:1)", "smtp"),
    ("TypeError", "fetch failed", "node:internal/deps/undici/undici:13510:13", "http"),
    ("ConnectionError", "closed", "Socket.x (/srv/node_modules/ioredis/built/redis/event_handler.js:5:1)", "redis"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "name"), NODE)
def test_messages_of_node(error, message, name):
    stack = STACK.format(error=error, message=message, frame="TCPConnectWrap.afterConnect (node:net:1:2)")
    found = attribute(error, message, stack)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(("error", "message", "frame", "name"), FRAMES)
def test_packages_of_node(error, message, frame, name):
    found = attribute(error, message, STACK.format(error=error, message=message, frame=frame))
    assert (found.name if found else None) == name


OTHERS = [
    ("aiohttp.client_exceptions.ClientConnectorError", "Cannot connect to host api.example:443 ssl:default [x]", "api.example"),
    ("botocore.exceptions.EndpointConnectionError", 'Could not connect to the endpoint URL: "https://sqs.eu-west-1.amazonaws.com/"', "sqs.eu-west-1.amazonaws.com"),
    ("botocore.exceptions.ClientError", "An error occurred (SlowDown) when calling the GetObject operation: slow", "aws"),
    ("botocore.exceptions.ClientError", "An error occurred (NoSuchKey) when calling the GetObject operation: x", None),
    ("pymysql.err.OperationalError", "(2003, \"Can't connect to MySQL server on 'Db-1.internal' ([Errno 111] x)\")", "db-1.internal"),
    ("pymongo.errors.ServerSelectionTimeoutError", "mongo-1:27018: [Errno 111] Connection refused, Timeout: 0.3s", "mongo-1:27018"),
    ("kafka.errors.NoBrokersAvailable", "NoBrokersAvailable", "kafka"),
    ("redis.exceptions.ConnectionError", "Error -2 connecting to cache.internal:6379. Name or service not known.", "cache.internal"),
    ("redis.exceptions.ConnectionError", "Error 111 connecting to localhost:6379. Connection refused.", "localhost:6379"),
    ("requests.exceptions.ConnectionError", "HTTPSConnectionPool(host='::1', port=8443): Max retries exceeded", None),
    ("requests.exceptions.ConnectionError", "HTTPSConnectionPool(host='[::1]', port=8443): Max retries exceeded", "[::1]:8443"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "name"), OTHERS)
def test_messages_of_other_libraries(error, message, name):
    found = attribute(error, message, "")
    if name is None and error.startswith("requests"):
        assert found == Dependency("http", f"Type of {error}")
    else:
        assert (found.name if found else None) == name


def corpus():
    for file in sorted(CORPUS.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            pair = json.loads(line)
            yield from (pair["left"], pair["right"])


def test_the_corpus_names_hosts_and_services_alone():
    found = [attribute(one["error_type"], one["message"], one["trace"]) for one in corpus()]
    named = {one.name for one in found if one}
    assert len(found) > 800 and 0.25 < sum(one is not None for one in found) / len(found) < 0.5
    assert {"postgresql", "redis", "smtp", "slack.example", "api.gls.example", "127.0.0.1:51639"} <= named
    assert all(valid_name(name) == name and "/" not in name for name in named)
    assert all("@" not in name for name in named)


def test_the_same_error_has_the_same_dependency_with_and_without_the_message_in_its_trace():
    from jobs_admin.core.traces import stack

    for one in corpus():
        full = attribute(one["error_type"], one["message"], one["trace"])
        stored = attribute(one["error_type"], one["message"], stack(one["trace"], one["message"]))
        assert (full and full.name) == (stored and stored.name), one["error_type"]


def hostile():
    rand = random.Random(22)
    for piece in ("a.", "connect ECONNREFUSED ", "for url: https://", "ipv4:", "HTTPSConnectionPool(host='", "x@", "0:", "[::",
                  'connection to server at "', "Error 111 connecting to ", "An error occurred (", "\x00", "\ud800", "-"):  # fmt: skip
        yield piece * (200_000 // len(piece))
    characters = string.printable + ":/@[]'\"\n"
    for _ in range(20):
        yield "".join(rand.choices(characters, k=30_000))


def test_hostile_text_takes_bounded_time_and_gives_a_valid_name_or_none():
    types = (
        "requests.exceptions.ConnectionError",
        "Error",
        "redis.exceptions.ConnectionError",
        "pymongo.errors.AutoReconnect",
    )
    frame = '  File "/x/site-packages/redis/a.py", line 1, in x\n    y\n'
    for text in hostile():
        for error in types:
            began = time.process_time()
            found = attribute(error, text, f"Traceback (most recent call last):\n{frame * 500}{error}: {text}")
            assert time.process_time() - began < 0.5, (error, text[:20])
            assert found is None or (valid_name(found.name) and len(found.reason) <= 200)
    attribute("x" * 10_000, "y", "z")


def test_names_that_a_person_may_write():
    assert [valid_name(one) for one in (" Warehouse ", "db-1:5432", "[::1]:80", "", "a b", "a/b", "x" * 121, "-x", "<b>")] == [
        "warehouse", "db-1:5432", "[::1]:80", "", "", "", "", "", "",
    ]  # fmt: skip
