from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs_admin", "0021_payload_keys")]

    operations = [
        migrations.AlterField(
            model_name="unfiled",
            name="entry_id",
            field=models.CharField(help_text="Its id in the stream.", max_length=120, unique=True),
        ),
    ]
