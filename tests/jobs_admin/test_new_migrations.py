"""A new migration lets processes of the version before run beside it (docs/how-to/write-a-migration.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.models import NOT_PROVIDED

from jobs_admin.db.migration_operations import AddIndexConcurrently, RemoveIndexConcurrently

# The last migration of each release, oldest first. Those up to the first one were written before this rule.
RELEASES = {"0.1.0": "0024_sources_of_groups"}
# A contract step -> the migration of an earlier release that expanded the schema for it.
CONTRACTS: dict[str, str] = {}
# Tables that grow with the number of failures, or of minutes.
LARGE = {
    "attempt", "auditevent", "depthsample", "failure", "failurecount", "groupcounter", "payload", "queuecounter",
    "replayitem", "traceback", "unfiled",
}  # fmt: skip


def offences(migration: migrations.Migration, state: ProjectState) -> Iterator[str]:
    """Yield a sentence for each operation that old and new processes cannot share. `state`: before the migration."""
    made: set[str] = set()
    state = state.clone()
    for operation in flat(migration.operations):
        table = str(getattr(operation, "model_name", "") or getattr(operation, "name", "")).lower()
        if isinstance(operation, migrations.CreateModel):
            made.add(table)
        elif table not in made and (why := offence(operation, table, state)):
            yield f"{migration.name}: {why}"
        operation.state_forwards("jobs_admin", state)
    concurrent = any(isinstance(one, AddIndexConcurrently | RemoveIndexConcurrently) for one in migration.operations)
    if concurrent and migration.atomic:
        yield f"{migration.name}: an index is built concurrently only outside a transaction: set atomic = False."


def flat(operations: list) -> Iterator[migrations.operations.base.Operation]:
    for operation in operations:
        if isinstance(operation, migrations.SeparateDatabaseAndState):
            yield from operation.database_operations
        else:
            yield operation


def offence(operation: object, table: str, state: ProjectState) -> str:
    match operation:
        case migrations.DeleteModel() | migrations.RenameModel() | migrations.AlterModelTable():
            return f"the table {table} is dropped or renamed while older processes use it."
        case migrations.RemoveField(name=name) | migrations.RenameField(old_name=name):
            return f"{table}.{name} is dropped or renamed while older processes use it."
        case migrations.AddField(name=name, field=field) if is_required(field):
            return f"{table}.{name} is NOT NULL without db_default: rows of older processes lack it."
        case migrations.AlterField(name=name, field=field):
            before = state.models["jobs_admin", table].fields[name]
            if before.db_type(connection) != field.db_type(connection):
                return f"the type of {table}.{name} is changed, which locks the table and rewrites it."
            if before.null and not field.null:
                return f"{table}.{name} becomes NOT NULL, which older processes may not know."
        case AddIndexConcurrently() | RemoveIndexConcurrently():
            return ""
        case migrations.AddIndex() if table in LARGE:
            return f"the index on the large table {table} is not built concurrently."
        case migrations.AddConstraint() if table in LARGE:
            return f"the constraint on the large table {table} locks it while all rows are checked."
        case migrations.RunSQL():
            return "what SQL does is not known here."
    return ""


def is_required(field: models.Field) -> bool:
    return not field.null and not field.many_to_many and field.db_default is NOT_PROVIDED


def released(name: str) -> int:
    """Return the place of the release that a migration is in, from 0; of one that is in none yet, their number."""
    return next((place for place, last in enumerate(RELEASES.values()) if name <= last), len(RELEASES))


def is_contract(name: str) -> bool:
    expand = CONTRACTS.get(name)
    return expand is not None and released(expand) < released(name)


def test_no_new_migration_breaks_processes_of_the_version_before():
    loader = MigrationLoader(None)
    names = sorted(name for app, name in loader.disk_migrations if app == "jobs_admin")
    found = []
    for name in names:
        if released(name) > 0 and not is_contract(name):
            before = loader.project_state(("jobs_admin", name), at_end=False)
            found += offences(loader.disk_migrations["jobs_admin", name], before)
    assert not found, "\n".join(found)
    assert set(CONTRACTS) <= set(names) and set(CONTRACTS.values()) <= set(names)


REFUSED = {
    "drops a column": migrations.RemoveField("failure", "tenant"),
    "renames a column": migrations.RenameField("failure", "tenant", "customer"),
    "drops a table": migrations.DeleteModel("Release"),
    "renames a table": migrations.RenameModel("Release", "Deploy"),
    "adds NOT NULL": migrations.AddField("release", "colour", models.CharField(max_length=9, default="")),
    "sets NOT NULL": migrations.AlterField("source", "sampled_at", models.DateTimeField()),
    "changes a type": migrations.AlterField("release", "version", models.BigIntegerField()),
    "locks for an index": migrations.AddIndex("failure", models.Index(fields=["host"], name="by_host")),
    "locks for a constraint": migrations.AddConstraint(
        "failure", models.CheckConstraint(condition=models.Q(attempts__gte=0), name="c")
    ),
    "SQL": migrations.RunSQL("SELECT 1"),
    "concurrent in a transaction": AddIndexConcurrently("failure", models.Index(fields=["host"], name="by_host")),
}
ALLOWED = {
    "adds a column": migrations.AddField("failure", "colour", models.CharField(max_length=9, null=True)),
    "adds a default": migrations.AddField("failure", "colour", models.CharField(max_length=9, db_default="")),
    "index of a small table": migrations.AddIndex("release", models.Index(fields=["at"], name="by_at")),
    "changes a text": migrations.AlterField("source", "sampled_at", models.DateTimeField(null=True, help_text="x")),
}


def first_offence(operation: object, atomic: bool = True) -> str:
    migration = migrations.Migration("9999_next", "jobs_admin")
    migration.operations, migration.atomic = [operation], atomic
    return next(offences(migration, MigrationLoader(None).project_state()), "")


@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED)
def test_each_kind_of_offence_is_noticed(operation):
    assert first_offence(operation)


@pytest.mark.parametrize("operation", ALLOWED.values(), ids=ALLOWED)
def test_what_both_versions_can_use_is_allowed(operation):
    assert not first_offence(operation)


def test_a_concurrent_index_outside_a_transaction_is_allowed():
    assert not first_offence(REFUSED["concurrent in a transaction"], atomic=False)


@pytest.mark.databases
@pytest.mark.django_db(transaction=True)
def test_a_concurrent_index_is_built_and_dropped_on_both_databases():
    before = MigrationLoader(None).project_state()
    add = AddIndexConcurrently("release", models.Index(fields=["at"], name="release_by_at_only"))
    after = before.clone()
    add.state_forwards("jobs_admin", after)

    def is_there() -> bool:
        with connection.cursor() as cursor:
            return "release_by_at_only" in connection.introspection.get_constraints(cursor, "jobs_admin_release")

    with connection.schema_editor(atomic=False) as editor:
        add.database_forwards("jobs_admin", editor, before, after)
    assert is_there()
    remove, removed = RemoveIndexConcurrently("release", "release_by_at_only"), after.clone()
    remove.state_forwards("jobs_admin", removed)
    with connection.schema_editor(atomic=False) as editor:
        remove.database_forwards("jobs_admin", editor, after, removed)
    assert not is_there()


def test_migrations_and_commands_load_without_the_optional_drivers_and_the_gateway_before_any_model():
    program = """
import sys
sys.modules |= dict.fromkeys(("psycopg", "psycopg2", "boto3", "botocore", "authlib", "joserfc"))  # they cannot be imported
import dashboard.gateway
import django
django.setup()
from django.core.management import get_commands, load_command_class
from django.db.migrations.loader import MigrationLoader
print(len(MigrationLoader(None).disk_migrations))
for name, app in get_commands().items():
    if app in ("jobs_admin", "dashboard"):
        load_command_class(app, name)
"""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "dashboard.settings", "REDRIVE_DATABASE_URL": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and int(done.stdout) > 31, done.stderr
