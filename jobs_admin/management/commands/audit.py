"""`manage.py audit verify` checks the audit, `audit export` prints it.

`audit accept --reason …` accepts its end after a restored backup.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError

from jobs_admin import config
from jobs_admin.db import audit_anchor, audit_export
from jobs_admin.management import terminal
from jobs_admin.models.access import Viewer


class Command(BaseCommand):
    help = "Verify the audit's chain and its end against the anchor in the store; export it; accept the end after a restore."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        verify = acts.add_parser("verify", help="Verify the audit. Exit code 1 if an entry was changed or is missing.")
        verify.add_argument(
            "--head",
            metavar="NUMBER:MAC",
            help="Head to compare as well, from a notice (Audit head) or the log of watch.",
        )
        accept = acts.add_parser("accept", help="Accept the latest entry as the end, such as after restoring a backup.")
        accept.add_argument("--reason", required=True, help="Reason why entries are missing, recorded in the audit.")
        export = acts.add_parser("export", help="Print the audit as JSON lines or CSV, oldest first.")
        export.add_argument("--form", choices=("jsonl", "csv"), default="jsonl")
        export.add_argument(
            "--act", dest="act_prefix", default="", help="Only actions that start with this, such as replay."
        )
        export.add_argument("--object", default="", help="Only this object, such as replay:12.")
        export.add_argument("--after", type=int, default=0, metavar="ID", help="Only entries with a higher id.")
        acts.metavar = "{" + ",".join(acts.choices) + "}"

    def handle(self, *, act: str, reason: str = "", head: str | None = None, **options: Any) -> None:
        if act == "export":
            chosen = {"act": options["act_prefix"], "object": options["object"], "after": options["after"]}
            piece = b""
            for piece in audit_export.stream(terminal.viewer(), options["form"], **chosen):
                self.stdout.write(piece.decode(), ending="")
            if not audit_export.is_complete(piece):
                raise CommandError(
                    "The export stopped early, and the file is incomplete. The error is in the log. Export again."
                )
            return
        if act == "accept":
            if config.is_read_only():
                raise CommandError(config.READ_ONLY)
            if not reason.strip():
                raise CommandError("--reason is empty. State why entries are missing. Nothing was changed.")
            try:
                accepted = audit_anchor.accept(Viewer("manage.py audit"), reason.strip())
            except (redis.RedisError, config.BadConfiguration) as error:
                raise CommandError(f"{error} (REDRIVE_REDIS_URL). Nothing was changed.") from error
            self.stdout.write(f"The audit is anchored at entry {accepted.id}, which records the reason.")
            return
        findings = audit_anchor.findings()
        if head is not None:
            try:
                findings += filter(None, [audit_anchor.compare(head)])
            except ValueError as error:
                raise CommandError(
                    "--head must be NUMBER:MAC, such as 1204:9f86d081884c7d65, with at least 16 digits of the MAC."
                ) from error
        for one in findings:
            self.stdout.write(f"{one.text}\n→ {one.fix}")
        if findings:
            raise SystemExit(1)
        latest = audit_anchor.head()
        self.stdout.write(
            f"The chain is intact up to entry {latest.id}, MAC {latest.mac}." if latest else "The audit is empty."
        )
        if head is not None:
            self.stdout.write(f"Entry {head.partition(':')[0]} matches the given head.")
