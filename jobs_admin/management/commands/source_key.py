"""Keys that sign reports: `source-key create SOURCE`, `list`, `revoke ID`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core.refused import NotFound
from jobs_admin.management import terminal
from jobs_admin.management.terminal import moment, table
from jobs_admin.models import SourceKey
from jobs_admin.trust import source_keys
from jobs_admin.trust.source_keys import VARIABLE


class Command(BaseCommand):
    help = "Make, list or revoke the keys with which workers of a source sign their reports. A new one is shown once."
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand.replace("_", "-"), **kwargs)

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        create = acts.add_parser("create", help="Make a key beside those that the source has, and print it once.")
        create.add_argument("source")
        acts.add_parser("list", help="Source, id and times of every key.")
        revoke = acts.add_parser("revoke", help="End a key at once: reports signed with it are refused.")
        revoke.add_argument("key_id", metavar="ID")
        acts.metavar = "{" + ",".join(acts.choices) + "}"

    def handle(self, *, act: str, source: str = "", key_id: str = "", **options: object) -> None:
        if act == "list":
            for line in listing():
                self.stdout.write(line)
            return
        if config.is_read_only():
            raise CommandError(config.READ_ONLY)
        try:
            if act == "create":
                key = source_keys.create(terminal.viewer(), source)
                self.stdout.write(f"{VARIABLE}={key}")
                self.stderr.write(
                    f"Key {key.id} of source {source} is made. It is not shown again. Set it for each worker of {source}, and restart them."
                )
            else:
                revoked = source_keys.revoke(terminal.viewer(), key_id, timezone.now())
                self.stderr.write(f"Key {key_id} of source {revoked.source} is revoked.")
        except (ValueError, NotFound) as error:
            raise CommandError(str(error)) from error


def listing() -> list[str]:
    """A line for each key, by source, below a line of headings."""
    rows = [("SOURCE", "ID", "CREATED", "BY", "LAST USED", "REVOKED")]
    for key in SourceKey.objects.order_by("source", "-pk"):
        times = [moment(at) for at in (key.created_at, key.last_used_at, key.revoked_at)]
        rows.append((key.source, key.key_id, times[0], key.created_by[:40], *times[1:]))
    return table(rows)
