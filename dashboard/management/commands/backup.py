"""`manage.py backup FILE`: database, store and keys in one file, while the desk runs."""

from __future__ import annotations

from pathlib import Path

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.setup.backups import writing
from dashboard.setup.backups.archive import BackupFailed
from dashboard.setup.progress import Progress, format_bytes


class Command(BaseCommand):
    help = "Write a backup of database, store and keys to one file (mode 0600), while the desk runs."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "file", type=Path, help="File to write, such as /backups/redrive.zip; replaced if it exists."
        )
        parser.add_argument("--no-keys", action="store_true", help="Leave SECRET_KEY and the payload keys out.")

    def handle(self, *, file: Path, no_keys: bool, **options: object) -> None:
        try:
            made = writing.write(file, Progress(self.stdout.write), with_keys=not no_keys)
        except BackupFailed as failed:
            raise CommandError(str(failed)) from failed
        self.stdout.write(
            f"{made.path}: {format_bytes(made.size)}, {made.rows:,} rows and {made.store_keys:,} keys of the store, "
            f"as of {made.made_at:%-d %b %Y %H:%M:%S} UTC."
        )
        self.stdout.write(
            "The file has the keys that decrypt its messages: store it where only you can read it."
            if made.has_keys
            else "The file has no keys: back up SECRET_KEY and REDRIVE_PAYLOAD_KEYS separately."
        )
