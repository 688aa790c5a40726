"""Adapters to queue systems: no Django, no models. `connect` is the only way in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs_admin.sources.base import Source, SourceRefused


def connect(
    name: str,
    backend: str,
    url: str,
    queues: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    store_prefix: str = "redrive",
) -> Source:
    """The adapter for a configured source. Nothing is dialled yet.

    `queues` empty means all that can be discovered. Raises SourceRefused, with a sentence, for a backend or a URL that
    cannot be used.
    """
    if backend == "celery":
        from jobs_admin.sources.celery import CeleryOnRedis

        return CeleryOnRedis(name, url, queues=queues, options=options or {}, store_prefix=store_prefix)
    if backend == "memory":
        from jobs_admin.sources.memory import MemorySource

        return MemorySource(name, queues=queues)
    raise SourceRefused(f"Source {name}: there is no adapter for backend {backend!r}.")
