"""`breakers`: list breakers, from a terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from dashboard.holds import api as hold_calls
from dashboard.holds import breaker_page
from dashboard.web.api import shapes
from dashboard.web.api.shapes import render_json
from jobs_admin.core.text import terminal_line
from jobs_admin.holds import breakers
from jobs_admin.management import terminal
from jobs_admin.management.terminal import moment, table


class Command(BaseCommand):
    help = "List breakers: those that hold jobs first."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def handle(self, *, json: bool, **options: Any) -> None:
        viewer, now = terminal.viewer(), timezone.now()
        found = breakers.listing(viewer)
        if json:
            items = [hold_calls.breaker(viewer, one, now) for one in found.rows]
            answer = shapes.listed(items, lambda one: one, next=None, count=len(items))
            self.stdout.write(render_json(shapes.Listed[hold_calls.BreakerItem], answer))
            return
        if not found.is_known:
            self.stdout.write("Redrive's store does not answer: states are unknown.")
        if not found.rows:
            self.stdout.write('No breakers. Add "breaker": {} to a policy.')
            return
        rows = [("BREAKER", "SOURCE", "MODE", "STATE", "SINCE (UTC)", "HELD")]
        for one in found.rows:
            document = one.document
            count = "-" if document is None or document.on_hold is None else f"{document.on_hold:,}"
            since = moment(document.since if document else None)
            state = breaker_page.STATE_NAMES[one.state]
            rows.append((terminal_line(one.name, 60), one.source, one.mode, state, since, count))
        for text in table(rows):
            self.stdout.write(text)
