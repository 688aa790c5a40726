"""Upgrade: backup, migrations, and subsequent steps. It may be killed and run again at any time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, connection, transaction

from dashboard.setup import environment
from dashboard.setup.backups import writing
from dashboard.setup.backups.archive import BackupFailed
from dashboard.setup.connections import about_database
from dashboard.setup.progress import Progress, format_bytes
from dashboard.setup.upgrades import checks
from jobs_admin.db import audit
from jobs_admin.models.access import Viewer
from jobs_admin.worker.versions import VERSION


class UpgradeFailed(Exception):
    """Incomplete upgrade. The text states what is done, what is not, and how to continue."""


def upgrade(write: Callable[[str], object], *, with_backup: bool = True) -> None:
    """Upgrade the database to this version. Raises UpgradeFailed."""
    found = checks.check(with_backup=with_backup)
    stops = [one for one in found.findings if one.severity == checks.HIGH]
    if stops:
        raise UpgradeFailed(" ".join(f"{one.text} {one.fix}" for one in stops) + " Nothing was changed.")
    began = time.monotonic()
    backup = _make_backup(write) if with_backup and found.has_desk and (found.pending or found.is_interrupted) else None
    for name in checks.invalid_indexes():
        with connection.cursor() as cursor:
            cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        write(f"Dropped the half-built index {name}.")
    lines = _Lines(write)
    try:
        # Also without pending migrations: it creates triggers and search tables that an interrupted run omitted.
        call_command("migrate", interactive=False, verbosity=1, stdout=lines)
    except (DatabaseError, CommandError, ValueError, LookupError, TypeError) as error:
        raise UpgradeFailed(_broken(error, lines, backup)) from error
    names = [one.name for one in found.pending]
    try:
        call_command("collectstatic", interactive=False, verbosity=0)
    except OSError as error:
        raise UpgradeFailed(
            f"Static files cannot be collected: {error.strerror or error}. The migrations are applied. Fix the cause and run "
            "`upgrade` again."
        ) from error
    if names:
        with transaction.atomic():
            audit.record(
                Viewer("manage.py upgrade"),
                "desk.upgrade",
                "desk",
                after={"version": VERSION, "migrations": names},
            )
    what = (
        f"{len(names)} {'migration' if len(names) == 1 else 'migrations'} applied"
        if names
        else "No migration was pending"
    )
    write(f"{what}; static files collected. {time.monotonic() - began:.1f} s. Restart watch and web.")


def _make_backup(write: Callable[[str], object]) -> Path:
    folder = environment.data_folder() / "backups"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UpgradeFailed(f"{folder} cannot be made: {error.strerror}. Nothing was changed.") from error
    path = folder / f"before-upgrade-{datetime.now(UTC):%Y%m%d-%H%M%S}.zip"
    try:
        # The audit entry requires only tables of the first version.
        made = writing.write(path, Progress(write))
    except BackupFailed as failed:
        raise UpgradeFailed(f"{failed} Nothing was migrated. To upgrade without a backup, use --no-backup.") from failed
    write(f"Backup: {made.path}, {format_bytes(made.size)}.")
    return made.path


def _broken(error: Exception, lines: _Lines, backup: Path | None) -> str:
    why = (
        about_database(error)
        if isinstance(error, DatabaseError)
        else str(error).splitlines()[0]
        if str(error)
        else type(error).__name__
    )
    where = f"Migration {lines.current} failed" if lines.current else "The migrations failed"
    done = (
        f"{len(lines.applied)} before it {'is' if len(lines.applied) == 1 else 'are'} applied. "
        if lines.applied
        else ""
    )
    back = f" To go back, install the previous version and restore {backup}." if backup else ""
    return f"{where}: {why.rstrip('.')}. {done}Fix the cause and run `upgrade` again.{back}"


class _Lines:
    """Output of Django's `migrate`, as one line per migration with its time."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.current = ""
        self.applied: list[str] = []
        self._write = write
        self._began = 0.0

    def write(self, text: str) -> None:
        if found := re.search(r"Applying (\S+?)\.\.\.", text):
            self.current, self._began = found[1], time.monotonic()
        elif "OK" in text and self.current:
            self._write(f"{self.current}: {time.monotonic() - self._began:.1f} s")
            self.applied.append(self.current)
            self.current = ""

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False
