import json
from datetime import UTC, datetime

from django.db import migrations, models

_TRUNCATED, _NO_MESSAGE, _EXPIRES = 1, 2, 8
_LOOKED_AT = 100_000  # failures, the newest dead ones, whose headers are read for an expiry: each is a look at a long row


def tell_known(apps, schema_editor):
    """What the tables tell of messages that came before: their size, whether there is one, and whether it expires.

    Who is in a chord stands only inside the message, which is not opened here: such a job is not told apart.
    """
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE jobs_admin_failure SET caveats = {_TRUNCATED} WHERE id IN (SELECT part.failure_id "
            "FROM jobs_admin_payload part WHERE NOT part.is_whole AND NOT EXISTS (SELECT 1 FROM jobs_admin_payload kept "
            "WHERE kept.failure_id = part.failure_id AND kept.is_whole))"
        )
        cursor.execute(
            f"UPDATE jobs_admin_failure SET caveats = {_NO_MESSAGE} WHERE id IN (SELECT id FROM jobs_admin_failure job "
            "WHERE NOT EXISTS (SELECT 1 FROM jobs_admin_payload kept WHERE kept.failure_id = job.id))"
        )
        cursor.execute(
            "SELECT id, headers FROM jobs_admin_failure WHERE id IN (SELECT id FROM jobs_admin_failure "
            f"WHERE state = 'dead' ORDER BY id DESC LIMIT {_LOOKED_AT}) AND headers LIKE %s",
            ['%"expires": "%'],
        )
        expiring = [(pk, at) for pk, headers in cursor.fetchall() if (at := _expiry(headers))]
        cursor.executemany(
            f"UPDATE jobs_admin_failure SET caveats = COALESCE(caveats, 0) + {_EXPIRES}, expires_at = %s WHERE id = %s",
            [(connection.ops.adapt_datetimefield_value(at), pk) for pk, at in expiring],
        )


def _expiry(headers):
    try:
        at = datetime.fromisoformat(json.loads(headers)["expires"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


class Migration(migrations.Migration):
    dependencies = [("jobs_admin", "0004_controlled_replays")]

    operations = [
        migrations.AddField(
            model_name="failure",
            name="caveats",
            field=models.SmallIntegerField(blank=True, help_text="Bits of `Caveat`; null for none.", null=True),
        ),
        migrations.AddField(
            model_name="failure",
            name="expires_at",
            field=models.DateTimeField(blank=True, help_text="When its message says it is of no more use.", null=True),
        ),
        migrations.RunPython(tell_known, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name="failure",
            index=models.Index(
                condition=models.Q(("caveats__isnull", False)),
                fields=["state", "caveats", "expires_at", "id"],
                name="failure_with_caveat",
            ),
        ),
    ]
