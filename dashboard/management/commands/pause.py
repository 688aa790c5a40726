"""`pause`: pause a queue, task, tenant or dependency of a source, from a terminal; without arguments, list pauses."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.holds import api as hold_calls
from dashboard.web.api import shapes
from dashboard.web.api.shapes import render_json
from jobs_admin import holds
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.installation import COMMAND
from jobs_admin.management import terminal
from jobs_admin.management.terminal import moment, parse_length, table
from jobs_admin.models import Pause
from jobs_admin.models.hold import KINDS


class Command(BaseCommand):
    help = "Pause a queue, task, tenant or dependency of a source. Without arguments, list open pauses."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", nargs="?", type=representable, help="Name of the source.")
        place = parser.add_mutually_exclusive_group()
        place.add_argument("--queue", default="", type=representable, help="Queue to pause.")
        place.add_argument("--task", default="", type=representable, help="Task to pause, on all queues.")
        place.add_argument("--tenant", default="", type=representable, help="Tenant to pause, on all queues.")
        place.add_argument(
            "--dependency", default="", type=representable, help="Dependency to pause: a breaker's name."
        )
        parser.add_argument("--reason", default="", help="Reason, shown wherever the pause is.")
        parser.add_argument(
            "--for", dest="for_", type=parse_length, metavar="LENGTH", help="15m, 4h; default: until resumed."
        )
        parser.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def handle(self, *, source: str | None, json: bool, **options: Any) -> None:
        viewer = terminal.viewer()
        if source is None:
            if any(options[name] for name in (*KINDS, "reason")):
                raise CommandError("Name the source first, as in `pause shop --queue emails`. Nothing was changed.")
            self._list(json=json)
            return
        length = options["for_"]
        try:
            made = holds.pause(
                viewer, source, **{kind: options[kind] for kind in KINDS}, reason=options["reason"],
                for_s=int(length.total_seconds()) if length else None,
            )  # fmt: skip
        except Refused as refused:
            raise CommandError(refused.message) from refused
        except NotFound as missing:
            raise CommandError(str(missing)) from missing
        if json:
            self.stdout.write(render_json(hold_calls.PauseItem, hold_calls.pause(viewer, made)))
            return
        end = f"until {moment(made.until)} UTC" if made.until else "until resumed"
        self.stdout.write(f"Pause {made.pk}: {_place(made)} is paused {end}. Running jobs finish.")
        if (reach := holds.reach(viewer, [made])[made.pk]).is_doubtful:
            self.stdout.write(reach.sentence)
        self.stdout.write(f"Undo: {COMMAND} resume {made.pk}")

    def _list(self, *, json: bool) -> None:
        viewer = terminal.viewer()
        found = holds.listing(viewer)
        if json:
            items = hold_calls.pauses(viewer, found)
            answer = shapes.listed(items, lambda one: one, next=None, count=len(items))
            self.stdout.write(render_json(shapes.Listed[hold_calls.PauseItem], answer))
            return
        if not found:
            self.stdout.write("Nothing is paused.")
            return
        known = holds.reach(viewer, found)
        rows = [("PAUSE", "SINCE (UTC)", "UNTIL (UTC)", "BY", "PAUSED", "WORKERS", "REASON")]
        for one in found:
            reach = known[one.pk]
            workers = f"{reach.obeying}/{reach.workers}" if reach.is_known else "?"
            until = moment(one.until) if one.until else "resumed"
            texts = (terminal_line(one.created_by, 30), _place(one), workers, terminal_line(one.reason, 100))
            rows.append((str(one.pk), moment(one.created_at), until, *texts))
        for text in table(rows):
            self.stdout.write(text)


def _place(one: Pause) -> str:
    return terminal_line(f"{one.kind} {one.name} of {one.source}", 150)
