from django.db import migrations, models


def add_rule(apps, schema_editor):
    """Add the rule *No Progress* to existing desks, and lower the threshold of *Source Unreachable*."""
    rules = apps.get_model("jobs_admin", "Rule").objects.using(schema_editor.connection.alias)
    if not rules.filter(name="No Progress", deleted_at=None).exists():
        # A watch that starts again has some seconds to show its first round.
        rules.create(name="No Progress", metric="stalled_s", threshold=40, for_s=15, severity="critical")
    unchanged = rules.filter(name="Source Unreachable", metric="unreachable", threshold=120, clear=None)
    unchanged.filter(changed_by="").update(threshold=45)


def remove_rules(apps, schema_editor):
    """Delete the rules on a metric that older versions do not know, with their alerts."""
    apps.get_model("jobs_admin", "Rule").objects.using(schema_editor.connection.alias).filter(metric="stalled_s").delete()


METRICS = (
    "dead", "growth_per_minute", "oldest_dead_s", "failure_rate", "retry_rate", "quarantined", "unreachable", "stalled_s",
    "ingest_lag_s", "view",
)  # fmt: skip


class Migration(migrations.Migration):

    dependencies = [
        ('jobs_admin', '0016_policies_without_retries'),
    ]

    operations = [
        migrations.AddField(
            model_name='source',
            name='progress_due_at',
            field=models.DateTimeField(help_text='Time by which the reader must have made progress again. Null: not read yet.', null=True),
        ),
        migrations.RemoveConstraint(model_name='rule', name='rule_metric_is_known'),
        migrations.AlterField(
            model_name='rule',
            name='metric',
            field=models.CharField(choices=[(metric, metric) for metric in METRICS], max_length=20),
        ),
        migrations.AddConstraint(
            model_name='rule',
            constraint=models.CheckConstraint(condition=models.Q(('metric__in', METRICS)), name='rule_metric_is_known'),
        ),
        migrations.RunPython(add_rule, remove_rules),
    ]
