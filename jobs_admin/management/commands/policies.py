"""`policies lint | list | show | publish | put-back | withdraw`: retry policies from a terminal."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobs_admin.management import policy_acts, policy_lint

ACTS = (policy_lint, policy_acts)


class Command(BaseCommand):
    help = "Retry policies: lint, list, show, publish, put back, withdraw."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        for act in ACTS:
            act.add(acts)
        acts.metavar = "{" + ",".join(acts.choices) + "}"

    def handle(self, *args: object, run: Any, **options: Any) -> None:
        run(self, **options)
