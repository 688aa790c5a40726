"""`manage.py restore FILE`: a backup in the place of an empty desk, or of one that is stopped."""

from __future__ import annotations

from pathlib import Path

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.setup.backups import restoring
from dashboard.setup.backups.archive import BackupFailed
from dashboard.setup.progress import Progress
from jobs_admin import config


class Command(BaseCommand):
    help = "Restore a backup to a stopped desk. Open replays are paused: jobs may have been sent since the backup."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="File that `backup` wrote.")
        parser.add_argument("--replace", action="store_true", help="Delete what the desk has now.")

    def handle(self, *, file: Path, replace: bool, **options: object) -> None:
        if config.is_read_only():
            raise CommandError(config.READ_ONLY)
        try:
            done = restoring.restore(file, Progress(self.stdout.write), replace=replace)
        except BackupFailed as failed:
            raise CommandError(str(failed)) from failed
        self.stdout.write(f"Restored {done.rows:,} rows as of {done.made_at:%-d %b %Y %H:%M:%S} UTC.")
        counts = done.store
        self.stdout.write(
            f"Store: {counts['restored']:,} keys restored; {counts['present']:,} were already there, newer, and stay. "
            f"Delayed retries: {counts['delayed']:,} restored, {counts['overdue']:,} left out (due since the backup), "
            f"{counts['settled']:,} left as they are: this store is the one that was backed up."
        )
        if done.paused:
            self.stdout.write(
                f"{done.paused:,} open {'replay is' if done.paused == 1 else 'replays are'} paused. `watch` checks in the "
                "ledgers which jobs were sent since the backup, and marks them. Then resume."
            )
        for note in done.notes:
            self.stdout.write(note)
        self.stdout.write(
            "Replays that began after the backup are unknown: their jobs are shown as dead. Start watch and web, and run doctor."
        )
