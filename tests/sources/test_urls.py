"""No adapter says a password, however its URL is mistyped: neither in its sentence, nor in the errors that this one came of."""

from __future__ import annotations

import traceback

import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.base import SourceError, SourceRefused
from tests.kit.cases import with_cases

SECRET = "S3CR3Tpw"
JOBS_TABLE = [
    "postgresql://u:{}@127.0.0.1:1/db", "postgresql://u:{}@127.0.0.1:1/db?sslmode=bogus", "postgresql://u:{}@[::1/db",
    "postgresql://u:{}@host:port/db", "postgresql:///db?user=u&password={}&host=127.0.0.1&port=1",
    "postgresql:///db?password=a&{}=b&host=127.0.0.1&port=1", "postgresql://u:{}%zz@127.0.0.1:1/db",
    "postgres://u:{}#x@127.0.0.1:1/db", "postgresql://u:a@{}@127.0.0.1:1/db", "postgresql://u:a/{}@127.0.0.1:1/db",
    "postgresql://u:{}@127.0.0.1:1,127.0.0.1:2/db", "sqlite:////nowhere/{}%00x", "sqlite:////nowhere/{}/\0x",
]  # fmt: skip
RABBITMQ = [
    "amqp://u:{}@127.0.0.1:1//", "amqp://u:{}@127.0.0.1:x//", "amqp://u:{}%zz@127.0.0.1:1//", "amqp://u:a@{}@127.0.0.1:1/v",
    "amqp://u:a/{}@127.0.0.1:1/v", "amqp://u:{}#@127.0.0.1:1/", "amqps://u:{}@127.0.0.1:1/v?heartbeat=x",
    "amqp://u:{}@127.0.0.1:1/v?connect_timeout=x", "amqp://u:{}@127.0.0.1:1/v?{}=x", "amqps://u:{}@127.0.0.1:1/v?ssl_cert_reqs={}",
]  # fmt: skip
REDIS = [
    "redis://:{}@127.0.0.1:1", "redis://:{}@127.0.0.1:x", "redis://127.0.0.1:1/0?password={}", "redis://:a/{}@127.0.0.1:1",
    "redis://:{}#@127.0.0.1:1", "redis://:a@{}@127.0.0.1:1", "redis://:{}@127.0.0.1:1/abc", "redis://:[{}@127.0.0.1:1",
]  # fmt: skip
ALL = [
    *(("jobs_table", url) for url in JOBS_TABLE),
    *((backend, url) for backend in ("rabbitmq", "celery", "dramatiq") for url in RABBITMQ),
    *((backend, url) for backend in ("bull", "bullmq", "celery", "dramatiq", "rq", "sidekiq") for url in REDIS),
]


@with_cases("backend, url", ALL)
def test_an_adapter_refuses_or_fails_with_a_sentence_and_without_the_password(backend, url):
    options = {"dead_letter_queues": ["dead"]} if backend == "rabbitmq" else {}
    queues = ["mails"] if backend == "dramatiq" else []
    with pytest.raises(SourceError) as refused:
        connect("x", backend, url.replace("{}", SECRET), queues, options).depths()
    assert str(refused.value).endswith(".")
    # What a log would hold of it: each error of the chain, without the lines of the program.
    error, chained = refused.value, []
    while error is not None:
        chained += traceback.format_exception_only(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert SECRET not in "".join(chained)


def test_a_url_that_the_driver_would_read_otherwise_is_refused_before_anything_is_dialled():
    for url in ("postgresql://u:a@b@127.0.0.1:1/db", "amqps://u:p@127.0.0.1:1/v?heartbeat=x"):
        with pytest.raises(SourceRefused):
            connect(
                "x",
                "jobs_table" if url.startswith("p") else "rabbitmq",
                url,
                [],
                {"dead_letter_queues": ["d"]} if url[0] == "a" else {},
            )
