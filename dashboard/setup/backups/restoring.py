"""Restore of a backup to a stopped desk."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import redis
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from dashboard.setup import environment, forks
from dashboard.setup.backups import database, keys, store
from dashboard.setup.backups.archive import Backup, BackupFailed
from dashboard.setup.backups.database import Progress
from dashboard.setup.connections import about_database
from jobs_admin import config
from jobs_admin.core.figures import dated
from jobs_admin.db import audit, audit_anchor, schema
from jobs_admin.models import Replay
from jobs_admin.models.access import Viewer
from jobs_admin.models.replay import ReplayState
from jobs_admin.replays import preview_warnings, restored

_UNCHANGED = "Nothing was changed."


@dataclass(frozen=True, slots=True)
class Restored:
    made_at: datetime
    rows: int
    store: dict[str, int]  # result of `store.load`
    paused: int  # number of paused replays
    notes: list[str]


def restore(path: Path, progress: Progress, *, replace: bool = False) -> Restored:
    """Restore the backup at `path`. Raises BackupFailed with a message that states what was changed."""
    if os.environ.pop(environment.PLACEHOLDER, ""):
        os.environ.pop("SECRET_KEY", None)
    backup = Backup(path)
    try:
        _check_contents(backup)
        keys.check(backup)
        _check_stopped()
        _check_replaced(backup, replace)
        _check_space(backup)
        total = sum(int(one["bytes"]) for one in backup.members.values())
        backup.check(lambda done: progress("Checking the backup", done, total))
        with store.reachable(_UNCHANGED) as client:
            return _restore(backup, client, progress)
    except DatabaseError as error:
        raise BackupFailed(f"The database cannot be used ({about_database(error)}). {_UNCHANGED}") from error
    finally:
        backup.close()


def _check_contents(backup: Backup) -> None:
    """Refuse a backup of another database or of a newer schema."""
    kind = backup.manifest.get("database")
    if kind != connection.vendor or database.MEMBER[connection.vendor] not in backup.members:
        raise BackupFailed(
            f"{backup.path} is a backup of {kind}, and DATABASE_URL names {connection.vendor}: a backup is restored to the "
            f"same kind of database. {_UNCHANGED}"
        )
    applied = {name.partition(".")[2] for name in backup.manifest["migrations"] if name.startswith("jobs_admin.")}
    if newer := schema.unknown_migrations(applied):
        raise BackupFailed(
            f"{backup.path} was made by a newer version of Redrive ({backup.manifest.get('version')}): its schema has "
            f"{newer[-1]}, and this version knows up to {max(schema.known_migrations())}. Upgrade, then restore. {_UNCHANGED}"
        )


def _check_stopped() -> None:
    """Refuse to restore while `up` runs, or another process uses the database."""
    folder = environment.data_folder()
    if folder.is_dir():
        lock = store.hold_folder(folder)
        if lock is None:
            raise BackupFailed(f"Redrive runs on {folder} ({_holder(folder)}). Stop it, then restore. {_UNCHANGED}")
        os.close(lock)
    if connection.vendor == "sqlite":
        database.check_free_sqlite()
        return
    with contextlib.suppress(DatabaseError):
        sessions = database.count_sessions()
        if sessions:
            where = ", ".join(f"{count} from {address}" for address, count in sessions.items())
            raise BackupFailed(
                f"Other sessions use the database ({where}). Stop watch, web and other commands, then restore. {_UNCHANGED}"
            )


def _holder(folder: Path) -> str:
    try:
        found = json.loads((folder / "up.lock").read_text() or "{}")
        return f"process {found['pid']}"
    except (OSError, ValueError, KeyError):
        return "another command"


def _check_replaced(backup: Backup, replace: bool) -> None:
    """Refuse to replace a database of another program, or a desk with rows unless that is requested."""
    if connection.vendor == "sqlite" and not database.sqlite_path().exists():
        return
    try:
        tables = connection.introspection.table_names()
        ours = (
            set(connection.introspection.django_table_names()) | set(backup.manifest["tables"]) | {"django_migrations"}
        )
        # SQLite's tables of a search index, which belong to no model.
        foreign = sorted(one for one in tables if one not in ours and not one.startswith("jobs_admin_"))
        if foreign:
            raise BackupFailed(
                f"The database has tables that are not Redrive's ({', '.join(foreign[:3])}), which a restore would delete. "
                f"Name a database of Redrive's own in DATABASE_URL. {_UNCHANGED}"
            )
        if replace:
            return
        with connection.cursor() as cursor:
            for table in ("jobs_admin_failure", "jobs_admin_auditevent", "auth_user"):
                if table not in tables:
                    continue
                cursor.execute(f"SELECT 1 FROM {table} LIMIT 1")
                if cursor.fetchone():
                    raise BackupFailed(
                        "The desk is not empty: --replace deletes what it has and restores the backup. "
                        f"Make a backup first. {_UNCHANGED}"
                    )
    finally:
        connection.close()


def _check_space(backup: Backup) -> None:
    if connection.vendor != "sqlite":
        return
    folder = database.sqlite_path().parent
    while not folder.exists():
        folder = folder.parent
    needed, free = int(backup.members[database.MEMBER["sqlite"]]["bytes"]), shutil.disk_usage(folder).free
    if needed > free:
        raise BackupFailed(
            f"{folder} has {free / 1e6:,.0f} MB free; the database needs {needed / 1e6:,.0f} MB. {_UNCHANGED}"
        )


def _restore(backup: Backup, client: redis.Redis, progress: Progress) -> Restored:
    """Restore the database first: if that fails, nothing is changed. The further steps can be repeated."""
    made_at = datetime.fromisoformat(backup.manifest["made_at"])
    statements = restored.statements(made_at, backup.manifest["ledgers"], datetime.now(UTC))
    load = database.load_sqlite if connection.vendor == "sqlite" else database.load_postgresql
    load(backup, statements, progress)
    try:
        counts = store.load(backup, client)
        notes, paused = _finish(backup, made_at)
    except (DatabaseError, redis.RedisError, CommandError, OSError, BackupFailed) as error:
        why = about_database(error) if isinstance(error, DatabaseError) else str(error)
        raise BackupFailed(
            f"The database is restored and its replays are paused, but a later step failed: {why.rstrip('.')}. Do not start "
            "watch and web. Fix the cause, then restore again with --replace."
        ) from error
    rows = sum(backup.manifest["tables"].values())
    return Restored(made_at, rows, counts, paused, notes)


def _finish(backup: Backup, made_at: datetime) -> tuple[list[str], int]:
    """Restore the keys, migrate, and record the restore. Return notes, and the number of paused replays."""
    notes = keys.load(backup, environment.data_folder())
    _use_keys()
    call_command("migrate", interactive=False, verbosity=0)
    paused = Replay.objects.filter(state=ReplayState.PAUSED, held_because__startswith=restored.reason(made_at)).count()
    viewer, reason = Viewer("manage.py restore"), f"backup of {dated(made_at, datetime.now(UTC))} UTC restored"
    with transaction.atomic():
        if config.is_own_project():  # restored sessions may have been ended since the backup
            apps.get_model("sessions", "Session")._default_manager.all().delete()
        after = {"file": backup.path.name, "made_at": made_at.isoformat(), "paused": paused}
        audit.record(viewer, preview_warnings.RESTORE_ACT, "desk", after=after)
    audit_anchor.accept(viewer, reason)  # entries after the backup are missing for a known reason
    return notes, paused


def _use_keys() -> None:
    """Read the settings again, with the restored keys."""
    environment.forget()
    forks.read_settings()
