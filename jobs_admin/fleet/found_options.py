"""Retry options of queued jobs, stored from one check of `sample` to the next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import redis

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.lint.options import FoundOptions, document, read
from jobs_admin.models.access import VIEWER, Viewer

_STORED_S = 86_400  # without a new check
_FRESH_S = 300


@dataclass(frozen=True, slots=True)
class QueuedOptions:
    """`found` is of the sources that the viewer may see, each as of its last check."""

    found: tuple[FoundOptions, ...] = ()
    is_reachable: bool = True  # False: the store does not answer

    def stale(self, now: datetime) -> list[tuple[str, datetime]]:
        """Sources that were not checked for a while, with the time of the last check."""
        return [
            (one.source, datetime.fromtimestamp(one.at, UTC))
            for one in self.found
            if now.timestamp() - one.at > _FRESH_S
        ]


def store_options(found: FoundOptions) -> None:
    """Store the options of one source. Raises redis.RedisError."""
    config.store().set(keys.options(found.source), document(found), ex=_STORED_S)


def stored_options(viewer: Viewer) -> QueuedOptions:
    """Stored options of the viewer's sources, in one round trip to the store."""
    names = [name for name in config.sources() if viewer.may(VIEWER, name)]
    if not names:
        return QueuedOptions()
    try:
        texts = config.store().mget([keys.options(name) for name in names])
    except (redis.RedisError, config.BadConfiguration):
        return QueuedOptions(is_reachable=False)
    pairs = zip(names, texts, strict=True)
    return QueuedOptions(tuple(found for name, text in pairs if text and (found := read(text, name)) is not None))
