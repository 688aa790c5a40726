"""Take away what is kept no longer: `manage.py prune [--older-than 30d] [--larger-than 5GB] [--dry-run] [--json]`."""

from __future__ import annotations

import getpass
import json

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.desk import retention
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer


class Command(BaseCommand):
    help = (
        "Delete failures beyond their retention, as `watch` does by REDRIVE_KEEP and REDRIVE_KEEP_BYTES. Retrying "
        "and replaying failures, and those in replays that have not ended, are never deleted."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than", metavar="AGE", help="Delete closed and dead failures older than this: 30d, 12h."
        )
        parser.add_argument(
            "--larger-than",
            metavar="SIZE",
            help="Delete the oldest closed failures until the database is below this size: 5GB.",
        )
        parser.add_argument("--dry-run", action="store_true", help="Only print what would be deleted.")
        parser.add_argument("--json", action="store_true", help="Print the numbers as JSON.")

    def handle(self, *args: object, **options: object) -> None:
        try:
            pruned = retention.prune(
                timezone.now(),
                viewer=Viewer(f"{_user()} (terminal)", {EVERY_SOURCE: ADMIN}),
                older_than=config.length(options["older_than"], "--older-than") if options["older_than"] else None,
                larger_than=config.size(options["larger_than"], "--larger-than") if options["larger_than"] else None,
                dry_run=bool(options["dry_run"]),
            )
        except config.BadConfiguration as error:
            raise CommandError(f"{error} Nothing was changed.") from error
        except Refused as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(_numbers(pruned, bool(options["dry_run"]))))
        else:
            self._print_pruned(pruned, bool(options["dry_run"]))

    def _print_pruned(self, pruned: retention.Pruned, dry_run: bool) -> None:
        would = "would go" if dry_run else "went"
        size = retention.size_in_words(pruned.bytes)
        self.stdout.write(f"{pruned.count:,} failures {would}, about {size}.")
        for name, n in [*pruned.failures.items(), *pruned.rows.items()]:
            self.stdout.write(f"  {n:>12,}  {name}")
        if pruned.too_large_by:
            more = retention.size_in_words(pruned.too_large_by)
            self.stdout.write(f"The database remains {more} above the limit: no other closed failures can be deleted.")
        if not dry_run and pruned.count:
            self.stdout.write("The freed space is reused. To shrink the file, see docs/operations.md.")


def _numbers(pruned: retention.Pruned, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "failures": pruned.count,
        "by_state": dict(pruned.failures),
        "rows": dict(pruned.rows),
        "bytes": pruned.bytes,
        "database_bytes": pruned.bytes_before,
        "too_large_by": pruned.too_large_by,
        "longest_transaction_s": round(pruned.longest_s, 4),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
