"""`policies lint`: retry policies from a terminal. Each act is a module beside `jobs_admin/management/policy_lint.py`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobs_admin.management import policy_lint

ACTS = (policy_lint,)


class Command(BaseCommand):
    help = "Retry policies: lint."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")
        for act in ACTS:
            act.add(acts)

    def handle(self, *args: object, run: Any, **options: Any) -> None:
        run(self, **options)
