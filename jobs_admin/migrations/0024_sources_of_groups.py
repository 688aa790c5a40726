from collections import defaultdict

import django.db.models.deletion
from django.db import migrations, models

_AT_ONCE = 1_000


def fill_groups(apps, schema_editor):
    """Give each group its parts: its own text where it is of one source, else that of the newest failure at each.

    Failures of one fingerprint have the same frames, so the group's culprit; those of a merged group may not, and have none here.
    """
    names, alias = ("Group", "FailureCount", "Failure", "GroupAlias", "GroupSource"), schema_editor.connection.alias
    models_of_then = (apps.get_model("jobs_admin", name).objects.using(alias) for name in names)
    groups, counts, failures, aliases, parts = models_of_then
    sources = defaultdict(set)
    of_jobs = defaultdict(set)
    for group, source, n in (
        counts.filter(group_id__gt=0).values_list("group_id", "source").annotate(n=models.Sum("count"))
    ):
        sources[group].add(source)
        if n:
            of_jobs[group].add(source)
    merged = set(aliases.values_list("group_id", flat=True))
    made = []
    for group in groups.iterator(chunk_size=_AT_ONCE):
        theirs = sources.get(group.pk, set())
        for source in sorted(theirs if len(theirs) == 1 else of_jobs[group.pk]):
            text = (
                group.error_type,
                group.message,
                group.culprit,
                group.first_seen,
                group.first_release,
                group.last_seen,
            )
            if len(theirs) > 1:
                newest = failures.filter(group_id=group.pk, source=source).order_by("-pk").first()
                if newest is None:
                    continue
                title = " ".join(newest.message.split())[:500]
                culprit = "" if group.pk in merged else group.culprit
                since = newest.first_failed_at, newest.release, newest.failed_at
                text = (newest.error_type, title, culprit, *since)
            columns = ("error_type", "message", "culprit", "first_seen", "first_release", "last_seen")
            made.append(parts.model(group_id=group.pk, source=source, **dict(zip(columns, text, strict=True))))
        if len(made) >= _AT_ONCE:
            parts.bulk_create(made)
            made = []
    parts.bulk_create(made)


class Migration(migrations.Migration):
    dependencies = [("jobs_admin", "0023_source_keys")]

    operations = [
        migrations.CreateModel(
            name="GroupSource",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("source", models.CharField(max_length=63)),
                ("error_type", models.CharField(max_length=255)),
                (
                    "message",
                    models.CharField(
                        help_text="As in the group: of its first failure at this source.", max_length=500
                    ),
                ),
                ("culprit", models.CharField(blank=True, max_length=255)),
                ("first_seen", models.DateTimeField()),
                ("first_release", models.CharField(blank=True, max_length=100)),
                ("last_seen", models.DateTimeField()),
                (
                    "group",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="of_sources",
                        to="jobs_admin.group",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("group", "source"), name="one_row_per_group_and_source")
                ],
            },
        ),
        migrations.RunPython(fill_groups, migrations.RunPython.noop),
    ]
