"""Effective retry settings: configurations of live workers, merged if equal, and options of queued jobs."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import redis

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.core.lint import options
from jobs_admin.core.lint.configuration import Configuration, read
from jobs_admin.core.lint.options import FoundOptions
from jobs_admin.fleet import worker_store
from jobs_admin.fleet.worker_store import Named
from jobs_admin.models import Worker
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.source import ALIVE_S

_IS_DIGEST = re.compile(r"[0-9a-f]{32}\Z")  # it becomes a part of a key
_MOST_NAMES = 1_000


@dataclass(frozen=True, slots=True)
class Stale:
    """A source without live workers: its last report is used."""

    source: str
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class ReportedConfigurations:
    """Configurations of live workers, and, for sources without any, of the workers that lived last."""

    found: tuple[Configuration, ...] = ()
    stale: tuple[Stale, ...] = ()
    silent: tuple[tuple[str, int], ...] = ()  # (source, live workers that report none: older guards)
    is_reachable: bool = True  # False: the store does not answer, so workers are unknown

    @property
    def complete(self) -> frozenset[str]:
        """Sources of which every live guarded worker reported its configuration."""
        silent = {source for source, _ in self.silent} | {one.source for one in self.stale}
        return frozenset({one.source for one in self.found} - silent)

    @property
    def workers(self) -> int:
        """Number of live workers that reported a configuration."""
        stale = {one.source for one in self.stale}
        return sum(len(one.workers) for one in self.found if one.source not in stale)


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """One worker's last heartbeat, with the fields needed here."""

    source: str
    name: str
    seen_at: datetime
    digest: str
    mode: str
    queues: tuple[str, ...]


def reported_configurations(viewer: Viewer, now: datetime | None = None) -> ReportedConfigurations:
    """Configurations of the sources that the viewer may see. Two round trips to the store, one query."""
    now = now or datetime.now(UTC)
    try:
        store = config.store()
        raw = worker_store.fields(store, "workers", worker_store.all_sources(store), all_shared=True)
        words = [word for word in _read_heartbeats(raw, now) if viewer.may(VIEWER, word.source)]
        speaking, stale = _latest_heartbeats(words, now)
        texts = worker_store.texts(
            store, "configuration", {(word.source, word.digest) for word in speaking if word.digest}
        )
    except (redis.RedisError, config.BadConfiguration):
        return ReportedConfigurations(is_reachable=False)
    by_digest: dict[tuple[str, str], list[_Heartbeat]] = defaultdict(list)
    silent: dict[str, int] = defaultdict(int)
    for word in speaking:
        if (text := texts.get((word.source, word.digest))) and read(text, word.source) is not None:
            by_digest[word.source, word.digest].append(word)
        else:
            silent[word.source] += 1
    found = [_build_configuration(words, texts[named]) for named, words in sorted(by_digest.items())]
    return ReportedConfigurations(tuple(filter(None, found)), tuple(stale), tuple(sorted(silent.items())))


def _build_configuration(words: list[_Heartbeat], text: bytes) -> Configuration | None:
    found = read(text, words[0].source)
    if found is None:
        return None
    return replace(
        found,
        workers=tuple(sorted(word.name for word in words)),
        consumed=tuple(sorted({queue for word in words for queue in word.queues})),
        modes=frozenset(word.mode for word in words),
    )


def _read_heartbeats(raw: dict[Named, bytes], now: datetime) -> list[_Heartbeat]:
    """Parse the heartbeats; their time is by our clock, if `watch` has recorded it."""
    seen = {(source, name): at for source, name, at in Worker.objects.values_list("source", "name", "seen_at")}
    found = []
    for (source, field), text in raw.items():
        values, name = untrusted.read_object(text), untrusted.text(field, 255)
        if values and name:
            at = seen.get((source, name)) or min(untrusted.moment(values.get("at")) or untrusted.FIRST, now)
            found.append(
                _Heartbeat(source, name, at, _digest(values), untrusted.text(values.get("mode"), 10), _queues(values))
            )
    return found


def _latest_heartbeats(words: list[_Heartbeat], now: datetime) -> tuple[list[_Heartbeat], list[Stale]]:
    """Return heartbeats of live workers by source; for a source without any, its latest ones."""
    by_source: dict[str, list[_Heartbeat]] = defaultdict(list)
    for word in words:
        by_source[word.source].append(word)
    speaking, stale = [], []
    for source, heard in sorted(by_source.items()):
        alive = [word for word in heard if (now - word.seen_at).total_seconds() <= ALIVE_S]
        if not alive:
            last = max(word.seen_at for word in heard)
            stale.append(Stale(source, last))
            alive = [word for word in heard if last - word.seen_at <= timedelta(seconds=ALIVE_S)]
        speaking += alive
    return speaking, stale


def _digest(values: dict[str, Any]) -> str:
    digest = values.get("configuration")
    return digest if isinstance(digest, str) and _IS_DIGEST.match(digest) else ""


def _queues(values: dict[str, Any]) -> tuple[str, ...]:
    named = values.get("queues")
    return tuple(untrusted.text(queue, 200) for queue in named[:_MOST_NAMES]) if isinstance(named, list) else ()


# Retry options of queued jobs, stored from one check of `sample` to the next.

_STORED_S = 86_400  # without a new check
_FRESH_S = 300


@dataclass(frozen=True, slots=True)
class QueuedOptions:
    """Options of queued jobs of the viewer's sources, as of the last check of each."""

    found: tuple[FoundOptions, ...] = ()
    is_reachable: bool = True  # False: the store does not answer

    def stale(self, now: datetime) -> list[tuple[str, datetime]]:
        """Return the sources that were not checked recently, with the time of the last check."""
        return [
            (one.source, datetime.fromtimestamp(one.at, UTC))
            for one in self.found
            if now.timestamp() - one.at > _FRESH_S
        ]


def store_options(found: FoundOptions) -> None:
    """Store the options of one source. Raises redis.RedisError."""
    config.store().set(keys.options(found.source), options.document(found), ex=_STORED_S)


def stored_options(viewer: Viewer) -> QueuedOptions:
    """Return the stored options of the viewer's sources, in one round trip to the store."""
    names = [name for name in config.sources() if viewer.may(VIEWER, name)]
    if not names:
        return QueuedOptions()
    try:
        texts = config.store().mget([keys.options(name) for name in names])
    except (redis.RedisError, config.BadConfiguration):
        return QueuedOptions(is_reachable=False)
    pairs = zip(names, texts, strict=True)
    return QueuedOptions(
        tuple(found for name, text in pairs if text and (found := options.read(text, name)) is not None)
    )
