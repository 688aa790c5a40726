"""`manage.py doctor`: what is wrong, and what to do about it. Exit code 1 when something is of severity high."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from dashboard.setup import checkup
from jobs_admin.core.text import terminal_line

_WIDTH = 2000  # characters of a line


class Command(BaseCommand):
    help = "Check store, database, sources, workers and watch, and suggest fixes. Exit code 1 if a problem is severe."
    requires_system_checks: list[str] = []

    def handle(self, **options: object) -> None:
        worst = set()
        for result in checkup.results():
            worst.add(result.severity)
            self._write(f"{result.severity:<8}{result.part}" + (f": {result.text}" if result.text else ""))
            for finding in result.findings:
                self._write(f"        {finding.text}")
                self._write(f"        → {finding.fix}")
        if checkup.HIGH in worst:
            raise SystemExit(1)
        self.stdout.write("No severe problems." if checkup.WARNING in worst else "No problems found.")

    def _write(self, line: str) -> None:
        self.stdout.write(terminal_line(line, _WIDTH))
