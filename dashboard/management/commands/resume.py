"""`resume`: end a pause, from a terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.holds import api_shapes
from dashboard.management.json_answers import render_json
from jobs_admin import holds
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import terminal_line
from jobs_admin.management import terminal
from jobs_admin.management.terminal import parse_number


class Command(BaseCommand):
    help = "Resume a paused queue or task. All that waits starts as fast as workers take it."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("pause", type=parse_number, help="Number of the pause, as `pause` lists it.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def handle(self, *, pause: int, json: bool, **_: Any) -> None:
        viewer = terminal.viewer()
        try:
            ended = holds.resume(viewer, pause)
        except Refused as refused:
            raise CommandError(refused.message) from refused
        except NotFound as missing:
            raise CommandError(str(missing)) from missing
        if json:
            self.stdout.write(render_json(api_shapes.PauseItem, api_shapes.pause(viewer, ended)))
            return
        what = f"queue {ended.queue}" if ended.queue else f"task {ended.task}"
        self.stdout.write(
            f"Resumed: {terminal_line(f'{what} of {ended.source}', 150)}. Waiting jobs start as workers take them."
        )
