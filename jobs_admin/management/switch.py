"""The switch that silences the guard in all workers, and who turned it."""

from __future__ import annotations

import redis
from django.core.management.base import CommandError
from django.db import DatabaseError, transaction

from jobs_admin import audit, config
from jobs_admin.core import keys
from jobs_admin.models.access import Viewer


def turn(*, on: bool) -> bool:
    """Whether it was the other way before. Raises CommandError; then nothing was changed."""
    try:
        store = config.store()
        if (store.get(keys.switch()) != b"off") is on:
            return False
        with transaction.atomic():
            before, after = ("off", "on") if on else ("on", "off")
            audit.record(Viewer(f"manage.py {after}"), f"guard.{after}", "guard", before=before, after=after)
            if on:
                store.delete(keys.switch())
            else:
                store.set(keys.switch(), "off")
    except (config.BadConfiguration, redis.RedisError) as error:
        raise CommandError(f"Nothing was changed: {error} (REDRIVE_REDIS_URL)") from error
    except DatabaseError as error:
        # The workers may need silence just when our database is down: say how without us.
        without_us = "DEL" if on else "SET"
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]  # PostgreSQL adds the statement
        raise CommandError(
            f"Nothing was changed, because it could not be written down ({said}). Without a record: "
            f"redis-cli -u <REDRIVE_REDIS_URL> {without_us} {keys.switch()}{'' if on else ' off'}"
        ) from error
    return True
