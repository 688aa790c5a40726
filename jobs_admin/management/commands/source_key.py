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
    help = "Create, list or revoke the keys that workers of a source sign reports with. A new key is printed once."
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand.replace("_", "-"), **kwargs)

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        create = acts.add_parser("create", help="Create an additional key of the source, and print the key once.")
        create.add_argument("source")
        acts.add_parser("list", help="List source, ID and times of every key.")
        revoke = acts.add_parser("revoke", help="Revoke a key immediately: reports signed with the key are refused.")
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
                    f"Key {key.id} of source {source} created. The key is not shown again. Set it for each worker "
                    f"of {source} and restart the workers."
                )
            else:
                revoked = source_keys.revoke(terminal.viewer(), key_id, timezone.now())
                self.stderr.write(f"Key {key_id} of source {revoked.source} revoked.")
        except (ValueError, NotFound) as error:
            raise CommandError(str(error)) from error


def listing() -> list[str]:
    """A line for each key, by source, below a line of headings."""
    rows = [("SOURCE", "ID", "CREATED (UTC)", "BY", "LAST USED (UTC)", "REVOKED (UTC)")]
    for key in SourceKey.objects.order_by("source", "-pk"):
        times = [moment(at) for at in (key.created_at, key.last_used_at, key.revoked_at)]
        rows.append((key.source, key.key_id, times[0], key.created_by[:40], *times[1:]))
    return table(rows)
