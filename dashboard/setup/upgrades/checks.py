"""Checks before an upgrade, which change nothing."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.db import connection
from django.db.migrations.exceptions import InconsistentMigrationHistory
from django.db.migrations.loader import MigrationLoader
from django.db.utils import Error as DatabaseError

from dashboard.setup import environment
from dashboard.setup.backups import database, writing
from dashboard.setup.connections import find_unknown_variables
from dashboard.setup.progress import format_bytes
from dashboard.setup.upgrades import plan
from dashboard.setup.upgrades.plan import Pending
from jobs_admin import config
from jobs_admin.core.text import list_some
from jobs_admin.models import AuditEvent, Worker
from jobs_admin.models.failure_count import has_triggers
from jobs_admin.models.source import ALIVE_S
from jobs_admin.sources.base import Finding
from jobs_admin.worker.versions import VERSION

HIGH, WARNING, INFO = "high", "warning", "info"
NOTHING, STOPPED, READY = 0, 1, 2  # exit codes of `upgrade --check`
_OLD = timedelta(days=1)  # age of a backup
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Check:
    pending: list[Pending]
    findings: list[Finding]
    needed: int  # bytes on disk
    free: int
    backup_at: datetime | None
    has_desk: bool = True  # the database has tables to back up
    is_interrupted: bool = False  # an earlier upgrade was interrupted

    @property
    def code(self) -> int:
        if any(finding.severity == HIGH for finding in self.findings):
            return STOPPED
        return READY if self.pending or self.is_interrupted else NOTHING

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "database": connection.vendor,
            "result": ("nothing", "stopped", "ready")[self.code],
            "migrations": [plan.as_json(one) for one in self.pending],
            "findings": [
                {"id": one.id, "severity": one.severity, "text": one.text, "fix": one.fix} for one in self.findings
            ],
            "disk": {"needed": self.needed, "free": self.free},
            "backup_at": self.backup_at.isoformat() if self.backup_at else None,
        }


def check(now: datetime | None = None, *, with_backup: bool = True) -> Check:
    """Check the effects and obstacles of an upgrade; obstacles to the backup only `with_backup`."""
    now = now or datetime.now(UTC)
    history = _check_history()
    if history:
        return Check([], history, 0, 0, None)
    pending = plan.find_pending()
    tables = set(connection.introspection.table_names())
    backup_at = _last_backup() if "jobs_admin_auditevent" in tables else None
    needed, free = _disk(pending)
    findings = [*find_unknown_variables(), *_check_tools(), *_check_store()]
    if "jobs_admin_worker" in tables:
        findings += _check_workers(now)
    interrupted = _find_interrupted(tables)
    findings += interrupted
    if needed > free:
        text = f"{environment.data_folder()} has {format_bytes(free)} free; backup and migrations need {format_bytes(needed)}."
        findings.append(Finding("disk", HIGH, text, "Free space, or back up elsewhere and use --no-backup."))
    if (pending or interrupted) and (backup_at is None or now - backup_at > _OLD):
        age = "There is no backup" if backup_at is None else f"The last backup is {(now - backup_at).days} days old"
        findings.append(
            Finding("backup-old", INFO, f"{age}. `upgrade` makes one first.", "Use --no-backup to skip it.")
        )
    if not with_backup:
        findings = [one for one in findings if one.id not in {"disk", "pg-dump", "store"}]
    return Check(
        pending,
        findings,
        needed,
        free,
        backup_at,
        "jobs_admin_failure" in tables,
        bool(interrupted),
    )


def _check_history() -> list[Finding]:
    """Return problems of the recorded migrations."""
    try:
        loader = MigrationLoader(connection)
        loader.check_consistent_history(connection)
        conflicts = loader.detect_conflicts()
    except InconsistentMigrationHistory as error:
        fix = "Restore an earlier backup, or install the version that made the database."
        return [Finding("history", HIGH, f"The recorded migrations contradict each other: {error}", fix)]
    if conflicts:
        names = ", ".join(sorted(name for found in conflicts.values() for name in found))
        return [
            Finding("history", HIGH, f"Two migrations follow the same one: {names}.", "Install a released version.")
        ]
    return []


def _check_tools() -> list[Finding]:
    if connection.vendor != "postgresql" or shutil.which("pg_dump"):
        return []
    fix = "Install PostgreSQL's client programs, or back up another way and use --no-backup."
    return [Finding("pg-dump", HIGH, "pg_dump is not on PATH: `upgrade` cannot make a backup.", fix)]


def _check_store() -> list[Finding]:
    try:
        config.store().ping()
    except (redis.RedisError, config.BadConfiguration) as error:
        if not environment.is_given("REDRIVE_REDIS_URL") and not environment.is_given("REDIS_URL"):
            return []  # the private engine, which `upgrade` starts itself
        fix = "Check REDRIVE_REDIS_URL, or use --no-backup."
        return [Finding("store", HIGH, f"The store does not answer ({error}): `upgrade` cannot back it up.", fix)]
    return []


def _check_workers(now: datetime) -> list[Finding]:
    """Compare the guards of live workers with this version, which reads reports of the previous and the next one."""
    ours, older, newer, unknown = parse_version(VERSION), [], [], []
    assert ours is not None
    with connection.cursor() as cursor:  # only columns that every version has
        table = Worker._meta.db_table
        cursor.execute(
            f"SELECT source, name, guard FROM {table} WHERE seen_at >= %s",
            [connection.ops.adapt_datetimefield_value(now - timedelta(seconds=ALIVE_S))],
        )
        rows = cursor.fetchall()
    for source, name, guard in sorted(rows):
        theirs, label = parse_version(guard), f"{source}/{name} {guard}".strip()
        if theirs is None:
            unknown.append(label)
        elif theirs > ours:
            newer.append(label)
        elif theirs[0] != ours[0] or theirs[1] < ours[1] - 1:
            older.append(label)
    texts = (
        (
            "workers-new",
            newer,
            "newer than this version",
            "Upgrade the desk to their version: newer reports are stored raw.",
        ),
        ("workers-old", older, "too old for this version", "Upgrade their guard after the desk."),
        ("workers-unknown", unknown, "of an unknown version", "Upgrade their guard after the desk."),
    )
    return [
        Finding(
            id,
            WARNING,
            f"{len(found):,} live {'worker has' if len(found) == 1 else 'workers have'} a guard {what}: {list_some(found, _MOST_NAMED)}.",
            fix,
        )
        for id, found, what, fix in texts
        if found
    ]


def parse_version(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.|\Z)", text)
    return (int(found[1]), int(found[2])) if found else None


def _find_interrupted(tables: set[str]) -> list[Finding]:
    """Return what an interrupted upgrade left: a half-built index, or tables without their triggers."""
    found = []
    if names := invalid_indexes():
        text = f"An interrupted upgrade left half-built indexes: {', '.join(names)}."
        found.append(Finding("index-half", WARNING, text, "Run `upgrade`, which drops them and builds them again."))
    if "jobs_admin_failure" in tables and not has_triggers():
        text = "An interrupted upgrade left the table of failures without the triggers that count its rows."
        found.append(
            Finding("triggers", WARNING, text, "Stop watch and run `upgrade`, which creates the triggers and recounts.")
        )
    return found


def invalid_indexes() -> list[str]:
    """Return the names of half-built indexes on Redrive's tables."""
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "WHERE NOT i.indisvalid AND c.relnamespace = current_schema()::regnamespace "
            "AND starts_with(c.relname, 'jobs_admin_') ORDER BY 1"
        )
        return [name for (name,) in cursor.fetchall()]


def _last_backup() -> datetime | None:
    try:
        return AuditEvent.objects.filter(act=writing.ACT).order_by("-id").values_list("at", flat=True).first()
    except DatabaseError:
        return None


def _disk(pending: list[Pending]) -> tuple[int, int]:
    """Return the bytes that backup and migrations need in the data folder at most, and the bytes available."""
    folder = environment.data_folder()
    while not folder.exists():
        folder = folder.parent
    size = database.size()
    # SQLite: a copy, its compressed form, and a table that is rebuilt in the log. PostgreSQL: its compressed dump.
    times = 1 if connection.vendor == "postgresql" else 3 if pending else 2
    return size * times, shutil.disk_usage(folder).free
