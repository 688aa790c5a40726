from django.db import migrations, models

from jobs_admin.db.migration_operations import AddIndexConcurrently


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("jobs_admin", "0027_unfiled_defaults")]

    operations = [
        migrations.AddField(
            model_name="group",
            name="dependency",
            field=models.CharField(
                blank=True, db_default="", default="", help_text="Set by a person; empty: derived for each source.", max_length=120
            ),
        ),
        migrations.AddField(
            model_name="groupsource",
            name="dependency",
            field=models.CharField(
                blank=True, db_default="", default="", help_text="What failed these jobs; empty: nothing known.", max_length=120
            ),
        ),
        migrations.AddField(
            model_name="groupsource",
            name="dependency_reason",
            field=models.CharField(blank=True, db_default="", default="", max_length=200),
        ),
        migrations.AddField(
            model_name="groupsource",
            name="dependency_by",
            field=models.CharField(
                blank=True, db_default="", default="", help_text="Who set the dependency; empty: derived.", max_length=150
            ),
        ),
        migrations.AddField(
            model_name="groupsource",
            name="dependency_stamp",
            field=models.IntegerField(blank=True, null=True),
        ),
        AddIndexConcurrently(
            model_name="groupsource",
            index=models.Index(
                condition=models.Q(("dependency__gt", "")), fields=["source", "dependency"], name="group_dependency"
            ),
        ),
        AddIndexConcurrently(
            model_name="groupsource",
            index=models.Index(fields=["dependency_stamp"], name="group_dependency_stamp"),
        ),
    ]
