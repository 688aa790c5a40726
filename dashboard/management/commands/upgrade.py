"""`manage.py upgrade`: the database brought to this version. `--check` only lists what would happen."""

from __future__ import annotations

import json

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.setup.upgrades import checks, performing
from dashboard.setup.upgrades.plan import Pending
from jobs_admin import config
from jobs_admin.core.text import terminal_line

_WIDTH = 2000  # characters of a line


class Command(BaseCommand):
    help = (
        "Back up the database, migrate it to this version and collect static files. --check changes nothing; exit code 0: "
        "nothing to do, 1: something stops the upgrade, 2: an upgrade is pending."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="List migrations, locks, times and obstacles only.")
        parser.add_argument("--json", action="store_true", help="With --check: print one JSON object.")
        parser.add_argument("--no-backup", action="store_true", help="Make no backup first.")

    def handle(self, *, check: bool, no_backup: bool, **options: object) -> None:
        as_json = bool(options["json"])
        if as_json and not check:
            raise CommandError("--json needs --check. Nothing was changed.")
        if check:
            self._check(as_json=as_json, with_backup=not no_backup)
            return
        if config.is_read_only():
            raise CommandError(config.READ_ONLY)
        try:
            performing.upgrade(self._write, with_backup=not no_backup)
        except performing.UpgradeFailed as failed:
            raise CommandError(str(failed)) from failed

    def _check(self, *, as_json: bool, with_backup: bool) -> None:
        found = checks.check(with_backup=with_backup)
        if as_json:
            self.stdout.write(json.dumps(found.as_json(), indent=1))
        else:
            for pending in found.pending:
                self._list_migration(pending)
            for finding in found.findings:
                self._write(f"{finding.severity:<8}{finding.text}")
                self._write(f"        → {finding.fix}")
            self._write(_SUMMARY[found.code])
        if found.code:
            raise SystemExit(found.code)

    def _list_migration(self, pending: Pending) -> None:
        self._write(f"{pending.name}: about {_time(pending.seconds)}")
        for one in pending.effects:
            seconds = "time unknown" if one.seconds is None else f"about {_time(one.seconds)}"
            table = f"{one.table} ({one.rows:,} rows): " if one.table else ""
            self._write(f"        {table}{one.does}, {seconds}. Lock: {one.lock}.")

    def _write(self, line: str) -> None:
        self.stdout.write(terminal_line(line, _WIDTH))


_SUMMARY = {
    checks.NOTHING: "Nothing to do: the database is of this version.",
    checks.STOPPED: "Not ready: fix the problems of severity high.",
    checks.READY: "Ready: run `upgrade`.",
}


def _time(seconds: float) -> str:
    return f"{max(seconds, 0.1):.1f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
