from django.db import migrations, models

_HELP = "Id of the key of `body`. Null: not determined yet."


class Migration(migrations.Migration):
    dependencies = [("jobs_admin", "0020_highest_item")]

    operations = [
        migrations.AddField(
            model_name="payload",
            name="payload_key",
            field=models.CharField(editable=False, help_text=_HELP, max_length=8, null=True),
        ),
        migrations.AddIndex(
            model_name="payload", index=models.Index(fields=["payload_key", "id"], name="payload_by_key")
        ),
        migrations.AddField(
            model_name="unfiled",
            name="payload_key",
            field=models.CharField(editable=False, help_text=_HELP, max_length=8, null=True),
        ),
        migrations.AddIndex(
            model_name="unfiled", index=models.Index(fields=["payload_key", "id"], name="unfiled_by_key")
        ),
    ]
