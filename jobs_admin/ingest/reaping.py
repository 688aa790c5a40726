"""Jobs that ran in a worker when it died, of those that it kept (`worker/ledger.py`): filed as lost.

Whoever looks, and however many: a report and the end of what was kept are one step in the store. A worker that was only frozen
goes on, and its own word overrules this one.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import redis

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.db import step_progress
from jobs_admin.fleet import worker_store
from jobs_admin.fleet.worker_store import Named
from jobs_admin.worker.ledger import KEPT_DAYS, with_report
from jobs_admin.worker.store import STREAM_BYTES

# A store that was away or hung makes every worker look silent until each has dialled anew and given a sign: ten seconds.
# Who is silent is looked at once more after this time, with no long gap between two looks.
SURE_S = 12.0
GAP_S = 40.0
_AT_ONCE = 500
_BYTES_AT_ONCE = 4 * 1024**2
_LONGEST_NAME = 80
# What the store refuses to everybody; all else that it refuses is due to what a source wrote under its own keys.
_REFUSED_TO_ALL = (
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.NoPermissionError,
)
BEGINS = "worker "  # the reason of what is filed here

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Look:
    sign: float | None
    since: float  # monotonic
    last: float


@dataclass
class Reaper:
    """Remembers who was silent, as long as it can look. `now` is monotonic, in seconds."""

    _silent: dict[Named, _Look] = field(default_factory=dict)
    _unusable: set[str] = field(default_factory=set)  # sources whose keys hold something else, at the last look

    def look(self, store: redis.Redis, now: float) -> bool:
        """File what dead workers kept. True if there is more to do at once. Raises redis.RedisError."""
        is_more = False
        found: dict[Named, _Look] = {}
        unusable: set[str] = set()
        for place in worker_store.kept_boots(store, worker_store.all_sources(store)):
            try:
                is_more |= self._look_at(store, place, now, found)
            except _REFUSED_TO_ALL:
                raise
            except redis.ResponseError as error:
                source, _ = place
                if source not in self._unusable | unusable:
                    log.warning("Source %s: lost jobs that it kept cannot be filed, others are: %s", source, error)
                unusable.add(source)
        self._unusable = unusable
        self._silent = found
        return is_more

    def _look_at(self, store: redis.Redis, place: Named, now: float, found: dict[Named, _Look]) -> bool:
        """File what one dead worker kept; a silent one is put to those that were found. True if it kept more."""
        source, boot = place
        if not boot.isalnum():
            return False
        sign, is_gone, name, stream_bytes = _last_sign(store, source, boot)
        if sign is not None and _ms(store) - sign <= keys.SILENT_MS:
            return False
        look = found[place] = self._seen(place, sign, now)
        if not is_gone and now - look.since < SURE_S:
            return False
        is_more = _file(store, source, boot, sign, _why(name, sign, is_gone), stream_bytes)
        step_progress.report()
        return is_more

    def _seen(self, place: Named, sign: float | None, now: float) -> _Look:
        before = self._silent.get(place)
        if before is None or before.sign != sign or now - before.last > GAP_S:
            return _Look(sign, now, now)
        return _Look(sign, before.since, now)


_reaper = Reaper()


def step(now: float) -> bool:
    """Part of the step `reconcile` of `watch`."""
    return _reaper.look(config.store(), now)


def _last_sign(store: redis.Redis, source: str, boot: str) -> tuple[float | None, bool, str, int]:
    """When it gave its last sign (ms since 1970, the store's clock; None: never, or too long ago), whether that was its last
    word, its name, and how many bytes the stream may hold by its setting."""
    pipeline = store.pipeline(transaction=False)
    pipeline.zscore(keys.boots(source), boot)
    pipeline.hmget(keys.boot(source, boot), ["gone", "worker", "stream"])
    sign, (gone, name, stream) = pipeline.execute()
    told = untrusted.whole(stream)
    stream_bytes = STREAM_BYTES if told is None else told
    return sign, gone is not None, (name or boot.encode()).decode("utf-8", "replace"), stream_bytes


def _ms(store: redis.Redis) -> float:
    seconds, micros = store.time()
    return seconds * 1000 + micros / 1000


def _why(name: str, sign: float | None, is_gone: bool) -> str:
    worker = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    at = ""
    if sign is not None:
        # One that says goodbye is put among the silent at once (`worker/beat.lua`).
        moment = untrusted.moment((sign + keys.SILENT_MS) / 1000 if is_gone else sign / 1000)
        at = f" {'at' if is_gone else 'soon after'} {moment:%Y-%m-%d %H:%M:%S} UTC" if moment else ""
    return f"{BEGINS}{worker} stopped{at}; the job had been acknowledged, so the broker will not give it again"


def _file(store: redis.Redis, source: str, boot: str, sign: float | None, why: str, stream_bytes: int) -> bool:
    kept = keys.kept(source, boot)
    told: Any = store.eval(
        _script(),
        6,
        *(keys.kept_boots(source), kept, keys.boots(source), keys.failures(source), keys.failures_bytes(source)),
        keys.shared("kept"),
        *(f"{source}/{boot}", boot, "" if sign is None else repr(sign), keys.SILENT_MS),
        *(json.dumps(why), _AT_ONCE, _BYTES_AT_ONCE, KEPT_DAYS * 86_400_000, stream_bytes),
    )
    filed, is_more = map(int, told)
    if filed:
        log.warning("Source %s: %d jobs are lost: %s.", source, filed, why)
    return bool(is_more)


@cache
def _script() -> str:
    return with_report((Path(__file__).parent / "reaping.lua").read_text())
