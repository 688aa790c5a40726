"""A Redis URL as Celery's configuration writes it, in the words of redis-py."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlunsplit

from jobs_admin.core import address

# What redis-py's connections take from a URL. It hands every other word on to them, and they raise at each connect.
_KNOWN = frozenset(
    {
        "db", "username", "password", "path", "client_name", "protocol", "encoding", "encoding_errors",
        "socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_read_size", "retry_on_timeout",
        "health_check_interval", "max_connections", "timeout",
    }
)  # fmt: skip


def for_redis_py(url: str) -> str:
    """The same server for `redis.Redis.from_url`.

    `ssl_cert_reqs=CERT_REQUIRED` becomes `required`, `redis+socket://` becomes `unix://`, `virtual_host` becomes
    `db`; what only kombu understands (`visibility_timeout`, …) is left out. A URL that is no Redis URL comes back
    as it was: whoever opens it says so. Raises address.Unreadable, whose text may be shown.
    """
    parts = address.split(url)
    scheme = "unix" if parts.scheme == "redis+socket" else parts.scheme
    if scheme not in {"redis", "rediss", "unix"}:
        return url
    if scheme != "unix" and parts.path.replace("/", "") and not parts.path.replace("/", "").isdecimal():
        # redis-py would take database 0 for it, and Celery none.
        raise address.Unreadable("what follows its server must be a database's number, such as /0")
    options = []
    for name, value in parse_qsl(parts.query):
        if name == "virtual_host":
            name, value = "db", value.lstrip("/") or "0"
        elif name == "ssl_cert_reqs":
            value = value.rpartition(".")[2].upper().removeprefix("CERT_").lower()
        if name in _KNOWN or (name.startswith("ssl_") and scheme == "rediss"):
            options.append((name, value))
    made = urlunsplit(parts._replace(scheme=scheme, query=urlencode(options)))
    # urlunsplit writes `unix:/run/x.sock` where there is no host; redis-py wants both slashes.
    return made if "://" in made else made.replace(":", "://", 1)
