"""Backup of a running desk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import redis
from django.db import DatabaseError, connection, transaction
from django.db.migrations.recorder import MigrationRecorder

from dashboard.setup import environment
from dashboard.setup.backups import database, keys, store
from dashboard.setup.backups.archive import Archive, BackupFailed
from dashboard.setup.backups.database import Progress
from dashboard.setup.connections import about_database
from jobs_admin.db import audit
from jobs_admin.models.access import Viewer
from jobs_admin.replays import restored
from jobs_admin.worker.versions import VERSION

ACT = "desk.backup"
_NO_BACKUP = "No backup was made."


@dataclass(frozen=True, slots=True)
class Written:
    path: Path
    size: int  # bytes
    made_at: datetime  # time of the snapshot
    rows: int
    store_keys: int
    has_keys: bool


def write(path: Path, progress: Progress, *, with_keys: bool = True) -> Written:
    """Write a backup to `path`, mode 0600, and record it in the audit. Raises BackupFailed if none was written."""
    path = path.resolve()
    if path.is_dir():
        raise BackupFailed(f"{path} is a folder: name a file in it. {_NO_BACKUP}")
    if not path.parent.is_dir():
        raise BackupFailed(f"The folder {path.parent} does not exist. {_NO_BACKUP}")
    if connection.vendor == "postgresql":
        database.find_tool("pg_dump", _NO_BACKUP)
    try:
        _check_space(path)
        with store.reachable(_NO_BACKUP) as client:
            return _write(path, client, progress, with_keys)
    except DatabaseError as error:
        raise BackupFailed(f"The database cannot be used ({about_database(error)}). {_NO_BACKUP}") from error


def _write(path: Path, client: redis.Redis, progress: Progress, with_keys: bool) -> Written:
    ledgers = restored.find_ledgers()
    moments: list[datetime] = []
    applied = MigrationRecorder(connection).applied_migrations()
    archive = Archive(path)
    try:
        # Before the database: a report filed in between is then in both, which is harmless; otherwise it would be in
        # neither.
        store_keys = store.write(archive, client, progress)
        tables = database.write(archive, lambda: moments.append(datetime.now(UTC)), progress)
        if with_keys:
            keys.write(archive, environment.data_folder())
        made_at = moments[0]
        manifest = {
            "made_at": made_at.isoformat(),
            "version": VERSION,
            "database": connection.vendor,
            "migrations": sorted(f"{app}.{name}" for app, name in applied),
            "tables": tables,
            "store": store.identity(client),
            "store_keys": store_keys,
            "ledgers": ledgers,
        }
        size = archive.complete(manifest)
    except BaseException:
        archive.drop()
        raise
    rows = sum(tables.values())
    with transaction.atomic():
        after = {"file": path.name, "made_at": made_at.isoformat(), "bytes": size, "rows": rows, "keys": with_keys}
        audit.record(Viewer("manage.py backup"), ACT, "desk", after=after)
    return Written(path, size, made_at, rows, store_keys, with_keys)


def _check_space(path: Path) -> None:
    """Raise BackupFailed if there is no room for the copy of an SQLite database beside its file."""
    if connection.vendor != "sqlite":
        return
    needed, free = database.size(), shutil.disk_usage(path.parent).free
    if needed > free:
        raise BackupFailed(
            f"{path.parent} has {free / 1e6:,.0f} MB free; the copy of the database needs {needed / 1e6:,.0f} MB. {_NO_BACKUP}"
        )
