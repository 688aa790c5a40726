"""`manage.py off`: silence the guard in all workers within two seconds. Jobs run on, unrecorded."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from jobs_admin.management.switch import turn


class Command(BaseCommand):
    help = "Silence the guard in all workers within two seconds. Jobs run on; their failures are not recorded."

    def handle(self, *args: Any, **options: Any) -> None:
        changed = turn(on=False)
        self.stdout.write(
            "The guard is off: workers record nothing from now on. `manage.py on` ends this."
            if changed
            else "The guard was off already. Nothing was changed."
        )
