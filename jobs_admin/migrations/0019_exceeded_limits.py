from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs_admin", "0018_replay_groups"),
    ]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="overrun",
            field=models.PositiveBigIntegerField(default=0, help_text="Jobs above a limit, while it did not answer."),
        ),
        migrations.AddField(
            model_name="worker",
            name="overrun_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="worker",
            name="shared_out",
            field=models.PositiveBigIntegerField(default=0, help_text="Retries by its own share of a budget."),
        ),
        migrations.AddField(
            model_name="worker",
            name="shared_out_at",
            field=models.DateTimeField(null=True),
        ),
    ]
