"""Whether what the settings name can be reached: asked once, at the start, so that a wrong URL is one sentence."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import redis
from django.db import connections
from django.db.utils import Error as DatabaseError

from dashboard import environment
from dashboard.environment import Misconfigured
from jobs_admin import config

OLDEST_REDIS = (6, 2)
TIMEOUT_S = 4.0
DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671, "pyamqp": 5672, "sentinel": 26379}


def check_given() -> None:
    """Raises Misconfigured, naming the variable, for the first URL that is set and cannot be used."""
    for name in ("REDRIVE_REDIS_URL", "REDIS_URL"):
        if environment.is_given(name):
            check_redis(name, environment.get(name))
            break
    if environment.is_given("CELERY_BROKER_URL"):
        check_broker("CELERY_BROKER_URL", environment.get("CELERY_BROKER_URL"))
    check_sources()
    check_payload_keys()
    check_database()


def check_sources() -> None:
    """Every source of the file: what it says, and that somebody answers there."""
    path = environment.get("REDRIVE_SOURCES")
    if not path:
        return
    try:
        found = config.sources()
    except config.BadConfiguration as error:
        raise Misconfigured(f"{error} Nothing was started.") from error
    for source in found.values():
        if not source.is_demo and source.backend == "celery":
            check_broker(f"REDRIVE_SOURCES: the url of [sources.{source.name}]", source.url)


def check_payload_keys() -> None:
    try:
        config.payload_keys()
    except ValueError as error:
        raise Misconfigured(
            f"REDRIVE_PAYLOAD_KEYS: one of them is not a Fernet key ({error}). Nothing was started."
        ) from error


def check_broker(name: str, url: str) -> None:
    """As `check_redis` for a Redis broker; for any other, that somebody listens there."""
    parts = _parts(name, url)
    if parts.scheme.removesuffix("+socket") in {"redis", "rediss"}:
        check_redis(name, url)
        return
    if parts.scheme not in DEFAULT_PORTS:
        raise Misconfigured(
            f"{name} must begin with redis://, rediss://, sentinel:// or amqp://, not {parts.scheme or 'nothing'}. "
            "Nothing was started."
        )
    try:
        address = (parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORTS[parts.scheme])
        socket.create_connection(address, timeout=TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{name} cannot be reached: {shown(url)} ({error}). Nothing was started.") from error


def check_redis(name: str, url: str) -> None:
    """A single Redis or Valkey, 6.2 or newer, that lets us in."""
    if _parts(name, url).scheme.startswith("redis+socket"):
        url = url.replace("redis+socket", "unix", 1)
    try:
        with redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as client:
            client.ping()
            answers = client.info()
    except (redis.RedisError, ValueError, OSError) as error:
        raise Misconfigured(
            f"{name} cannot be used: {shown(url)} ({_first_line(error)}). Nothing was started."
        ) from error
    if answers.get("cluster_enabled"):
        raise Misconfigured(
            f"{name} is a Redis Cluster ({shown(url)}), which neither Celery nor Redrive can use: give a single "
            "server. Nothing was started."
        )
    version = str(answers.get("redis_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
        raise Misconfigured(
            f"{name} is Redis {version} ({shown(url)}): Redrive needs 6.2 or newer. Nothing was started."
        )


def check_database() -> None:
    connection = connections["default"]
    try:
        connection.ensure_connection()
    except (DatabaseError, ValueError) as error:
        given = environment.get("DATABASE_URL")
        what = f"DATABASE_URL cannot be used: {shown(given)}" if given else "The database cannot be opened"
        raise Misconfigured(f"{what} ({_first_line(error)}). Nothing was started.") from error


def shown(url: str) -> str:
    """The URL without its password."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    return parts._replace(netloc=f"{user}:…@{parts.netloc.rpartition('@')[2]}").geturl()


def _parts(name: str, url: str):
    try:
        return urlsplit(url)
    except ValueError as error:
        raise Misconfigured(f"{name} is not a URL ({error}). Nothing was started.") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
