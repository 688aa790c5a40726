"""Copies of each source's open pauses in the store, which its workers read.

A copy is always built from the complete tables, so that the last writer leaves the current pauses. If the store lost a
copy, or was unreachable during a change, the next round of `watch` writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any

import redis
from django.db.models import Q
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.pauses import UNTIL_RESUMED, Pauses, is_older
from jobs_admin.models import Pause, Source
from jobs_admin.models.hold import KINDS

_OLDER_DESK_S = 60

log = logging.getLogger(__name__)


def push_soon() -> None:
    """Write the copies after a change. Never raises: the change is saved, and `watch` retries."""
    try:
        push()
    except (redis.RedisError, config.BadConfiguration) as error:
        log.warning("Workers do not have the pause yet: %s `watch` sends the change later.", error)


def push() -> bool:
    """Write outdated copies. Return whether there were any. Raises redis.RedisError."""
    paused = set(Pause.objects.values_list("source", flat=True).distinct())
    sources = sorted({*paused, *Source.objects.values_list("pk", flat=True)})
    if not sources:
        return False
    stored = config.store().mget([keys.pauses(source) for source in sources])
    wanted = _documents(sources)
    # Also sources without a row, as after a restored database: otherwise their pauses could not be ended.
    changed = [
        source
        for source, text in zip(sources, stored, strict=True)
        if text != wanted[source] and (text is not None or source in paused)
    ]
    pushed = [_push_one(source) for source in changed]
    return any(pushed)


def _push_one(source: str) -> bool:
    name = keys.pauses(source)
    with config.store().pipeline() as pipe:
        while True:
            # Watched before the tables are read: a later write by another process makes this one read again.
            pipe.watch(name)
            wanted = _documents([source])[source]
            stored = pipe.get(name)
            if stored == wanted:
                return False
            pipe.multi()
            pipe.set(name, wanted)
            if is_older(stored):
                pipe.set(keys.older_desk(source), 1, ex=_OLDER_DESK_S)
            try:
                pipe.execute()
            except redis.WatchError:
                continue
            return True


def _documents(sources: list[str]) -> dict[str, bytes]:
    """Return the copy of each source, also empty ones: a worker ends a pause on an empty copy, but not on a missing one."""
    found: dict[str, dict[str, dict[str, int]]] = {source: {kind: {} for kind in KINDS} for source in sources}
    in_force = Q(resumed_at=None) | Q(resumed_at__gt=timezone.now())  # the latter ends soon, in the workers
    for one in Pause.objects.filter(in_force, source__in=sources).order_by("pk"):
        ends_at = one.resumed_at or one.until
        end = _ms(ends_at) if ends_at else UNTIL_RESUMED
        found[one.source][one.kind][one.name] = end
    return {source: Pauses(*places.values()).render() for source, places in found.items()}


def find_overwritten(sources: Collection[str]) -> list[str]:
    """Return the sources whose pauses an older desk also publishes; none if the store does not answer."""
    names = sorted(sources)
    if not names:
        return []
    try:
        stored: Any = config.store().mget([key(source) for key in (keys.pauses, keys.older_desk) for source in names])
    except (redis.RedisError, config.BadConfiguration):
        return []
    texts, marks = stored[: len(names)], stored[len(names) :]
    return [source for source, text, mark in zip(names, texts, marks, strict=True) if mark or is_older(text)]


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
