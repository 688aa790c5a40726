"""`web`: pages and API as a process of their own, beside `watch`. `up` starts the same server."""

from __future__ import annotations

import os
import re
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.setup import forks
from dashboard.web import server
from jobs_admin import config
from jobs_admin.installation import COMMAND

_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^\[\]:\s]+)):(?P<port>[0-9]{1,5})")


class Command(BaseCommand):
    help = "Serve pages and API until Ctrl-C or SIGTERM, behind a proxy. Several instances can run in parallel."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--bind", default="127.0.0.1:8000", metavar="HOST:PORT", help="such as 0.0.0.0:8000 or [::]:8000"
        )
        parser.add_argument(
            "--processes", type=int, default=1, help="each uses one processor and the memory of one web process"
        )

    def handle(self, *, bind: str, processes: int, **options: object) -> None:
        found = _ADDRESS.fullmatch(bind)
        if found is None or not 1 <= int(found["port"]) <= 65535:
            raise CommandError(f"--bind must be HOST:PORT, such as 127.0.0.1:8000, not {bind!r}. Nothing was started.")
        if not 1 <= processes <= 64:
            raise CommandError(f"--processes must be from 1 to 64, not {processes}. Nothing was started.")
        _check_settings()
        try:
            listener = server.listen(found["six"] or found["host"], int(found["port"]))
        except OSError as error:
            why = str(error.strerror).partition(" (while")[0]  # Python appends the address
            raise CommandError(f"{bind} cannot be opened ({why}). Nothing was started.") from error
        os.environ.setdefault("REDRIVE_SQLITE_CACHE_KB", server.ENVIRONMENT["REDRIVE_SQLITE_CACHE_KB"])
        forks.use_one_heap()
        forks.read_settings()
        self.stdout.write(f"Serving http://{bind}{settings.FORCE_SCRIPT_NAME or ''}/")
        self.stdout.flush()
        server.serve(listener, workers=processes, in_this_process=processes == 1)


def _check_settings() -> None:
    try:
        config.sources(), config.store(), config.payload_keys(), config.approve_above()
    except config.BadConfiguration as error:
        raise CommandError(f"{error} Nothing was started.") from error
    if not (Path(settings.STATIC_ROOT) / "staticfiles.json").exists():
        raise CommandError(
            f"No styles and scripts in {settings.STATIC_ROOT}: run `{COMMAND} collectstatic --noinput`, then start again. "
            "Nothing was started."
        )
