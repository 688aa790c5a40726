"""Times as whole seconds since 1970, told to and by either database: to make a time of each of a thousand rows costs more
than to read them."""

from __future__ import annotations

from datetime import datetime

from django.db import connection

from jobs_admin.queues.depths.ladder import moment


def epoch(expression: str) -> str:
    """A time as seconds since 1970."""
    if connection.vendor == "sqlite":
        return f"CAST(strftime('%%s', {expression}) AS INTEGER)"
    return f"EXTRACT(EPOCH FROM {expression})::bigint"


def told(at: int | datetime) -> object:
    """A moment as the database compares it."""
    return connection.ops.adapt_datetimefield_value(moment(at) if isinstance(at, int) else at)
