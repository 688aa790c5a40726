from django.db import migrations, models


class Migration(migrations.Migration):
    """Code of 0022 and before can store a report that it refuses: its rows have neither source nor cause."""

    dependencies = [("jobs_admin", "0026_pauses")]

    operations = [
        migrations.AlterField(
            model_name="unfiled",
            name="cause",
            field=models.CharField(
                blank=True, db_default="", default="", help_text="Why the desk refused it, in a word.", max_length=10
            ),
        ),
        migrations.AlterField(
            model_name="unfiled",
            name="source",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The source that it names; empty: not known.",
                max_length=63,
            ),
        ),
    ]
