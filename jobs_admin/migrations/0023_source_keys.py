from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs_admin", "0022_entry_names"),
    ]

    operations = [
        migrations.CreateModel(
            name="RefusedReports",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "source",
                    models.CharField(blank=True, help_text="Empty: unknown sources beyond the bound.", max_length=63),
                ),
                ("cause", models.CharField(max_length=10)),
                ("refused", models.PositiveBigIntegerField(default=0, help_text="All that were refused.")),
                ("dropped", models.PositiveBigIntegerField(default=0, help_text="Those of them that were not stored.")),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("why", models.TextField(help_text="Of the latest one.")),
            ],
            options={
                "verbose_name_plural": "refused reports",
            },
        ),
        migrations.CreateModel(
            name="SourceKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("source", models.CharField(max_length=63)),
                (
                    "key_id",
                    models.CharField(
                        help_text="Named in each report that is signed with it.", max_length=12, unique=True
                    ),
                ),
                ("sealed", models.TextField(editable=False, help_text="Fernet token of the key.")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("created_by", models.CharField(max_length=150)),
                (
                    "last_used_at",
                    models.DateTimeField(
                        blank=True, help_text="Latest report signed with it, to the minute.", null=True
                    ),
                ),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="UnsignedReports",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("until", models.DateTimeField()),
                (
                    "accepted_sources",
                    models.PositiveIntegerField(
                        default=0, help_text="Unknown sources that were accepted automatically so far."
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "unsigned reports",
            },
        ),
        migrations.AddField(
            model_name="source",
            name="signed_since",
            field=models.DateTimeField(help_text="When its first signed report was filed.", null=True),
        ),
        migrations.AddField(
            model_name="source",
            name="unsigned_at",
            field=models.DateTimeField(
                help_text="When its latest unsigned report was filed, to the minute.", null=True
            ),
        ),
        migrations.AddField(
            model_name="unfiled",
            name="cause",
            field=models.CharField(blank=True, help_text="Why the desk refused it, in a word.", max_length=10),
        ),
        migrations.AddField(
            model_name="unfiled",
            name="source",
            field=models.CharField(blank=True, help_text="The source that it names; empty: not known.", max_length=63),
        ),
        migrations.AddIndex(
            model_name="unfiled",
            index=models.Index(
                condition=models.Q(("cause__gt", "")), fields=["source", "cause", "id"], name="unfiled_by_cause"
            ),
        ),
        migrations.AddConstraint(
            model_name="refusedreports",
            constraint=models.UniqueConstraint(fields=("source", "cause"), name="one_row_per_source_and_cause"),
        ),
        migrations.AddIndex(
            model_name="sourcekey",
            index=models.Index(fields=["source"], name="source_key_by_source"),
        ),
        migrations.AddConstraint(
            model_name="unsignedreports",
            constraint=models.CheckConstraint(condition=models.Q(("id", 1)), name="one_unsigned_reports_row"),
        ),
    ]
