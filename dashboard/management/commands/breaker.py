"""`breaker`: show a breaker, or force its state, from a terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from dashboard.holds import api as hold_calls
from dashboard.holds import breaker_page
from dashboard.web.api.shapes import render_json
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.holds import breaker_history, breakers
from jobs_admin.holds.breaker_documents import AUTO, FORCED
from jobs_admin.installation import COMMAND
from jobs_admin.management import terminal
from jobs_admin.management.terminal import parse_length

MOST_HISTORY = 10


class Command(BaseCommand):
    help = "Show a breaker, or force it open (jobs are held), closed (jobs start), or return it to automatic."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", type=representable, help="Name of the breaker, as `breakers` lists it.")
        parser.add_argument(
            "--source", default="", type=representable, help="Source, where several have a breaker of this name."
        )
        parser.add_argument("--force", choices=FORCED, help="State to force; auto: return to automatic.")
        parser.add_argument(
            "--reason", default="", help="Reason, shown with the breaker. Required for open and closed."
        )
        parser.add_argument(
            "--for", dest="for_", type=parse_length, metavar="LENGTH", help="15m, 4h; default: until changed."
        )
        parser.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def handle(self, *, name: str, source: str, force: str | None, json: bool, **options: Any) -> None:
        viewer, now, length = terminal.viewer(), timezone.now(), options["for_"]
        if force is None and (length or options["reason"]):
            raise CommandError("--reason and --for need --force with a state. Nothing was changed.")
        try:
            found = breakers.find(viewer, name, source)
            if force is not None:
                seconds = int(length.total_seconds()) if length else None
                found = breakers.force(
                    viewer, found.source, name, force, reason=options["reason"], for_s=seconds, now=now
                )
        except Refused as refused:
            raise CommandError(refused.message) from refused
        except NotFound as missing:
            raise CommandError(str(missing)) from missing
        if json:
            self.stdout.write(render_json(hold_calls.BreakerDetail, hold_calls.detail(viewer, found, now)))
            return
        self.stdout.write(f"{terminal_line(breaker_page.sentence(found, now), 300)}.")
        if found.awaits:
            act = "return it to automatic" if force == AUTO else f"force it {force}"
            self.stdout.write(f"Asked to {act}. {found.awaits}")
            return
        if force in (None, AUTO):
            for one in breaker_history.events(viewer, found.source, found.name)[:MOST_HISTORY]:
                self.stdout.write(
                    f"{one.at:%Y-%m-%d %H:%M:%S}  {one.to_state:9}  {terminal_line(one.why, 200)}".rstrip()
                )
        else:
            self.stdout.write(f"Undo: {COMMAND} breaker {name} --force auto")
