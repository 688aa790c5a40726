"""The engine: `manage.py watch [--only STEP,…]`. Runs until Ctrl-C or SIGTERM."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs_admin import config
from jobs_admin.watch import Watch, preload, steps


class Command(BaseCommand):
    help = (
        "Read reports, sample depths, send and settle replays, and prune old records. Several instances can run in "
        "parallel."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--only", metavar="STEP,…", help=f"Run only these steps; known: {', '.join(steps())}.")

    def handle(self, *args: object, only: str | None = None, **options: object) -> None:
        known = steps()
        wanted = [name.strip() for name in only.split(",")] if only else list(known)
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise CommandError(f"Unknown step: {', '.join(unknown)}. Known: {', '.join(known)}. Nothing was started.")
        try:
            (
                config.sources(),
                config.store(),
                config.payload_keys(),
                config.keep(),
                config.keep_bytes(),
                config.approve_above(),
            )
        except config.BadConfiguration as error:
            raise CommandError(f"{error} Nothing was started.") from error
        preload()
        Watch([known[name] for name in dict.fromkeys(wanted)]).run()
