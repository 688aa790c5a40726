"""URLs of stores, brokers and databases: display form without password, strict splitting, and the form for redis-py.

Of a mistyped URL only scheme, host and port are shown: any other part may be the password.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

_SCHEMES = frozenset(
    {
        "redis", "rediss", "redis+socket", "redis+sentinel", "rediss+sentinel", "unix",
        "sentinel", "amqp", "amqps", "pyamqp", "sqs", "filesystem",
        "memory", "http", "https", "smtp", "smtps", "smtp+tls", "sqlite", "postgres", "postgresql", "mysql",
    }
)  # fmt: skip
_HOST_AND_PORT = re.compile(r"(?:.*@)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_HOSTS = re.compile(
    r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}(?:,(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})*"
)
_OF_SENTINELS = ("redis+sentinel", "rediss+sentinel")
_ESCAPES = "; in a user or password write @ as %40, # as %23, / as %2F, ? as %3F and : as %3A"


class Unreadable(ValueError):
    """A URL whose parts cannot be separated with certainty. The message never contains the URL."""


def split(url: str) -> SplitResult:
    """Return `urlsplit`, strictly.

    Raises Unreadable if a character of a password was parsed as the end of the server.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise Unreadable(f"server or port cannot be read{_ESCAPES}") from None
    before_values = parts.query.partition("=")[0]
    if "#" in url or "@" in parts.path or "@" in before_values or any(c.isspace() for c in url):
        raise Unreadable(f"unclear which part is the server{_ESCAPES}")
    return parts


def display_url(url: str) -> str:
    """Return the URL's scheme, host and port if they are certain, else its scheme, else neither."""
    scheme = scheme_of(url)
    if not scheme:
        return "not a URL"
    if scheme == "sqlite" and "@" not in url and url.startswith("sqlite:///"):
        return url.partition("?")[0]
    if scheme in _OF_SENTINELS:
        hosts = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
        is_certain = url.count("@") < 2 and _HOSTS.fullmatch(hosts)
        return f"{scheme}://{hosts}" if is_certain else f"{scheme}://…"
    try:
        parts = split(url)
    except Unreadable:
        return f"{scheme}://…"
    found = _HOST_AND_PORT.fullmatch(parts.netloc)
    if found is None or "@" in parts.query:
        return f"{scheme}://…"
    return f"{scheme}://{found['host']}" + (f":{found['port']}" if found["port"] else "")


def scheme_of(url: str) -> str:
    """Return the URL's scheme if it is a known one; else "", because `password@host:1` has a scheme too."""
    scheme = url.partition(":")[0].lower()
    return scheme if scheme in _SCHEMES else ""


# URL options that redis-py's connections accept. Other options are passed on and raise at each connect.
_KNOWN = frozenset(
    {
        "db", "username", "password", "path", "client_name", "protocol", "encoding", "encoding_errors",
        "socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_read_size", "retry_on_timeout",
        "health_check_interval", "max_connections", "timeout",
    }
)  # fmt: skip


def for_redis_py(url: str) -> str:
    """Return the URL of the same server for `redis.Redis.from_url`.

    `ssl_cert_reqs=CERT_REQUIRED` becomes `required`, `redis+socket://` becomes `unix://`, `virtual_host` becomes `db`;
    options that only kombu knows (`visibility_timeout`, …) are removed. A URL of another scheme is returned unchanged;
    the code that opens it reports it. Raises address.Unreadable, whose message may be shown.
    """
    parts = split(url)
    scheme = "unix" if parts.scheme == "redis+socket" else parts.scheme
    if scheme not in {"redis", "rediss", "unix"}:
        return url
    if scheme != "unix" and parts.path.replace("/", "") and not parts.path.replace("/", "").isdecimal():
        # redis-py would use database 0, Celery none.
        raise Unreadable("the path must be a database number, such as /0")
    options = []
    for name, value in parse_qsl(parts.query):
        if name == "virtual_host":
            name, value = "db", value.lstrip("/") or "0"
        elif name == "ssl_cert_reqs":
            value = value.rpartition(".")[2].upper().removeprefix("CERT_").lower()
        if name in _KNOWN or (name.startswith("ssl_") and scheme == "rediss"):
            options.append((name, value))
    made = urlunsplit(parts._replace(scheme=scheme, query=urlencode(options)))
    # urlunsplit writes `unix:/run/x.sock` without a host; redis-py requires both slashes.
    return made if "://" in made else made.replace(":", "://", 1)
