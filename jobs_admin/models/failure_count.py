"""Number of failures in each state, by queue, task and group: always equal to a recount.

Triggers maintain it, because the state of a failure changes in many places (ingest, triage, replays, one row or 45,000
in a statement), and a number beside a link must equal what the link shows. Counting rows would cost in proportion to
their number; this costs the same for a thousand and for a million.
"""

from __future__ import annotations

from django.db import connections, models, transaction

_KEY = "source, queue, task, group_id, state"


class FailureCount(models.Model):
    source = models.CharField(max_length=63)
    queue = models.CharField(max_length=200)
    task = models.CharField(max_length=255)
    # 0 for a failure without a group: NULLs would not be equal to each other in the unique key.
    group_id = models.BigIntegerField(default=0)
    state = models.CharField(max_length=12)
    count = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["source", "queue", "task", "group_id", "state"], name="one_failure_count")
        ]
        indexes = [models.Index(fields=["group_id", "state"], name="failure_count_by_group")]


def _sqlite() -> list[str]:
    key = "{row}.source, {row}.queue, {row}.task, COALESCE({row}.group_id, 0), {row}.state"
    add = f"""
            INSERT INTO jobs_admin_failurecount ({_KEY}, count) VALUES ({key.format(row="NEW")}, 1)
            ON CONFLICT ({_KEY}) DO UPDATE SET count = count + 1;"""
    # Never inserted: a removed row was counted, unless its counter was deleted first (`flush` empties one table after
    # another).
    subtract = f"""
            UPDATE jobs_admin_failurecount SET count = count - 1 WHERE ({_KEY}) = ({key.format(row="OLD")});"""
    on = "ON jobs_admin_failure FOR EACH ROW"
    # Each attempt rewrites a job's displayed columns, including the task: most updates do not change the key.
    moved = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in _KEY.split(", "))
    triggers = {
        "insert": f"AFTER INSERT {on} BEGIN {add} END",
        "update": f"AFTER UPDATE OF {_KEY} {on} WHEN {moved} BEGIN {subtract} {add} END",
        "delete": f"AFTER DELETE {on} BEGIN {subtract} END",
    }
    statements = []
    for name, body in triggers.items():
        statements.append(f"DROP TRIGGER IF EXISTS failure_count_{name}")
        statements.append(f"CREATE TRIGGER failure_count_{name} {body}")
    return statements


def _postgresql() -> list[str]:
    # One upsert per counter and statement, in a fixed order: a row-level trigger would lock the same counter once per
    # failure, and two writers could deadlock on two counters.
    def add(old: bool, new: bool) -> str:
        parts = []
        if old:
            parts.append("SELECT source, queue, task, COALESCE(group_id, 0) AS group_id, state, -1 AS n FROM old_rows")
        if new:
            parts.append("SELECT source, queue, task, COALESCE(group_id, 0) AS group_id, state, 1 AS n FROM new_rows")
        return f"""
            INSERT INTO jobs_admin_failurecount AS held ({_KEY}, count)
            SELECT {_KEY}, SUM(n) FROM ({" UNION ALL ".join(parts)}) AS moved
            GROUP BY {_KEY} HAVING SUM(n) <> 0 ORDER BY {_KEY}
            ON CONFLICT ({_KEY}) DO UPDATE SET count = held.count + excluded.count;"""

    events = {
        "insert": ("REFERENCING NEW TABLE AS new_rows", add(False, True)),
        "update": ("REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows", add(True, True)),
        "delete": ("REFERENCING OLD TABLE AS old_rows", add(True, False)),
    }
    statements = []
    for name, (tables, body) in events.items():
        statements += [
            f"CREATE OR REPLACE FUNCTION failure_count_{name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {body} RETURN NULL; END $$",
            f"DROP TRIGGER IF EXISTS failure_count_{name} ON jobs_admin_failure",
            f"CREATE TRIGGER failure_count_{name} AFTER {name.upper()} ON jobs_admin_failure {tables} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION failure_count_{name}()",
        ]
    return statements


def install_triggers(using: str = "default", **_: object) -> None:
    """(Re)create the triggers, and recount if they were missing. Runs after every migrate; idempotent."""
    connection = connections[using]
    statements = {"sqlite": _sqlite, "postgresql": _postgresql}[connection.vendor]()
    # In one transaction: a writer sees either the old or the new triggers, never none.
    with transaction.atomic(using=using), connection.cursor() as cursor:
        were_there = has_triggers(using)
        for statement in statements:
            cursor.execute(statement)
        if not were_there:
            # SQLite drops the triggers of a table that a migration rebuilds: changes in that time were not counted.
            for statement in _RECOUNT:
                cursor.execute(statement)


def has_triggers(using: str = "default") -> bool:
    """Return whether the table of failures has its triggers. A migration killed on SQLite leaves it without."""
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(_COUNT_TRIGGERS[connection.vendor])
        return bool(cursor.fetchone()[0] == 3)


_COUNT_TRIGGERS = {
    "sqlite": "SELECT COUNT(*) FROM sqlite_master WHERE type = 'trigger' AND name GLOB 'failure_count_*'",
    "postgresql": "SELECT COUNT(*) FROM pg_trigger WHERE NOT tgisinternal AND tgrelid = 'jobs_admin_failure'::regclass "
    "AND starts_with(tgname, 'failure_count_')",
}
_RECOUNT = (
    "UPDATE jobs_admin_failurecount SET count = 0 WHERE count <> 0",
    f"INSERT INTO jobs_admin_failurecount ({_KEY}, count) "
    "SELECT source, queue, task, COALESCE(group_id, 0), state, COUNT(*) FROM jobs_admin_failure WHERE true "
    "GROUP BY source, queue, task, COALESCE(group_id, 0), state "
    f"ON CONFLICT ({_KEY}) DO UPDATE SET count = excluded.count",
)
