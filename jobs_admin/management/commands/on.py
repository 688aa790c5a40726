"""`manage.py on`: let the guard in all workers record again, within two seconds."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from jobs_admin.management.switch import ON, turn


class Command(BaseCommand):
    help = "Switch on the guard in all workers within two seconds: failures are recorded again."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        changed = turn(ON)
        self.stdout.write("The guard is on." if changed else "The guard is already on. Nothing was changed.")
