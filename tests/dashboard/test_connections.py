"""The check of a URL at the start: the adapter accepts it, and a server answers there."""

from __future__ import annotations

import sys

import pytest

from dashboard.setup import connections, environment
from dashboard.setup.engine import Engine, free_port
from dashboard.setup.environment import Misconfigured
from jobs_admin.config import SourceConfig
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.jobs_table.sql import open_database

CLOSED_PORT = "127.0.0.1:1"


def check(url: str, **options) -> None:
    connections.check_broker(SourceConfig("celery", "celery", url, options=options))


@pytest.mark.parametrize("query", ["", "?virtual_host=1", "?virtual_host=/1", "?visibility_timeout=3600"])
def test_a_broker_in_the_words_of_celery_is_taken(engine, query):
    check(engine.url.removesuffix("0") + query)


@pytest.mark.parametrize("scheme", ["unix", "redis+socket"])
def test_a_broker_at_a_socket_is_taken(engine_at_a_socket, scheme):
    check(f"{scheme}://:{engine_at_a_socket.password}@{engine_at_a_socket.folder}/s")


@pytest.fixture
def engine_at_a_socket(tmp_path_factory):
    class Engine_(Engine):
        settings = "unixsocket s\n"  # beside its data: a socket's path is short

    running = Engine_(tmp_path_factory.mktemp("e"), free_port()).start()
    yield running
    running.stop()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"amqp://guest:hidden@{CLOSED_PORT}//", "RabbitMQ at 127.0.0.1:1 cannot be reached"),
        (f"amqps://guest:hidden@{CLOSED_PORT}//", "RabbitMQ at 127.0.0.1:1 cannot be reached"),
        ("amqp://guest:hid/den@127.0.0.1:port//", "cannot be read"),
        (f"amqp://guest:hidden@{CLOSED_PORT}//;amqp://{CLOSED_PORT}//", "list of servers"),
        (f"sentinel://:hidden@{CLOSED_PORT}/0", "the option master_name"),
        (f"redis://:hidden@{CLOSED_PORT}/0;redis://{CLOSED_PORT}/1", "list of servers"),
        (f"redis://{CLOSED_PORT}/0?password=hidden", "cannot be reached"),
        (f"rediss://:hidden@{CLOSED_PORT}/0?ssl_cert_reqs=CERT_REQUIRED", "cannot be reached"),
        (f"rediss://:hidden@{CLOSED_PORT}/0?ssl_cert_reqs=ssl.CERT_NONE", "cannot be reached"),
        (f"rediss://:hidden@{CLOSED_PORT}/0?ssl_certs=x", ""),
        ("redis://:hidden@127.0.0.1:port/0", ""),
        ("redis://[::1/0", ""),
        ("filesystem://", "begins with redis://"),
    ],
)
def test_a_broker_that_the_adapter_cannot_use_is_refused_in_one_sentence_without_its_password(url, why):
    with pytest.raises(Misconfigured) as refused:
        check(url)
    assert str(refused.value).startswith("CELERY_BROKER_URL cannot be used: ")
    assert why in str(refused.value)
    assert "hidden" not in str(refused.value) and "\n" not in str(refused.value)


def test_an_option_of_the_wrong_kind_is_refused(engine):
    with pytest.raises(Misconfigured, match="CELERY_BROKER_URL cannot be used"):
        check(engine.url, priority_steps=["low"])


@pytest.mark.parametrize("query", ["virtual_host=2", "ssl_cert_reqs=CERT_REQUIRED", "visibility_timeout=60"])
def test_a_store_is_spoken_to_in_the_same_words(engine, query, settings):
    from jobs_admin import config

    url = engine.url.removesuffix("0") + f"?{query}"
    connections.check_redis("REDRIVE_REDIS_URL", url)
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": url}
    config.store.cache_clear()
    try:
        assert config.store().ping()
    finally:
        config.store.cache_clear()


def test_a_comma_in_a_password_or_an_option_names_no_second_server(engine):
    connections.check_redis("REDRIVE_REDIS_URL", f"{engine.url}?client_name=a,b://c")
    with pytest.raises(Misconfigured, match="invalid username-password"):  # the answer of the one server
        connections.check_redis("REDRIVE_REDIS_URL", engine.url.replace("redis://:", "redis://a,b;c:"))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hidden@a:6379/0;redis://b:6379/0",
        "redis://:hidden@a:6379,b:6379/0",
    ],
)
def test_a_store_of_several_servers_is_refused_in_one_sentence(url):
    with pytest.raises(Misconfigured, match="REDRIVE_REDIS_URL names several servers") as refused:
        connections.check_redis("REDRIVE_REDIS_URL", url)
    assert "hidden" not in str(refused.value)


def test_what_follows_the_name_of_a_postgresql_database_holds():
    made = environment.database("postgresql://u:p%40@db:5433/redrive?sslmode=require&connect_timeout=3")
    assert made["OPTIONS"] == {"sslmode": "require", "connect_timeout": "3"}
    assert (made["HOST"], made["PORT"], made["PASSWORD"]) == ("db", "5433", "p@")
    assert environment.database("postgresql:///redrive?host=/run/postgresql")["HOST"] == "/run/postgresql"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgresql://u@db:port/redrive", "DATABASE_URL is not a URL"),
        ("postgresql://u@[db/redrive", "DATABASE_URL is not a URL"),
        ("postgresql://u@db/redrive?sslmod=require", "not understood: sslmod"),
        ("sqlite:///x.sqlite3?mode=ro", "not understood: mode"),
        ("sqlite://", "names no file"),
    ],
)
def test_a_database_url_that_cannot_be_meant_is_refused_in_one_sentence(url, text):
    with pytest.raises(Misconfigured, match=text):
        environment.database(url)


def test_a_postgresql_url_without_its_driver_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)  # Python's own word for a module that is not there
    with pytest.raises(Misconfigured, match=r"psycopg is not installed: run `pip install 'redrive\[postgres\]'`"):
        environment.database("postgresql://u@db/redrive")
    with pytest.raises(SourceRefused, match=r"Source shop: psycopg is not installed"):
        open_database("shop", "postgresql://u@db/shop")


def test_a_source_that_only_tests_have_is_refused(settings, tmp_path):
    from jobs_admin import config

    settings.REDRIVE = settings.REDRIVE | {"TEST_BACKENDS": ()}
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(tmp_path / "sources.toml")}
    (tmp_path / "sources.toml").write_text('[sources.shop]\nbackend = "memory"\nurl = "memory:"\n')
    config.sources.cache_clear()
    with pytest.raises(config.BadConfiguration, match=r"backend 'memory'; known: celery, "):
        config.sources()


@pytest.mark.parametrize(
    "url, port, ssl, starttls",
    [
        ("smtps://desk:s%40cret@mail.example", 465, True, False),
        ("smtp+tls://desk:s%40cret@mail.example:2525/", 2525, False, True),
        ("smtp://desk:s%40cret@mail.example", 25, False, False),
    ],
)
def test_a_mail_server_is_read_from_its_url(url, port, ssl, starttls):
    found = environment.mail(url)
    assert (found["EMAIL_HOST"], found["EMAIL_PORT"]) == ("mail.example", port)
    assert (found["EMAIL_USE_SSL"], found["EMAIL_USE_TLS"]) == (ssl, starttls)
    assert (found["EMAIL_HOST_USER"], found["EMAIL_HOST_PASSWORD"]) == ("desk", "s@cret")


@pytest.mark.parametrize(
    "url", ["mail.example", "http://mail.example", "smtp://", "smtp://m/x", "smtp://m?a=secret", "smtp://u:se#cret@m"]
)
def test_a_mail_server_that_cannot_be_read_ends_the_start_and_shows_nothing_of_it(url):
    with pytest.raises(Misconfigured, match="EMAIL_URL") as refused:
        environment.mail(url)
    assert "secret" not in str(refused.value) and "cret@" not in str(refused.value)


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("REDRIVE_WEBHOOK_ALLOW", "10.0.0.0/8, 10.0.0.0/99", "'10.0.0.0/99' is neither a host nor a network"),
        ("REDRIVE_HEARTBEAT_URL", "ftp://a/secret", "must begin with https:// or http://"),
    ],
)
def test_what_channels_and_heartbeat_are_shown_ends_the_start_where_it_cannot_be_used(monkeypatch, name, value, text):
    monkeypatch.setenv(name, value)
    with pytest.raises(Misconfigured, match=f"^{name}.*{text}.*Nothing was started"):
        environment.redrive()
