"""Jobs that ran in a worker when it died, of those that it kept (`worker/ledger.py`): filed as lost.

Whoever looks, and however many: a report and the end of what was kept are one step in the store. A worker that was only frozen
goes on, and its own word overrules this one.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import redis

from jobs_admin import config, step_progress
from jobs_admin.core import keys
from jobs_admin.worker.ledger import KEPT_DAYS, with_report
from jobs_admin.worker.store import STREAM_BYTES

# A store that was away or hung makes every worker look silent until each has dialled anew and given a sign: ten seconds.
# Who is silent is looked at once more after this time, with no long gap between two looks.
SURE_S = 12.0
GAP_S = 40.0
_AT_ONCE = 500
_BYTES_AT_ONCE = 4 * 1024**2
_LONGEST_NAME = 80
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

    _silent: dict[str, _Look] = field(default_factory=dict)

    def look(self, store: redis.Redis, now: float) -> bool:
        """File what dead workers kept. True if there is more to do at once. Raises redis.RedisError."""
        places = {place.decode("utf-8", "replace") for place in store.smembers(keys.kept_places())}
        is_more = False
        found = {}
        for place in sorted(places):
            source, _, boot = place.partition("/")
            if not keys.valid_source(source) or not boot.isalnum():
                continue
            sign, is_gone, name, stream_bytes = _last_sign(store, source, boot)
            if sign is not None and _ms(store) - sign <= keys.SILENT_MS:
                continue
            look = found[place] = self._seen(place, sign, now)
            if is_gone or now - look.since >= SURE_S:
                is_more |= _file(store, source, boot, sign, _why(name, sign, is_gone), stream_bytes)
                step_progress.report()
        self._silent = found
        return is_more

    def _seen(self, place: str, sign: float | None, now: float) -> _Look:
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
    stream_bytes = int(stream) if stream and stream.isdigit() else STREAM_BYTES
    return sign, gone is not None, (name or boot.encode()).decode("utf-8", "replace"), stream_bytes


def _ms(store: redis.Redis) -> float:
    seconds, micros = store.time()
    return seconds * 1000 + micros / 1000


def _why(name: str, sign: float | None, is_gone: bool) -> str:
    worker = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    at = ""
    if sign is not None:
        # One that says goodbye is put among the silent at once (`worker/beat.lua`).
        seconds = (sign + keys.SILENT_MS) / 1000 if is_gone else sign / 1000
        at = f" {'at' if is_gone else 'soon after'} {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"{BEGINS}{worker} stopped{at}; the job had been acknowledged, so the broker will not give it again"


def _file(store: redis.Redis, source: str, boot: str, sign: float | None, why: str, stream_bytes: int) -> bool:
    kept = keys.kept(source, boot)
    told: Any = store.eval(
        _script(),
        5,
        *(keys.kept_places(), kept, keys.boots(source), keys.failures(), keys.failures_bytes()),
        *(f"{source}/{boot}", boot, "" if sign is None else repr(sign), keys.SILENT_MS),
        *(json.dumps({"reason": why})[1:-1], _AT_ONCE, _BYTES_AT_ONCE, KEPT_DAYS * 86_400_000, stream_bytes),
    )
    filed, is_more = map(int, told)
    if filed:
        log.warning("Source %s: %d jobs are lost: %s.", source, filed, why)
    return bool(is_more)


@cache
def _script() -> str:
    return with_report((Path(__file__).parent / "reaping.lua").read_text())
