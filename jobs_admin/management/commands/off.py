"""`manage.py off`: silence the guard in all workers within two seconds. Jobs run on, unrecorded."""

from __future__ import annotations

from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError

from jobs_admin import config
from jobs_admin.core import keys


class Command(BaseCommand):
    help = "Silence the guard in all workers within two seconds. Jobs run on; their failures are not recorded."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            config.store().set(keys.switch(), "off")
        except (config.BadConfiguration, redis.RedisError) as error:
            raise CommandError(f"Nothing was changed: {error} (REDRIVE_REDIS_URL)") from error
        self.stdout.write("The guard is off: workers record nothing from now on. `manage.py on` ends this.")
