"""The open pauses of each source, as its workers read them from the store.

What is there is always made from the tables as a whole, so that whoever pushes last leaves what is in force. Where the store lost
it, or was away when something was paused or resumed, the next round of `watch` brings it.
"""

from __future__ import annotations

import logging
from datetime import datetime

import redis

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.pauses import UNTIL_RESUMED, Pauses
from jobs_admin.models import Pause, Source

log = logging.getLogger(__name__)


def push_soon() -> None:
    """After a change. Never raises: what is paused is paused, and `watch` goes on trying."""
    try:
        push()
    except (redis.RedisError, config.BadConfiguration) as error:
        log.warning("Workers do not have the pause yet: %s `watch` sends the change later.", error)


def push() -> bool:
    """Make the store say what the tables say; whether that was not so. Raises redis.RedisError."""
    paused = set(Pause.objects.values_list("source", flat=True).distinct())
    sources = sorted({*paused, *Source.objects.values_list("pk", flat=True)})
    if not sources:
        return False
    stored = config.store().mget([keys.pauses(source) for source in sources])
    wanted = _documents(sources)
    # Also of sources without a row, as after a database was restored: no one could end those pauses.
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
            # Watched before the tables are read: whoever pushes something newer meanwhile makes us read again.
            pipe.watch(name)
            wanted = _documents([source])[source]
            if pipe.get(name) == wanted:
                return False
            pipe.multi()
            pipe.set(name, wanted)
            try:
                pipe.execute()
            except redis.WatchError:
                continue
            return True


def _documents(sources: list[str]) -> dict[str, bytes]:
    """Empty ones too: a worker ends a pause when it reads that there is none, and not when the store lost its memory."""
    found: dict[str, tuple[dict[str, int], dict[str, int]]] = {source: ({}, {}) for source in sources}
    for one in Pause.objects.filter(source__in=sources, resumed_at=None):
        end = _ms(one.until) if one.until else UNTIL_RESUMED
        found[one.source][0 if one.queue else 1][one.queue or one.task] = end
    return {source: Pauses(*places).render() for source, places in found.items()}


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
