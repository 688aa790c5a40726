"""Store in a backup: the keys that no table has and a new store would lack, by Redis' DUMP with their TTL.

These are unfiled reports, counts of failures that could not be captured, the guard switch, and delayed retries. All
other keys are written again within seconds (heartbeats, policies, depths), or would be wrong later: ledgers, leases and
crash counts of the past do not apply to jobs since.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path

import redis
from django.conf import settings

from dashboard.setup import environment
from dashboard.setup.backups.archive import Archive, Backup, BackupFailed
from dashboard.setup.backups.database import Progress
from dashboard.setup.engine import Engine, EngineFailed, is_free
from jobs_admin import config
from jobs_admin.core import keys

MEMBER = "store.dump"
_HEAD = struct.Struct(">qII")  # TTL in ms (-1: none), bytes of the key, bytes of the value
_AT_ONCE = 100
_MOST_VALUE = 1 << 30
_DROPPED = re.compile(r"(\{[^{}]*\}:)?dropped\Z")
_COUNT = re.compile(r"(\{[^{}]*\}:)?failures:bytes\Z")
_STREAM = re.compile(r"(\{[^{}]*\}:)?failures\Z")
_DELAYED = re.compile(r"\{[^{}]*\}:due(:\d+)?\Z")
# Moves the delayed retries that are not due yet into an empty set; the others may have been promoted since. KEYS: due,
# due:jobs, and both as restored. ARGV[1]: retries due earlier are excluded (ms since 1970).
_PLACE_DELAYED = """
local early = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ARGV[1])
for _, member in ipairs(early) do
  redis.call('ZREM', KEYS[3], member)
  redis.call('HDEL', KEYS[4], member)
end
local later = redis.call('ZCARD', KEYS[3])
local is_free = redis.call('EXISTS', KEYS[1], KEYS[2]) == 0
if is_free and later > 0 then
  redis.call('RENAME', KEYS[3], KEYS[1])
  redis.call('RENAME', KEYS[4], KEYS[2])
else
  redis.call('DEL', KEYS[3], KEYS[4])
end
return {is_free and later or 0, #early}
"""


@contextlib.contextmanager
def reachable(consequence: str) -> Iterator[redis.Redis]:
    """Yield a client of the store, starting the private engine of `up` meanwhile if `up` is not running.

    Raises BackupFailed if the store does not answer; `consequence` ends its text.
    """
    folder, engine, lock = environment.data_folder(), None, None
    try:
        if not environment.is_given("REDRIVE_REDIS_URL") and not environment.is_given("REDIS_URL"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = hold_folder(folder)
            if lock is not None:
                engine = _start_engine(folder, lock)
        client = config.store()
        client.ping()
        yield client
    except (redis.RedisError, EngineFailed, config.BadConfiguration) as error:
        raise BackupFailed(f"The store failed (REDRIVE_REDIS_URL): {error}. {consequence}") from error
    finally:
        if engine is not None:
            engine.stop()
        if lock is not None:
            os.close(lock)


def _start_engine(folder: Path, lock: int) -> Engine:
    """Start the engine of this folder as `up` does, and use it in this process."""
    made = environment.read_made(folder)
    known = made.setdefault("engine", {"port": None, "password": secrets.token_urlsafe(24)})
    port = known.get("port")
    engine = Engine(folder / "engine", port if port and is_free(port) else None, known["password"], keep_open=(lock,))
    engine.start()
    if "engine" not in environment.read_made(folder):
        environment.write_made(folder, made)
    os.environ["REDRIVE_REDIS_URL"] = engine.url
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": engine.url}
    for cached in (config.store, config.adapter):
        cached.cache_clear()
    return engine


def hold_folder(folder: Path) -> int | None:
    """Take the lock that `up` holds while it runs; None if it runs. Closing the descriptor releases the lock."""
    if not folder.is_dir():
        return None
    try:
        lock = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BackupFailed(
            f"{folder} cannot be used: {(error.strerror or '').lower()}. Nothing was changed."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def identity(client: redis.Redis) -> str:
    """Return the id of the store, which is assigned by its first backup."""
    client.set(keys.store_id(), secrets.token_hex(16), nx=True)
    return client.get(keys.store_id()).decode()


def write(archive: Archive, client: redis.Redis, progress: Progress) -> int:
    """Add the keys to the archive and return their number. Each is consistent; together they span some seconds."""
    found = sorted({key for key in client.scan_iter(f"{keys.PREFIX}:*", count=1_000) if _is_stored(key)})
    done = count = 0
    with archive.member(MEMBER) as append:
        for start in range(0, len(found), _AT_ONCE):
            names = found[start : start + _AT_ONCE]
            pipe = client.pipeline(transaction=False)
            for name in names:
                pipe.dump(name).pttl(name)
            answers = pipe.execute()
            for name, value, ms in zip(names, answers[::2], answers[1::2], strict=True):
                if value is not None:  # expired meanwhile
                    append(_HEAD.pack(ms, len(name), len(value)) + name + value)
                    done, count = done + len(value), count + 1
            progress("Copying the store", done, None)
    return count


def _is_stored(key: bytes) -> bool:
    prefix, _, name = key.decode("utf-8", "replace").partition(":")
    if prefix != keys.PREFIX:
        return False
    due = name.removesuffix(":jobs")
    return name == "switch" or any(one.match(name) for one in (_STREAM, _COUNT, _DROPPED)) or bool(_DELAYED.match(due))


def load(backup: Backup, client: redis.Redis) -> dict[str, int]:
    """Write the keys that the store lacks; its own keys are newer. Reports are added to existing ones.

    Keys that no backup of Redrive contains are not written. Returns the numbers of `restored` and `present` keys, of
    `delayed` and `overdue` retries, and of retries that are not restored because they are in the store, or ended in it
    (`settled`).
    """
    counts = {"restored": 0, "present": 0, "delayed": 0, "overdue": 0, "settled": 0}
    is_same_store = client.get(keys.store_id()) == str(backup.manifest.get("store")).encode()
    delayed: set[str] = set()
    added: set[bytes] = set()
    for ms, key, value in _read(backup):
        if not _is_stored(key):
            continue
        name = key.decode("utf-8", "replace").removeprefix(f"{keys.PREFIX}:")
        if _DELAYED.match(name.removesuffix(":jobs")):
            delayed.add(key.decode().removesuffix(":jobs"))
            client.restore(key + b":restored", max(ms, 0), value, replace=True)
        elif key.removesuffix(b":bytes") in added:
            client.delete(key)  # the next writer of a report measures it
        elif _is_restored(client, key, ms, value):
            counts["restored"] += 1
        elif _STREAM.match(name):
            _add_reports(client, key, value)
            added.add(key)
            counts["restored"] += 1
        else:
            counts["present"] += 1
    now_s, now_us = client.time()
    for due in sorted(delayed):
        names = [due, f"{due}:jobs", f"{due}:restored", f"{due}:jobs:restored"]
        if is_same_store:
            counts["settled"] += client.zcard(names[2])
            client.delete(*names[2:])
            continue
        placed, overdue = client.eval(_PLACE_DELAYED, 4, *names, now_s * 1000 + now_us // 1000)
        counts["delayed"] += placed
        counts["overdue"] += overdue
    return counts


def _is_restored(client: redis.Redis, key: bytes, ms: int, value: bytes) -> bool:
    """Write the key unless the store has it. Return whether it was written."""
    try:
        client.restore(key, max(ms, 0), value)
    except redis.ResponseError as error:
        if "BUSYKEY" not in str(error):
            raise
        return False
    return True


def _add_reports(client: redis.Redis, key: bytes, value: bytes) -> None:
    """Add the reports of the backup to a stream. Filing a report twice changes nothing."""
    place, after = key + b":restored", b"-"
    client.restore(place, 0, value, replace=True)
    while entries := client.xrange(place, after, count=_AT_ONCE):
        pipe = client.pipeline(transaction=False)
        for _, fields in entries:
            pipe.xadd(key, fields)
        pipe.execute()
        after = b"(" + entries[-1][0]
    client.delete(place)


def _read(backup: Backup) -> Iterator[tuple[int, bytes, bytes]]:
    with backup.open(MEMBER) as file:
        while head := file.read(_HEAD.size):
            ms, key, value = _HEAD.unpack(head)
            if value > _MOST_VALUE:
                raise BackupFailed(f"{backup.path} is damaged: {MEMBER}.")
            yield ms, file.read(key), file.read(value)
