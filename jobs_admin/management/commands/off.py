"""`manage.py off`: silence the guard in all workers within two seconds. Jobs run on, unrecorded."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import Q

from jobs_admin.installation import COMMAND
from jobs_admin.management.switch import OFF, turn
from jobs_admin.models import Replay
from jobs_admin.models.replay import SENDING


class Command(BaseCommand):
    help = "Switch off the guard in all workers within two seconds. Jobs keep running; failures are not recorded."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        changed = turn(OFF)
        self.stdout.write(
            f"The guard is off: workers record nothing. Run `{COMMAND} on` to re-enable recording."
            if changed
            else "The guard is already off. Nothing was changed."
        )
        running = Replay.objects.filter(Q(state__in=SENDING) | Q(sent__gt=0) | Q(running__gt=0)).count()
        if running:
            what = "1 running replay gets" if running == 1 else f"{running:,} running replays get"
            self.stdout.write(f"{what} no outcomes in the meantime. Pause replays that should wait for outcomes.")
