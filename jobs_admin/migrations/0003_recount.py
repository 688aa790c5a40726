from django.db import migrations

_KEY = "source, queue, task, group_id, state"


def recount(apps, schema_editor):
    """On SQLite a job that was retried under another task's name had stayed in the counter of the old one for ever.

    A counter without jobs stays, at nought: it says which sources a group had.
    """
    with schema_editor.connection.cursor() as cursor:
        if schema_editor.connection.vendor == "postgresql":
            cursor.execute("LOCK TABLE jobs_admin_failure IN SHARE MODE")  # nobody counts meanwhile
        cursor.execute("UPDATE jobs_admin_failurecount SET count = 0 WHERE count <> 0")
        cursor.execute(
            f"INSERT INTO jobs_admin_failurecount ({_KEY}, count) "
            "SELECT source, queue, task, COALESCE(group_id, 0), state, COUNT(*) FROM jobs_admin_failure WHERE true "
            "GROUP BY source, queue, task, COALESCE(group_id, 0), state "
            f"ON CONFLICT ({_KEY}) DO UPDATE SET count = excluded.count"
        )


class Migration(migrations.Migration):
    dependencies = [("jobs_admin", "0002_find_at_once")]

    operations = [migrations.RunPython(recount, migrations.RunPython.noop)]
