"""URLs in the settings of Celery's users open with redis-py too."""

from __future__ import annotations

import pytest
import redis

from jobs_admin.core.service_url import for_redis_py


def opened(url: str) -> redis.connection.AbstractConnection:
    """The connection that redis-py would make; nothing is dialled."""
    with redis.Redis.from_url(for_redis_py(url)) as client:
        return client.connection_pool.make_connection()


@pytest.mark.parametrize("word", ["none", "optional", "required"])
@pytest.mark.parametrize("spelling", ["{}", "CERT_{}", "cert_{}", "ssl.CERT_{}"])
def test_certificates_are_requested_in_any_spelling(word, spelling):
    url = spelling.format(word.upper() if "CERT" in spelling else word)
    made = opened(f"rediss://:secret@host:6380/2?ssl_cert_reqs={url}&ssl_ca_certs=%2Fetc%2Fca.pem")
    assert type(made) is redis.SSLConnection
    assert made.cert_reqs.name == f"CERT_{word.upper()}"
    assert (made.host, made.port, made.db, made.password) == ("host", 6380, 2, "secret")
    assert made.ca_certs == "/etc/ca.pem"


def test_what_only_kombu_understands_is_left_out():
    made = opened("redis://host/1?visibility_timeout=60&global_keyprefix=x&ssl_cert_reqs=none&socket_timeout=3")
    assert (made.db, made.socket_timeout) == (1, 3.0)


@pytest.mark.parametrize(("given", "number"), [("4", 4), ("/4", 4), ("%2F4", 4), ("/", 0)])
def test_a_socket_and_its_virtual_host_are_found(given, number):
    made = opened(f"redis+socket:///run/redis.sock?virtual_host={given}")
    assert type(made) is redis.UnixDomainSocketConnection
    assert (made.path, made.db) == ("/run/redis.sock", number)


@pytest.mark.parametrize("url", ["amqp://guest@host//?heartbeat=3", "", "not-a-url", "sentinel://a;sentinel://b"])
def test_what_is_no_redis_url_comes_back_as_it_was(url):
    assert for_redis_py(url) == url
    with pytest.raises(ValueError, match="scheme"):
        redis.Redis.from_url(for_redis_py(url))


def test_a_plain_url_is_not_touched():
    url = "redis://us%40er:p%2Fw%3A@[::1]:6379/0"
    assert for_redis_py(url) == url
