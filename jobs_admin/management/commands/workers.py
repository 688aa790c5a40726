"""`workers list | gone | return`: workers, and jobs in the hands of gone ones, from a terminal."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from jobs_admin.core.refused import Refused
from jobs_admin.core.text import terminal_line
from jobs_admin.fleet import listing, stranded
from jobs_admin.management import terminal


class Command(BaseCommand):
    help = "List guarded workers and the jobs that gone workers had in hand; return those jobs to their queues."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        every = acts.add_parser("list", help="List guarded workers with a heartbeat in the last 24 h.")
        every.add_argument(
            "--limit", type=int, default=listing.PAGE, help="Maximum number of workers, by source and name."
        )
        every.set_defaults(run=self._print_all)
        gone = acts.add_parser("gone", help="List workers without a heartbeat for 30 s, and the jobs they had in hand.")
        gone.set_defaults(run=self._print_gone)
        back = acts.add_parser("return", help="Return the jobs of a gone worker to their queues now, each once.")
        back.add_argument("source")
        back.add_argument("boot", help="Boot ID of the worker, as printed by `workers gone`.")
        back.set_defaults(run=self._return)
        acts.metavar = "{" + ",".join(acts.choices) + "}"

    def handle(self, *args: object, run: Any, **options: Any) -> None:
        try:
            run(**options)
        except Refused as refused:
            raise CommandError(refused.message) from refused

    def _print_all(self, *, limit: int, **_: Any) -> None:
        page = listing.worker_page(terminal.viewer(), timezone.now(), limit=max(1, min(limit, listing.LARGEST_PAGE)))
        for one in page.rows:
            state = "live" if one.is_alive else f"gone since {one.seen_at:%Y-%m-%d %H:%M:%S} UTC"
            in_hand = "jobs in hand unknown" if one.in_hand is None else f"{one.in_hand:,} in hand"
            counts = f"{one.started:,} started, {one.failed:,} failed, {one.retried:,} retried, {in_hand}"
            about = f"guard {one.guard or '?'} {one.mode}; queues {', '.join(one.queues) or '-'}"
            self.stdout.write(terminal_line(f"{one.source} {one.worker}  {state}; {counts}; {about}", 500))
        if not page.rows:
            self.stdout.write("No guarded worker sent a heartbeat in the last 24 h.")
        elif page.next:
            self.stdout.write(f"Listed {len(page.rows):,} of {page.live + page.gone:,}: raise --limit.")

    def _print_gone(self, **_: Any) -> None:
        found = stranded.list_stranded(terminal.viewer())
        for one in found:
            self.stdout.write(f"{one.source} {one.boot}  {terminal_line(one.text, 500)} {one.fix}")
        if not found:
            self.stdout.write("No gone worker had jobs in hand.")

    def _return(self, *, source: str, boot: str, **_: Any) -> None:
        count = stranded.return_jobs(terminal.viewer(), source, boot)
        self.stdout.write(
            f"{count:,} job{'' if count == 1 else 's'} returned to {'its queue' if count == 1 else 'their queues'}."
        )
