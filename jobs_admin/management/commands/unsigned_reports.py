"""For how long unsigned reports are accepted: `unsigned-reports`, `--until DATE`, `--end`."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs_admin.core.refused import Refused
from jobs_admin.management import terminal
from jobs_admin.trust import admission


class Command(BaseCommand):
    help = "Show until when unsigned reports are accepted and which sources do not sign yet; extend or end the period."
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand.replace("_", "-"), **kwargs)

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_mutually_exclusive_group()
        acts.add_argument(
            "--until",
            metavar="DATE",
            help="Accept unsigned reports until this date (UTC), such as 2026-12-24; at most 90 days ahead.",
        )
        acts.add_argument("--end", action="store_true", help="Refuse unsigned reports from now on.")

    def handle(self, *, until: str | None, end: bool, **options: object) -> None:
        now = timezone.now()
        try:
            if until:
                admission.extend(terminal.viewer(), _date(until), now)
            elif end:
                admission.end(terminal.viewer(), now)
        except Refused as error:
            raise CommandError(str(error)) from error
        state = admission.state(terminal.viewer(), timezone.now())
        if state.is_unsigned_open and state.unsigned_until:
            self.stdout.write(f"Unsigned reports are accepted until {state.unsigned_until:%Y-%m-%d %H:%M} UTC.")
        else:
            self.stdout.write("Unsigned reports are not accepted.")
        if state.unsigned_sources:
            self.stdout.write(f"Sources that do not sign yet: {', '.join(state.unsigned_sources)}.")


def _date(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"{text!r} is not a date such as 2026-12-24. Nothing was changed.") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
