from django.db import migrations, models
from django.db.models import F


def _hold_what_is_held(apps, schema_editor):
    """Until now the words of an event said whether it was one that holds: told here for what is held at this moment."""
    events = apps.get_model("jobs_admin", "AlertEvent").objects.using(schema_editor.connection.alias)
    events.filter(alert__held_because__gt="", n=F("alert__transitions")).update(is_held=True)


class Migration(migrations.Migration):

    dependencies = [
        ('jobs_admin', '0010_alerts_and_history'),
    ]

    operations = [
        migrations.RemoveField(
            model_name='delivery',
            name='claimed_until',
        ),
        migrations.AddField(
            model_name='alertevent',
            name='is_held',
            field=models.BooleanField(default=False, help_text='Whether something keeps it as it is from then on.'),
        ),
        migrations.AlterField(
            model_name='attempt',
            name='kind',
            field=models.CharField(choices=[('exception', 'exception'), ('retry', 'retry'), ('rejected', 'rejected'), ('worker_lost', 'worker_lost'), ('soft_limit', 'soft_limit'), ('hard_limit', 'hard_limit'), ('memory', 'memory'), ('unknown_task', 'unknown_task'), ('undecodable', 'undecodable'), ('bad_content', 'bad_content'), ('unknown_format', 'unknown_format'), ('expired', 'expired'), ('lost', 'lost'), ('success', 'success')], max_length=16),
        ),
        migrations.AlterField(
            model_name='delivery',
            name='next_try_at',
            field=models.DateTimeField(help_text='While it is being sent: when its claim runs out.', null=True),
        ),
        migrations.AlterField(
            model_name='failure',
            name='kind',
            field=models.CharField(choices=[('exception', 'exception'), ('retry', 'retry'), ('rejected', 'rejected'), ('worker_lost', 'worker_lost'), ('soft_limit', 'soft_limit'), ('hard_limit', 'hard_limit'), ('memory', 'memory'), ('unknown_task', 'unknown_task'), ('undecodable', 'undecodable'), ('bad_content', 'bad_content'), ('unknown_format', 'unknown_format'), ('expired', 'expired'), ('lost', 'lost'), ('success', 'success')], help_text='How the latest attempt ended.', max_length=16),
        ),
        migrations.RunPython(_hold_what_is_held, migrations.RunPython.noop),
    ]
