"""The switch that silences the guard in all workers, and who turned it."""

from __future__ import annotations

import redis
from django.core.management.base import CommandError
from django.db import DatabaseError, transaction

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.db import audit
from jobs_admin.models.access import Viewer

ON, OFF = "on", "off"
DRAIN = "drain"  # workers record, and hold back nothing: no policy decides


def turn(to: str) -> bool:
    """Switch the guard. Return whether it was different before. Raises CommandError; then nothing was changed."""
    try:
        store = config.store()
        before = (store.get(keys.switch()) or ON.encode()).decode("utf-8", "replace")
        if before == to:
            return False
        with transaction.atomic():
            audit.record(Viewer(f"manage.py {to}"), f"guard.{to}", "guard", before=before, after=to)
            if to == ON:
                store.delete(keys.switch())
            else:
                store.set(keys.switch(), to)
    except (config.BadConfiguration, redis.RedisError) as error:
        raise CommandError(f"Nothing was changed: {error} (REDRIVE_REDIS_URL)") from error
    except DatabaseError as error:
        # The workers may need silence just when our database is down: say how without us.
        without_us = "DEL" if to == ON else "SET"
        message = (str(error).strip().splitlines() or [type(error).__name__])[0]  # PostgreSQL adds the statement
        raise CommandError(
            f"Nothing was changed, because the change could not be recorded ({message}). To switch without a record: "
            f"redis-cli -u <REDRIVE_REDIS_URL> {without_us} {keys.switch()}{'' if to == ON else f' {to}'}"
        ) from error
    return True
