"""`workers gone | return`: jobs in the hands of workers that are gone, from a terminal."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobs_admin.core.refused import Refused
from jobs_admin.core.text import terminal_line
from jobs_admin.fleet import stranded
from jobs_admin.management import terminal


class Command(BaseCommand):
    help = "Workers that are gone with jobs in hand: list them, return their jobs."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        gone = acts.add_parser("gone", help="Workers without a heartbeat for 30 s, and the jobs that they had in hand.")
        gone.set_defaults(run=self._print_gone)
        back = acts.add_parser("return", help="Put the jobs of one back on their queues now, each once.")
        back.add_argument("source")
        back.add_argument("boot", help="As `workers gone` shows it: one life of the worker.")
        back.set_defaults(run=self._return)
        acts.metavar = "{" + ",".join(acts.choices) + "}"

    def handle(self, *args: object, run: Any, **options: Any) -> None:
        try:
            run(**options)
        except Refused as refused:
            raise CommandError(refused.message) from refused

    def _print_gone(self, **_: Any) -> None:
        found = stranded.list_stranded(terminal.viewer())
        for one in found:
            self.stdout.write(f"{one.source} {one.boot}  {terminal_line(one.text, 500)} {one.fix}")
        if not found:
            self.stdout.write("No worker is gone with jobs in hand.")

    def _return(self, *, source: str, boot: str, **_: Any) -> None:
        count = stranded.return_jobs(terminal.viewer(), source, boot)
        self.stdout.write(
            f"{count:,} job{'' if count == 1 else 's'} returned to {'its queue' if count == 1 else 'their queues'}."
        )
