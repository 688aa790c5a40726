"""Connection to a queue system that is one Redis, and its name for display."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs_admin.core import service_url
from jobs_admin.core.service_url import for_redis_py
from jobs_admin.sources.base import SourceRefused

TIMEOUT_S = 5
_SCHEMES = {"redis", "rediss", "redis+socket", "unix"}


def dial(name: str, url: str, begins: str) -> tuple[redis.Redis, str]:
    """A client for the source `name`, and the words for the server, without its password. Nothing is dialled yet.

    `begins` says how a URL begins. Raises SourceRefused for one that is not of one Redis.
    """
    scheme, _, rest = url.partition("://")
    # Checked before the parts are split: a list of servers has no one port. (A comma may stand in a password.)
    if "cluster" in scheme or "," in rest.rpartition("@")[2].partition("/")[0] or ";" in url:
        raise SourceRefused(f"Source {name}: a Redis Cluster or a list of servers cannot be used. Name one Redis.")
    try:
        parts = service_url.split(url)
        if parts.scheme not in _SCHEMES:
            raise SourceRefused(f"Source {name}: {begins}.")
        client = redis.Redis.from_url(
            for_redis_py(url),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            health_check_interval=30,
            # Once, for a connection that the server closed while we were idle; a time-out is not tried again.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )
        where = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
    except service_url.Unreadable as error:
        raise SourceRefused(f"Source {name}: its URL cannot be read: {error}.") from error
    except (ValueError, TypeError) as error:
        raise SourceRefused(f"Source {name}: its URL cannot be read ({type(error).__name__}).") from error
    return client, f"Redis at {where}"


def escape_glob(text: str) -> str:
    """Return the text with Redis' glob characters escaped."""
    return "".join("\\" + c if c in "*?[]\\^" else c for c in text)
