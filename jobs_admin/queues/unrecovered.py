"""How many jobs have died and not run well since: the depth that an alert may trust.

`dead` alone dips while a replay runs: a job that was sent is `replaying`, and between native retries `retrying`, and an
alert would say "resolved" although nothing is. These are counted here until they ran well. A replay that fails whole
leaves the number as it was, at every moment.
"""

from __future__ import annotations

from django.db import connection

from jobs_admin.models import Failure, FailureCount
from jobs_admin.models.failure import FailureState


def by_queue(source: str | None = None) -> dict[tuple[str, str], int]:
    """(source, queue) -> jobs; of one source, or of all."""
    mine = "AND source = %s" if source is not None else ""
    given = [] if source is None else [source]
    # One statement, so one moment: read one after the other, a job that moves in between would be missed.
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT source, queue, SUM(n) FROM (
                SELECT source, queue, count AS n FROM {FailureCount._meta.db_table} WHERE state IN (%s, %s) {mine}
                UNION ALL
                -- Between two attempts of a replay: run 1 has not died yet.
                SELECT source, queue, 1 AS n FROM {Failure._meta.db_table} WHERE state = %s AND run > 1 {mine}
            ) AS one GROUP BY source, queue
            """,
            [FailureState.DEAD, FailureState.REPLAYING, *given, FailureState.RETRYING, *given],
        )
        return {(source_, queue): int(n) for source_, queue, n in cursor.fetchall() if n}
