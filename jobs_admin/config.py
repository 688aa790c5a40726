"""The only reader of the engine's settings: where the store is, which sources there are, what pages are called."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import redis
from cryptography.fernet import Fernet, MultiFernet
from django.conf import settings

from jobs_admin.core import keys
from jobs_admin.core.address import Unreadable
from jobs_admin.core.redis_url import for_redis_py
from jobs_admin.sources import Source, connect

BACKENDS = ("celery",)


class BadConfiguration(ValueError):
    """A setting that cannot be used. The text names it and says what to do."""


@dataclass(frozen=True, slots=True)
class SourceConfig:
    name: str
    backend: str
    url: str
    queues: tuple[str, ...] = ()  # empty: all that can be discovered
    is_demo: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@cache
def sources() -> dict[str, SourceConfig]:
    """The configured sources by name, in the order of the file."""
    found: dict[str, SourceConfig] = {}
    if settings.REDRIVE_DEMO_BROKER_URL:
        found["shop"] = SourceConfig("shop", "celery", settings.REDRIVE_DEMO_BROKER_URL, is_demo=True)
    if settings.REDRIVE_SOURCES:
        found.update(_from_file(Path(settings.REDRIVE_SOURCES)))
    elif settings.REDRIVE_CELERY_BROKER_URL:
        found["celery"] = SourceConfig("celery", "celery", settings.REDRIVE_CELERY_BROKER_URL)
    return found


def _from_file(path: Path) -> dict[str, SourceConfig]:
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadConfiguration(f"REDRIVE_SOURCES ({path}) cannot be read: {error}") from error
    found = {}
    for name, table in document.get("sources", {}).items():
        if not keys.valid_source(name):
            raise BadConfiguration(f"REDRIVE_SOURCES: {name!r} cannot name a source: use a-z, 0-9, - and _.")
        if not isinstance(table, dict) or not isinstance(table.get("url"), str):
            raise BadConfiguration(f"REDRIVE_SOURCES: [sources.{name}] needs a url.")
        if table.get("backend") not in (*BACKENDS, *settings.REDRIVE_TEST_BACKENDS):
            raise BadConfiguration(
                f"REDRIVE_SOURCES: [sources.{name}] has backend {table.get('backend')!r}; known: {', '.join(BACKENDS)}."
            )
        options = {k: v for k, v in table.items() if k not in {"backend", "url", "queues"}}
        found[name] = SourceConfig(
            name, table["backend"], table["url"], tuple(table.get("queues", ())), options=options
        )
    return found


@cache
def store() -> redis.Redis:
    """Redrive's own Redis. Bytes in, bytes out; a call that hangs ends after five seconds."""
    if not settings.REDRIVE_REDIS_URL:
        raise BadConfiguration("REDRIVE_REDIS_URL is not set. Run `python3 manage.py up`, or set it.")
    try:
        return redis.Redis.from_url(
            for_redis_py(settings.REDRIVE_REDIS_URL),
            socket_timeout=5,
            socket_connect_timeout=5,
            health_check_interval=30,
        )
    except (ValueError, TypeError) as error:  # redis-py's own texts quote the part that they stumbled over
        why = str(error) if isinstance(error, Unreadable) else "it begins with redis://, rediss:// or unix://"
        raise BadConfiguration(f"REDRIVE_REDIS_URL cannot be used: {why}.") from error


@cache
def adapter(name: str) -> Source:
    """The connection to a configured source.

    Raises KeyError for a name that is not configured, sources.base.Refused for a URL that cannot be used.
    """
    found = sources()[name]
    return connect(name, found.backend, found.url, queues=found.queues, options=found.options, store_prefix=keys.PREFIX)


@cache
def payload_keys() -> MultiFernet:
    """What encrypts raw messages at rest; the first key encrypts, all of them decrypt."""
    if not settings.REDRIVE_PAYLOAD_KEYS:
        raise BadConfiguration(
            "REDRIVE_PAYLOAD_KEYS is not set. Run `python3 manage.py up`, which makes one, or set it."
        )
    return MultiFernet([Fernet(key) for key in settings.REDRIVE_PAYLOAD_KEYS])


def is_read_only() -> bool:
    """Whether every changing act is refused."""
    return bool(settings.REDRIVE_READ_ONLY)


def page_url(path: str) -> str:
    """The public address of a page, for links that leave the browser: alerts, terminal."""
    return settings.REDRIVE_URL + path
