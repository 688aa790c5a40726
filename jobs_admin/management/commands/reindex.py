"""`reindex [--again]`: builds the search index again, while everything else continues."""

from __future__ import annotations

import time
from argparse import ArgumentParser

from django.core.management.base import BaseCommand

from jobs_admin.ingest import indexing
from jobs_admin.search import substrings

_REPORT_EVERY_S = 2.0


class Command(BaseCommand):
    help = (
        "Rebuild the search index for rows indexed by an earlier version. The command can be stopped; the next run "
        "continues."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--again", action="store_true", help="Rebuild every row, including rows that are up to date."
        )

    def handle(self, **options: object) -> None:
        if options["again"]:
            indexing.mark_all_outdated()
            substrings.clear()
        reported_at = time.monotonic()
        while indexing.step() or substrings.step() or not substrings.is_complete():
            if time.monotonic() - reported_at > _REPORT_EVERY_S:
                reported_at = time.monotonic()
                self.stderr.write(f"{indexing.count_outdated() + substrings.count_unfilled():,} rows remaining")
        self.stdout.write("The search index is up to date.")
