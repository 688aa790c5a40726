"""`resume`: end a pause, from a terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.holds import api as hold_calls
from dashboard.web.api.shapes import render_json
from jobs_admin import holds
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import terminal_line
from jobs_admin.management import terminal
from jobs_admin.management.terminal import parse_number


class Command(BaseCommand):
    help = "End a pause. Waiting jobs start as fast as workers take them, or at the careful pace."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("pause", type=parse_number, help="Number of the pause, as `pause` lists it.")
        parser.add_argument(
            "--pace", choices=holds.PACES, default=holds.AT_ONCE, help="careful: breakers hold and release the jobs."
        )
        parser.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def handle(self, *, pause: int, pace: str, json: bool, **_: Any) -> None:
        viewer = terminal.viewer()
        try:
            ended = holds.resume(viewer, pause, pace=pace)
        except Refused as refused:
            raise CommandError(refused.message) from refused
        except NotFound as missing:
            raise CommandError(str(missing)) from missing
        if json:
            self.stdout.write(render_json(hold_calls.PauseItem, hold_calls.pause(viewer, ended)))
            return
        what = f"{ended.kind} {ended.name}"
        how = "at the careful pace" if pace == holds.CAREFUL else "as workers take them"
        self.stdout.write(f"Resumed: {terminal_line(f'{what} of {ended.source}', 150)}. Waiting jobs start {how}.")
