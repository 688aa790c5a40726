from django.db import migrations, models


def fill(apps, schema_editor):
    """Set it for replays in progress: just below their own first item.

    Of one without items, which awaits approval: just below the first item that was sent since its start; the latest item
    where there is none.
    """
    names, alias = ("Replay", "ReplayItem"), schema_editor.connection.alias
    replays, items = (apps.get_model("jobs_admin", name).objects.using(alias) for name in names)
    last = items.aggregate(models.Max("pk"))["pk__max"] or 0
    under_way = replays.filter(ended_at__isnull=True, started_at__isnull=False)
    for pk, at, first in under_way.values_list("pk", "started_at").annotate(first=models.Min("items__pk")):
        if first is None:
            first = items.filter(sent_at__gte=at).aggregate(first=models.Min("pk"))["first"] or last + 1
        replays.filter(pk=pk).update(highest_item=first - 1)


class Migration(migrations.Migration):
    dependencies = [("jobs_admin", "0019_exceeded_limits")]

    operations = [
        migrations.AddField(
            model_name="replay",
            name="highest_item",
            field=models.BigIntegerField(
                default=0, help_text="The highest item id at its start: what other replays took later is theirs."
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
