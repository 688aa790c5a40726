"""`manage.py off`: silence the guard in all workers within two seconds. Jobs run on, unrecorded."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import Q

from jobs_admin.management.switch import OFF, turn
from jobs_admin.models import Replay
from jobs_admin.models.replay import SENDING


class Command(BaseCommand):
    help = "Silence the guard in all workers within two seconds. Jobs run on; their failures are not recorded."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        changed = turn(OFF)
        self.stdout.write(
            "The guard is off: workers record nothing from now on. `manage.py on` ends this."
            if changed
            else "The guard was off already. Nothing was changed."
        )
        running = Replay.objects.filter(Q(state__in=SENDING) | Q(sent__gt=0) | Q(running__gt=0)).count()
        if running:
            what = "1 running replay gets" if running == 1 else f"{running:,} running replays get"
            self.stdout.write(f"{what} no outcomes meanwhile. Pause what should wait for them.")
