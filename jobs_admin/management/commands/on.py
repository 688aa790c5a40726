"""`manage.py on`: let the guard in all workers record again, within two seconds."""

from __future__ import annotations

from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError

from jobs_admin import config
from jobs_admin.core import keys


class Command(BaseCommand):
    help = "Let the guard in all workers record failures again, within two seconds."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            was_off = config.store().delete(keys.switch())
        except (config.BadConfiguration, redis.RedisError) as error:
            raise CommandError(f"Nothing was changed: {error} (REDRIVE_REDIS_URL)") from error
        self.stdout.write("The guard is on." if was_off else "The guard was on already. Nothing was changed.")
